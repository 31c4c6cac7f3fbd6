"""Questions about a tree: children, leaves, paths, depths, backed-up sums. Pure functions over `Tree.nodes`.

Parents come before children in the list, so one reversed scan visits every node after all of its descendants. Nothing
is cached; each function is linear in the number of nodes unless it says otherwise.
"""

from collections.abc import Mapping

from rollout_workers.types import ROOT, Tree


def check(tree: Tree) -> None:
    """Raises ValueError (one sentence naming task, tree and node) unless `tree` is a well-formed tree.

    Well-formed: node 0 is the root with parent -1 and no sampled tokens; every other node names an earlier node as its
    parent; a leaf has no children; log-probabilities and versions are as long as the sampled ids.
    """
    where = f"tree {tree.index} of task {tree.task_id!r}"
    if not tree.nodes:
        raise ValueError(f"{where} is empty; a tree has at least its prompt")
    if tree.nodes[ROOT].parent != -1 or tree.nodes[ROOT].token_ids:
        raise ValueError(f"{where} must start with a root node that has parent -1 and no sampled tokens")
    for index, node in enumerate(tree.nodes):
        if index != ROOT and not 0 <= node.parent < index:
            raise ValueError(f"node {index} of {where} has parent {node.parent}; parents must come before children")
        if index != ROOT and tree.nodes[node.parent].is_leaf:
            raise ValueError(f"node {index} of {where} continues from node {node.parent}, which is a leaf")
        if not len(node.token_ids) == len(node.logprobs) == len(node.versions):
            raise ValueError(
                f"node {index} of {where} has sampled ids, log-probabilities and versions that differ in length"
            )


def children(tree: Tree) -> list[list[int]]:
    """For each node the indices of its children, in the order they were added; `[]` for nodes without any."""
    kids: list[list[int]] = [[] for _ in tree.nodes]
    for index in range(1, len(tree.nodes)):
        kids[tree.nodes[index].parent].append(index)
    return kids


def leaves(tree: Tree) -> list[int]:
    """Indices of the nodes that ended their trajectory, ascending."""
    return [index for index, node in enumerate(tree.nodes) if node.is_leaf]


def path(tree: Tree, index: int) -> list[int]:
    """Node indices from the root to `index`, both included, e.g. `[0, 1, 4]`."""
    found = [index]
    while found[-1] != ROOT:
        found.append(tree.nodes[found[-1]].parent)
    return found[::-1]


def path_ids(tree: Tree, index: int) -> list[int]:
    """Token ids of the path from the root to `index`: each node's sampled ids, then its observation ids."""
    ids: list[int] = []
    for step in path(tree, index):
        ids.extend(tree.nodes[step].token_ids)
        ids.extend(tree.nodes[step].observation_ids)
    return ids


def context_ids(tree: Tree, index: int) -> list[int]:
    """Token ids that a step after node `index` sees: the path, or in a typed tree only the prompt of that step."""
    return list(tree.nodes[index].observation_ids) if tree.typed else path_ids(tree, index)


def depths(tree: Tree) -> list[int]:
    """For each node the number of agent steps on its path: 0 for the root."""
    found = [0] * len(tree.nodes)
    for index in range(1, len(tree.nodes)):
        found[index] = found[tree.nodes[index].parent] + 1
    return found


def backup_sum(tree: Tree, at_leaf: Mapping[int, float]) -> list[float]:
    """For each node the sum of `at_leaf` over its subtree, by one reversed scan; nodes not in the mapping add 0."""
    total = [at_leaf.get(index, 0.0) for index in range(len(tree.nodes))]
    for index in range(len(tree.nodes) - 1, ROOT, -1):
        total[tree.nodes[index].parent] += total[index]
    return total


def preorder(tree: Tree) -> list[int]:
    """All node indices depth first, each parent directly before its first child's subtree, children in their order."""
    kids = children(tree)
    order: list[int] = []
    stack = [ROOT]
    while stack:
        index = stack.pop()
        order.append(index)
        stack.extend(reversed(kids[index]))
    return order
