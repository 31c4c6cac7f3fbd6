"""What a run adds up from its first step to its last, kept in checkpoints, shown in `summary.json`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rollout_workers.types import Ledger


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums and extremes over all steps so far; plain values, so that it fits into a JSON file."""

    step: int = 0
    """Training steps finished."""
    version: int = 0
    """Weights version: optimizer phases done, equal to `step`."""
    ledger: Ledger = field(default_factory=Ledger)
    """Training rollouts only."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by phase, e.g. `{"collect": 81.2, "learn": 60.9}`."""
    max_logprob_diff: float = 0.0
    """Largest difference seen between engine and learner after any push, in nats."""
    max_staleness: float = 0.0
    """Age of the oldest token that was trained, in optimizer phases."""
    stale_leaves: float = 0.0
    """Leaves that were too old to be trained."""
    restarts: int = 0
    """Rollout actors replaced."""
    resumes: int = 0
    """How often the run went on from a checkpoint."""
    before: dict[str, float] | None = None
    """`eval/*` metrics before the first step."""
    after: dict[str, float] | None = None
    """`eval/*` metrics of the newest evaluation."""

    def advance(self, ledger: Ledger, stats: Mapping[str, float]) -> None:
        """Counts one finished optimizer phase, what its rollouts cost, and how old they were (`rollout/*stale*`)."""
        self.step += 1
        self.version += 1
        self.ledger.add(ledger)
        self.max_staleness = max(self.max_staleness, stats.get("rollout/staleness_max", 0.0))
        self.stale_leaves += stats.get("rollout/stale_leaves", 0.0)

    def spend(self, metrics: Mapping[str, float]) -> None:
        """Adds the wall times of a step, its metrics `time/<phase>_s`."""
        for name, value in metrics.items():
            if name.startswith("time/"):
                phase = name.removeprefix("time/").removesuffix("_s")
                self.seconds[phase] = self.seconds.get(phase, 0.0) + value

    def see_parity(self, metrics: Mapping[str, float]) -> None:
        """Keeps the largest difference between engine and learner, from the metrics of a push."""
        self.max_logprob_diff = max(self.max_logprob_diff, metrics.get("push/max_abs_logprob_diff", 0.0))

    def last_words(self) -> str:
        """One clause for the end of a run, e.g. `"held-out success 0.347 → 0.760 after 30 steps"`."""
        before, after = (metrics["eval/success"] if metrics else 0.0 for metrics in (self.before, self.after))
        return f"held-out success {before:.3f} → {after:.3f} after {self.step} steps"

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Totals":
        """From a checkpoint."""
        return cls(**{**saved, "ledger": Ledger(**saved["ledger"])})

    def summary(self, *, seed: int, versions: Mapping[str, str], model: str) -> dict[str, object]:
        """The content of `summary.json`."""
        return {
            "steps": self.step,
            "weights_version": self.version,
            "model": model,
            "seed": seed,
            "eval": {"before": _eval_summary(self.before), "after": _eval_summary(self.after)},
            "ledger": asdict(self.ledger),
            "time_s": {name: round(value, 2) for name, value in self.seconds.items()},
            "parity": {"max_abs_logprob_diff": self.max_logprob_diff},
            "staleness": {"max": self.max_staleness, "dropped_leaves": self.stale_leaves},
            "rollout_actors_replaced": self.restarts,
            "resumes": self.resumes,
            "versions": dict(versions),
        }


def _eval_summary(metrics: Mapping[str, float] | None) -> dict[str, float] | None:
    if metrics is None:
        return None
    return {name.removeprefix("eval/"): value for name, value in metrics.items()}
