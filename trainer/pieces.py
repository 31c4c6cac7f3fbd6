"""Trees cut into pieces that fit into packs, and pieces distributed over packs by what they cost.

A piece holds whole paths from the root. Each kept leaf is in exactly one piece, with its whole path, so that a ratio
over a path never spans two packs.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rollout_workers.trees import path, preorder
from rollout_workers.types import ROOT, Tree
from trainer.credit import Credit


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedTree:
    """A tree with what is to be trained on it."""

    tree: Tree
    leaves: tuple[int, ...]
    """Leaves whose paths are laid out, e.g. `(2, 4)`."""
    credit: Credit
    """Of every node, from all leaves that carry weight."""
    paths: Mapping[int, Credit]
    """Of each leaf in `leaves` alone; summed over leaves it is `credit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a tree that fits into a pack: whole paths from the root."""

    tree: Tree
    credit: Credit
    nodes: tuple[int, ...]
    """Node indices in preorder; with every node its parent, e.g. `(0, 1, 4, 5)`."""
    context: frozenset[int]
    """Nodes among them that an earlier piece of the tree trains; here they are context only."""
    paths: Mapping[int, Credit]
    """Leaves whose path is complete here and in no other piece, with the credit of each alone."""
    tokens: int
    repeated_tokens: int
    """Tokens of nodes that an earlier piece of the tree holds too."""
    pairs: int
    """Attention pairs: for each token the tokens it sees, itself included, summed."""

    def cost(self, hidden_size: int) -> float:
        """Time of the piece in units of a token's linear work: tokens + pairs / (6*hidden_size).

        Per token and layer the forward pass of a transformer spends about 24*H^2 floating-point operations in matrix
        products (8*H^2 in the four projections of attention, 16*H^2 in a feed-forward part of width 4*H), and 4*H per
        attention pair (2*H for the score, 2*H for the weighted sum). A pair so costs 4*H / (24*H^2) = 1/(6*H) of a
        token; the backward pass scales both alike. Example: 512 tokens in one row with H = 64: 512 + 131328/384 = 854.
        """
        return self.tokens + self.pairs / (6 * hidden_size)


def size(tree: Tree, index: int) -> int:
    """Tokens of a node, sampled and observed."""
    return len(tree.nodes[index].token_ids) + len(tree.nodes[index].observation_ids)


def split(part: CreditedTree, capacity: int) -> Iterator[Piece]:
    """Cuts the paths to the leaves into pieces of at most `capacity` tokens, walking the leaves in preorder.

    A piece takes one leaf after the other until the next one does not fit. Neighbours in preorder share the longest
    prefixes, so little is repeated. Raises ValueError if a single path does not fit.
    """
    sizes = [size(part.tree, index) for index in range(len(part.tree.nodes))]
    order = preorder(part.tree)
    wanted = set(part.leaves)
    trained: frozenset[int] = frozenset()
    nodes: set[int] = set()
    leaves: list[int] = []

    def closed() -> Piece:
        ordered = [index for index in order if index in nodes]
        return _piece(part, part.credit, ordered, leaves, context=trained & nodes, repeated=trained & nodes)

    for leaf in (index for index in order if index in wanted):
        steps = path(part.tree, leaf)
        _check_fits(part.tree, steps, capacity)
        if nodes and sum(sizes[index] for index in nodes.union(steps)) > capacity:
            yield closed()
            trained |= nodes
            nodes, leaves = set(), []
        nodes.update(steps)
        leaves.append(leaf)
    if nodes:
        yield closed()


def rows(part: CreditedTree, capacity: int) -> Iterator[Piece]:
    """One piece per leaf: its whole path with the credit of that leaf alone; shared prefixes are trained repeatedly.

    The plain way that `split` is compared with. Raises ValueError if a path has more than `capacity` tokens.
    """
    seen: set[int] = set()
    for leaf in part.leaves:
        steps = path(part.tree, leaf)
        _check_fits(part.tree, steps, capacity)
        yield _piece(part, part.paths[leaf], steps, [leaf], context=frozenset(), repeated=seen.intersection(steps))
        seen.update(steps)


def fill(pieces: Sequence[Piece], capacity: int, ranks: int, hidden_size: int) -> list[list[Piece]]:
    """Distributes pieces over as few packs of at most `capacity` tokens as are found, of about equal cost.

    The number of packs is a multiple of `ranks`. Costliest piece first, each to the cheapest pack that has room for it;
    where none has, once more with more packs.
    """
    costliest_first = sorted(pieces, key=lambda piece: -piece.cost(hidden_size))
    needed = -(-sum(piece.tokens for piece in pieces) // capacity)
    bins = -(-needed // ranks) * ranks
    while (members := _spread(costliest_first, capacity, bins, hidden_size)) is None:
        bins += ranks
    return members


def total_cost(pieces: Sequence[Piece], hidden_size: int) -> float:
    """Cost of a pack with these pieces."""
    return sum(piece.cost(hidden_size) for piece in pieces)


def _spread(pieces: Sequence[Piece], capacity: int, bins: int, hidden_size: int) -> list[list[Piece]] | None:
    """None if a piece finds no room."""
    cheapest = [(0.0, index) for index in range(bins)]
    room = [capacity] * bins
    members: list[list[Piece]] = [[] for _ in range(bins)]
    for piece in pieces:
        full = []
        while cheapest and room[cheapest[0][1]] < piece.tokens:
            full.append(heapq.heappop(cheapest))
        if not cheapest:
            return None
        cost, index = cheapest[0]
        members[index].append(piece)
        room[index] -= piece.tokens
        heapq.heapreplace(cheapest, (cost + piece.cost(hidden_size), index))
        for one in full:
            heapq.heappush(cheapest, one)
    return members


def _piece(
    part: CreditedTree,
    credit: Credit,
    nodes: Sequence[int],
    leaves: Sequence[int],
    *,
    context: frozenset[int],
    repeated: "frozenset[int] | set[int]",
) -> Piece:
    before: dict[int, int] = {}
    tokens = pairs = 0
    for index in nodes:
        parent = part.tree.nodes[index].parent
        before[index] = 0 if index == ROOT else before[parent] + size(part.tree, parent)
        own = size(part.tree, index)
        tokens += own
        pairs += own * before[index] + own * (own + 1) // 2
    return Piece(
        tree=part.tree,
        credit=credit,
        nodes=tuple(nodes),
        context=context,
        paths={leaf: part.paths[leaf] for leaf in leaves},
        tokens=tokens,
        repeated_tokens=sum(size(part.tree, index) for index in repeated),
        pairs=pairs,
    )


def _check_fits(tree: Tree, steps: Sequence[int], capacity: int) -> None:
    if (needed := sum(size(tree, index) for index in steps)) > capacity:
        raise ValueError(
            f"learner.max_tokens_per_pack={capacity} must be at least {needed}, a path's length in {tree.task_id!r}"
        )
