"""What vLLM itself counts while it runs: the independent side of the token ledger.

`StatReader` is a stat logger as `AsyncLLM` takes them: it is called once per engine step with the scheduler's and the
front end's statistics. It needs nothing of vLLM, so this module imports in milliseconds.
"""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(slots=True, kw_only=True)
class EngineCounts:
    """Totals since the engine was started, in tokens."""

    sampled: int = 0
    """Sampled tokens that were delivered to requests."""
    prefill_computed: int = 0
    """Prompt tokens run through the model when their request was first scheduled."""
    prefill_cached: int = 0
    """Prompt tokens taken from the prefix cache at that time."""
    cache_queries: int = 0
    """Prompt tokens looked up in the prefix cache; all of them, so computed + cached."""
    cache_hits: int = 0
    """Of these the ones found."""
    drawn: int = 0
    """Tokens sampled by the model, delivered or not: one per request and engine step, since prompts are never split."""
    prefill_run: int = 0
    """Tokens run through the model, less one per step for each request that only goes on sampling: new prompt tokens,
    those of a session's later chunks included, and again those of requests that lost their keys and values."""
    preemptions: int = 0
    """Requests that lost their keys and values: frozen by a push, or for lack of memory."""

    @property
    def surplus(self) -> int:
        """Sampled tokens that reached no request.

        A stop string of several tokens is found outside the engine, which has begun its next step by then.
        """
        return self.drawn - self.sampled


class StatReader:
    """Sums vLLM's statistics (0.32: `vllm.v1.metrics.stats`). Use `reader.create` as the stat logger factory."""

    def __init__(self) -> None:
        self._counts = EngineCounts()

    @property
    def counts(self) -> EngineCounts:
        """The totals so far, a copy. They lag behind the last answer by one engine step at most."""
        return replace(self._counts)

    def create(self, vllm_config: Any, engine_index: int = 0) -> "StatReader":
        """The factory that vLLM calls once per engine."""
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """One engine step. Needs `enable_logging_iteration_details`, without which `drawn` stays 0."""
        counts = self._counts
        if iteration_stats is not None:
            counts.sampled += iteration_stats.num_generation_tokens
            counts.prefill_computed += iteration_stats.prompt_token_stats.computed
            counts.prefill_cached += iteration_stats.prompt_token_stats.cached_tokens
            counts.preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        if (cache := scheduler_stats.prefix_cache_stats) is not None:
            counts.cache_queries += cache.queries
            counts.cache_hits += cache.hits
        if (step := scheduler_stats.iteration_details) is not None:
            counts.drawn += step.num_ctx_requests + step.num_generation_requests
            counts.prefill_run += step.num_ctx_tokens + step.num_generation_tokens - step.num_generation_requests

    def log(self) -> None:
        """Nothing is printed."""

    def log_engine_initialized(self) -> None:
        """Nothing is printed."""
