"""Names of the weight-transfer backends, importable without vllm."""

GLOO = "espalier_gloo"
"""Ours, over CPU sockets: `rollout_workers/weight_transfer.py`."""

TRANSFER_BACKENDS = {"gloo": GLOO, "nccl": "nccl"}
"""vLLM's name for each value of `push.backend`."""
