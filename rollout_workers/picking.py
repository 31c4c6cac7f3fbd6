"""Which node of a finished round grows next. A rule is a pure function (tree, count, rng) → node indices."""

import random
from collections.abc import Callable
from typing import TypeAlias

from rollout_workers.types import Tree

PickingRule: TypeAlias = Callable[[Tree, int, random.Random], list[int]]


def candidates(tree: Tree) -> list[int]:
    """The nodes a branch may start from: the root and every other node that did not end its trajectory."""
    return [index for index, node in enumerate(tree.nodes) if not node.is_leaf]


def pick_random(tree: Tree, count: int, rng: random.Random) -> list[int]:
    """`count` candidates drawn uniformly with replacement (method: Tree-GRPO, arXiv 2509.21240)."""
    return rng.choices(candidates(tree), k=count)


RULES: dict[str, PickingRule] = {"random": pick_random}
"""Every rule by the name that `tree.picking` uses."""
