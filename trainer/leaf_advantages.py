"""Advantages of leaves: one number per trajectory, for every sampled token of its path. Pure functions, in float64.

Each takes the rewards of one task, per tree, and how a leaf that is alone in its group counts. Sums are correctly
rounded (`math.fsum`), so the order of the leaves never changes a value.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

EPS = 1e-6
"""Added to the standard deviation."""

Singleton: TypeAlias = Literal["zero", "raw"]
PerTree: TypeAlias = list[dict[int, float]]
"""One entry per tree of the task: node index -> value, e.g. `[{2: 1.0, 3: 0.0}, {1: 0.2}]`."""


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; of equal values exactly that value, which a rounded sum divided by n need not be."""
    low = min(values)
    return low if low == max(values) else math.fsum(values) / len(values)


def normalise(values: Sequence[float], singleton: Singleton) -> list[float]:
    """(x - mean) / (std + eps) with the unbiased standard deviation (Tree-GRPO, arXiv 2509.21240, Eq. 6-7).

    Exactly 0 for all if the values are equal. One value alone gives 0 (`zero`) or itself (`raw`).
    """
    if len(values) < 2:
        return list(values) if singleton == "raw" else [0.0] * len(values)
    if max(values) == min(values):
        return [0.0] * len(values)
    middle = mean(values)
    std = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))
    return [(value - middle) / (std + EPS) for value in values]


def inter(rewards: PerTree, singleton: Singleton) -> PerTree:
    """Each leaf against all leaves of the task: (R - mean) / (std + eps) over the task (Tree-GRPO, Eq. 7; GRPO)."""
    values = iter(normalise([reward for tree in rewards for reward in tree.values()], singleton))
    return [{leaf: next(values) for leaf in tree} for tree in rewards]


def intra(rewards: PerTree, singleton: Singleton) -> PerTree:
    """Each leaf against the leaves of its own tree: (R - mean) / (std + eps) over the tree (Tree-GRPO, Eq. 6).

    The values of a tree sum to 0. With few leaves per tree many trees have equal rewards and so no signal; the paper's
    ablation with this kind alone collapses.
    """
    return [dict(zip(tree, normalise(list(tree.values()), singleton), strict=True)) for tree in rewards]


def tree(rewards: PerTree, singleton: Singleton) -> PerTree:
    """`intra` + `inter` (Tree-GRPO, Eq. 6-7). With one tree per task both are the same group, and the sum doubles."""
    pairs = zip(intra(rewards, singleton), inter(rewards, singleton), strict=True)
    return [{leaf: within[leaf] + across[leaf] for leaf in within} for within, across in pairs]


def tree_2norm(rewards: PerTree, singleton: Singleton) -> PerTree:
    """`intra` of `inter`: normalised over the task, then again over the tree (Tree-GRPO's published code).

    The second step undoes the shift of the first and nearly all of its scale, so the result is `intra` up to eps.
    """
    return intra(inter(rewards, singleton), singleton)


def loo(rewards: PerTree, singleton: Singleton) -> PerTree:
    """R - mean of the rewards of the other leaves of the task, not divided by anything (RLOO, arXiv 2402.14740)."""
    flat = [reward for tree in rewards for reward in tree.values()]
    if len(flat) < 2:
        values = iter(normalise(flat, singleton))
    else:
        values = iter([reward - mean(flat[:i] + flat[i + 1 :]) for i, reward in enumerate(flat)])
    return [{leaf: next(values) for leaf in tree} for tree in rewards]


LEAF_KINDS: Mapping[str, Callable[[PerTree, Singleton], PerTree]] = {
    "tree": tree,
    "inter": inter,
    "intra": intra,
    "tree_2norm": tree_2norm,
    "loo": loo,
}
"""The values of `advantage.kind` that give each leaf one advantage."""
