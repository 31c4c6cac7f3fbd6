"""Checks between the `decision` section and others; what is wrong within it is told by `envs.decisions.declaration`."""

from collections.abc import Iterator

from envs.decisions.settings import DecisionSettings
from trainer.config.machines import RolloutConfig
from trainer.config.search import LimitsConfig


def decision_problems(decision: DecisionSettings | None, world: str, limits: LimitsConfig) -> Iterator[str]:
    """One sentence per fault. `world` is `env.name`."""
    if decision is None:
        if world == "decision":
            yield "env.name=decision needs a decision section: choose one with decision=..., e.g. decision=shop."
        return
    if world != "decision":
        yield f"decision goes with env.name=decision, not {world}: set env=decision, or decision=none."
    turn, nodes = limits.max_turn_tokens, decision.nodes
    for node in nodes:
        if node.max_tokens is not None and node.max_tokens > turn:
            yield (
                f"decision.nodes: node {node.name!r}: max_tokens={node.max_tokens} must be at most "
                f"limits.max_turn_tokens={turn}."
            )
    if decision.policy == "flat" and limits.max_turns < len(nodes):
        yield (
            f"limits.max_turns={limits.max_turns} must be at least {len(nodes)} with decision.policy=flat: a "
            "trajectory has a turn for each node."
        )


def decision_notes(typed: DecisionSettings | None, rollout: RolloutConfig) -> Iterator[str]:
    """Sentences about settings that typed nodes make no use of."""
    if typed is not None and rollout.keep_turns:
        yield "Note: rollout.keep_turns has no effect on typed decision nodes: no prompt goes on from the one before."
