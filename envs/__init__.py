"""Worlds that agents act in: tasks, environments, rewards and retrieval. Imports no heavy library."""
