"""From trees with advantages to `TreePack`s: each unique token is laid out, and trained, once.

Steps: tasks are split into mini-batches; of each tree the paths that contribute are kept; a tree larger than a pack is
cut into pieces at subtrees (the prefix of a piece is repeated as context but trained in one piece only); pieces are
distributed over packs, and packs over ranks. Weights are per batch (`leaf_weights`), so no split changes the gradient.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rollout_workers.trees import path, preorder
from rollout_workers.types import Forest, Tree
from trainer.advantages import TreeAdvantages
from trainer.config import LearnerConfig, LossConfig
from trainer.credit import Credit, contributes, tree_credit
from trainer.leaf_weights import leaf_weights
from trainer.types import PackedForest, RankPacks, TreePack, blank_pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a tree that fits into a pack: whole paths from the root."""

    tree: Tree
    credit: Credit
    nodes: tuple[int, ...]
    """Node indices in preorder; with every node its parent, e.g. `(0, 1, 4, 5)`."""
    context: frozenset[int]
    """Nodes among them that an earlier piece of the tree trains; here they are context only."""
    tokens: int


def pack_forest(
    forest: Forest, advantages: Sequence[Sequence[TreeAdvantages]], loss: LossConfig, learner: LearnerConfig
) -> PackedForest:
    """Packs of one learning phase: `learner.mini_batches` optimizer steps over contiguous parts of the forest.

    `advantages` is parallel to `forest`. Leaves without a reward are not trained. Leaves whose advantage is 0 add
    nothing to the gradient without a KL or entropy term, so then their paths are left out (the weights of all others
    stay the same). Raises ValueError if one path alone has more tokens than `learner.max_tokens_per_pack`.
    """
    bounds = [round(i * len(forest) / learner.mini_batches) for i in range(learner.mini_batches + 1)]
    stats = {"tree/unique_tokens": 0.0, "tree/flat_tokens": 0.0, "tree/trained_tokens": 0.0}
    stats |= {"tree/repeated_tokens": 0.0, "tree/packs": 0.0}
    mini_batches = []
    for start, stop in pairwise(bounds):
        pieces, flat_tokens = _pieces(forest[start:stop], advantages[start:stop], loss, learner.max_tokens_per_pack)
        packs = [lay_out(members) for members in fill(pieces, learner.max_tokens_per_pack, learner.ranks)]
        mini_batches.append(_deal(packs, learner.ranks))
        stats["tree/unique_tokens"] += sum(pack.tokens - pack.repeated_tokens for pack in packs)
        stats["tree/trained_tokens"] += sum(pack.trained_tokens for pack in packs)
        stats["tree/repeated_tokens"] += sum(pack.repeated_tokens for pack in packs)
        stats["tree/flat_tokens"] += flat_tokens
        stats["tree/packs"] += len(packs)
    laid_out = stats["tree/unique_tokens"] + stats["tree/repeated_tokens"]
    stats["tree/token_saving"] = stats["tree/flat_tokens"] / max(laid_out, 1.0)
    stats["tree/pack_fill"] = laid_out / max(stats["tree/packs"] * learner.max_tokens_per_pack, 1.0)
    return PackedForest(mini_batches=mini_batches, stats=stats)


def split(tree: Tree, leaves: Sequence[int], credit: Credit, capacity: int) -> list[Piece]:
    """Cuts the paths to `leaves` into pieces of at most `capacity` tokens, walking the leaves in preorder.

    A piece takes one leaf after the other until the next one does not fit. Neighbours in preorder share the longest
    prefixes, so little is repeated. Raises ValueError if a single path does not fit.
    """
    sizes = [_size(tree, index) for index in range(len(tree.nodes))]
    order = preorder(tree)
    wanted = set(leaves)
    pieces: list[Piece] = []
    trained: set[int] = set()
    nodes: set[int] = set()
    tokens = 0

    def close() -> None:
        ordered = tuple(index for index in order if index in nodes)
        context = frozenset(nodes & trained)
        pieces.append(Piece(tree=tree, credit=credit, nodes=ordered, context=context, tokens=tokens))
        trained.update(nodes)

    for leaf in (index for index in order if index in wanted):
        steps = path(tree, leaf)
        more = sum(sizes[index] for index in steps if index not in nodes)
        if nodes and tokens + more > capacity:
            close()
            nodes, tokens, more = set(), 0, sum(sizes[index] for index in steps)
        if more > capacity:
            raise ValueError(
                f"learner.max_tokens_per_pack={capacity} must be at least {more}, a path's length in {tree.task_id!r}"
            )
        nodes.update(steps)
        tokens += more
    if nodes:
        close()
    return pieces


