"""From advantages and leaf weights to the loss weights P, N and W of every node (method: training each token once).

The tokens of a node are shared by all leaves under it. P is the sum of weight times advantage over the leaves where the
advantage is above 0, N the same below 0, W the sum of the weights. A node-level advantage A belongs to the node itself,
so there W is again the sum of the weights under the node, P = W * max(A, 0) and N = W * min(A, 0).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollout_workers.trees import backup_sum, path
from rollout_workers.types import Tree
from trainer.advantages import TreeAdvantages


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Loss weights of one tree's nodes, each list as long as the tree."""

    positive: list[float]
    """P, at least 0."""
    negative: list[float]
    """N, at most 0."""
    weight: list[float]
    """W, at least 0."""


def tree_credit(tree: Tree, advantages: TreeAdvantages, weights: Mapping[int, float]) -> Credit:
    """Credit of every node, from all leaves of `advantages.leaves`; `weights` has the weight of each of them."""
    weight = backup_sum(tree, {leaf: weights[leaf] for leaf in advantages.leaves})
    if advantages.level == "node":
        values = [advantages.values.get(index, 0.0) for index in range(len(tree.nodes))]
        return Credit(
            positive=[share * max(value, 0.0) for share, value in zip(weight, values, strict=True)],
            negative=[share * min(value, 0.0) for share, value in zip(weight, values, strict=True)],
            weight=weight,
        )
    signed = {leaf: weights[leaf] * advantages.values[leaf] for leaf in advantages.leaves}
    return Credit(
        positive=backup_sum(tree, {leaf: max(value, 0.0) for leaf, value in signed.items()}),
        negative=backup_sum(tree, {leaf: min(value, 0.0) for leaf, value in signed.items()}),
        weight=weight,
    )


def path_credit(tree: Tree, leaf: int, advantages: TreeAdvantages, weight: float) -> Credit:
    """What `leaf` alone, with its weight, adds to the credit of its path; 0 at all other nodes.

    Summed over the leaves it is `tree_credit`: what one row per leaf, or a ratio per path, needs.
    """
    positive, negative, weights = ([0.0] * len(tree.nodes) for _ in range(3))
    for index in path(tree, leaf):
        value = advantages.values.get(leaf if advantages.level == "leaf" else index, 0.0)
        positive[index] = weight * max(value, 0.0)
        negative[index] = weight * min(value, 0.0)
        weights[index] = weight
    return Credit(positive=positive, negative=negative, weight=weights)


def contributes(tree: Tree, leaf: int, advantages: TreeAdvantages) -> bool:
    """Whether any token of the leaf's path has an advantage other than 0 through this leaf."""
    if advantages.level == "leaf":
        return advantages.values[leaf] != 0
    return any(advantages.values.get(index, 0.0) != 0 for index in path(tree, leaf))
