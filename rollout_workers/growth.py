"""How one tree grows: a first chain, then rounds of picked expansions, each round grafted when all its branches ended.

Pure bookkeeping without clocks or randomness of its own: every seed is derived from names, branches are compared and
grafted in slot order, and budgets count the tree itself, so a finished tree does not depend on which actor was faster.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from envs.types import Task
from rollout_workers import siblings, trees
from rollout_workers.budgets import Budget
from rollout_workers.picking import RULES, PickSettings
from rollout_workers.seeds import derive_seed
from rollout_workers.siblings import Branch
from rollout_workers.types import ROOT, BranchResult, Ledger, Node, Sampling, Tree, WorkItem


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
    """One of `rollout_workers.picking.RULES`; `entropy` needs `Sampling.entropy_topk` above 0."""
    sibling_penalty: float = 0.05
    ucb_constant: float = 1.4
    max_tokens: int | None = None
    """Per task, shared equally by its trees: sampled tokens, prompts and observations, each tree's own counted once."""
    max_tool_calls: int | None = None
    """Per task, shared equally by its trees."""
    dedup: Literal["count", "resample"] = "count"
    """What happens to a branch whose first action a sibling has already: it is counted, or sampled again first."""
    dedup_attempts: int = 2
    """How often one branch is sampled again; a duplicate after that is kept."""

    @property
    def leaves_per_round(self) -> int:
        """nodes_per_round · branches_per_node."""
        return self.nodes_per_round * self.branches_per_node

    @property
    def leaves_per_tree(self) -> int:
        """1 + rounds · nodes_per_round · branches_per_node."""
        return 1 + self.rounds * self.leaves_per_round

    def budget(self) -> Budget:
        """What each of the task's trees may cost."""
        share = [None if limit is None else limit // self.roots for limit in (self.max_tokens, self.max_tool_calls)]
        return Budget(max_tokens=share[0], max_tool_calls=share[1])


class TreeGrowth:
    """One tree on its way to completion."""

    def __init__(
        self,
        *,
        task: Task,
        index: int,
        phase: str,
        seed: int,
        rules: TreeRules,
        sampling: Sampling,
        typed: bool = False,
    ) -> None:
        assert rules.picking != "entropy" or sampling.entropy_topk > 0, "picking by entropy without recorded entropies"
        self.tree = Tree(task_id=task.id, index=index, typed=typed)
        self.ledger = Ledger()
        """Equal siblings, branches sampled again with their tokens, and stopped growth; branches count the rest."""
        self.leaves_cancelled = 0
        """Leaves of the plan that the budget did not allow."""
        self._task = task
        self._phase = phase
        self._seed = seed
        self._rules = rules
        self._sampling = sampling
        self._budget = rules.budget()
        self._states: list[bytes | None] = [None]
        self._taken: dict[int, set[str]] = {}
        """Action texts of each node's children, those of kept branches included."""
        self._round = 0
        self._slots = 0
        self._waiting: dict[str, WorkItem] = {}
        self._back: list[Branch] = []
        self._kept: list[Branch] = []
        """Branches of the round that will be grafted, whatever becomes of those sampled again."""
        self._resampled: Counter[int] = Counter()
        """How often the branch of a slot was sampled again."""

    def first_items(self) -> list[WorkItem]:
        """The tree's first chain."""
        return [self._item(ROOT, 0, ())]

    @property
    def is_complete(self) -> bool:
        """True when every branch of every round has been grafted."""
        return bool(self.tree.nodes) and not self._waiting

    @property
    def planned_leaves(self) -> int:
        """Leaves the tree will have, as far as is known: those of the rules less those cancelled."""
        return self._rules.leaves_per_tree - self.leaves_cancelled

    @property
    def leaves_grown(self) -> int:
        """Branches that are back; one that is then sampled again is taken off."""
        return self._budget.branches + len(self._kept) + len(self._back)

    def is_waiting_for(self, item_id: str) -> bool:
        """True when this tree handed out the item and has not got its branch back."""
        return item_id in self._waiting

    def accept(self, item_id: str, result: BranchResult) -> list[WorkItem]:
        """Takes a finished branch; returns the work that became possible: duplicates again, or the next round."""
        item = self._waiting.pop(item_id)
        self._budget.spend(result)
        self._resampled[item.slot] += result.ledger.siblings_resampled
        self._back.append((item, result))
        if self._waiting:
            return []
        if again := self._settle():
            return again
        self._graft()
        return self._next_round()

    def _settle(self) -> list[WorkItem]:
        """Decides about the branches that are back: kept, or sampled again because a sibling has their first action."""
        new, equal = siblings.split(self._back, self._taken)
        self._back.clear()
        self._kept.extend(new)
        again: list[Branch] = []
        for item, result in equal:
            self.ledger.siblings_equal += result.ledger.siblings_equal == 0  # else the branch has counted itself
            (again if self._attempts_left(item.slot) > 0 else self._kept).append((item, result))
        return [self._again(item, result) for item, result in again]

    def _attempts_left(self, slot: int) -> int:
        return self._rules.dedup_attempts - self._resampled[slot] if self._rules.dedup == "resample" else 0

    def _again(self, item: WorkItem, result: BranchResult) -> WorkItem:
        self._resampled[item.slot] += 1
        self.ledger.siblings_resampled += 1
        self.ledger.discarded_tokens += sum(len(new.node.token_ids) for new in result.nodes)
        place = self._place(item.slot)
        number = self._resampled[item.slot]
        item = replace(
            item,
            id=f"{item_id(place)}+{number}",
            seed=derive_seed(self._seed, *place, "again", number),
            avoid=tuple(sorted(self._taken[item.parent])),
            resamples=self._attempts_left(item.slot),
        )
        self._waiting[item.id] = item
        return item

    def _graft(self) -> None:
        for item, result in siblings.by_slot(self._kept):
            if not self.tree.nodes:
                self.tree.nodes.append(Node(parent=-1, observation_ids=result.prompt_ids))
                self._budget.prompt_tokens = len(result.prompt_ids)
            base = len(self.tree.nodes)
            for new in result.nodes:
                parent = item.parent if new.node.parent == -1 else base + new.node.parent
                self.tree.nodes.append(new.node.moved(parent))
                self._states.append(new.state)
                self._taken.setdefault(parent, set()).add(new.action.strip())
        self._budget.branches += len(self._kept)
        self._kept.clear()

    def _next_round(self) -> list[WorkItem]:
        """The round that rules and budget allow, cut to the branches that the budget pays for."""
        wanted = self._rules.leaves_per_round
        count = self._budget.affordable(wanted) if self._round < self._rules.rounds else 0
        if count == 0:
            self._cancel(wanted * (self._rules.rounds - self._round))
            self._states.clear()
            self._taken.clear()
            return []
        self._cancel(wanted - count)
        self._round += 1
        return self._expand(count)

    def _cancel(self, leaves: int) -> None:
        if leaves:
            self.leaves_cancelled += leaves
            self.ledger.growth_stopped = 1

    def _expand(self, count: int) -> list[WorkItem]:
        """`count` new branches from as many nodes as that takes."""
        rules = self._rules
        rng = random.Random(derive_seed(self._seed, self._phase, self._task.id, self.tree.index, "pick", self._round))
        settings = PickSettings(sibling_penalty=rules.sibling_penalty, ucb_constant=rules.ucb_constant)
        pick = RULES[rules.picking](self.tree, -(-count // rules.branches_per_node), rng, settings)
        self.tree.picks.append(pick)
        depths = trees.depths(self.tree)
        starts = [node for node in pick.chosen for _ in range(rules.branches_per_node)][:count]
        return [self._item(node, depths[node], tuple(trees.context_ids(self.tree, node))) for node in starts]

    def _item(self, parent: int, turns_used: int, context_ids: tuple[int, ...]) -> WorkItem:
        taken = self._taken.get(parent, ()) if self._rules.dedup == "resample" else ()
        place = self._place(self._slots)
        item = WorkItem(
            id=item_id(place),
            task=self._task,
            tree=self.tree.index,
            parent=parent,
            slot=self._slots,
            context_ids=context_ids,
            state=self._states[parent],
            turns_used=turns_used,
            seed=derive_seed(self._seed, *place),
            avoid=tuple(sorted(taken)),
            resamples=self._rules.dedup_attempts if taken else 0,
            sampling=self._sampling,
        )
        self._slots += 1
        self._waiting[item.id] = item
        return item

    def _place(self, slot: int) -> tuple[str, str, int, int]:
        return self._phase, self._task.id, self.tree.index, slot


def item_id(place: tuple[str, str, int, int]) -> str:
    """Name of a branch: phase, task, tree and slot."""
    return "/".join(map(str, place))