def fill(pieces: Sequence[Piece], capacity: int, ranks: int) -> list[list[Piece]]:
    """Distributes pieces over as few packs as fit, a multiple of `ranks`, of about equal length.

    Longest piece first, each to the pack with the fewest tokens; if that overflows, with more packs.
    """
    longest_first = sorted(pieces, key=lambda piece: -piece.tokens)
    needed = -(-sum(piece.tokens for piece in pieces) // capacity)
    bins = -(-needed // ranks) * ranks
    while True:
        heap = [(0, index) for index in range(bins)]
        members: list[list[Piece]] = [[] for _ in range(bins)]
        for piece in longest_first:
            load, index = heapq.heappop(heap)
            if load + piece.tokens > capacity:
                break
            members[index].append(piece)
            heapq.heappush(heap, (load + piece.tokens, index))
        else:
            return members
        bins += ranks


def lay_out(pieces: Sequence[Piece]) -> TreePack:
    """One pack with the given pieces one after the other; the empty pack if there is none."""
    if not pieces:
        return blank_pack(1)
    pack = blank_pack(sum(piece.tokens for piece in pieces))
    start, repeated = 0, 0
    for piece in pieces:
        _place(pack, piece, start)
        start += piece.tokens
        repeated += sum(_size(piece.tree, index) for index in piece.context)
    return replace(pack, repeated_tokens=repeated)


def _size(tree: Tree, index: int) -> int:
    return len(tree.nodes[index].token_ids) + len(tree.nodes[index].observation_ids)


def _place(pack: TreePack, piece: Piece, start: int) -> None:
    """Writes a piece into the arrays of `pack`, from index `start` on."""
    begin: dict[int, int] = {}
    last: dict[int, int] = {}
    """Per node: index of the last token of the path that ends there; -1 before the first token."""
    for index in piece.nodes:
        node = piece.tree.nodes[index]
        size = _size(piece.tree, index)
        stop = start + size
        previous = last.get(node.parent, -1)
        pack.ids[start:stop] = (*node.token_ids, *node.observation_ids)
        pack.positions[start:stop] = np.arange(size) + (pack.positions[previous] + 1 if previous >= 0 else 0)
        if size:
            pack.source[start:stop] = (previous, *range(start, stop - 1))
        if index not in piece.context:
            sampled = slice(start, start + len(node.token_ids))
            pack.positive[sampled] = piece.credit.positive[index]
            pack.negative[sampled] = piece.credit.negative[index]
            pack.weight[sampled] = piece.credit.weight[index]
            pack.old_logprobs[sampled] = node.logprobs
        begin[index], last[index] = start, stop - 1 if size else previous
        start = stop
    _close_subtrees(pack, piece, begin)


def _close_subtrees(pack: TreePack, piece: Piece, begin: dict[int, int]) -> None:
    """Sets `end`: in preorder a subtree is contiguous, so its end is the largest end of its nodes."""
    stop = {index: begin[index] + _size(piece.tree, index) for index in piece.nodes}
    for index in reversed(piece.nodes):
        pack.end[begin[index] : begin[index] + _size(piece.tree, index)] = stop[index]
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


def _pieces(
    groups: Forest, advantages: Sequence[Sequence[TreeAdvantages]], loss: LossConfig, capacity: int
) -> tuple[list[Piece], int]:
    """Pieces of one mini-batch, and how many tokens one row per leaf would have taken."""
    regularised = loss.kl_coef > 0 or loss.entropy_coef > 0
    pieces: list[Piece] = []
    flat_tokens = 0
    for group, per_tree, weights in zip(groups, advantages, leaf_weights(groups, advantages, loss), strict=True):
        for tree, found, tree_weights in zip(group.trees, per_tree, weights, strict=True):
            weighted = [leaf for leaf in found.leaves if tree_weights[leaf] > 0]
            kept = [leaf for leaf in weighted if regularised or contributes(tree, leaf, found)]
            flat_tokens += sum(_size(tree, index) for leaf in kept for index in path(tree, leaf))
            pieces.extend(split(tree, kept, tree_credit(tree, found, tree_weights), capacity))
    return pieces, flat_tokens


def _deal(packs: Sequence[TreePack], ranks: int) -> RankPacks:
    """Longest packs first, dealt to the ranks in turn, so that the ranks work on packs of like cost at a time."""
    longest_first = sorted(packs, key=lambda pack: -pack.tokens)
    return [longest_first[rank::ranks] for rank in range(ranks)]
