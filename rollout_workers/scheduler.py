"""The TreeScheduler actor: one `Collection` at a time behind a pull/push protocol.

Light by design: no torch, no vllm. A message costs as much as several branches in it, so there are few: a busy actor
gets new work as the answer to its results (`push`), also while a `pull` of it waits, which then goes on waiting. Who
waits for whom: rollout actors wait in `pull` until there is work for them (`push`, `begin`, `actor_lost`, `open_gate`
and run-out leases bring some), or for `wait_s`; the driver waits in `wait` until the collection is complete and in
`drain` until no branch is out, each woken by `push`, or for `wait_s`. Nothing here waits without a limit.

New work goes to the waiting actor that holds its task. What that one has no room for goes to others, those that run
nothing first; so does what a much busier actor has room for (`Collection.relieve`).
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from envs.pickling import Parcel
from rollout_workers.collection import Collection, CollectionSpec, discard
from rollout_workers.types import BranchResult, Forest, Ledger, WorkItem
from rollout_workers.waiting import WaitingPull, WaitingPulls
from rollout_workers.watch import ActorWatch

MAX_REFUSALS = 4
"""After so many waiting actors that may not have what is queued, the others are not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the current collection is."""

    is_complete: bool
    leaves: int
    leaves_total: int
    idle_s: float
    """Seconds since the last branch came back."""
    waits_for: str
    """One sentence: what is still missing and who holds it."""
    refused: str = ""
    """One sentence on why the run must end, e.g. a contract that a decision node broke; empty while it need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """A finished collection."""

    forest: Forest
    ledger: Ledger
    failures: tuple[str, ...]


