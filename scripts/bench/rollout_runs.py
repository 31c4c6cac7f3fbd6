"""One collection in this process: the real engine, branches and tree growth, without Ray; with or without barriers."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from envs.decisions.types import Ask
from envs.types import Env, Task
from rollout_workers import trees
from rollout_workers.actor import TokenizerCodec
from rollout_workers.audit import Audit
from rollout_workers.branch import BranchRunner, Conversational, Policy
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.engine import GenerationEngine
from rollout_workers.engine_settings import EngineSettings
from rollout_workers.growth import TreeRules
from rollout_workers.timed_policy import TimedPolicy
from rollout_workers.types import BranchResult, Completion, Forest, Ledger, Sampling, WorkItem
from scripts.bench.rollout_worlds import Unhurried

TURN_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is collected."""

    env: Env[Any]
    tasks: tuple[Task, ...]
    rules: TreeRules
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished collection."""

    forest: Forest
    ledger: Ledger
    seconds: float

    @property
    def leaves_per_1k_tokens(self) -> float:
        """Leaves per 1,000 tokens that the engine ran for them: sampled, and computed prefill."""
        return 1000 * self.ledger.leaves / (self.ledger.sampled_tokens + self.ledger.prefill_tokens_computed)

    @property
    def turns(self) -> float:
        """Mean number of agent steps from the prompt to a leaf."""
        depths = [
            trees.depths(tree)[leaf] for group in self.forest for tree in group.trees for leaf in trees.leaves(tree)
        ]
        return sum(depths) / len(depths)


class Apart:
    """Every step of a branch as a request of its own, though the engine could keep turns."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

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
        """Samples one step."""
        return await self._policy.generate(
            prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
        )

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Policy]:
        """Nothing is kept."""
        yield self


class Barrier:
    """Lets no branch sample before every running branch wants to: one turn for all at a time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._running = 0
        self._arrived: list[asyncio.Future[None]] = []

    def enter(self, branches: int) -> None:
        """So many branches begin together."""
        self._running += branches

    def leave(self) -> None:
        """A branch has ended; nobody waits for it any more."""
        self._running -= 1
        self._open_if_all_are_here()

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
        """Samples when the others are as far."""
        await self.wait()
        return await self._policy.generate(
            prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
        )

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Policy]:
        """One branch's hold on the policy behind the barrier."""
        assert isinstance(self._policy, Conversational)
        async with self._policy.conversation() as below:
            yield _Behind(self, below)

    async def wait(self) -> None:
        """Returns when all running branches wait here."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.append(mine)
        self._open_if_all_are_here()
        await mine

    def _open_if_all_are_here(self) -> None:
        if len(self._arrived) == self._running:
            for waiting in self._arrived:
                waiting.set_result(None)
            self._arrived.clear()


class _Behind:
    """One branch's policy behind a barrier."""

    def __init__(self, barrier: Barrier, policy: Policy) -> None:
        self._barrier = barrier
        self._policy = policy

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
        """Samples when the others are as far."""
        await self._barrier.wait()
        return await self._policy.generate(
            prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
        )


class Bench:
    """One engine, and collections on it."""

    def __init__(self, settings: EngineSettings, *, unhurried: bool = True) -> None:
        """Starts the engine. With `unhurried` steps that reach the token limit count as ended (see `Unhurried`)."""
        self._settings = settings
        self._unhurried = unhurried
        self._engine = GenerationEngine(settings)
        self._codec = TokenizerCodec(self._engine.tokenizer)
        self._policy = TimedPolicy(self._engine, TURN_TIMEOUT_S)

    async def warm_up(self, tasks: Sequence[Task], sampling: Sampling) -> None:
        """The first requests compile kernels."""
        one = replace(sampling, max_turn_tokens=8)
        for task in tasks:
            await self._engine.generate(self._codec.prompt(task), sampling=one, seed=0, stop=(), max_tokens=8)

    async def run(self, work: Work, *, barriers: bool = False, keep_turns: bool = False) -> Outcome:
        """Collects `work` with an empty cache; with barriers all branches take each turn, and each round, together."""
        policy = self._policy if keep_turns else Apart(self._policy)
        await self._empty_the_cache()
        audit = Audit(lambda: self._engine.counts, keeps_turns=keep_turns)
        spec = CollectionSpec(phase="bench", tasks=work.tasks, rules=work.rules, sampling=work.sampling, seed=work.seed)
        collection = Collection(spec)
        started = time.perf_counter()
        grow = self._in_turns if barriers else self._freely
        await grow(work.env, policy, collection, audit)
        seconds = time.perf_counter() - started
        ledger = collection.ledger
        await asyncio.sleep(0.2)
        ledger.add(audit.take(audit.mismatch))
        assert ledger.engine_mismatch == 0, f"the ledger and the engine differ by {ledger.engine_mismatch} tokens"
        return Outcome(forest=collection.forest(), ledger=ledger, seconds=seconds)

    async def _empty_the_cache(self) -> None:
        await self._engine.pause()
        await self._engine.resume(self._engine.version)

    def _runner(self, env: Env[Any], policy: Policy) -> BranchRunner:
        policy = Unhurried(policy) if self._unhurried else policy
        return BranchRunner(env, policy, self._codec, 60.0, block_size=self._settings.block_size)

    async def _freely(self, env: Env[Any], policy: Policy, collection: Collection, audit: Audit) -> None:
        """As a rollout actor works: a free place takes the next branch, and a tree grows on when its own are back."""
        runner = self._runner(env, policy)
        running: set[asyncio.Task[BranchResult]] = set()
        while not collection.is_complete:
            free = self._settings.max_branches - len(running)
            items = collection.assign("bench", free, time.monotonic())
            running |= {asyncio.create_task(runner.run(item)) for item in items}
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for branch in done:
                audit.book(branch.result().ledger)
                collection.complete(branch.result())

    async def _in_turns(self, env: Env[Any], policy: Policy, collection: Collection, audit: Audit) -> None:
        """All branches of a round start together, and none takes a turn before all have ended the one before."""
        barrier = Barrier(policy)
        runner = self._runner(env, barrier)

        async def run(item: WorkItem) -> BranchResult:
            try:
                return await runner.run(item)
            finally:
                barrier.leave()

        while not collection.is_complete:
            items = collection.assign("bench", 1_000_000, time.monotonic())
            barrier.enter(len(items))
            for result in await asyncio.gather(*map(run, items)):
                audit.book(result.ledger)
                collection.complete(result)

    def shutdown(self) -> None:
        """Stops the engine."""
        self._engine.shutdown()
