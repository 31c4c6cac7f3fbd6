"""The text of `dry_run=true`: what a run would do, in numbers."""

from collections.abc import Mapping

from trainer.config import RunConfig
from trainer.layout import chosen_layout
from trainer.preflight import Findings
from trainer.resources import Resource, needed

_RATIO_OF: Mapping[str, str] = {"token": "token", "turn": "agent step", "sequence": "path"}
"""What has a ratio of its own under each `loss.ratio_level`."""


def plan(config: RunConfig, findings: Findings, cluster_resources: Mapping[str, float]) -> str:
    """One line per part of the run, for people."""
    rows = {
        "run": f"{config.name} in {config.runs_dir}/{config.name}, seed {config.seed}",
        "model": f"{config.model.path}, {config.model.dtype}",
        "tasks": f"{findings.train_tasks} to train on, {_evaluated(config, findings)}",
        "tree": _tree(config),
        "step": _step(config),
        "rollout": f"{_count(config.rollout.actors, 'actor')} on {config.rollout.device}, "
        f"{config.rollout.max_branches} branches at once each, temperature {config.rollout.temperature:g}",
        "credit": _credit(config),
        "loss": _loss(config),
        "learner": _learner(config),
        "length": f"{_count(config.steps, 'step')}, {_count(config.optimizer_steps, 'optimizer step')}, "
        f"weights pushed with {config.push_backend} after each step{_overlap(config)}",
        "cluster": _cluster(config, cluster_resources),
    }
    return "\n".join(f"{name:<8} {text}" for name, text in rows.items())


def _overlap(config: RunConfig) -> str:
    if not config.max_staleness:
        return ""
    in_flight = {"keep": "frozen in a push", "drain": "finished before a push"}[config.push.mode]
    return f"; collection up to {_count(config.max_staleness, 'step')} ahead, branches in flight {in_flight}"


def _evaluated(config: RunConfig, findings: Findings) -> str:
    used = min(config.evaluation.tasks, findings.eval_tasks)
    when = f", and every {_count(config.evaluation.every, 'step')}" if config.evaluation.every else ""
    return f"{used} of {findings.eval_tasks} held-out ones evaluated before and after{when}"


def _tree(config: RunConfig) -> str:
    tree = config.tree
    return (
        f"{_count(tree.roots, 'root')} x (1 + {_count(tree.rounds, 'round')} x {_count(tree.nodes_per_round, 'node')} "
        f"x {_count(tree.branches_per_node, 'branch', 'branches')}) = {tree.leaves_per_task} leaves per task"
        f"{_growth(config)}"
    )


def _growth(config: RunConfig) -> str:
    """What else decides about branches, where it is not the default."""
    tree = config.tree
    words = {
        f"picked by {tree.picking}": tree.picking != "random",
        f"at most about {tree.max_tokens or 0:,} tokens": tree.max_tokens is not None,
        f"at most about {_count(tree.max_tool_calls or 0, 'tool call')}": tree.max_tool_calls is not None,
        "duplicate siblings sampled again": tree.dedup == "resample",
    }
    return "".join(f", {text}" for text, applies in words.items() if applies)


def _step(config: RunConfig) -> str:
    leaves, limits = config.leaves_per_step, config.limits
    sampled = leaves * (limits.max_turns + 1) * limits.max_turn_tokens
    return (
        f"{_count(config.tasks_per_step, 'task')} = {leaves:,} leaves; at most {sampled:,} sampled tokens "
        f"and {leaves * limits.max_path_tokens:,} tokens on all paths, shared prefixes counted per leaf"
    )


def _credit(config: RunConfig) -> str:
    rule = config.advantage
    further = f" in at most {_count(rule.resample_rounds, 'further collection')}"
    groups = f"{rule.dead_groups}{further if rule.dead_groups == 'resample' else ''}"
    if (typed := config.typed) is None:
        return f"advantage {rule.kind}, groups without signal: {groups}"
    levels = "/".join(f"{weight:g}" for weight in typed.levels.model_dump().values())
    return (
        f"{typed.credit} of {_count(len(typed.nodes), 'decision node')}, levels {levels}, "
        f"baseline {typed.baseline}, groups without signal: {groups}"
    )


def _loss(config: RunConfig) -> str:
    loss = config.loss
    words = f"{loss.aggregation}, one ratio per {_RATIO_OF[loss.ratio_level]}, KL coefficient {loss.kl_coef:g}"
    if config.typed is None:
        return words
    own = [
        node.name for node in config.typed.nodes if any(v is not None for v in node.coefficients.model_dump().values())
    ]
    return words + (f"; coefficients of their own: {', '.join(own)}" if own else "")


def _learner(config: RunConfig) -> str:
    learner = config.learner
    weights = f"LoRA of rank {learner.lora.rank}" if learner.lora.rank else "full weights"
    if config.typed is not None:
        count = sum(node.adapter is not None and not node.adapter.freeze for node in config.typed.nodes)
        weights = f"{_count(count, 'trained adapter')} over a {config.typed.backbone} backbone"
    return (
        f"{_count(learner.ranks, 'rank')} on {learner.device}, ZeRO stage {learner.zero_stage}, {weights}, "
        f"layout {chosen_layout(learner)}"
    )


def _cluster(config: RunConfig, has: Mapping[str, float]) -> str:
    kinds: tuple[Resource, ...] = ("CPU", "GPU")
    parts = [f"{needed(config, kind)} of {has.get(kind, 0):g} {kind}s" for kind in kinds if needed(config, kind)]
    return f"{' and '.join(parts)} ({config.cluster.address}, {config.cluster.strategy})"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
