"""`DecisionState`: what a typed decision policy carries from one training step to the next, and into checkpoints.

The running statistics of each node's reward, the KL meter of each node, and the settings that were changed while the
run went on. Values never change, so whoever holds a state holds it whole.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envs.decisions.settings import DecisionSettings
from envs.types import Json
from trainer.config.search import LossConfig
from trainer.decisions.coefficients import all_coefficients
from trainer.decisions.live_settings import Change, LiveError, Number, changed
from trainer.decisions.statistics import Statistics, statistics_from_json, statistics_to_json

KL_MOMENTUM = 0.9
"""Share of the old value in the KL meter's exponential mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionState:
    """Between two training steps."""

    statistics: Statistics = field(default_factory=dict)
    """Of the rewards of every forest that was trained."""
    kl: Mapping[str, float] = field(default_factory=dict)
    """Exponential mean of each node's divergence per token, in nats: from the starting policy where the node's loss has
    a KL term, from the policy that sampled otherwise. Nodes that were never trained are missing."""
    live: Mapping[str, Number] = field(default_factory=dict)
    """Settings changed during the run, e.g. `{"retrieval.rewards.weight": 2.0}`."""

    def after_step(
        self, decision: DecisionSettings, loss: LossConfig, statistics: Statistics, metrics: Mapping[str, float]
    ) -> "DecisionState":
        """With a finished learning phase: the statistics of its forest, and `decision/<node>/kl` of its metrics.

        A node that had nothing to train did not move away from the policy that sampled, so there a missing value is 0;
        how far it is from the starting policy stays.
        """
        kl = dict(self.kl)
        for node in all_coefficients(decision, loss):
            seen = metrics.get(f"decision/{node.name}/kl", math.nan if node.kl_coef > 0 or node.name not in kl else 0.0)
            if math.isfinite(seen):
                kl[node.name] = KL_MOMENTUM * kl[node.name] + (1 - KL_MOMENTUM) * seen if node.name in kl else seen
        return replace(self, statistics=statistics, kl=kl)

    def with_changes(self, changes: Iterable[Change]) -> "DecisionState":
        """With settings that were changed now."""
        return replace(self, live=dict(self.live) | {change.key: change.new for change in changes})

    def to_json(self) -> dict[str, Json]:
        """For a checkpoint."""
        return {"statistics": statistics_to_json(self.statistics), "kl": dict(self.kl), "live": dict(self.live)}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "DecisionState":
        """From a checkpoint; an empty mapping, as checkpoints from before typed policies have it, is a new state."""
        return cls(
            statistics=statistics_from_json(saved.get("statistics", {})),
            kl=dict(saved.get("kl", {})),
            live=dict(saved.get("live", {})),
        )


def settings_now(configured: DecisionSettings, state: DecisionState) -> tuple[DecisionSettings, list[str]]:
    """The configuration with the state's live settings, and one sentence per setting that no longer fits it."""
    settings, left_out = configured, []
    for key, value in state.live.items():
        try:
            settings, _ = changed(settings, {key: value})
        except LiveError as error:
            left_out.append(f"a live change of the checkpoint is left out: {error}")
    return settings, left_out
