"""Numbers about what a step collected, by the names that metrics.jsonl, W&B and the report use."""

from collections import Counter
from dataclasses import asdict

from rollout_workers import trees
from rollout_workers.types import Forest, Ledger


def mean_score(forest: Forest) -> tuple[float, int]:
    """(mean score, number of scored leaves) over every leaf that did not end in an environment error."""
    scores = [node.score for group in forest for tree in group.trees for node in tree.nodes if node.score is not None]
    return (sum(scores) / len(scores) if scores else 0.0), len(scores)


def collection_metrics(forest: Forest, ledger: Ledger, seconds: float) -> dict[str, float]:
    """`rollout/*`, `tree/*` and `ledger/*` of one collection that took `seconds`."""
    grown = [tree for group in forest for tree in group.trees]
    nodes = [node for tree in grown for node in tree.nodes]
    leaves = [node for node in nodes if node.is_leaf]
    ends = Counter(node.end.value for node in leaves if node.end is not None)
    success, _ = mean_score(forest)
    rewards = [node.reward for node in leaves if node.reward is not None]
    prefill = ledger.prefill_tokens_computed + ledger.prefill_tokens_cached
    return {
        "rollout/success": success,
        "rollout/reward": sum(rewards) / max(len(rewards), 1),
        "rollout/tokens_per_s": ledger.sampled_tokens / seconds,
        "rollout/sampled_tokens_per_leaf": ledger.sampled_tokens / max(len(leaves), 1),
        "rollout/cached_prefill_share": ledger.prefill_tokens_cached / max(prefill, 1),
        **{f"rollout/end_{end}_share": count / len(leaves) for end, count in sorted(ends.items())},
        "tree/trees": len(grown),
        "tree/leaves": len(leaves),
        "tree/nodes": len(nodes),
        "tree/depth": sum(max(trees.depths(tree)) for tree in grown) / max(len(grown), 1),
        **{f"ledger/{name}": float(value) for name, value in asdict(ledger).items()},
    }


def eval_metrics(forest: Forest) -> dict[str, float]:
    """`eval/success`, `eval/n`, and the success per number of hops where tasks say it in `meta["hops"]`."""
    success, count = mean_score(forest)
    metrics = {"eval/success": success, "eval/n": float(count)}
    hops = sorted({str(group.task.meta["hops"]) for group in forest if "hops" in group.task.meta})
    for hop in hops:
        part = [group for group in forest if str(group.task.meta.get("hops")) == hop]
        metrics[f"eval/hops{hop}_success"], scored = mean_score(part)
        metrics[f"eval/hops{hop}_n"] = float(scored)
    return metrics
