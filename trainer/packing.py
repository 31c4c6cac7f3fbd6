"""From trees with advantages to `TreePack`s: each unique token is laid out, and trained, once.

Steps: tasks are split into mini-batches; of each tree the paths that contribute are kept; a tree larger than a pack is
cut into pieces at subtrees (the prefix of a piece is repeated as context but trained in one piece only); pieces are
distributed over packs, and packs over ranks, by cost. With `learner.layout=flat` a piece is the path of one leaf
instead. Weights are per batch (`leaf_weights`), so no split changes the gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from rollout_workers.trees import path
from rollout_workers.types import ROOT, Forest, Tree
from trainer.advantages import TreeAdvantages
from trainer.config import LearnerConfig, LossConfig
from trainer.credit import contributes, path_credit, tree_credit
from trainer.decisions.packing import TypedPlan, typed_parts
from trainer.layout import chosen_layout
from trainer.leaf_weights import leaf_weights
from trainer.pieces import CreditedTree, Piece, fill, rows, size, split, total_cost
from trainer.ratio_units import Placed, ratio_units
from trainer.types import Answer, PackedForest, RatioLevel, TreePack, blank_pack


def pack_forest(
    forest: Forest,
    advantages: Sequence[Sequence[TreeAdvantages]],
    loss: LossConfig,
    learner: LearnerConfig,
    hidden_size: int,
    version: int | None = None,
    typed: TypedPlan | None = None,
) -> PackedForest:
    """Packs of one learning phase: `learner.mini_batches` optimizer steps over contiguous parts of the forest.

    `advantages` is parallel to `forest`. Leaves without a reward are not trained. Leaves whose advantage is 0 add
    nothing to the gradient without a KL or entropy term, so then their paths are left out (the weights of all others
    stay the same). `hidden_size` of the model says what attention costs, for the balance of packs only. `version` of
    the weights to be trained marks the tokens that they sampled; None marks all. `typed` says what is trained of typed
    trees (`trainer/decisions/packing.py`). Raises ValueError if one path alone has more tokens than
    `learner.max_tokens_per_pack`, and for a log-probability of the rollout engine that is not finite.
    """
    bounds = [round(i * len(forest) / learner.mini_batches) for i in range(learner.mini_batches + 1)]
    cut = rows if chosen_layout(learner) == "flat" else split
    dealt = []
    parts: list[CreditedTree] = []
    pieces: list[Piece] = []
    for start, stop in pairwise(bounds):
        batch = _credited(forest[start:stop], advantages[start:stop], loss, typed)
        cuts = [piece for part in batch for piece in cut(part, learner.max_tokens_per_pack)]
        dealt.append(_deal(fill(cuts, learner.max_tokens_per_pack, learner.ranks, hidden_size), learner, hidden_size))
        parts.extend(batch)
        pieces.extend(cuts)
    mini_batches = [
        [[lay_out(m, loss.ratio_level, version, typed) for m in members] for members in ranks] for ranks in dealt
    ]
    packs = [pack for rank_packs in mini_batches for packs in rank_packs for pack in packs]
    stats = _token_stats(parts, pieces) | {
        "tree/trained_tokens": float(sum(pack.trained_tokens for pack in packs)),
        "tree/packs": float(len(packs)),
        "tree/pack_fill": sum(piece.tokens for piece in pieces) / max(len(packs) * learner.max_tokens_per_pack, 1),
        "tree/rank_balance": _balance(dealt, hidden_size),
    }
    return PackedForest(mini_batches=mini_batches, stats=stats)


def lay_out(
    pieces: Sequence[Piece],
    ratio_level: RatioLevel = "token",
    version: int | None = None,
    typed: TypedPlan | None = None,
) -> TreePack:
    """One pack with the given pieces one after the other; the empty pack if there is none."""
    if not pieces:
        return _voiced(blank_pack(1), [], typed)
    pack = blank_pack(sum(piece.tokens for piece in pieces))
    placed: list[Placed] = []
    start = 0
    for piece in pieces:
        placed.append((piece, _place(pack, piece, start, version)))
        start += piece.tokens
    return _voiced(replace(pack, units=ratio_units(placed, ratio_level)), placed, typed)


def _voiced(pack: TreePack, placed: Sequence[Placed], typed: TypedPlan | None) -> TreePack:
    """A typed policy's pack with the adapter of each token, its answers, and the coefficients of their loss."""
    if typed is None:
        return pack
    voice = np.full(pack.tokens, -1, np.int64)
    answers = []
    for piece, begin in placed:
        for index in piece.nodes:
            if (record := piece.tree.nodes[index].record) is not None:
                start, stop = begin[index], begin[index] + size(piece.tree, index)
                answers.append(Answer(start=start, stop=stop, node=typed.place[record.node]))
                # the prompt before it speaks with the same voice
                voice[start:stop] = voice[begin[ROOT] : begin[ROOT] + size(piece.tree, ROOT)] = typed.voice(record.node)
    return replace(pack, voice=voice, answers=tuple(answers), coefficients=typed.coefficients)


