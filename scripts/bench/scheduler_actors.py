"""Rollout actors without engines: coroutines that speak the scheduler's protocol and answer with made-up branches.

Each simulated actor runs the loop of a real one (`rollout_workers/work_loop.py`); in place of an engine and an
environment it sleeps. Results are made beforehand, so that the simulation costs as little as possible beside the
scheduler.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import ray

from envs.types import EndReason
from rollout_workers.types import BranchResult, Ledger, NewNode, Node, WorkItem
from rollout_workers.work_loop import WorkLoop

TURN_TOKENS, OBSERVATION_TOKENS, PROMPT_TOKENS, STATE_BYTES = 20, 60, 100, 200
"""Sizes of the made-up branches."""
POOL = 128
"""Different ready-made branches per slot. What a message holds twice is pickled once, so it must hold nothing twice."""
FULL_BRANCHES = 32
"""Of a load that the scheduler can't follow: branches that an actor runs at the same time. 100,000 branches give each
of 1,024 actors as many first chains, so all have equally many at hand, and the messages of few and of many actors carry
equally much."""
PACED_BRANCHES, PACED_ITEMS_PER_ACTOR = 8, 48
"""Of a load that the scheduler can follow: branches that an actor runs at the same time, and in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How the simulated actors behave."""

    max_branches: int
    """Branches that one actor runs at the same time."""
    latency_s: float
    """Mean time of a branch."""
    spread: float
    """Standard deviation of the time's logarithm; with 1.0, 1 branch in 100 takes 6 times the mean."""
    turns: int = 3
    """Agent steps of a whole path."""
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class ActorCount:
    """What one simulated actor did."""

    branches: int = 0
    pulls: int = 0
    pushes: int = 0
    idle_s: float = 0.0
    """Seconds without a branch."""
    free_s: float = 0.0
    """Seconds of free room, summed over the branches that would fit."""


def latencies(load: Load) -> list[float]:
    """Log-normal times of mean `load.latency_s`; a branch takes the one its seed points at."""
    rng = random.Random(load.seed)
    drawn = [rng.lognormvariate(0.0, load.spread) for _ in range(4096)]
    return [value * load.latency_s * len(drawn) / sum(drawn) for value in drawn]


def made_up_nodes(slot: int, steps: int, rng: random.Random) -> tuple[NewNode, ...]:
    """A branch of `steps` agent steps that ends with an answer."""
    nodes = []
    for step in range(steps):
        is_leaf = step == steps - 1
        node = Node(
            parent=step - 1,
            token_ids=ids(TURN_TOKENS, rng),
            logprobs=tuple(-rng.random() for _ in range(TURN_TOKENS)),
            versions=(7,) * TURN_TOKENS,
            observation_ids=() if is_leaf else ids(OBSERVATION_TOKENS, rng),
            end=EndReason.ANSWERED if is_leaf else None,
            reward=rng.random() if is_leaf else None,
            score=1.0 if is_leaf else None,
            tool_calls=0 if is_leaf else 1,
            slot=slot,
        )
        state = None if is_leaf else rng.randbytes(STATE_BYTES)
        nodes.append(NewNode(node=node, state=state, action=f"action {rng.random()}"))
    return tuple(nodes)


def ids(count: int, rng: random.Random) -> tuple[int, ...]:
    """Token ids of a vocabulary of 150,000."""
    return tuple(rng.randrange(150_000) for _ in range(count))


class BranchMill:
    """Turns work items into results."""

    def __init__(self, load: Load) -> None:
        self._rng = random.Random(load.seed + 1)
        self._turns = load.turns
        self._prompt = ids(PROMPT_TOKENS, self._rng)
        self._pools: dict[tuple[int, int], Any] = {}

    def steps(self, item: WorkItem) -> int:
        """Agent steps of its branch."""
        return max(self._turns - item.turns_used, 1)

    def run(self, item: WorkItem) -> BranchResult:
        """A result that fits the item."""
        steps = self.steps(item)
        key = (item.slot, steps)
        if key not in self._pools:
            self._pools[key] = cycle([made_up_nodes(item.slot, steps, self._rng) for _ in range(POOL)])
        ledger = Ledger(
            branches=1, requests=steps, sampled_tokens=steps * TURN_TOKENS, prefill_tokens_computed=OBSERVATION_TOKENS
        )
        prompt_ids = () if item.context_ids else self._prompt
        return BranchResult(item_id=item.id, prompt_ids=prompt_ids, nodes=next(self._pools[key]), ledger=ledger)


class SimulatedActor:
    """One rollout actor: at most `load.max_branches` branches sleep at the same time."""

    def __init__(self, name: str, load: Load, mill: BranchMill, times: Sequence[float]) -> None:
        self._load = load
        self._mill = mill
        self._times = times
        self._running = 0
        self._changed_at = time.monotonic()
        self._count = ActorCount()
        self._work_loop = WorkLoop(name, free=self._free, begin=self._begin)

    async def work(self, scheduler: Any) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            self._work_loop.start(scheduler, group)

    def _free(self) -> int:
        return self._load.max_branches - self._running

    def _begin(self, items: Sequence[WorkItem]) -> None:
        loop = asyncio.get_running_loop()
        self._change(len(items))
        for item in items:
            seconds, steps = self._times[item.seed % len(self._times)], self._mill.steps(item)
            for step in range(1, steps):
                loop.call_later(seconds * step / steps, self._work_loop.stepped, item.id)
            loop.call_later(seconds, self._finish, item)

    def _finish(self, item: WorkItem) -> None:
        self._change(-1)
        self._count.branches += 1
        self._work_loop.ended(self._mill.run(item))

    def _change(self, by: int) -> None:
        now = time.monotonic()
        passed, self._changed_at = now - self._changed_at, now
        self._count.free_s += passed * self._free()
        self._count.idle_s += passed if self._running == 0 else 0.0
        self._running += by

    def reset(self) -> None:
        """Counts from now on."""
        self._change(0)
        self._count = ActorCount()
        self._work_loop.pulls = self._work_loop.pushes = 0

    def settle(self) -> ActorCount:
        """Counts up to now."""
        self._change(0)
        return replace(self._count, pulls=self._work_loop.pulls, pushes=self._work_loop.pushes)


class ActorHost:
    """A process full of simulated actors; run it as a Ray actor."""

    def __init__(self, names: Sequence[str], load: Load) -> None:
        mill, times = BranchMill(load), latencies(load)
        self._load = load
        self._actors = {name: SimulatedActor(name, load, mill, times) for name in names}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, scheduler: Any) -> None:
        """All actors begin to work."""
        for name, actor in self._actors.items():
            self._tasks[name] = asyncio.create_task(actor.work(scheduler))

    async def reset(self) -> None:
        """Forgets what was counted so far; a collection is about to begin."""
        for actor in self._actors.values():
            actor.reset()

    async def settle(self) -> Mapping[str, ActorCount]:
        """What each actor did up to now; a collection has just become complete."""
        return {name: actor.settle() for name, actor in self._actors.items()}

    async def kill(self, names: Sequence[str]) -> None:
        """These actors end with everything they had in hand."""
        for name in names:
            task = self._tasks.pop(name)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def start_host(names: Sequence[str], load: Load) -> Any:
    """Handle of a new process with simulated actors of these names."""
    remote: Any = ray.remote(ActorHost)
    return remote.options(num_cpus=0, max_concurrency=100).remote(names, load)
