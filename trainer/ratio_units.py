"""Which tokens of a pack share one ratio of new to old probability: none, or those of an agent step or of a path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rollout_workers.trees import path
from trainer.credit import Credit
from trainer.pieces import Piece
from trainer.types import RatioLevel, RatioUnits

Placed: TypeAlias = tuple[Piece, Mapping[int, int]]
"""A piece, and for each of its nodes the index in the pack where it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    positive: float
    negative: float
    members: Sequence[int]


def ratio_units(placed: Sequence[Placed], level: RatioLevel) -> RatioUnits | None:
    """The units of a pack; None where each token has its own ratio.

    The terms of a unit's tokens have one ratio r in common, so they fold: the sum over tokens and leaves of
    w*min(r*A, clip(r)*A) is P*min(r, 1+hi) + N*max(r, 1-lo) with P the sum of w*A above 0 and N of that below.
    """
    if level == "token":
        return None
    units = [unit for piece, begin in placed for unit in (_turns if level == "turn" else _paths)(piece, begin)]
    sizes = [len(unit.members) for unit in units]
    return RatioUnits(
        positive=np.asarray([unit.positive for unit in units], np.float32),
        negative=np.asarray([unit.negative for unit in units], np.float32),
        member_tokens=np.asarray([token for unit in units for token in unit.members], np.int64),
        member_units=np.repeat(np.arange(len(sizes)), sizes),
    )


def _turns(piece: Piece, begin: Mapping[int, int]) -> list[_Unit]:
    """One per node that the piece trains: the leaves under a node share its ratio, so their P and N add up."""
    trained = [index for index in piece.nodes if index not in piece.context and piece.tree.nodes[index].token_ids]
    return [_unit(piece, begin, piece.credit, [index]) for index in trained]


def _paths(piece: Piece, begin: Mapping[int, int]) -> list[_Unit]:
    """One per leaf, over all sampled tokens of its path, those of a repeated prefix included."""
    return [_unit(piece, begin, credit, path(piece.tree, leaf)) for leaf, credit in piece.paths.items()]


def _unit(piece: Piece, begin: Mapping[int, int], credit: Credit, nodes: Sequence[int]) -> _Unit:
    sizes = {index: len(piece.tree.nodes[index].token_ids) for index in nodes}
    return _Unit(
        positive=sum(count * credit.positive[index] for index, count in sizes.items()),
        negative=sum(count * credit.negative[index] for index, count in sizes.items()),
        members=[begin[index] + k for index, count in sizes.items() for k in range(count)],
    )
