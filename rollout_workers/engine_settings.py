"""How a vLLM engine is set up: its settings, and what vLLM is told of them. Imports nothing heavy."""

import os
from dataclasses import dataclass
from typing import Any, Literal

from rollout_workers.adapters import AdapterSpec
from rollout_workers.weight_names import ADAPTERS, SLEEPING

MAX_LOGPROBS = 100
"""Most log-probabilities per position that a request may ask for: the largest `rollout.entropy_topk`, and more than
`Ask.alternatives`."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256)
"""What vLLM accepts as the largest rank of its adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything an engine needs to start; plain values, so that they travel to a Ray actor."""

    model: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    max_context_tokens: int = 1024
    max_branches: int = 64
    """Requests the engine may run at once."""
    block_size: int = 32
    """Tokens per KV-cache block, the unit of prefix reuse; the CPU backend takes multiples of 32."""
    kv_cache_gib: float = 1.0
    """Memory for keys and values on CPU."""
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory the engine may use."""
    tensor_parallel: int = 1
    enforce_eager: bool = True
    trust_remote_code: bool = False
    threads: int = 1
    """OpenMP threads of a CPU worker."""
    seed: int = 0
    keep_turns: bool = False
    """Whether the steps of a branch are one resumable request, which keeps partial blocks (`rollout.keep_turns`)."""
    transfer_backend: str = "espalier_gloo"
    """Name of vLLM's weight-transfer backend: `espalier_gloo` or `nccl`."""
    adapters: tuple[AdapterSpec, ...] = ()
    """What a typed policy is answered with besides the backbone; requests name theirs (`Ask.adapter`)."""


def set_environment(settings: EngineSettings) -> None:
    """VLLM reads these in every process it starts. They must be set before vllm is imported."""
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if settings.device == "cpu":
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
        # Spinning OpenMP threads beside other work cost a factor of five; bound threads would share one core.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        os.environ[SLEEPING] = "1"
    if settings.adapters:
        os.environ[ADAPTERS] = _architecture(settings) if any(spec.head for spec in settings.adapters) else ""


def _architecture(settings: EngineSettings) -> str:
    """Name of the model's class, e.g. `"Qwen2ForCausalLM"`."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(settings.model, trust_remote_code=settings.trust_remote_code)
    return str((config.architectures or [""])[0])


def engine_arguments(settings: EngineSettings) -> dict[str, Any]:
    """What vLLM's `AsyncEngineArgs` takes, without the weight transfer."""
    found: dict[str, Any] = {
        "model": settings.model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_context_tokens,
        "max_num_seqs": settings.max_branches,
        "block_size": settings.block_size,
        "enable_prefix_caching": True,
        # A seeded request whose prompt is split over two engine steps crashes vLLM's CPU runner; prompts stay whole.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(settings.max_context_tokens, 8192),
        "enforce_eager": settings.enforce_eager,
        "seed": settings.seed,
        "tensor_parallel_size": settings.tensor_parallel,
        "trust_remote_code": settings.trust_remote_code,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": MAX_LOGPROBS,
        "generation_config": "vllm",
        # No log lines: the statistics go to our own reader only, once per engine step.
        "disable_log_stats": True,
        "enable_logging_iteration_details": True,
    }
    if settings.device == "cpu":
        found["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * (1 << 30))
    else:
        found["gpu_memory_utilization"] = settings.gpu_memory_utilization
    if settings.adapters:
        count, rank = len(settings.adapters), max(spec.rank for spec in settings.adapters)
        room = next(accepted for accepted in LORA_RANKS if accepted >= rank)
        found |= {"enable_lora": True, "max_loras": count, "max_cpu_loras": count, "max_lora_rank": room}
    return found


def check_room(settings: EngineSettings, blocks: int) -> None:
    """Sessions hold their keys and values between steps, so there must be room for all branches at their longest."""
    room, wanted = blocks * settings.block_size, settings.max_branches * settings.max_context_tokens
    if room < wanted:
        raise ValueError(
            f"rollout.keep_turns=true needs a KV cache of {wanted} tokens (rollout.max_branches="
            f"{settings.max_branches} times limits.max_context_tokens={settings.max_context_tokens}), and the engine "
            f"has {room}: give it more memory, lower one of them, or set rollout.keep_turns=false"
        )
