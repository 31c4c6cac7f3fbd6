"""From rewards at the leaves to advantages at the leaves. Pure functions of one task's trees, in float64.

A group is a set of leaves that are compared with each other. Leaves without a reward (environment errors) leave every
statistic first and get no advantage. A group whose rewards are all equal has advantage exactly 0: float rounding in the
mean must never turn equal rewards into small advantages.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from envs.types import EndReason
from rollout_workers.trees import leaves
from rollout_workers.types import Forest, TaskGroup, Tree

EPS = 1e-6
"""Added to the standard deviation."""

Singleton: TypeAlias = Literal["zero", "raw"]
PerTree: TypeAlias = list[dict[int, float]]
"""One entry per tree of the task: leaf's node index -> value, e.g. `[{2: 1.0, 3: 0.0}, {1: 0.2}]`."""


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


def normalise(rewards: Sequence[float], singleton: Singleton) -> list[float]:
    """(R - mean) / (std + eps) with the unbiased standard deviation (Tree-GRPO, arXiv 2509.21240, Eq. 6-7).

    Exactly 0 for all if the rewards are equal. One reward alone gives 0 (`zero`) or itself (`raw`).
    """
    if len(rewards) < 2:
        return list(rewards) if singleton == "raw" else [0.0] * len(rewards)
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    values_G = np.asarray(rewards, np.float64)
    return [float(value) for value in (values_G - values_G.mean()) / (values_G.std(ddof=1) + EPS)]


def inter(rewards: PerTree, singleton: Singleton) -> PerTree:
    """Each leaf against all leaves of the task."""
    flat = normalise([reward for tree in rewards for reward in tree.values()], singleton)
    values = iter(flat)
    return [{leaf: next(values) for leaf in tree} for tree in rewards]


def intra(rewards: PerTree, singleton: Singleton) -> PerTree:
    """Each leaf against the leaves of its own tree."""
    return [dict(zip(tree, normalise(list(tree.values()), singleton), strict=True)) for tree in rewards]


def tree(rewards: PerTree, singleton: Singleton) -> PerTree:
    """Sum of `intra` and `inter`; with one tree per task both are the same group, and the sum doubles."""
    pairs = zip(intra(rewards, singleton), inter(rewards, singleton), strict=True)
    return [{leaf: within[leaf] + across[leaf] for leaf in within} for within, across in pairs]


KINDS: Mapping[str, Callable[[PerTree, Singleton], PerTree]] = {"tree": tree, "inter": inter, "intra": intra}
"""Every value of `advantage.kind`."""


def advantages(group: TaskGroup, kind: str = "tree", singleton: Singleton = "zero") -> list[TreeAdvantages]:
    """Advantages of one task, one entry per tree.

    Raises ValueError (one sentence) for an unknown kind, for a reward that is not finite, and for a leaf that ended
    without an environment error but has no reward.
    """
    if kind not in KINDS:
        raise ValueError(f"advantage.kind={kind} is unknown; accepted: {', '.join(KINDS)}")
    values = KINDS[kind]([leaf_rewards(one) for one in group.trees], singleton)
    return [TreeAdvantages.of_leaves(per_tree) for per_tree in values]


def leaf_rewards(one: Tree) -> dict[int, float]:
    """Rewards of the leaves that have one; leaves that ended in an environment error are left out."""
    found: dict[int, float] = {}
    for leaf in leaves(one):
        node = one.nodes[leaf]
        if node.end is EndReason.ENV_ERROR:
            continue
        if node.reward is None or not math.isfinite(node.reward):
            raise ValueError(
                f"leaf {leaf} of tree {one.index} of task {one.task_id!r} has reward {node.reward}; "
                "rewards must be finite numbers"
            )
        found[leaf] = node.reward
    return found


def reward_stats(forest: Forest) -> dict[str, float]:
    """Numbers about the rewards of one step, for the log: keys `reward/...`.

    `reward/dead_groups` is the share of tasks whose leaves all have the same reward (no inter-tree signal), and
    `reward/dead_trees` the share of trees of which the same holds.
    """
    per_group = [[leaf_rewards(one) for one in group.trees] for group in forest]
    flat = [reward for group in per_group for one in group for reward in one.values()]
    nodes = [one.nodes[leaf] for group in forest for one in group.trees for leaf in leaves(one)]
    scores = [node.score for node in nodes if node.score is not None]
    groups = [[reward for one in group for reward in one.values()] for group in per_group]
    trees = [list(one.values()) for group in per_group for one in group]
    stats = {
        "reward/leaves": float(len(flat)),
        "reward/leaves_without_reward": float(len(nodes) - len(flat)),
        "reward/dead_groups": _share_dead(groups),
        "reward/dead_trees": _share_dead(trees),
    }
    if flat:
        stats |= {"reward/mean": float(np.mean(flat)), "reward/std": float(np.std(flat))}
        stats |= {"reward/min": min(flat), "reward/max": max(flat)}
    if scores:
        stats["reward/score"] = float(np.mean(scores))
    return stats


def _share_dead(groups: Sequence[Sequence[float]]) -> float:
    dead = sum(1 for rewards in groups if not rewards or max(rewards) == min(rewards))
    return dead / len(groups) if groups else 0.0
