"""Rollouts: vLLM actors that grow trees of agent steps, and the scheduler that decides where they grow."""
