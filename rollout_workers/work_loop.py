"""How a rollout actor gets its work and returns its results: one loop that pulls and one that pushes.

A push is answered with new work, so a busy actor asks with its results only. A pull asks for room that no push asks
for, and goes on waiting while pushes bring work (`PULL_WAIT_S` at most).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from envs.pickling import Parcel
from rollout_workers.types import BranchResult, WorkItem
from rollout_workers.waiting import PULL_WAIT_S

PROGRESS_S = 5.0
"""So often the scheduler is told which branches have made a step."""
PUSH_TELLS_EARLY = 0.5
"""A push tells of steps after this share of the time after which a call of its own would."""


class WorkLoop:
    """Keeps one actor in work, with never more branches than fit."""

    def __init__(
        self,
        name: str,
        *,
        free: Callable[[], int],
        begin: Callable[[Sequence[WorkItem]], None],
        progress_s: float = PROGRESS_S,
    ) -> None:
        """Of the actor `name`, in which `free()` more branches fit.

        `begin` starts branches; `ended` is to be called with the result of each, when `free` counts its place again.
        The scheduler hears every `progress_s` which branches have made a step: with a push, or by a call if there is
        none.
        """
        self._name = name
        self._free = free
        self._begin = begin
        self._progress_s = progress_s
        self._stepped: set[str] = set()
        """Items whose branches have made a step that the scheduler was not told of."""
        self._told_at = 0.0
        """When it was told last, on the event loop's clock."""
        self._finished: list[BranchResult] = []
        self._room = asyncio.Event()
        """Set whenever there may be room to ask for."""
        self._output = asyncio.Event()
        """Set whenever a result has come."""
        self._is_pulling = self._is_pushing = False
        """Whether such a call is on its way."""
        self.pulls = self.pushes = 0
        """Calls so far."""

    def start(self, scheduler: Any, group: asyncio.TaskGroup) -> None:
        """Works as tasks of `group` until they are cancelled; the first error of the scheduler ends the group."""
        group.create_task(self._pull(scheduler))
        group.create_task(self._push(scheduler))
        group.create_task(self._tell(scheduler))

    def stepped(self, *item_ids: str) -> None:
        """Branches of these items got an answer of the engine or the environment: they are not stuck."""
        self._stepped.update(item_ids)

    def ended(self, result: BranchResult) -> None:
        """A branch is over, and there is room for another one."""
        self._stepped.discard(result.item_id)
        self._finished.append(result)
        self._output.set()
        self._room.set()

    @property
    def _asks_by_itself(self) -> bool:
        """Whether there is room that no push asks for."""
        return self._free() > 0 and not self._finished and not self._is_pushing

    async def _pull(self, scheduler: Any) -> None:
        while True:
            self._room.clear()
            if self._asks_by_itself:
                self.pulls += 1
                self._is_pulling = True
                items = await scheduler.pull.remote(self._name, self._free(), PULL_WAIT_S)
                self._is_pulling = False
                self._begin(items)
            else:
                await self._room.wait()

    async def _push(self, scheduler: Any) -> None:
        while True:
            await self._output.wait()
            self._output.clear()
            results, self._finished = self._finished, []
            self.pushes += 1
            self._is_pushing = True
            stepped = self._take_stepped(PUSH_TELLS_EARLY * self._progress_s)
            items = await scheduler.push.remote(Parcel(results), self._name, self._free(), self._is_pulling, stepped)
            self._is_pushing = False
            self._begin(items)
            self._room.set()

    async def _tell(self, scheduler: Any) -> None:
        clock = asyncio.get_running_loop().time
        self._told_at = clock()
        while True:
            await asyncio.sleep(max(self._told_at + self._progress_s - clock(), 0.0))
            if told := self._take_stepped(self._progress_s):
                await scheduler.progressed.remote(self._name, told)

    def _take_stepped(self, after_s: float) -> list[str]:
        """What the scheduler is to be told, if it was told last at least `after_s` ago."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at < after_s:
            return []
        self._told_at = now
        told = list(self._stepped)
        self._stepped.clear()
        return told
