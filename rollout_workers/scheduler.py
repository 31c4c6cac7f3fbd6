"""The TreeScheduler actor: one `Collection` at a time behind a pull/push protocol.

Light by design: no torch, no vllm. Who waits for whom: rollout actors wait in `pull` until work is queued (woken by
`push`, `begin` and `actor_lost`, or after `wait_s`); the driver waits in `wait` until the collection is complete (woken
by `push`, or after `wait_s`). Nothing here waits without a limit.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import ray

from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.types import BranchResult, Forest, Ledger, WorkItem


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
        self._actors: set[str] = set()
        """Actors that have asked for work and are not known to be dead."""
        self._changed = asyncio.Condition()
        self._last_push = time.monotonic()

    async def begin(self, spec: CollectionSpec) -> None:
        """Starts a collection; the one before must have been taken."""
        assert self._collection is None, "the collection before this one was not taken"
        self._collection = Collection(spec)
        self._last_push = time.monotonic()
        await self._wake()

    async def pull(self, actor: str, capacity: int, wait_s: float) -> list[WorkItem]:
        """Work for `actor`, at most `capacity` items; an empty list after `wait_s` seconds without any."""
        self._actors.add(actor)
        deadline = time.monotonic() + wait_s
        async with self._changed:
            while not (items := self._assign(actor, capacity)):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    break
        return items

    def _assign(self, actor: str, capacity: int) -> list[WorkItem]:
        if self._collection is None:
            return []
        now = time.monotonic()
        self._collection.expire(now)
        return self._collection.assign(actor, capacity, now, len(self._actors))

    async def push(self, results: Sequence[BranchResult]) -> None:
        """Takes finished branches; duplicates of a branch and leftovers of an earlier collection are dropped."""
        self._last_push = time.monotonic()
        if self._collection is not None:
            for result in results:
                self._collection.complete(result)
        await self._wake()

    async def actor_lost(self, actor: str) -> int:
        """Queues again what `actor` held; returns how many branches."""
        self._actors.discard(actor)
        released = self._collection.release(actor) if self._collection is not None else 0
        await self._wake()
        return released

    async def wait(self, wait_s: float) -> Progress:
        """Returns when the collection is complete, at the latest after `wait_s` seconds."""
        assert self._collection is not None, "no collection was begun"
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(self._is_complete), wait_s)
        leaves, total = self._collection.progress
        return Progress(
            is_complete=self._is_complete(),
            leaves=leaves,
            leaves_total=total,
            idle_s=time.monotonic() - self._last_push,
            waits_for=self._collection.describe(),
        )

    def _is_complete(self) -> bool:
        return self._collection is not None and self._collection.is_complete

    async def take(self) -> Harvest:
        """The finished forest; the scheduler is then ready for the next collection."""
        done, self._collection = self._collection, None
        assert done is not None, "no collection was begun"
        return Harvest(forest=done.forest(), ledger=done.ledger, failures=tuple(done.failures))

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


SchedulerActor = ray.remote(TreeScheduler)
