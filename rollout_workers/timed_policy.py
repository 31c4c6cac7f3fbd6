"""An engine with a time limit per answer, and how much of its time each answer took.

The limit is on the engine's own work: while a push has its requests frozen (`freeze`, `thaw`) the clocks stand still.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

from envs.decisions.types import Ask
from rollout_workers.branch import Conversational, Policy
from rollout_workers.types import Completion, Sampling


class TimedPolicy:
    """What branches sample from. Each moment in which the engine has requests is shared evenly among them.

    So what all answers took adds up to the seconds in which there was at least one request. One that a push has frozen
    counts as in the engine.
    """

    def __init__(self, engine: Policy, timeout_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._clock = clock
        self._running = 0
        self._since = 0.0
        self._share_s = 0.0
        """What a request would have taken that was there from the beginning up to `_since`."""
        self._limits: dict[asyncio.Timeout, float] = {}
        """Of each request in the engine its limit, and the seconds that it had left when the engine was frozen."""
        self._is_frozen = False

    @property
    def running(self) -> int:
        """Requests in the engine now."""
        return self._running

    def freeze(self) -> None:
        """The engine samples nothing until `thaw`: no request's time runs. A second call changes nothing."""
        if self._is_frozen:
            return
        self._is_frozen, now = True, asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired() and (when := limit.when()) is not None:
                self._limits[limit] = when - now
                limit.reschedule(None)

    def thaw(self) -> None:
        """The engine goes on, and every request has the time left that it had before."""
        self._is_frozen, now = False, asyncio.get_running_loop().time()
        for limit, left_s in self._limits.items():
            if not limit.expired() and limit.when() is None:
                limit.reschedule(now + left_s)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: Ask | None = None,
    ) -> Completion:
        """Samples one agent step. Raises RuntimeError when the engine does not answer in time."""
        return await self.timed(
            self._engine, prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
        )

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Policy]:
        """All steps of one branch; as one request where the engine keeps turns."""
        async with (
            self._engine.conversation()
            if isinstance(self._engine, Conversational)
            else nullcontext(self._engine) as engine
        ):
            yield _Part(self, engine)

    async def timed(
        self,
        engine: Policy,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: Ask | None,
    ) -> Completion:
        """Asks `engine` under the time limit. Raises RuntimeError when it does not answer in time."""
        before_s = self._change(+1)
        try:
            async with asyncio.timeout(None if self._is_frozen else self._timeout_s) as limit:
                self._limits[limit] = self._timeout_s
                try:
                    sample = await engine.generate(
                        prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
                    )
                finally:
                    del self._limits[limit]
        except TimeoutError:
            raise RuntimeError(
                f"the vLLM engine did not finish one agent step within rollout.turn_timeout_s={self._timeout_s:g} s"
            ) from None
        finally:
            after_s = self._change(-1)
        return replace(sample, engine_s=after_s - before_s)

    def _change(self, by: int) -> float:
        """One request more or less; returns the share up to now."""
        now = self._clock()
        if self._running:
            self._share_s += (now - self._since) / self._running
        self._since = now
        self._running += by
        return self._share_s


class _Part:
    """One branch's share of a `TimedPolicy`."""

    def __init__(self, whole: TimedPolicy, engine: Policy) -> None:
        self._whole = whole
        self._engine = engine

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: Ask | None = None,
    ) -> Completion:
        """Samples one agent step. Raises RuntimeError when the engine does not answer in time."""
        return await self._whole.timed(
            self._engine, prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
        )
