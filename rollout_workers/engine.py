"""One vLLM engine: exact token ids in, exact token ids out. With `weight_transfer.py`, the only file that imports vllm.

Owns how the engine is configured (prefix caching, block size, processed log-probabilities, weight-transfer backend) and
how its answers become `Completion` values. The same code runs on CPU and GPU; only the settings differ.
"""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from rollout_workers.types import Completion, Sampling


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
    transfer_backend: str = "espalier_gloo"
    """Name of vLLM's weight-transfer backend: `espalier_gloo` or `nccl`."""


def _set_environment(settings: EngineSettings) -> None:
    """VLLM reads these in every process it starts. They must be set before vllm is imported."""
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if settings.device == "cpu":
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
        # Spinning OpenMP threads beside other work cost a factor of five; bound threads would share one core.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"


def _arguments(settings: EngineSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
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
        "max_logprobs": 1,
        "generation_config": "vllm",
        "disable_log_stats": True,
    }
    if settings.device == "cpu":
        arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * (1 << 30))
    else:
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
    return arguments


class GenerationEngine:
    """An `AsyncLLM` with its tokenizer. Create it inside a running event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        """Starts the engine and its worker processes; blocks until the model is loaded (10-50 s)."""
        _set_environment(settings)
        from vllm import AsyncEngineArgs, SamplingParams
        from vllm.config import WeightTransferConfig
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        self._params = SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY
        transfer = WeightTransferConfig(backend=settings.transfer_backend)
        arguments = AsyncEngineArgs(weight_transfer_config=transfer, **_arguments(settings))
        self._llm = AsyncLLM.from_engine_args(arguments)
        self.tokenizer = self._llm.get_tokenizer()
        self._ids = itertools.count()
        self.version = 0

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop: Sequence[str], max_tokens: int
    ) -> Completion:
        """Samples one agent step after `prompt_ids`.

        Temperature 0 is greedy. The stop string (or end-of-sequence token) stays in the returned ids. Cancelling the
        awaiting task aborts the request in the engine.
        """
        params = self._params(
            temperature=sampling.temperature,
            seed=seed if sampling.temperature > 0 else None,
            max_tokens=max_tokens,
            logprobs=0,
            stop=list(stop),
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            output_kind=self._final_only,
        )
        final = None
        prompt = {"prompt_token_ids": list(prompt_ids)}
        async for output in self._llm.generate(cast("Any", prompt), params, f"r{next(self._ids)}"):
            final = output
        assert final is not None, "the engine gave no output"
        assert final.finished, "the engine closed a request without a final output"
        return self._completion(final)

    def _completion(self, output: Any) -> Completion:
        sample = output.outputs[0]
        token_ids = tuple(sample.token_ids)
        logprobs = tuple(step[token].logprob for token, step in zip(token_ids, sample.logprobs, strict=True))
        versions = [self.version] * len(token_ids)
        for span in sample.weight_versions or ():
            if span.version.isdigit():
                versions[span.start : span.end] = [int(span.version)] * (span.end - span.start)
        assert sample.finish_reason in ("stop", "length"), f"request ended with {sample.finish_reason}"
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            versions=tuple(versions),
            text=sample.text,
            finished=sample.finish_reason,
            prompt_tokens=len(output.prompt_token_ids),
            cached_tokens=output.num_cached_tokens or 0,
        )

    async def pause(self) -> None:
        """Freezes running requests and clears every cache, so that new weights can be loaded.

        Frozen requests keep their tokens; their keys and values are computed again under the new weights.
        """
        await self._llm.pause_generation(mode="keep", clear_cache=True)

    async def resume(self, version: int) -> None:
        """Labels the weights now loaded and lets requests run again."""
        await self._llm.update_weight_version(str(version))
        self.version = version
        await self._llm.resume_generation()

    async def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Joins the learner's transfer group."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info))

    async def start_weight_update(self) -> None:
        """Opens one push."""
        await self._llm.start_weight_update()

    async def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives the weights of one push."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update_info))

    async def finish_weight_update(self) -> None:
        """Closes one push."""
        await self._llm.finish_weight_update()

    def shutdown(self) -> None:
        """Stops the engine's processes."""
        self._llm.shutdown()
