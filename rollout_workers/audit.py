"""Whether the branches' ledgers agree with the engine's own counters, and what only those counters know."""

from collections.abc import Callable

from rollout_workers.engine_counts import EngineCounts
from rollout_workers.types import Completion, Ledger


class Audit:
    """One actor's two sets of books: every answer it used, and what its engine counted."""

    def __init__(self, read: Callable[[], EngineCounts], *, keeps_turns: bool = False) -> None:
        """`read` gives the engine's totals; what it has counted so far (warm-up) is left out.

        With `keeps_turns` several steps may be one request of the engine, which counts the prompt of the first only.
        """
        self._read = read
        self._keeps_turns = keeps_turns
        self._start = read()
        self._sampled = 0
        self._computed = 0
        self._found = 0
        """Prompt tokens from the prefix cache; those that a session kept are in no counter of the engine."""
        self._told = Ledger()
        """What earlier audits said, all together."""

    def book(self, ledger: Ledger) -> None:
        """A finished branch."""
        self._sampled += ledger.sampled_tokens
        self._computed += ledger.prefill_tokens_computed
        self._found += ledger.prefill_tokens_cached - ledger.prefill_tokens_kept

    def book_probe(self, sample: Completion) -> None:
        """An answer outside any branch."""
        self._sampled += len(sample.token_ids)
        self._computed += sample.prompt_tokens - sample.cached_tokens
        self._found += sample.cached_tokens - sample.kept_tokens

    @property
    def mismatch(self) -> int:
        """Tokens by which the books differ more than an audit has told; 0 unless a request is running."""
        return max(self._difference() - self._told.engine_mismatch, 0)

    def _difference(self) -> int:
        """Summed over what both books count, since the start."""
        engine, start = self._read(), self._start
        again = self._recomputed(engine)
        may_run_again = engine.preemptions > start.preemptions
        computed = 0 if self._keeps_turns else engine.prefill_computed - start.prefill_computed - self._computed
        return (
            abs(engine.sampled - start.sampled - self._sampled)
            + (max(-again, 0) if may_run_again else abs(again))
            + abs(computed)
            + abs(engine.prefill_cached - start.prefill_cached - self._found)
            + abs(engine.cache_hits - start.cache_hits - self._found)
        )

    def _recomputed(self, engine: EngineCounts) -> int:
        return engine.prefill_run - self._start.prefill_run - self._computed

    def take(self, mismatch: int) -> Ledger:
        """What the engine's counters add to the ledgers since the last audit, with the `mismatch` found now."""
        engine, before = self._read(), self._told
        self._told = Ledger(
            surplus_tokens=engine.surplus - self._start.surplus,
            recomputed_tokens=self._recomputed(engine),
            engine_mismatch=before.engine_mismatch + mismatch,
        )
        return Ledger(
            surplus_tokens=self._told.surplus_tokens - before.surplus_tokens,
            recomputed_tokens=self._told.recomputed_tokens - before.recomputed_tokens,
            engine_mismatch=mismatch,
        )
