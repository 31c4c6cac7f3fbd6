"""An engine with a time limit per answer, and how long it had something to do.

The limit is on the engine's own work: while a push has its requests frozen (`freeze`, `thaw`) the clocks stand still.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

from envs.decisions.types import Ask
from rollout_workers.branch import Conversational, Policy
from rollout_workers.types import Completion, Sampling


class TimedPolicy:
    """What branches sample from. Counts the seconds in which at least one of them waits for the engine."""

    def __init__(self, engine: Policy, timeout_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._clock = clock
        self._running = 0
        self._since = 0.0
        self._busy_s = 0.0
        self._limits: dict[asyncio.Timeout, float] = {}
        """Of each request in the engine its limit, and the seconds that it had left when the engine was frozen."""
        self._is_frozen = False

    @property
    def running(self) -> int:
        """Requests in the engine now."""
        return self._running

    def take_busy_s(self) -> float:
        """Seconds since the last call in which the engine had at least one request of a branch.

        A request that a push has frozen counts as in the engine.
        """
        now = self._clock()
        busy = self._busy_s + (now - self._since if self._running else 0.0)
        self._busy_s, self._since = 0.0, now
        return busy

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
        self._enter()
        try:
            async with asyncio.timeout(None if self._is_frozen else self._timeout_s) as limit:
                self._limits[limit] = self._timeout_s
                try:
                    return await engine.generate(
                        prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
                    )
                finally:
                    del self._limits[limit]
        except TimeoutError:
            raise RuntimeError(
                f"the vLLM engine did not finish one agent step within rollout.turn_timeout_s={self._timeout_s:g} s"
            ) from None
        finally:
            self._leave()

    def _enter(self) -> None:
        if self._running == 0:
            self._since = self._clock()
        self._running += 1

    def _leave(self) -> None:
        self._running -= 1
        if self._running == 0:
            self._busy_s += self._clock() - self._since


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
