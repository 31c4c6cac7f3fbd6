"""Sentences about settings of the tree section that are accepted but may not do what one expects."""

from collections.abc import Iterator

from trainer.config.search import LimitsConfig, TreeConfig

BY_OUTCOME = ("uncertain", "ucb")
"""Picking rules that look at the scores of leaves only."""


def tree_notes(tree: TreeConfig, limits: LimitsConfig) -> Iterator[str]:
    """Notes on budgets that end growth at once or never, and on rules that have nothing to go by."""
    if tree.picking in BY_OUTCOME and tree.rounds == 1 and tree.nodes_per_round > 0:
        yield (
            f"Note: tree.picking={tree.picking} compares outcomes, and after its first chain a tree has only one, "
            "which all nodes share: with tree.rounds=1 nodes are picked at random; set tree.rounds to at least 2."
        )
    longest = {"max_tokens": limits.max_path_tokens, "max_tool_calls": limits.max_turns}
    for key, path in longest.items():
        if (limit := getattr(tree, key)) is None:
            continue
        if tree.leaves_per_tree == 1:
            yield f"Note: tree.{key} has no effect on chains (tree.rounds=0): a path that has begun is finished."
        elif (share := limit // tree.roots) <= path:
            yield (
                f"Note: tree.{key}={limit} gives each of the {tree.roots} trees of a task {share}, and one path may "
                f"take up to {path} (from limits): a long first chain leaves nothing for branches."
            )
