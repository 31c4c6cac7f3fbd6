"""Which nodes of a finished round grow next.

A rule is a pure function of a tree, a number of picks, a seeded generator and its settings. `random` draws; the other
rules score every candidate and take the best. Formulas with a worked example: docs/method.md, Picking.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rollout_workers import trees
from rollout_workers.types import ROOT, Pick, Tree

UNKNOWN = -math.inf
"""Score of a candidate about which nothing is known, e.g. because every leaf below it ended in an environment error."""
TIE_DIGITS = 9
"""Scores equal to this many decimals tie: 1/3 and 2/3 are equally far from 0.5, whatever the rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickSettings:
    """What the scored rules can be tuned with."""

    sibling_penalty: float = 0.05
    """Taken from a node's score for each child after its first."""
    ucb_constant: float = 1.4
    """Weight of the term of `ucb` that favours nodes with few leaves."""


PickingRule: TypeAlias = Callable[[Tree, int, random.Random, PickSettings], Pick]
"""(tree, count, rng, settings) → `count` picks, the same node as often as it is picked."""


def candidates(tree: Tree) -> list[int]:
    """The nodes a branch may start from: the root and every other node that did not end its trajectory."""
    return [index for index, node in enumerate(tree.nodes) if not node.is_leaf]


def pick_random(tree: Tree, count: int, rng: random.Random, settings: PickSettings) -> Pick:
    """`count` candidates drawn uniformly with replacement (Tree-GRPO, arXiv 2509.21240)."""
    return Pick(scores=(), chosen=tuple(rng.choices(candidates(tree), k=count)))


def pick_entropy(tree: Tree, count: int, rng: random.Random, settings: PickSettings) -> Pick:
    """Where the policy was least sure what to do: mean entropy of the steps after the node (AT²PO, arXiv 2601.04767).

    AT²PO scores the step that leads to a node; here it is the steps sampled from it, since a branch samples one more.
    """
    values = [node.entropy for node in tree.nodes]
    return best(tree, count, rng, settings, _means_over_children(tree, values))


def pick_surprisal(tree: Tree, count: int, rng: random.Random, settings: PickSettings) -> Pick:
    """Where the policy did something unlikely next: mean of −log p over the actions sampled from the node.

    The Monte-Carlo form of `entropy` (AT²PO, arXiv 2601.04767, estimates entropy by it), summed over the step's tokens
    instead of averaged: −log p of the action as a whole.
    """
    values = [None if index == ROOT else -math.fsum(node.logprobs) for index, node in enumerate(tree.nodes)]
    return best(tree, count, rng, settings, _means_over_children(tree, values))


def pick_uncertain(tree: Tree, count: int, rng: random.Random, settings: PickSettings) -> Pick:
    """Where success is most open: −|mean score of the leaves below − 0.5| (TRACE, arXiv 2606.11119).

    TRACE estimates the chance of success with a trained predictor; here it is what the leaves grown so far say.
    """
    means = {node: -abs(total / number - 0.5) for node, (total, number) in _scored_leaves(tree).items()}
    return best(tree, count, rng, settings, means)


def pick_ucb(tree: Tree, count: int, rng: random.Random, settings: PickSettings) -> Pick:
    """Where success is high or little is known: mean score + c·sqrt(ln(leaves of the tree) / leaves under the node).

    UCB1 (Auer et al., 2002, Machine Learning 47) over the leaves of a tree, as in UCT (Kocsis & Szepesvári, 2006).
    """
    found = _scored_leaves(tree)
    total = found[ROOT][1] if ROOT in found else 0
    values = {
        node: mean / number + settings.ucb_constant * math.sqrt(math.log(total) / number)
        for node, (mean, number) in found.items()
    }
    return best(tree, count, rng, settings, values)


RULES: dict[str, PickingRule] = {
    "random": pick_random,
    "entropy": pick_entropy,
    "surprisal": pick_surprisal,
    "uncertain": pick_uncertain,
    "ucb": pick_ucb,
}
"""Every rule by the name that `tree.picking` uses."""


def best(tree: Tree, count: int, rng: random.Random, settings: PickSettings, values: Mapping[int, float]) -> Pick:
    """The `count` best candidates by value less sibling penalty; with fewer candidates they go round again.

    A candidate without a value comes last. `rng` decides between equal scores.
    """
    kids = trees.children(tree)
    scores = {
        node: values[node] - settings.sibling_penalty * max(len(kids[node]) - 1, 0) if node in values else UNKNOWN
        for node in candidates(tree)
    }
    order = list(scores)
    rng.shuffle(order)
    order.sort(key=lambda node: round(scores[node], TIE_DIGITS) if node in values else UNKNOWN, reverse=True)
    return Pick(scores=tuple(scores.items()), chosen=tuple(order[place % len(order)] for place in range(count)))


def _means_over_children(tree: Tree, values: Sequence[float | None]) -> dict[int, float]:
    """For each node the mean of `values` over its children that have one; nodes without any are left out."""
    known = [[value for kid in kids if (value := values[kid]) is not None] for kids in trees.children(tree)]
    return {node: math.fsum(found) / len(found) for node, found in enumerate(known) if found}


def _scored_leaves(tree: Tree) -> dict[int, tuple[float, int]]:
    """For each node (sum of scores, number) over the scored leaves below it; nodes without any are left out.

    Leaves that ended in an environment error have no score. Sums are exact, so the order of children can't change them.
    """
    below: list[list[float]] = [[] for _ in tree.nodes]
    for index in range(len(tree.nodes) - 1, -1, -1):
        node = tree.nodes[index]
        if node.score is not None:
            below[index].append(node.score)
        if index != ROOT:
            below[node.parent].extend(below[index])
    return {index: (math.fsum(scores), len(scores)) for index, scores in enumerate(below) if scores}
