"""What the gate saves, estimated: the nodes that it skipped times what a step of each costs when it runs.

Nobody can measure what did not happen, so this is an estimate, and a low one: a skipped node counts once per answer of
the root, although every branch behind it would have run it. `scripts.bench.decision` measures with and without a gate.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.decisions.tree import Declared
from envs.types import Json
from rollout_workers.types import Forest, Ledger, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """All steps of one node so far."""

    steps: int = 0
    tokens: int = 0
    """Of their prompts and answers."""
    seconds: float = 0.0
    """Of engine time, shared out by sampled tokens."""

    def plus(self, tokens: int, seconds: float) -> "StepCosts":
        """With one more step."""
        return StepCosts(steps=self.steps + 1, tokens=self.tokens + tokens, seconds=self.seconds + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSavings:
    """Running costs of every node that has run; a value, replaced by `after`."""

    costs: Mapping[str, StepCosts] = field(default_factory=dict)

    def after(self, forest: Forest, ledger: Ledger) -> "GateSavings":
        """With the steps of one more forest, which cost `ledger` altogether."""
        costs = dict(self.costs)
        per_token = ledger.engine_busy_s / max(ledger.sampled_tokens, 1)
        for tree in _trees(forest):
            for node in tree.nodes:
                if node.record is not None:
                    sampled = len(node.token_ids)
                    prompt = len(tree.nodes[node.parent].observation_ids)
                    known = costs.get(node.record.node, StepCosts())
                    costs[node.record.node] = known.plus(prompt + sampled, per_token * sampled)
        return GateSavings(costs=costs)

    def metrics(self, forest: Forest, declared: Declared) -> dict[str, float]:
        """`decision/gate/*` of one forest; nothing where no gate decided.

        `run_share`: share of the children of the root that ran. `saved_tokens` and `saved_s`: the running means of a
        step of each skipped node, those below it included. E.g. a `lookup` skipped 3 times at 40 tokens a step gives
        120 tokens.
        """
        decided = [
            gating
            for tree in _trees(forest)
            for node in tree.nodes
            if node.record is not None
            for gating in node.record.gating
        ]
        if not decided:
            return {}
        skipped = [
            self.costs[name]
            for gating in decided
            if not gating.runs
            for name in declared.order
            if declared.branch(name) == gating.node and name in self.costs
        ]
        return {
            "decision/gate/run_share": sum(gating.runs for gating in decided) / len(decided),
            "decision/gate/saved_tokens": sum(cost.tokens / cost.steps for cost in skipped),
            "decision/gate/saved_s": sum(cost.seconds / cost.steps for cost in skipped),
        }

    def to_json(self) -> dict[str, Json]:
        """For a checkpoint."""
        return {name: [cost.steps, cost.tokens, cost.seconds] for name, cost in self.costs.items()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "GateSavings":
        """From a checkpoint."""
        return cls(
            costs={name: StepCosts(steps=steps, tokens=tokens, seconds=s) for name, (steps, tokens, s) in saved.items()}
        )


def _trees(forest: Forest) -> Iterator[Tree]:
    return (tree for group in forest for tree in group.trees)
