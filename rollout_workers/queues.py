"""Where branches wait: a queue per actor that holds their task, and one for tasks that nobody holds.

Of an actor's queue, the part that it has no room for is its excess: what others may have. Every operation costs the
same however many tasks, branches and actors there are; only `Queues.disown` looks at each task of one actor.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from envs.types import Task
from rollout_workers.growth import TreeGrowth
from rollout_workers.types import Ledger, WorkItem


@dataclass(slots=True, eq=False)
class TaskState:
    """The trees of one task, their branches that wait, and who has their keys and values in its cache."""

    task: Task
    trees: list[TreeGrowth] = field(default_factory=list)
    owner: str | None = None
    """The actor that holds the task; None before the first branch and after that actor was lost."""
    waiting: "OrderedDict[str, Branch]" = field(default_factory=OrderedDict)
    """By item id, the next one first."""
    ledger: Ledger = field(default_factory=Ledger)
    """What the task cost so far."""


@dataclass(slots=True, eq=False)
class Branch:
    """One work item from its first wait until its result."""

    item: WorkItem
    state: TaskState
    tree: TreeGrowth
    attempts: int = 0
    actor: str | None = None
    """Who runs it, or ran it last."""
    deadline: float = 0.0


class Lengths:
    """A length per actor, and which one is the longest. Lengths of 0 are not kept."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[str, int] = {}
        self._names: dict[int, OrderedDict[str, None]] = {}
        self._top = 0
        """No length is larger."""

    def set(self, name: str, length: int) -> None:
        """Sets the length of `name`, at least 0."""
        old = self._of.get(name, 0)
        if old == length:
            return
        if old:
            del self._of[name]
            del self._names[old][name]
            if not self._names[old]:
                del self._names[old]
        if length:
            self._of[name] = length
            self._names.setdefault(length, OrderedDict())[name] = None
            self._top = max(self._top, length)
        self.total += length - old

    def longest(self) -> tuple[str, int] | None:
        """(name, length) of the longest, of equal ones of the one that has been so longest; None when all are 0."""
        while self._top and self._top not in self._names:
            self._top -= 1  # all together at most as many steps as lengths ever grew by
        return (next(iter(self._names[self._top])), self._top) if self._top else None


class Queues:
    """All branches that wait for an actor."""

    def __init__(self) -> None:
        self.size = 0
        self.excess = Lengths()
        self.owned = 0
        """Branches of tasks that somebody holds."""
        self._counts: dict[str, int] = {}
        self._rooms: dict[str, int] = {}
        self._lines: dict[str | None, OrderedDict[str, TaskState]] = {}
        """Per owner its tasks with waiting branches, by task id; at None the tasks that nobody holds."""
        self._held: dict[str, dict[str, TaskState]] = {}
        """Per owner all of its tasks that still grow."""

    def put(self, state: TaskState, branches: Sequence[Branch], *, first: bool = False) -> None:
        """Adds branches of one task at the end of its queue and of its owner's, or at the front of both."""
        for branch in reversed(branches) if first else branches:
            state.waiting[branch.item.id] = branch
            if first:
                state.waiting.move_to_end(branch.item.id, last=False)
        if branches:
            self._enter(state, len(branches), first)

    def _enter(self, state: TaskState, count: int, first: bool) -> None:
        line = self._lines.setdefault(state.owner, OrderedDict())
        line.setdefault(state.task.id, state)
        if first:
            line.move_to_end(state.task.id, last=False)
        self._count(state.owner, count)

    def _count(self, owner: str | None, by: int) -> None:
        self.size += by
        if owner is not None:
            self.owned += by
            self._counts[owner] = self.count(owner) + by
            self._weigh(owner)

    def _weigh(self, owner: str) -> None:
        self.excess.set(owner, max(self.count(owner) - self.room(owner), 0))

    def count(self, owner: str) -> int:
        """How many branches of the tasks that `owner` holds wait."""
        return self._counts.get(owner, 0)

    def room(self, actor: str) -> int:
        """How many branches `actor` could begin now, as far as is known."""
        return self._rooms.get(actor, 0)

    def set_room(self, actor: str, room: int) -> None:
        """Notes how many branches `actor` could begin now."""
        self._rooms[actor] = room
        self._weigh(actor)

    def pop(self, state: TaskState) -> Branch:
        """Takes the task's next branch out."""
        branch = next(iter(state.waiting.values()))
        self.remove(branch)
        return branch

    def remove(self, branch: Branch) -> None:
        """Takes a waiting branch out, wherever it stands."""
        state = branch.state
        del state.waiting[branch.item.id]
        if not state.waiting:
            del self._lines[state.owner][state.task.id]
        self._count(state.owner, -1)

    def give(self, state: TaskState, owner: str | None) -> None:
        """Makes `owner` the one that holds the task. What nobody holds any more goes before what nobody held yet."""
        if state.owner is not None:
            del self._held[state.owner][state.task.id]
        if state.waiting:
            del self._lines[state.owner][state.task.id]
            self._count(state.owner, -len(state.waiting))
        state.owner = owner
        if owner is not None:
            self._held.setdefault(owner, {})[state.task.id] = state
        if state.waiting:
            self._enter(state, len(state.waiting), first=owner is None)

    def disown(self, owner: str) -> None:
        """Nobody holds the tasks of `owner` any more."""
        for state in reversed(list(self._held.get(owner, {}).values())):
            self.give(state, None)
        for kept in (self._held, self._lines, self._counts, self._rooms):
            kept.pop(owner, None)

    def next_of(self, owner: str | None) -> TaskState | None:
        """Of the tasks with waiting branches that `owner` holds (None: nobody) the one that came first."""
        line = self._lines.get(owner)
        return next(iter(line.values())) if line else None

    def last_of(self, owner: str) -> TaskState:
        """The last of the tasks with waiting branches that `owner` holds; it must have one."""
        return next(reversed(self._lines[owner].values()))