class TreeScheduler:
    """Owns the forest of the step. Run it as a Ray actor through `start_scheduler`."""

    def __init__(self) -> None:
        self._collection: Collection | None = None
        self._error: RuntimeError | None = None
        """Why the collection can't be completed."""
        self._refused = ""
        """Why the run must end."""
        self._late = Ledger()
        """Costs that came while no collection was open; the next one has them."""
        self._actors: set[str] = set()
        """Actors that have asked for work and are not known to be dead."""
        self._lost: set[str] = set()
        """Dead actors; their names never come back."""
        self._waiting = WaitingPulls()
        self._gate_open = True
        self._changed = asyncio.Condition()
        """Notified when the collection is complete or failed, and when no branch is out."""
        self._watch = ActorWatch()
        self._begun = self._last_push = time.monotonic()

    async def begin(self, spec: CollectionSpec) -> None:
        """Starts a collection; the one before must have been taken."""
        assert self._collection is None, "the collection before this one was not taken"
        self._collection = Collection(spec)
        self._collection.overhead, self._late = self._late, Ledger()
        self._begun = self._last_push = time.monotonic()
        self._serve()

    async def pull(self, actor: str, capacity: int, wait_s: float) -> list[WorkItem]:
        """Work for `actor`, at most `capacity` items; an empty list after `wait_s` seconds without any."""
        loop = asyncio.get_running_loop()
        if actor in self._lost:
            await asyncio.sleep(wait_s)
            return []
        self._actors.add(actor)
        self._watch.asked(actor, time.monotonic())
        await self._expire()
        self._waiting.answer(actor, [])
        if self._collection is not None:
            self._collection.hear(actor, capacity, time.monotonic())
        if items := self._assign(actor, capacity):
            self._serve()
            return Parcel(items)
        pull = WaitingPull(actor, capacity, loop.create_future())
        self._waiting.enter(pull, is_idle=self._collection is None or not self._collection.held(actor))
        timer = loop.call_later(wait_s, self._waiting.give_up, pull)
        try:
            return Parcel(await pull.answer)
        finally:
            timer.cancel()
            self._waiting.give_up(pull)

    def _assign(self, actor: str, capacity: int) -> list[WorkItem]:
        if self._collection is None or not self._gate_open:
            return []
        return self._collection.assign(actor, capacity, time.monotonic(), len(self._actors))

    def _serve(self) -> None:
        """Answers as many waiting pulls as there is work for. What it costs goes with the work handed out."""
        refusals = 0
        while self._collection is not None and self._collection.queued and refusals < MAX_REFUSALS:
            pull = self._waiting.next()
            if pull is None:
                break
            if not self._offer(pull):
                self._waiting.to_the_end(pull.actor)
                refusals += 1

    def _offer(self, pull: WaitingPull) -> bool:
        items = self._assign(pull.actor, pull.capacity)
        if items:
            self._waiting.answer(pull.actor, items)
        return bool(items)

    async def _expire(self) -> None:
        """Queues again the branches whose lease ran out. Not while draining: they may still be running."""
        if self._collection is None or not self._gate_open:
            return
        try:
            if self._collection.expire(time.monotonic()):
                self._serve()
        except RuntimeError as error:
            self._error = error
            await self._notify()

    async def push(
        self,
        results: Sequence[BranchResult],
        actor: str | None = None,
        capacity: int = 0,
        pulls: bool = False,
        stepped: Sequence[str] = (),
    ) -> list[WorkItem]:
        """Takes finished branches; of duplicates and of leftovers of an earlier collection only the cost is kept.

        Returns at most `capacity` items of new work for `actor`, the room that it has now, without waiting for any.
        `pulls`: a `pull` of it is on its way. It gets nothing here if that waits no longer: its answer may fill the
        room. An actor sends no pull while its push is on its way. `stepped`: as in `progressed`. `actor` is who pushes,
        as the watchdog names it.
        """
        now = self._last_push = time.monotonic()
        if actor is not None and actor not in self._lost:
            self._watch.gave(actor, now)
        collection = self._collection
        if collection is None:
            for result in results:
                discard(result, self._late)
            return []
        pull = self._waiting.take_out(actor) if actor is not None and capacity else None
        self._take_back(collection, results)
        if stepped and actor is not None:
            await self.progressed(actor, stepped)
        items: list[WorkItem] = []
        if actor is not None and capacity and (pull or not pulls) and actor not in self._lost:
            collection.hear(actor, capacity, now)
            items = self._assign(actor, capacity)
        if pull is not None:
            self._wait_on(collection, pull, capacity - len(items))
        self._serve()
        if collection.is_complete or not collection.leases:
            await self._notify()
        return Parcel(items) if items else []

    def _wait_on(self, collection: Collection, pull: WaitingPull, capacity: int) -> None:
        """The pull waits for work for the room that is left, if any is."""
        pull.capacity = capacity
        self._waiting.enter(pull, is_idle=not collection.held(pull.actor))
        if not capacity:
            self._waiting.answer(pull.actor, [])

    async def progressed(self, actor: str, item_ids: Sequence[str]) -> None:
        """These branches made a step on `actor` since it said so last: their leases begin anew."""
        if self._collection is not None and actor not in self._lost:
            self._collection.renew(actor, item_ids, time.monotonic())

    async def refuse(self, reason: str) -> None:
        """A branch found that the run must end, and does not come back; of several reasons the first is told."""
        self._refused = self._refused or reason
        await self._notify()

    def _take_back(self, collection: Collection, results: Sequence[BranchResult]) -> None:
        owners: dict[str, None] = {}
        for result in results:
            holder, owner = collection.parties(result.item_id)
            collection.complete(result)
            if holder is not None and not collection.held(holder):
                self._waiting.now_idle(holder)
            if owner is not None:
                owners[owner] = None
        for owner in owners:
            self._relieve(collection, owner)
            if collection.has_own(owner) and (pull := self._waiting.of(owner)):
                self._offer(pull)

    def _relieve(self, collection: Collection, owner: str) -> None:
        """Gives actors that run nothing something of what `owner` has too much of."""
        while self._gate_open and (pull := self._waiting.next_idle()):
            items = collection.relieve(owner, pull.actor, pull.capacity, time.monotonic(), len(self._actors))
            if not items:
                break
            self._waiting.answer(pull.actor, items)

    async def actor_lost(self, actor: str) -> int:
        """Queues again what `actor` held; returns how many branches. It gets no work any more."""
        self._actors.discard(actor)
        self._lost.add(actor)
        self._watch.lost(actor)
        self._waiting.answer(actor, [])
        released = self._collection.release(actor) if self._collection is not None else 0
        self._serve()
        await self._notify()
        return released

    async def drain(self, wait_s: float) -> bool:
        """Hands out nothing more and waits until no branch is out; False if some still are after `wait_s` seconds.

        The gate stays closed either way, until `open_gate`.
        """
        self._gate_open = False
        await self._wait_for(self._nothing_is_out, wait_s)
        return self._nothing_is_out()

    def _nothing_is_out(self) -> bool:
        return self._collection is None or not self._collection.leases

    async def open_gate(self) -> None:
        """Hands out work again."""
        self._gate_open = True
        self._serve()

    async def wait(self, wait_s: float) -> Progress:
        """Returns when the collection is complete, at the latest after `wait_s` seconds.

        Raises RuntimeError when a branch was started `max_attempts` times and never came back.
        """
        assert self._collection is not None, "no collection was begun"
        await self._expire()
        await self._wait_for(self._is_settled, wait_s)
        if self._error is not None:
            raise self._error
        leaves, total = self._collection.progress
        return Progress(
            is_complete=self._collection.is_complete,
            leaves=leaves,
            leaves_total=total,
            idle_s=time.monotonic() - self._last_push,
            waits_for=self._collection.describe(),
            refused=self._refused,
        )

    async def report(self) -> str:
        """The state of the forest and the last progress of each actor, for the watchdog."""
        collection, now = self._collection, time.monotonic()
        assert collection is not None, "no collection was begun"
        return f"{collection.report(now)}; {self._watch.describe(collection.held, self._begun, now)}"

    def _is_settled(self) -> bool:
        return bool(self._error or self._refused) or (self._collection is not None and self._collection.is_complete)

    async def _wait_for(self, holds: Callable[[], bool], wait_s: float) -> None:
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(holds), wait_s)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def take(self) -> Harvest:
        """The finished forest; the scheduler is then ready for the next collection."""
        done, self._collection = self._collection, None
        assert done is not None, "no collection was begun"
        return Harvest(forest=Parcel(done.forest()), ledger=done.ledger, failures=tuple(done.failures))


class SchedulerProcess(TreeScheduler):
    """The scheduler in a process of its own.

    Trees hold no reference cycles, and there may be millions of objects of them: looking for cycles as often as Python
    does by itself would take a third of the time, the more the larger the forest.
    """

    def __init__(self) -> None:
        super().__init__()
        gc.set_threshold(100_000, 50, 100)


def start_scheduler(actors: int) -> Any:
    """Handle of a new scheduler for about `actors` rollout actors, each with a pull that waits beside its pushes.

    It runs on the caller's node: without the driver the run is over anyhow, and no other node's death ends it then.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_concurrency": 1000 + 4 * actors, "scheduling_strategy": here}
    options["enable_task_events"] = False  # see `Fleet`
    actor: Any = ray.remote(SchedulerProcess)
    return actor.options(**options).remote()
