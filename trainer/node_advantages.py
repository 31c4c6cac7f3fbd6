"""Advantages of nodes: one number per agent step, for the tokens of that step only. Pure functions, in float64.

Each takes the trees of one task and the rewards of their leaves. V(node) is the mean reward over the rewarded leaves
under the node. All trees of a task start at the same prompt, so they have one common root: V(root) is the mean over all
rewarded leaves of the task, and the first steps of all its trees are siblings. Nodes without a rewarded leaf under them
get no value and count in no group.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from rollout_workers.trees import path
from rollout_workers.types import ROOT, Tree
from trainer.leaf_advantages import PerTree, inter, mean, normalise


def sibling(trees: Sequence[Tree], rewards: PerTree) -> PerTree:
    """(V - mean) / (std + eps) over the children of one parent, std unbiased (TreeRPO, arXiv 2506.05183).

    An only child gets 0, so a chain learns from its first step alone, which is compared across the task's trees.
    """
    values = node_values(trees, rewards)
    families: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for place, (tree, known) in enumerate(zip(trees, values, strict=True)):
        for index in known:
            parent = tree.nodes[index].parent
            families.setdefault((place, parent) if parent != ROOT else (-1, ROOT), []).append((place, index))
    found: PerTree = [dict.fromkeys(known, 0.0) for known in values]
    for members in families.values():
        compared = normalise([values[place][index] for place, index in members], "zero")
        for (place, index), value in zip(members, compared, strict=True):
            found[place][index] = value
    return found


def edge(trees: Sequence[Tree], rewards: PerTree) -> PerTree:
    """V(node) - V(parent): what the step changed (VinePPO, arXiv 2410.01679, and SPO, arXiv 2505.23564, on a tree).

    The values of a path telescope to R(leaf) - V(root).
    """
    root = root_value(rewards)
    return [
        {index: value - known.get(tree.nodes[index].parent, root) for index, value in known.items()}
        for tree, known in zip(trees, node_values(trees, rewards), strict=True)
    ]


def global_local(trees: Sequence[Tree], rewards: PerTree) -> PerTree:
    """[(V - V(root)) + (V - V(parent))] / sqrt(leaves under the node) (TreeRL, arXiv 2506.11902).

    The square root keeps early steps, which lie on many paths, from outweighing late ones. Only rewarded leaves count.
    """
    root = root_value(rewards)
    found: PerTree = []
    for tree, at_leaf in zip(trees, rewards, strict=True):
        below = rewards_below(tree, at_leaf)
        known = {index: mean(values) for index, values in below.items()}
        gains = {i: (value - root) + (value - known.get(tree.nodes[i].parent, root)) for i, value in known.items()}
        found.append({index: gain / math.sqrt(len(below[index])) for index, gain in gains.items()})
    return found


def node_value(trees: Sequence[Tree], rewards: PerTree) -> PerTree:
    """Mean over the leaves under the node of their `inter` advantage (the form of AT2PO, arXiv 2601.04767).

    Rewards are normalised over the task, then averaged towards the root; a leaf keeps its `inter` advantage.
    """
    return node_values(trees, inter(rewards, "zero"))


def root_value(rewards: PerTree) -> float:
    """V(root): mean over all rewarded leaves of the task; 0 without any."""
    flat = [reward for tree in rewards for reward in tree.values()]
    return mean(flat) if flat else 0.0


def node_values(trees: Sequence[Tree], at_leaf: PerTree) -> PerTree:
    """For every node but the root the mean of `at_leaf` over the leaves under it, nodes ascending."""
    return [
        {index: mean(values) for index, values in rewards_below(tree, known).items()}
        for tree, known in zip(trees, at_leaf, strict=True)
    ]


def rewards_below(tree: Tree, at_leaf: Mapping[int, float]) -> dict[int, list[float]]:
    """For every node but the root what the leaves under it have, nodes ascending; nodes without any are left out."""
    below: dict[int, list[float]] = {}
    for leaf, value in at_leaf.items():
        for index in path(tree, leaf)[1:]:
            below.setdefault(index, []).append(value)
    return dict(sorted(below.items()))


NODE_KINDS: Mapping[str, Callable[[Sequence[Tree], PerTree], PerTree]] = {
    "sibling": sibling,
    "edge": edge,
    "global_local": global_local,
    "node_value": node_value,
}
"""The values of `advantage.kind` that give each agent step one advantage."""
