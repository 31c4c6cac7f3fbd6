"""The forest of one collection: what grows, who works on what, and what comes back when an actor dies.

A plain object without Ray or clocks (the time is passed in), owned by the `TreeScheduler` actor. It never lets an idle
actor wait for a slow tree: a tree's next round is queued the moment its own branches have ended.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from envs.types import Task
from rollout_workers.growth import TreeGrowth, TreeRules
from rollout_workers.types import BranchResult, Forest, Ledger, Sampling, TaskGroup, WorkItem

MAX_FAILURES_KEPT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSpec:
    """What to collect: plain values that travel to the scheduler actor."""

    phase: str
    """Names the collection in every item id and seed, e.g. `"train-12"`; unique in the run."""
    tasks: tuple[Task, ...]
    rules: TreeRules
    sampling: Sampling
    seed: int
    steal_after: float = 2.0
    """A queue is stolen from when it is longer than this many times the mean queue; n actors never steal from n on."""
    lease_timeout_s: float = 300.0
    """A branch not back by then is given to another actor."""
    max_attempts: int = 3
    """How often one branch is started before the collection fails."""


@dataclass(slots=True)
class _Lease:
    item: WorkItem
    actor: str
    deadline: float


@dataclass(slots=True)
class _TaskState:
    """The trees of one task and where its keys and values are cached."""

    task: Task
    trees: list[TreeGrowth]
    owner: str | None = None
    queued: deque[WorkItem] = field(default_factory=deque)


class Collection:
    """Hands out work items and takes back branches until every tree of every task is complete."""

    def __init__(self, spec: CollectionSpec) -> None:
        """Queues the first chain of every tree. Raises ValueError when two tasks share an id."""
        self.spec = spec
        self.ledger = Ledger()
        self.failures: list[str] = []
        """Why branches failed, one sentence each, at most `MAX_FAILURES_KEPT`."""
        self._states: dict[str, _TaskState] = {}
        self._leases: dict[str, _Lease] = {}
        self._attempts: dict[str, int] = {}
        self._home: dict[str, str] = {}
        for task in spec.tasks:
            if task.id in self._states:
                raise ValueError(f"task id {task.id!r} appears twice in one collection; ids must be unique")
            grown = [self._growth(task, index) for index in range(spec.rules.roots)]
            self._states[task.id] = state = _TaskState(task=task, trees=grown)
            for tree in grown:
                self._queue(state, tree.first_items())
        self._incomplete = len(spec.tasks) * spec.rules.roots
        self._total_leaves = self._incomplete * spec.rules.leaves_per_tree

    def _growth(self, task: Task, index: int) -> TreeGrowth:
        spec = self.spec
        return TreeGrowth(
            task=task, index=index, phase=spec.phase, seed=spec.seed, rules=spec.rules, sampling=spec.sampling
        )

    def _queue(self, state: _TaskState, items: Sequence[WorkItem]) -> None:
        state.queued.extend(items)
        self._home.update((item.id, state.task.id) for item in items)

    @property
    def is_complete(self) -> bool:
        """True when the forest can be taken."""
        return self._incomplete == 0

    @property
    def progress(self) -> tuple[int, int]:
        """(leaves grown, leaves in all)."""
        return self.ledger.leaves, self._total_leaves

    def describe(self) -> str:
        """One sentence on what the collection waits for, for time-outs and watchdogs."""
        holders = sorted({lease.actor for lease in self._leases.values()})
        queued = sum(len(state.queued) for state in self._states.values())
        done, total = self.progress
        held = f"{len(self._leases)} branches held by {', '.join(holders)}" if holders else "no branch held by an actor"
        return f"{done} of {total} leaves grown, {queued} branches queued, {held}"

    def assign(self, actor: str, capacity: int, now: float, actors: int = 1) -> list[WorkItem]:
        """Up to `capacity` items for `actor`: of tasks it holds, then of tasks nobody holds, then stolen ones.

        Of tasks that nobody holds it gets at most its share among `actors` live actors, or the first to ask would take
        them all.
        """
        items: list[WorkItem] = []
        held = sum(lease.actor == actor for lease in self._leases.values())
        open_items = len(self._leases) + sum(len(state.queued) for state in self._states.values())
        share = math.ceil(open_items / actors)
        while len(items) < capacity and (state := self._source(actor)) is not None:
            if state.owner is None:
                if held + len(items) >= share:
                    break
                state.owner = actor
            item = state.queued.popleft()
            self.ledger.branches_stolen += state.owner != actor
            self._attempts[item.id] = self._attempts.get(item.id, 0) + 1
            self._leases[item.id] = _Lease(item, actor, now + self.spec.lease_timeout_s)
            items.append(item)
        return items

    def _source(self, actor: str) -> _TaskState | None:
        waiting = [state for state in self._states.values() if state.queued]
        for owner in (actor, None):
            if found := next((state for state in waiting if state.owner == owner), None):
                return found
        return self._victim(actor, waiting)

    def _victim(self, thief: str, waiting: Sequence[_TaskState]) -> _TaskState | None:
        lengths: dict[str, int] = {thief: 0}
        for lease in self._leases.values():
            lengths.setdefault(lease.actor, 0)
        for state in waiting:
            assert state.owner is not None
            lengths[state.owner] = lengths.get(state.owner, 0) + len(state.queued)
        longest = max(lengths, key=lambda name: lengths[name])
        if lengths[longest] <= self.spec.steal_after * sum(lengths.values()) / len(lengths):
            return None
        return next(state for state in reversed(waiting) if state.owner == longest)

    def complete(self, result: BranchResult) -> bool:
        """Takes a finished branch; False when it was already delivered by another actor (then it is dropped)."""
        if self._leases.pop(result.item_id, None) is None and not self._unqueue(result.item_id):
            return False
        state = self._states[self._home.pop(result.item_id)]
        tree = next(t for t in state.trees if t.is_waiting_for(result.item_id))
        self._queue(state, tree.accept(result.item_id, result))
        self.ledger.add(result.ledger)
        self.ledger.leaves += 1
        leaf = result.nodes[-1].node
        if leaf.note and len(self.failures) < MAX_FAILURES_KEPT:
            self.failures.append(f"{result.item_id}: {leaf.note}")
        if tree.is_complete:
            self.ledger.trees += 1
            self._incomplete -= 1
        return True

    def _unqueue(self, item_id: str) -> bool:
        """A late result of a branch that was queued again: the queued copy is no longer needed."""
        home = self._home.get(item_id)
        if home is None:
            return False
        queued = self._states[home].queued
        kept = [item for item in queued if item.id != item_id]
        found = len(kept) < len(queued)
        queued.clear()
        queued.extend(kept)
        return found

    def release(self, actor: str) -> int:
        """Queues again what a dead actor held and forgets what it had cached; returns how many branches."""
        lost = [lease for lease in self._leases.values() if lease.actor == actor]
        for state in self._states.values():
            if state.owner == actor:
                state.owner = None
        self._requeue(lost)
        return len(lost)

    def expire(self, now: float) -> int:
        """Queues again, for whoever asks first, the branches whose lease ran out; returns how many."""
        late = [lease for lease in self._leases.values() if lease.deadline <= now]
        for lease in late:
            self._states[lease.item.task.id].owner = None
        self._requeue(late)
        return len(late)

    def _requeue(self, leases: Sequence[_Lease]) -> None:
        for lease in leases:
            del self._leases[lease.item.id]
            if self._attempts[lease.item.id] >= self.spec.max_attempts:
                raise RuntimeError(
                    f"branch {lease.item.id} was started {self.spec.max_attempts} times and never came back "
                    f"(last on {lease.actor}); scheduler.max_attempts is {self.spec.max_attempts}"
                )
            self._states[self._home[lease.item.id]].queued.appendleft(lease.item)
            self.ledger.branches_requeued += 1

    def forest(self) -> Forest:
        """The finished trees, in the order the tasks were given."""
        assert self.is_complete, "the forest is taken before it is complete"
        return [
            TaskGroup(task=state.task, trees=tuple(growth.tree for growth in state.trees))
            for state in self._states.values()
        ]
