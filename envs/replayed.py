"""An environment over a world that can only go forward from its beginning: a branch plays again what was done before.

A game in another process, a simulator without a copy: nothing of it can be pickled. So a state is what was done and a
checksum of what each step showed. A step from a state whose world is still open goes on in it; else a new world is
started and the steps are done again, and what each shows must be what it showed the first time.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias
from zlib import crc32

from envs.types import EndReason, StepResult, Task

KEPT_WORLDS = 64
"""Worlds that stay open, unless told otherwise: those of as many branches go on without a replay."""


class World(Protocol):
    """A world that goes forward. Only one step at a time is asked of it."""

    async def step(self, action: str, *, turns_left: int) -> StepResult:
        """Applies one agent step; see `envs.types.Env.step`."""
        ...

    def close(self) -> None:
        """Frees what the world holds. Worlds that are open when the process ends are not closed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A step that was done, and did not end the trajectory."""

    action: str
    turns_left: int
    seen: int
    """Checksum of the observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The state: which task, and what was done in it."""

    task: Task
    steps: tuple[Done, ...] = ()


_Key: TypeAlias = tuple[str, tuple[Done, ...]]


class Replayed:
    """An `envs.types.Env` over worlds that `start` opens, one for each branch.

    Where a replay shows something else than the first time, the step ends with ENV_ERROR and a note that says which
    step it was: branches of one node would then not be comparable. What `start` or the world raises passes through.
    """

    def __init__(
        self, start: Callable[[Task], World], *, stop: tuple[str, ...], kept_worlds: int = KEPT_WORLDS
    ) -> None:
        """`start` opens a world at its beginning, equal each time for equal tasks; what is slow in that belongs into
        the world's first step, which is awaited.
        """
        self.stop = stop
        self._start = start
        self._kept_worlds = kept_worlds
        self._worlds: OrderedDict[_Key, World] = OrderedDict()
        """Open worlds by the task and the steps that led to where each is."""

    def reset(self, task: Task) -> Path:
        """The beginning; no world is opened."""
        return Path(task=task)

    async def step(self, state: Path, action: str, *, turns_left: int) -> tuple[Path, StepResult]:
        """See `envs.types.Env`."""
        world = self._worlds.pop(_key(state), None)
        to_do = state.steps if world is None else ()
        world = self._start(state.task) if world is None else world
        keeps = False
        try:
            for number, done in enumerate(to_do, start=1):
                again = await world.step(done.action, turns_left=done.turns_left)
                if again.end is not None or _checksum(again) != done.seen:
                    return state, StepResult(end=EndReason.ENV_ERROR, note=_refusal(number, done))
            result = await world.step(action, turns_left=turns_left)
            if keeps := result.end is None:
                done = Done(action=action, turns_left=turns_left, seen=_checksum(result))
                state = replace(state, steps=(*state.steps, done))
                self._keep(state, world)
            return state, result
        finally:
            if not keeps:
                world.close()

    def _keep(self, state: Path, world: World) -> None:
        """Closes the world that was there already, or the one that waited longest."""
        twin = self._worlds.pop(_key(state), None)
        if twin is not None:
            twin.close()
        self._worlds[_key(state)] = world
        while len(self._worlds) > self._kept_worlds:
            self._worlds.popitem(last=False)[1].close()


def _key(state: Path) -> _Key:
    return state.task.id, state.steps


def _checksum(result: StepResult) -> int:
    return crc32(result.observation.encode("utf-8", "surrogatepass"))


def _refusal(number: int, done: Done) -> str:
    return (
        f"the world is not deterministic: done again, step {number} ({done.action[:60]!r}) showed something else than "
        "the first time; what is random in it must be seeded by the task"
    )
