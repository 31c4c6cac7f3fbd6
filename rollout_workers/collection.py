"""The forest of one collection: what grows, what came back, and what it cost.

A plain object without Ray or clocks (the time is passed in), owned by the `TreeScheduler` actor. It never lets an idle
actor wait for a slow tree: a tree's next round is queued the moment its own branches have ended. What one result costs
does not depend on how many tasks, branches and actors there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from envs.types import Task
from rollout_workers import trees
from rollout_workers.dispatch import Dispatch
from rollout_workers.growth import TreeGrowth, TreeRules
from rollout_workers.queues import Branch, TaskState
from rollout_workers.types import ROOT, BranchResult, Forest, Ledger, Sampling, TaskGroup, Tree, WorkItem

MAX_FAILURES_KEPT = 20
MAX_NAMES = 8
"""So many actors are named in one sentence."""
MAX_OLDEST = 3
"""So many branches are named in a report, those of the longest silence."""


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
    """An actor is stolen from when what waits for it beyond its room is longer than this many times the mean; n actors
    never steal from n on. An actor that runs nothing takes a branch of these whatever the mean, and of others when
    their holder has this many times the mean of running and waiting branches."""
    lease_timeout_s: float = 600.0
    """A branch that is not back and made no step for so long is given to another actor."""
    max_attempts: int = 3
    """How often one branch is started before the collection fails."""
    typed: bool = False
    """Whether the environment asks each step by a prompt of its own (see `Tree.typed`)."""


class Collection(Dispatch):
    """Hands out work items and takes back branches until every tree of every task is complete."""

    def __init__(self, spec: CollectionSpec) -> None:
        """Queues the first chain of every tree. Raises ValueError when two tasks share an id."""
        super().__init__(
            steal_after=spec.steal_after, lease_timeout_s=spec.lease_timeout_s, max_attempts=spec.max_attempts
        )
        self.spec = spec
        self.overhead = Ledger()
        """Costs that belong to no task: engines' busy seconds, and branches of an earlier collection."""
        self.failures: list[str] = []
        """Why branches failed, one sentence each, at most `MAX_FAILURES_KEPT`."""
        self._states: dict[str, TaskState] = {}
        self._open: dict[str, Branch] = {}
        """Branches that wait or are out, by item id."""
        self._done: dict[str, TaskState] = {}
        """Where the branches went that are back, by item id."""
        for task in spec.tasks:
            if task.id in self._states:
                raise ValueError(f"task id {task.id!r} appears twice in one collection; ids must be unique")
            self._states[task.id] = self._plant(task)
        self._incomplete = len(spec.tasks) * spec.rules.roots
        self._total_leaves = self._incomplete * spec.rules.leaves_per_tree
        self._grown_leaves = 0

    def _plant(self, task: Task) -> TaskState:
        spec = self.spec
        state = TaskState(task=task)
        for index in range(spec.rules.roots):
            tree = TreeGrowth(
                task=task,
                index=index,
                phase=spec.phase,
                seed=spec.seed,
                rules=spec.rules,
                sampling=spec.sampling,
                typed=spec.typed,
            )
            state.trees.append(tree)
            self._queue(state, tree, tree.first_items())
        return state

    def _queue(self, state: TaskState, tree: TreeGrowth, items: Sequence[WorkItem]) -> None:
        branches = [Branch(item, state, tree) for item in items]
        self._open.update((branch.item.id, branch) for branch in branches)
        self._queues.put(state, branches)

    @property
    def is_complete(self) -> bool:
        """True when the forest can be taken."""
        return self._incomplete == 0

    def parties(self, item_id: str) -> tuple[str | None, str | None]:
        """(who runs this branch, who holds its task); None where nobody does."""
        branch = self._open.get(item_id)
        if branch is None:
            return None, None
        return branch.actor if branch in self._leases else None, branch.state.owner

    @property
    def progress(self) -> tuple[int, int]:
        """(leaves grown, leaves in all). Growth may stop early or repeat a branch; both numbers follow it."""
        return self._grown_leaves, self._total_leaves

    @property
    def ledger(self) -> Ledger:
        """What the collection cost so far: the sum over tasks and what belongs to none."""
        total = Ledger()
        for cost in (self.overhead, *(state.ledger for state in self._states.values())):
            total.add(cost)
        return total

    def describe(self) -> str:
        """One sentence on what the collection waits for, for time-outs and watchdogs."""
        holders = self._leases.holders()
        done, total = self.progress
        names = ", ".join(holders[:MAX_NAMES]) + (f" and {len(holders) - MAX_NAMES} more" * (len(holders) > MAX_NAMES))
        held = f"{self.leases} branches held by {names}" if holders else "no branch held by an actor"
        return f"{done} of {total} leaves grown, {self.queued} branches queued, {held}"

    def report(self, now: float) -> str:
        """What `describe` says, the trees, and the branches that are silent longest, for a watchdog."""
        planned = len(self.spec.tasks) * self.spec.rules.roots
        clauses = [self.describe(), f"{planned - self._incomplete} of {planned} trees complete"]
        clauses += [
            f"branch {branch.item.id} made no step for {age:.0f} s (start {branch.attempts} of "
            f"{self.spec.max_attempts})"
            for branch, age in self._leases.oldest(MAX_OLDEST, now)
        ]
        return "; ".join(clauses)

    def renew(self, actor: str, item_ids: Sequence[str], now: float) -> None:
        """These branches made a step on `actor`; others of its ids, as of an earlier collection, mean nothing."""
        for item_id in item_ids:
            branch = self._open.get(item_id)
            if branch is not None and branch in self._leases and branch.actor == actor:
                self._leases.renew(branch, now)

    def complete(self, result: BranchResult) -> bool:
        """Takes a finished branch; False when it was already delivered by another actor, or is none of this collection.

        Then it is dropped: the ledger keeps what it cost and counts its sampled tokens as discarded.
        """
        branch = self._open.pop(result.item_id, None)
        if branch is None:
            state = self._done.get(result.item_id)
            discard(result, self.overhead if state is None else state.ledger)
            return False
        if branch in self._leases:
            self._end_lease(branch)
        else:
            self._queues.remove(branch)  # it came late, after it was queued again
        self._done[result.item_id] = branch.state
        self._graft(branch, result)
        return True

    def _graft(self, branch: Branch, result: BranchResult) -> None:
        state, tree = branch.state, branch.tree
        state.ledger.add(result.ledger)
        leaf = result.nodes[-1].node
        if leaf.note and len(self.failures) < MAX_FAILURES_KEPT:
            self.failures.append(f"{result.item_id}: {leaf.note}")
        grown, planned = tree.leaves_grown, tree.planned_leaves
        self._queue(state, tree, tree.accept(result.item_id, result))
        self._grown_leaves += tree.leaves_grown - grown
        self._total_leaves += tree.planned_leaves - planned
        if tree.is_complete:
            self._finish(state, tree)

    def _finish(self, state: TaskState, tree: TreeGrowth) -> None:
        cost = state.ledger
        cost.prefill_tokens_unique += observation_tokens(tree.tree, with_prompt=cost.trees == 0)
        cost.leaves += len(trees.leaves(tree.tree))
        cost.trees += 1
        cost.add(tree.ledger)
        self._incomplete -= 1
        if cost.trees == self.spec.rules.roots:
            self._queues.give(state, None)  # nothing of it will ever wait again

    def forest(self) -> Forest:
        """The finished trees, in the order the tasks were given."""
        assert self.is_complete, "the forest is taken before it is complete"
        return [
            TaskGroup(task=state.task, trees=tuple(growth.tree for growth in state.trees), ledger=state.ledger)
            for state in self._states.values()
        ]


def observation_tokens(tree: Tree, *, with_prompt: bool) -> int:
    """Observation tokens of all nodes, each node once; the root's are the prompt, which a task's trees share."""
    counts = [len(node.observation_ids) for node in tree.nodes]
    return sum(counts) if with_prompt else sum(counts[ROOT + 1 :])


def discard(result: BranchResult, ledger: Ledger) -> None:
    """Counts a branch that no tree takes: what it cost, and its sampled tokens as discarded."""
    ledger.add(result.ledger)
    ledger.discarded_tokens += sum(len(new.node.token_ids) for new in result.nodes)
