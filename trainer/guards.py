"""Bounds on how far an optimizer step may be from the policy that sampled: `guards.max_kl` and `guards.max_ratio`.

Plain numbers, no torch: the learner's ranks judge their steps with it, and the driver ends the run with its sentence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.config import GuardsConfig

KL = "learner/guard_kl"
RATIO = "learner/guard_ratio"


class GuardError(RuntimeError):
    """A bound of `guards` was passed under `guards.on_breach: stop`; the text names key, value and bound."""


@dataclass(slots=True, kw_only=True)
class PhaseGuard:
    """Judges the optimizer steps of one learning phase; the same on every rank, since it sees numbers of all ranks."""

    bounds: GuardsConfig
    kl: float = 0.0
    """Largest mean divergence of a step judged so far."""
    ratio: float = 0.0
    """Largest ratio of a step judged so far."""
    skipped: int = 0
    """Steps that were beyond a bound."""

    def passes(self, kl: float, ratio: float) -> bool:
        """Whether a step with these numbers may be applied; one that may not is counted."""
        self.kl, self.ratio = larger(self.kl, kl), larger(self.ratio, ratio)
        is_good = breach(self.bounds, kl, ratio) is None
        self.skipped += not is_good
        return is_good

    @property
    def ends_phase(self) -> bool:
        """Whether the steps that are left in the phase are not taken: after a breach under `on_breach: stop`."""
        return self.skipped > 0 and self.bounds.on_breach == "stop"

    @property
    def metrics(self) -> dict[str, float]:
        """`learner/skipped_by_guard`, and the numbers that the bounds are for; empty without any bound."""
        if self.bounds.max_kl is None and self.bounds.max_ratio is None:
            return {}
        return {"learner/skipped_by_guard": float(self.skipped), KL: self.kl, RATIO: self.ratio}


def larger(one: float, other: float) -> float:
    """The larger one; NaN if either is NaN, which Python's `max` keeps only in first place."""
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def breach(bounds: GuardsConfig, kl: float, ratio: float) -> str | None:
    """A clause on the bound that these numbers pass; None within all bounds. What is no number passes every bound."""
    if bounds.max_kl is not None and not kl <= bounds.max_kl:
        return (
            f"the mean divergence of the learner from the sampling policy was {kl:.4g} nats per token, "
            f"more than guards.max_kl={bounds.max_kl:g}"
        )
    if bounds.max_ratio is not None and not ratio <= bounds.max_ratio:
        return f"a ratio of new to old probability was {ratio:.4g}, more than guards.max_ratio={bounds.max_ratio:g}"
    return None


def check_guards(bounds: GuardsConfig, step: int, metrics: Mapping[str, float]) -> None:
    """Raises GuardError when the learning phase with these metrics was ended by a bound."""
    if bounds.on_breach != "stop" or not metrics.get("learner/skipped_by_guard"):
        return
    clause = breach(bounds, metrics[KL], metrics[RATIO])
    raise GuardError(f"{clause}, in an optimizer step of step {step}, which was not applied")
