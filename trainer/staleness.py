"""How old sampled tokens are when they are trained, and the bound on it: too old branches are cut off their trees.

Age is counted in optimizer phases: the version of the weights that a step trains, minus the version that sampled the
token. The rule for when a forest may be begun (`trainer/forests.py`) already keeps every token within `max_staleness`;
the cut here guarantees it, whatever happens on the way.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from rollout_workers.trees import leaves, path
from rollout_workers.types import ROOT, Forest, Pick, Tree


@dataclass(slots=True, kw_only=True)
class Stale:
    """What was cut off a forest."""

    leaves: int = 0
    tokens: int = 0
    """Sampled tokens that only the cut branches held."""
    groups: int = 0
    """Tasks that no leaf is left of."""

    def add(self, other: "Stale") -> None:
        """Adds what was cut off another forest."""
        self.leaves += other.leaves
        self.tokens += other.tokens
        self.groups += other.groups

    @property
    def metrics(self) -> dict[str, float]:
        """`rollout/stale_leaves`, `rollout/stale_groups`."""
        return {"rollout/stale_leaves": float(self.leaves), "rollout/stale_groups": float(self.groups)}


def fresh(forest: Forest, oldest: int) -> tuple[Forest, Stale]:
    """The forest without the branches that hold a token of a version below `oldest`, and what was cut.

    A branch is a leaf with the nodes that no other kept leaf needs; a stale token in a shared step makes every leaf
    under it stale. A tree without a leaf is left out, and so is a task without a tree.
    """
    cut = Stale()
    kept: Forest = []
    for group in forest:
        grown = []
        for tree in group.trees:
            alive = [leaf for leaf in leaves(tree) if not _is_stale(tree, leaf, oldest)]
            cut.leaves += len(leaves(tree)) - len(alive)
            found = pruned(tree, alive)
            cut.tokens += _sampled(tree) - _sampled(found)
            grown += [found] if alive else []
        cut.groups += not grown
        kept += [replace(group, trees=tuple(grown))] if grown else []
    return kept, cut


def pruned(tree: Tree, kept_leaves: Collection[int]) -> Tree:
    """The tree with the paths to these leaves only; the tree itself when that is all of it.

    Example: nodes with parents (-1, 0, 1, 1) without leaf 2 get the parents (-1, 0, 1), and picks name the new indices.
    """
    wanted = sorted({ROOT, *(index for leaf in kept_leaves for index in path(tree, leaf))})
    if len(wanted) == len(tree.nodes):
        return tree
    place = {old: new for new, old in enumerate(wanted)}
    nodes = [replace(tree.nodes[old], parent=place.get(tree.nodes[old].parent, -1)) for old in wanted]
    picks = [
        Pick(
            scores=tuple((place[node], score) for node, score in pick.scores if node in place),
            chosen=tuple(place[node] for node in pick.chosen if node in place),
        )
        for pick in tree.picks
    ]
    return replace(tree, nodes=nodes, picks=picks)


def staleness_metrics(forest: Forest, version: int) -> dict[str, float]:
    """Age of the sampled tokens of `forest`, each once, when weights `version` are trained on them.

    `rollout/mixed_version_branches` counts leaves whose path was sampled by more than one version.
    """
    ages = [version - seen for tree in _trees(forest) for node in tree.nodes for seen in node.versions]
    mixed = sum(len(_versions(tree, leaf)) > 1 for tree in _trees(forest) for leaf in leaves(tree))
    return {
        "rollout/staleness_mean": sum(ages) / max(len(ages), 1),
        "rollout/staleness_max": float(max(ages, default=0)),
        "rollout/mixed_version_branches": float(mixed),
    }


def _trees(forest: Forest) -> Iterable[Tree]:
    return (tree for group in forest for tree in group.trees)


def _versions(tree: Tree, leaf: int) -> set[int]:
    return {version for index in path(tree, leaf) for version in tree.nodes[index].versions}


def _is_stale(tree: Tree, leaf: int, oldest: int) -> bool:
    return any(version < oldest for version in _versions(tree, leaf))


def _sampled(tree: Tree) -> int:
    return sum(len(node.token_ids) for node in tree.nodes)
