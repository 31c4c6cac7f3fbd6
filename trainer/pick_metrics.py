"""Numbers about where trees were branched, for metrics.jsonl, W&B and the report."""

import math
import statistics

from rollout_workers import trees
from rollout_workers.types import ROOT, Forest


def pick_metrics(forest: Forest) -> dict[str, float]:
    """`tree/pick_*` over every pick of a forest; empty where nothing was picked, as with chains.

    `pick_score_mean` is the mean score of what was picked (only rules with scores; nodes about which nothing was known
    are left out), `pick_depth_mean` the mean number of steps before the branch-off, `pick_root_share` the share of
    picks that start anew from the prompt.
    """
    scores: list[float] = []
    picked: list[int] = []
    depths: list[int] = []
    for tree in (tree for group in forest for tree in group.trees):
        depth = trees.depths(tree)
        for pick in tree.picks:
            known = dict(pick.scores)
            scores += [known[node] for node in pick.chosen if math.isfinite(known.get(node, math.nan))]
            picked += pick.chosen
            depths += [depth[node] for node in pick.chosen]
    if not picked:
        return {}
    return {
        **({"tree/pick_score_mean": statistics.fmean(scores)} if scores else {}),
        "tree/pick_depth_mean": statistics.fmean(depths),
        "tree/pick_root_share": picked.count(ROOT) / len(picked),
    }
