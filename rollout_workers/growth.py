"""How one tree grows: a first chain, then rounds of picked expansions, each round grafted when all its branches ended.

Pure bookkeeping without clocks or randomness of its own: every seed is derived from names, and branches are grafted in
slot order, so the finished tree does not depend on which actor was faster.
"""

import random
from dataclasses import dataclass, replace

from envs.types import Task
from rollout_workers import trees
from rollout_workers.picking import RULES
from rollout_workers.seeds import derive_seed
from rollout_workers.types import ROOT, BranchResult, Node, Sampling, Tree, WorkItem


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRules:
    """How many branches a task gets. Leaves per task = roots · (1 + rounds · nodes_per_round · branches_per_node)."""

    roots: int = 2
    """M: independent chains per task; each becomes one tree."""
    nodes_per_round: int = 2
    """N: nodes picked per tree and round."""
    branches_per_node: int = 1
    """K: continuations of each picked node."""
    rounds: int = 1
    """L: rounds of pick-and-expand; 0 is the chain baseline."""
    picking: str = "random"

    @property
    def leaves_per_tree(self) -> int:
        """1 + rounds · nodes_per_round · branches_per_node."""
        return 1 + self.rounds * self.nodes_per_round * self.branches_per_node


class TreeGrowth:
    """One tree on its way to completion."""

    def __init__(self, *, task: Task, index: int, phase: str, seed: int, rules: TreeRules, sampling: Sampling) -> None:
        self.tree = Tree(task_id=task.id, index=index)
        self._task = task
        self._phase = phase
        self._seed = seed
        self._rules = rules
        self._sampling = sampling
        self._states: list[bytes | None] = [None]
        self._round = 0
        self._slots = 0
        self._waiting: dict[str, WorkItem] = {}
        self._results: list[tuple[WorkItem, BranchResult]] = []

    def first_items(self) -> list[WorkItem]:
        """The tree's first chain."""
        return [self._item(ROOT, 0, ())]

    @property
    def is_complete(self) -> bool:
        """True when every branch of every round has been grafted."""
        return bool(self.tree.nodes) and not self._waiting

    def is_waiting_for(self, item_id: str) -> bool:
        """True when this tree handed out the item and has not got its branch back."""
        return item_id in self._waiting

    def accept(self, item_id: str, result: BranchResult) -> list[WorkItem]:
        """Takes a finished branch; returns the work that became possible, which is the next round or nothing."""
        self._results.append((self._waiting.pop(item_id), result))
        if self._waiting:
            return []
        self._graft()
        if self._round == self._rules.rounds:
            self._states.clear()
            return []
        self._round += 1
        return self._expand()

    def _graft(self) -> None:
        for item, result in sorted(self._results, key=lambda pair: pair[0].slot):
            if not self.tree.nodes:
                self.tree.nodes.append(Node(parent=-1, observation_ids=result.prompt_ids))
            base = len(self.tree.nodes)
            for new in result.nodes:
                parent = item.parent if new.node.parent == -1 else base + new.node.parent
                self.tree.nodes.append(replace(new.node, parent=parent))
                self._states.append(new.state)
        self._results.clear()

    def _expand(self) -> list[WorkItem]:
        rules = self._rules
        rng = random.Random(derive_seed(self._seed, self._phase, self._task.id, self.tree.index, "pick", self._round))
        picked = RULES[rules.picking](self.tree, rules.nodes_per_round, rng)
        depths = trees.depths(self.tree)
        return [
            self._item(node, depths[node], tuple(trees.path_ids(self.tree, node)))
            for node in picked
            for _ in range(rules.branches_per_node)
        ]

    def _item(self, parent: int, turns_used: int, context_ids: tuple[int, ...]) -> WorkItem:
        slot = self._slots
        self._slots += 1
        place = (self._phase, self._task.id, self.tree.index, slot)
        item = WorkItem(
            id="/".join(map(str, place)),
            task=self._task,
            tree=self.tree.index,
            parent=parent,
            slot=slot,
            context_ids=context_ids,
            state=self._states[parent],
            turns_used=turns_used,
            seed=derive_seed(self._seed, *place),
            sampling=self._sampling,
        )
        self._waiting[item.id] = item
        return item
