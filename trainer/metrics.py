"""Numbers about what a step collected, by the names that metrics.jsonl, W&B and the report use."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rollout_workers import trees
from rollout_workers.types import Forest, Ledger
from trainer.advantages import TreeAdvantages, leaf_rewards
from trainer.credit import contributes
from trainer.pick_metrics import pick_metrics


def mean_score(forest: Forest) -> tuple[float, int]:
    """(mean score, number of scored leaves) over every leaf that did not end in an environment error."""
    scores = [node.score for group in forest for tree in group.trees for node in tree.nodes if node.score is not None]
    return (sum(scores) / len(scores) if scores else 0.0), len(scores)


def collection_metrics(forest: Forest, ledger: Ledger, seconds: float, actors: int = 1) -> dict[str, float]:
    """`rollout/*`, `tree/*` and `ledger/*` of one collection that `actors` engines grew in `seconds`."""
    grown = [tree for group in forest for tree in group.trees]
    nodes = [node for tree in grown for node in tree.nodes]
    leaves = [node for node in nodes if node.is_leaf]
    ends = Counter(node.end.value for node in leaves if node.end is not None)
    success, _ = mean_score(forest)
    rewards = [node.reward for node in leaves if node.reward is not None]
    return {
        "rollout/success": success,
        "rollout/reward": sum(rewards) / max(len(rewards), 1),
        "rollout/tokens_per_s": ledger.sampled_tokens / seconds,
        "rollout/sampled_tokens_per_leaf": ledger.sampled_tokens / max(len(leaves), 1),
        "rollout/engine_busy_share": ledger.engine_busy_s / (actors * seconds),
        **prefill_metrics(ledger),
        **{f"rollout/end_{end}_share": count / len(leaves) for end, count in sorted(ends.items())},
        "tree/trees": len(grown),
        "tree/leaves": len(leaves),
        "tree/nodes": len(nodes),
        "tree/depth": sum(max(trees.depths(tree)) for tree in grown) / max(len(grown), 1),
        **pick_metrics(forest),
        **{f"ledger/{name}": float(value) for name, value in asdict(ledger).items()},
    }


def prefill_metrics(ledger: Ledger) -> dict[str, float]:
    """How much of the prompts and observations the engines ran through the model, against what was new in them.

    `rollout/prefill_overhead` = computed / unique; 1 is the least possible. `rollout/prefill_block_bound` is what a
    cache of whole blocks allows at best (`rollout_workers.branch.block_bound`). With 900 computed, 600 unique and 330
    known tokens that share a block with new ones, these are 1.5 and 1.55: a token that the engine sampled beyond the
    end of a step is in the cache, and so the overhead may be below the bound.
    """
    computed, unique = ledger.prefill_tokens_computed, max(ledger.prefill_tokens_unique, 1)
    return {
        "rollout/cached_prefill_share": ledger.prefill_tokens_cached / max(computed + ledger.prefill_tokens_cached, 1),
        "rollout/prefill_overhead": computed / unique,
        "rollout/prefill_block_bound": (ledger.prefill_tokens_unique + ledger.prefill_tokens_block_bound) / unique,
        "rollout/ledger_mismatch": float(ledger.engine_mismatch),
    }


def reward_stats(forest: Forest, credit: Sequence[Sequence[TreeAdvantages]]) -> dict[str, float]:
    """`reward/*` of one step; `credit` is parallel to `forest`.

    Shares without signal: `dead_trees` of the trees whose leaves all have the same reward; `dead_leaves` of the
    rewarded leaves that give no token of their path an advantage.
    """
    rewards = [list(leaf_rewards(tree).values()) for group in forest for tree in group.trees]
    flat = [reward for tree in rewards for reward in tree]
    nodes = [tree.nodes[leaf] for group in forest for tree in group.trees for leaf in trees.leaves(tree)]
    scores = [node.score for node in nodes if node.score is not None]
    pairs = [pair for group, found in zip(forest, credit, strict=True) for pair in zip(group.trees, found, strict=True)]
    idle = sum(not contributes(tree, leaf, found) for tree, found in pairs for leaf in found.leaves)
    stats = {
        "reward/leaves": float(len(flat)),
        "reward/leaves_without_reward": float(len(nodes) - len(flat)),
        "reward/dead_trees": sum(len(set(tree)) < 2 for tree in rewards) / max(len(rewards), 1),
        "reward/dead_leaves": idle / max(len(flat), 1),
    }
    if flat:
        stats |= {"reward/mean": statistics.fmean(flat), "reward/std": statistics.pstdev(flat)}
        stats |= {"reward/min": min(flat), "reward/max": max(flat)}
    if scores:
        stats["reward/score"] = statistics.fmean(scores)
    return stats


def eval_metrics(forest: Forest) -> dict[str, float]:
    """`eval/success`, `eval/n`, and the same per number of hops and per source where tasks name them in their `meta`.

    `eval/mean_of_sources` gives each source that has a scored leaf the same weight, however many tasks it has: success
    0.5 on 8 tasks of one source and 1.0 on 2 of another is 0.75, where `eval/success` is 0.6.
    """
    success, count = mean_score(forest)
    metrics = {"eval/success": success, "eval/n": float(count)}
    for hop, part in _parts(forest, "hops").items():
        metrics[f"eval/hops{hop}_success"], scored = mean_score(part)
        metrics[f"eval/hops{hop}_n"] = float(scored)
    means = []
    for source, part in _parts(forest, "source").items():
        mean, scored = mean_score(part)
        metrics |= {f"eval/{source}_success": mean, f"eval/{source}_n": float(scored)}
        means += [mean] if scored else []
    return metrics | ({"eval/mean_of_sources": statistics.fmean(means)} if means else {})


def _parts(forest: Forest, key: str) -> dict[str, Forest]:
    """The groups whose task has `key` in its `meta`, by its value as text, in the order of the texts."""
    parts: dict[str, Forest] = {}
    for group in forest:
        if key in group.task.meta:
            parts.setdefault(str(group.task.meta[key]), []).append(group)
    return dict(sorted(parts.items()))
