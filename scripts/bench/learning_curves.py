"""Learning curves of runs, and what is read off them. Pure functions: no process is started, no file is written.

The cost of a step is what its training rollouts made the engine compute: sampled tokens plus computed prefill tokens,
discarded tails included. Tokens from the prefix cache and evaluations are free.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainer.run_folder import Metrics

COST = ("ledger/sampled_tokens", "ledger/prefill_tokens_computed")
"""The metrics whose sum is a step's cost in tokens."""
SERIES = (
    "rollout/success",
    "reward/std",
    "reward/dead_groups",
    "reward/dead_trees",
    "learner/entropy",
    "learner/grad_norm",
    "learner/kl_reference",
    "tree/leaves",
    "tree/depth",
    "tree/unique_tokens",
    "tree/flat_tokens",
)
"""Metrics kept per training step, to explain a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One evaluation of one run."""

    step: int
    optimizer_steps: int
    """Optimizer steps done before this evaluation."""
    ledger_tokens: int
    """Cost of all training steps before this evaluation, e.g. `19235` after two steps."""
    success: float
    """Share of the held-out tasks that the greedy policy solves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One finished run."""

    arm: str
    seed: int
    points: tuple[Point, ...]
    """In order; the first is the starting policy at 0 tokens."""
    sampled_success: float | None = None
    """Held-out success of the final policy at temperature 1; None if it was not measured."""
    steps: tuple[Mapping[str, float], ...]
    """Per training step: `tokens` (its cost) and those metrics of `SERIES` that the run wrote."""

    @property
    def tokens_per_step(self) -> float:
        """Mean cost of a training step."""
        return statistics.fmean(step["tokens"] for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and unbiased standard deviation over seeds."""

    mean: float
    std: float | None
    """None for fewer than two seeds."""
    n: int


def curve(arm: str, seed: int, metrics: Mapping[int, Metrics], sampled_success: float | None = None) -> Curve:
    """The curve of a run from its metrics by step, step 0 being the evaluation before training.

    Raises ValueError (one sentence) when the run has no evaluation before its first step or no training step.
    """
    points: list[Point] = []
    steps: list[dict[str, float]] = []
    spent = 0.0
    optimizer_steps = 0.0
    for step in sorted(metrics):
        values = {name: value for name, value in metrics[step].items() if value is not None}
        if step > 0:
            cost = sum(values[name] for name in COST)
            spent += cost
            optimizer_steps += values["learner/optimizer_steps"]
            steps.append({"tokens": cost} | {name: values[name] for name in SERIES if name in values})
        if "eval/success" in values:
            point = Point(
                step=step,
                optimizer_steps=round(optimizer_steps),
                ledger_tokens=round(spent),
                success=values["eval/success"],
            )
            points.append(point)
    if not points or points[0].step != 0 or not steps:
        raise ValueError(f"The run of {arm}, seed {seed}, has no evaluation before its first step or no training step.")
    return Curve(arm=arm, seed=seed, points=tuple(points), steps=tuple(steps), sampled_success=sampled_success)


def success_at(points: Sequence[Point], tokens: float) -> float | None:
    """Success after `tokens`, linear between evaluations; None beyond the last one.

    Example: success 0.2 at 0 tokens and 0.6 at 100 tokens give 0.3 at 25 tokens.
    """
    for before, after in pairwise(points):
        if before.ledger_tokens <= tokens <= after.ledger_tokens:
            share = (tokens - before.ledger_tokens) / max(after.ledger_tokens - before.ledger_tokens, 1)
            return before.success + share * (after.success - before.success)
    return points[0].success if tokens == points[0].ledger_tokens else None


def tokens_to(points: Sequence[Point], target: float) -> float | None:
    """Tokens after which success first reaches `target`, linear between evaluations; None if it never does.

    Example: success 0.2 at 0 tokens and 0.6 at 100 tokens reach 0.5 after 75 tokens.
    """
    if points[0].success >= target:
        return float(points[0].ledger_tokens)
    for before, after in pairwise(points):
        if before.success < target <= after.success:
            share = (target - before.success) / (after.success - before.success)
            return before.ledger_tokens + share * (after.ledger_tokens - before.ledger_tokens)
    return None


def mean_success(points: Sequence[Point], budget: float) -> float | None:
    """Area under success against tokens from 0 to `budget`, divided by `budget`; None if the run ends before it.

    Example: from 0.2 at 0 tokens straight to 0.6 at 100 tokens, and a budget of 100, give 0.4.
    """
    last = success_at(points, budget)
    if last is None or budget <= 0:
        return None
    inside = [(float(point.ledger_tokens), point.success) for point in points if point.ledger_tokens < budget]
    inside.append((budget, last))
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(inside))
    return area / budget


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(mean=statistics.fmean(known), std=statistics.stdev(known) if len(known) > 1 else None, n=len(known))


def differences(
    curves: Sequence[Curve], arm: str, base: str, reading: Callable[[Curve], float | None]
) -> dict[int, float]:
    """Seed -> reading of `arm` minus reading of `base`, for the seeds in which both have one."""
    values = {(one.arm, one.seed): reading(one) for one in curves}
    found: dict[int, float] = {}
    for (name, seed), value in values.items():
        other = values.get((base, seed))
        if name == arm and value is not None and other is not None:
            found[seed] = value - other
    return found


def common_budget(curves: Sequence[Curve]) -> int:
    """The most tokens that every run has spent: up to there all of them can be compared."""
    return min(curve.points[-1].ledger_tokens for curve in curves)


def matched_roots(tree_tokens: float, chain_tokens: float, chain_roots: int) -> int:
    """Chains per task whose measured cost comes nearest to the tree's, at least 2.

    `chain_tokens` is what a step with `chain_roots` chains per task cost: 12,000 tokens for 12 chains and 9,400 for the
    tree give 9.
    """
    return max(2, round(tree_tokens / (chain_tokens / chain_roots)))
