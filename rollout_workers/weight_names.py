"""Names that engines are told: weight-transfer backends and environment variables. Importable without vllm."""

GLOO = "espalier_gloo"
"""Ours, over CPU sockets: `rollout_workers/weight_transfer.py`."""

TRANSFER_BACKENDS = {"gloo": GLOO, "nccl": "nccl"}
"""vLLM's name for each value of `push.backend`."""
SLEEPING = "ESPALIER_SLEEPING"
"""Set in the environment of engines on CPUs: see `rollout_workers/vllm_waiting.py`."""
ADAPTERS = "ESPALIER_ADAPTERS"
"""Set in the environment of engines with adapters: the architecture whose output layer is adapted, or empty."""
