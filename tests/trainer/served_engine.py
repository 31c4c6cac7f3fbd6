"""An engine in a Ray actor without an environment, and the fleet of that one actor, as a push sees them."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import ray

from envs.decisions.types import Ask
from rollout_workers.actor import RolloutActor
from rollout_workers.audit import Audit
from rollout_workers.engine import GenerationEngine
from rollout_workers.fleet import Fleet
from rollout_workers.timed_policy import TimedPolicy
from rollout_workers.types import Completion, Sampling


class EngineActor(RolloutActor):
    """Serves requests one by one instead of branches."""

    async def start(self) -> None:
        self._pushed, self._held = asyncio.Event(), 0
        self._engine = GenerationEngine(self._settings.engine)
        await self._engine.load_adapters({})
        self._audit = Audit(lambda: self._engine.counts)
        self._policy = TimedPolicy(self._engine, 300.0)

    async def say(self, prompt: Sequence[int], seed: int, adapter: str | None, tokens: int) -> Completion:
        ask = Ask(node=adapter or "", messages=(), adapter=adapter)
        return await self._engine.generate(prompt, sampling=Sampling(), seed=seed, stop=(), max_tokens=tokens, ask=ask)

    async def say_across_a_push(self, prompt: Sequence[int], seed: int, adapter: str | None) -> Completion:
        """A long answer that begins when a push comes."""
        self._held += 1
        await self._pushed.wait()
        return await self.say(prompt, seed, adapter, 400)

    async def pause(self) -> None:
        """Freezes what was held until now after two tokens each, in the mean."""
        wanted = self._engine.counts.sampled + 2 * self._held
        self._held = 0
        self._pushed.set()
        for _ in range(100_000):
            if self._engine.counts.sampled >= wanted:
                break
            await asyncio.sleep(0.001)
        self._pushed.clear()
        await super().pause()


def start_engine(settings: Any) -> Any:
    # Learner ranks call the actor too, and this module is not on their path.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    options = {"max_concurrency": 100, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}}
    return ray.remote(EngineActor).options(**options).remote("rollout-0", settings)


class FleetOfOne:
    """What a `WeightPusher` needs of the fleet."""

    get = staticmethod(Fleet.get)

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def ready(self) -> list[Any]:
        return [self._actor]

    def begin_work(self, holders: Sequence[Any]) -> None:
        assert holders == [self._actor]
