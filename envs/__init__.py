"""Worlds that agents act in: tasks, environments, rewards and retrieval. Standard library, pydantic and an HTTP client only."""
