"""Names of the weight-transfer backends, importable without vllm."""

GLOO = "espalier_gloo"
"""Ours, over CPU sockets: `rollout_workers/weight_transfer.py`."""

TRANSFER_BACKENDS = {"gloo": GLOO, "nccl": "nccl"}
"""vLLM's name for each value of `push.backend`."""
ADAPTERS = "ESPALIER_ADAPTERS"
"""Set in the environment of engines with adapters: the architecture whose output layer is adapted, or empty."""