def _place(pack: TreePack, piece: Piece, start: int, version: int | None) -> dict[int, int]:
    """Writes a piece into the arrays of `pack`, from index `start` on; returns where each node begins."""
    begin: dict[int, int] = {}
    last: dict[int, int] = {}
    """Per node: index of the last token of the path that ends there; -1 before the first token."""
    for index in piece.nodes:
        node = piece.tree.nodes[index]
        length = size(piece.tree, index)
        stop = start + length
        previous = last.get(node.parent, -1)
        pack.ids[start:stop] = (*node.token_ids, *node.observation_ids)
        pack.positions[start:stop] = np.arange(length) + (pack.positions[previous] + 1 if previous >= 0 else 0)
        if length:
            pack.source[start:stop] = (previous, *range(start, stop - 1))
        sampled = slice(start, start + len(node.token_ids))
        pack.old_logprobs[sampled] = node.logprobs
        pack.is_current[sampled] = version is None or np.equal(node.versions, version)
        if index not in piece.context:
            pack.positive[sampled] = piece.credit.positive[index]
            pack.negative[sampled] = piece.credit.negative[index]
            pack.weight[sampled] = piece.credit.weight[index]
        begin[index], last[index] = start, stop - 1 if length else previous
        start = stop
    _close_subtrees(pack, piece, begin)
    return begin


def _close_subtrees(pack: TreePack, piece: Piece, begin: dict[int, int]) -> None:
    """Sets `end`: in preorder a subtree is contiguous, so its end is the largest end of its nodes."""
    stop = {index: begin[index] + size(piece.tree, index) for index in piece.nodes}
    for index in reversed(piece.nodes):
        pack.end[begin[index] : begin[index] + size(piece.tree, index)] = stop[index]
        parent = piece.tree.nodes[index].parent
        if parent in stop:
            stop[parent] = max(stop[parent], stop[index])


def flat_pack(sequences: Sequence[tuple[Sequence[int], int]]) -> TreePack:
    """One pack of plain sequences, each given as (ids, how many of its last tokens are scored, with weight 1)."""
    pack = blank_pack(sum(len(ids) for ids, _ in sequences))
    start = 0
    for ids, scored in sequences:
        stop = start + len(ids)
        pack.ids[start:stop] = ids
        pack.positions[start:stop] = np.arange(len(ids))
        pack.source[start:stop] = (-1, *range(start, stop - 1))
        pack.end[start:stop] = stop
        pack.weight[stop - scored : stop] = 1.0
        start = stop
    return pack


def _credited(
    groups: Forest, advantages: Sequence[Sequence[TreeAdvantages]], loss: LossConfig, typed: TypedPlan | None
) -> list[CreditedTree]:
    """The trees of one mini-batch, each with the leaves that are laid out."""
    for tree in (tree for group in groups for tree in group.trees):
        _check_logprobs(tree)
    if typed is not None:
        return typed_parts(groups, advantages, loss, typed)
    regularised = loss.kl_coef > 0 or loss.entropy_coef > 0
    parts = []
    for group, per_tree, weights in zip(groups, advantages, leaf_weights(groups, advantages, loss), strict=True):
        for tree, found, at_leaf in zip(group.trees, per_tree, weights, strict=True):
            weighted = [leaf for leaf in found.leaves if at_leaf[leaf] > 0]
            kept = [leaf for leaf in weighted if regularised or contributes(tree, leaf, found)]
            part = CreditedTree(
                tree=tree,
                leaves=tuple(kept),
                credit=tree_credit(tree, found, at_leaf),
                paths={leaf: path_credit(tree, leaf, found, at_leaf[leaf]) for leaf in kept},
            )
            parts.append(part)
    return parts


def _check_logprobs(tree: Tree) -> None:
    for index, node in enumerate(tree.nodes):
        if not all(map(math.isfinite, node.logprobs)):
            worst = next(value for value in node.logprobs if not math.isfinite(value))
            raise ValueError(
                f"the rollout engine gave a token of node {index} of tree {tree.index} of task {tree.task_id!r} the "
                f"log-probability {worst}; log-probabilities must be finite numbers"
            )


def _deal(packs: Sequence[list[Piece]], learner: LearnerConfig, hidden_size: int) -> list[list[list[Piece]]]:
    """Costliest packs first, dealt to the ranks in turn, so that the ranks work on packs of like cost at a time."""
    costliest_first = sorted(packs, key=lambda pieces: -total_cost(pieces, hidden_size))
    return [costliest_first[rank :: learner.ranks] for rank in range(learner.ranks)]


def _balance(dealt: Sequence[Sequence[Sequence[list[Piece]]]], hidden_size: int) -> float:
    """Mean cost over largest cost of the packs that ranks work on at the same time: 1 is no waiting."""
    costs = [
        [total_cost(pieces, hidden_size) for pieces in together]
        for ranks in dealt
        for together in zip(*ranks, strict=True)
    ]
    longest = sum(max(together) for together in costs)
    return sum(sum(together) / len(together) for together in costs) / longest if longest else 1.0


def _token_stats(parts: Sequence[CreditedTree], pieces: Sequence[Piece]) -> dict[str, float]:
    """Tokens of one row per leaf, of each node once, and of what is laid out beyond that."""
    flat = sum(size(part.tree, index) for part in parts for leaf in part.leaves for index in path(part.tree, leaf))
    repeated = sum(piece.repeated_tokens for piece in pieces)
    unique = sum(piece.tokens for piece in pieces) - repeated
    return {
        "tree/flat_tokens": float(flat),
        "tree/unique_tokens": float(unique),
        "tree/repeated_tokens": float(repeated),
        "learner/tree_token_ratio": flat / max(unique, 1),
    }
