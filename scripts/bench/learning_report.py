"""What the comparison's JSON says about each arm: every run's curve, then means and standard deviations over seeds."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scripts.bench.learning_curves import (
    Curve,
    Spread,
    common_budget,
    differences,
    mean_success,
    spread,
    success_at,
    tokens_to,
)

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Held-out successes whose cost in tokens is reported."""
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Parts of the common budget at which the arms' successes are compared."""


def report(curves: Sequence[Curve]) -> dict[str, Any]:
    """The `budget_tokens` that all runs have in common; per arm its runs, statistics, and gains on chains."""
    if not curves:
        return {"budget_tokens": 0, "arms": {}, "minus_chain": {}}
    budget = common_budget(curves)
    names = list(dict.fromkeys(one.arm for one in curves))
    return {
        "budget_tokens": budget,
        "arms": {name: arm_report([one for one in curves if one.arm == name], budget) for name in names},
        "minus_chain": {name: gains(curves, name, budget) for name in names if name != "chain"},
    }


def gains(curves: Sequence[Curve], arm: str, budget: int) -> dict[str, Any]:
    """How much more `arm` has than the chain arm, per seed that both have: seeds share their tasks and their order."""
    readings = {
        "mean_success_over_budget": lambda one: mean_success(one.points, budget),
        "success_at_budget": lambda one: success_at(one.points, budget),
        "success_at_half_budget": lambda one: success_at(one.points, budget / 2),
        "final_sampled_success": lambda one: one.sampled_success,
    }
    found = {name: differences(curves, arm, "chain", reading) for name, reading in readings.items()}
    return {
        name: {
            "by_seed": {str(seed): gain for seed, gain in gain_of.items()},
            "mean": _plain(spread([*gain_of.values()])),
        }
        for name, gain_of in found.items()
    }


def arm_report(curves: Sequence[Curve], budget: int) -> dict[str, Any]:
    """One arm. A target that only some seeds reach has its mean over those, with their number `n` beside it."""
    return {
        "seeds": {str(one.seed): seed_report(one, budget) for one in curves},
        "tokens_per_step": _plain(spread([one.tokens_per_step for one in curves])),
        "final_success": _plain(spread([one.points[-1].success for one in curves])),
        "final_sampled_success": _plain(spread([one.sampled_success for one in curves])),
        "mean_success_over_budget": _plain(spread([mean_success(one.points, budget) for one in curves])),
        "success_at_tokens": {
            str(round(share * budget)): _plain(spread([success_at(one.points, share * budget) for one in curves]))
            for share in SHARES
        },
        "tokens_to_success": {
            str(target): _plain(spread([tokens_to(one.points, target) for one in curves])) for target in TARGETS
        },
        "by_step": by_step(curves),
    }


def seed_report(one: Curve, budget: int) -> dict[str, Any]:
    """One run: its points, and what is read off them."""
    return {
        "points": [asdict(point) for point in one.points],
        "final_success": one.points[-1].success,
        "final_sampled_success": one.sampled_success,
        "tokens_per_step": round(one.tokens_per_step, 1),
        "mean_success_over_budget": mean_success(one.points, budget),
        "tokens_to_success": {str(target): tokens_to(one.points, target) for target in TARGETS},
        "by_step": by_step([one]),
    }


def by_step(curves: Sequence[Curve]) -> dict[str, list[float]]:
    """Each metric of the training steps, averaged over the runs, first step first."""
    length = min(len(one.steps) for one in curves)
    names = [name for name in curves[0].steps[0] if all(name in step for one in curves for step in one.steps)]
    return {
        name: [round(sum(one.steps[index][name] for one in curves) / len(curves), 6) for index in range(length)]
        for name in names
    }


def _plain(value: Spread | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
