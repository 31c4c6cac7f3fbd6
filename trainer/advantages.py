"""From the rewards of one task's trees to `TreeAdvantages`: which kind, which leaves count, and what is refused.

Leaves without a reward (environment errors) leave every statistic first and get no advantage. A task whose rewards are
all equal, or that has one rewarded leaf, has advantages of exactly 0 in every kind: float rounding in a mean must never
turn equal rewards into small advantages. The formulas are in `leaf_advantages.py` and `node_advantages.py`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envs.types import EndReason
from rollout_workers.trees import leaves
from rollout_workers.types import TaskGroup, Tree
from trainer.leaf_advantages import LEAF_KINDS, Singleton
from trainer.node_advantages import NODE_KINDS

KINDS = (*LEAF_KINDS, *NODE_KINDS)
"""Every value of `advantage.kind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAdvantages:
    """Advantages of one tree."""

    level: Literal["leaf", "node"]
    values: dict[int, float]
    """`leaf`: leaf's index -> value, which counts for every sampled token of the leaf's path. `node`: node's index ->
    value, which counts for the node's own tokens; every node but the root that has a rewarded leaf under it."""
    leaves: tuple[int, ...]
    """Leaves that have a reward, ascending, e.g. `(2, 4)`: these carry weight in the loss."""

    @classmethod
    def of_leaves(cls, values: Mapping[int, float]) -> "TreeAdvantages":
        """Leaf-level advantages; the leaves are those of `values`."""
        return cls(level="leaf", values=dict(values), leaves=tuple(sorted(values)))


def advantages(group: TaskGroup, kind: str = "tree", singleton: Singleton = "zero") -> list[TreeAdvantages]:
    """Advantages of one task, one entry per tree. `singleton` is for the kinds of leaves; the others ignore it.

    Raises ValueError (one sentence) for an unknown kind, for a task without trees or with an empty tree, for a reward
    that is not finite, and for a leaf that ended without an environment error but has no reward.
    """
    if kind not in KINDS:
        raise ValueError(f"advantage.kind={kind} is unknown; accepted: {', '.join(KINDS)}")
    if not group.trees:
        raise ValueError(f"task {group.task.id!r} has no trees; advantages need at least one")
    rewards = [leaf_rewards(tree) for tree in group.trees]
    if kind in LEAF_KINDS:
        return [TreeAdvantages.of_leaves(values) for values in LEAF_KINDS[kind](rewards, singleton)]
    return [
        TreeAdvantages(level="node", values=values, leaves=tuple(known))
        for values, known in zip(NODE_KINDS[kind](group.trees, rewards), rewards, strict=True)
    ]


def is_dead(per_tree: Sequence[TreeAdvantages]) -> bool:
    """Whether a task gives no signal: every advantage of all of its trees is exactly 0, or there is none.

    This one flag decides about loss, KL term and denominators alike (`advantage.dead_groups`).
    """
    return not any(value for found in per_tree for value in found.values.values())


def leaf_rewards(tree: Tree) -> dict[int, float]:
    """Rewards of the leaves that have one, ascending; leaves that ended in an environment error are left out.

    Raises ValueError (one sentence) for a tree without a step, and for a reward that is missing or not finite.
    """
    if len(tree.nodes) < 2:
        raise ValueError(
            f"tree {tree.index} of task {tree.task_id!r} is empty; a tree has a prompt and at least a step"
        )
    found: dict[int, float] = {}
    for leaf in leaves(tree):
        node = tree.nodes[leaf]
        if node.end is EndReason.ENV_ERROR:
            continue
        if node.reward is None or not math.isfinite(node.reward):
            raise ValueError(
                f"leaf {leaf} of tree {tree.index} of task {tree.task_id!r} has reward {node.reward}; "
                "rewards must be finite numbers"
            )
        found[leaf] = node.reward
    return found
