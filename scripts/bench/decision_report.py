"""Arithmetic of the comparison of typed and flat policies: arms, what a gate saves, and the figures others state."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from scripts.bench.decision_readings import Measured, at_tokens, common_target, seconds_to
from scripts.bench.learning_curves import common_budget, tokens_to

STATED: Mapping[str, str] = {
    "success": "completion +12.7 %",
    "wrong_per_answer": "hallucination -23.4 %",
    "seconds_to_common": "training time -52 %",
    "peak_memory_mib": "peak memory -18 %",
    "backbone_share": "backbone 72 % of all weights",
    "memory_saved": "memory -63 % against full fine-tuning",
    "convergence": "2.3 times faster convergence (-57 %)",
    "coefficients": "success +8.9 %",
    "root_accuracy": "root accuracy -19 % without",
    "gate_f1": "F1 0.91",
    "gate_training": "training +37 %",
    "gate_latency": "latency -29 %",
}
"""Row -> what one author claims for the method, without code."""
NOT_RUN = "not run"
Arms: TypeAlias = Mapping[str, Sequence[Measured]]
Reading: TypeAlias = Callable[[Measured], Sequence[float | None]]


def report(arms: Arms, targets: Sequence[float], gate: Mapping[str, float]) -> dict[str, Any]:
    """`typed` and `flat` with the same keys, what a gate saves, and everything beside the stated figures.

    Typed and flat are matched on tokens: `budget_tokens` is what all their runs have spent. `common_success` is the
    highest success that all their runs reach. The other arms take as many steps, and are read at the same tokens or, if
    they spent fewer, at their last.
    """
    compared = [run for name in ("typed", "flat") for run in arms.get(name, ())]
    budget = common_budget([run.curve for run in compared]) if compared else 0
    goals = {f"{target:g}": target for target in targets}
    if compared:
        goals["common"] = common_target(compared)
    made = {
        name: arm_report(runs, min(budget, common_budget([run.curve for run in runs])), goals)
        for name, runs in arms.items()
        if runs
    }
    typed, gated = made.get("typed"), made.get("gated")
    saved = _gate_report(typed, gated, gate) if typed and gated else None
    result: dict[str, Any] = {"budget_tokens": budget, "targets": list(targets), "common_success": goals.get("common")}
    result |= made | {"gate": saved}
    if typed:
        result["beside_stated"] = _beside(arms, made, saved)
    return result


def arm_report(runs: Sequence[Measured], budget: float, goals: Mapping[str, float]) -> dict[str, Any]:
    """One arm: means over its seeds, and every run. The same keys for each arm."""
    each = [_run_report(run, budget, goals) for run in runs]
    names = [name for name, value in each[0].items() if isinstance(value, float | int | None) and name != "seed"]
    means = {name: _mean([run[name] for run in each]) for name in names}
    return {**means, "runs": each}


def _run_report(run: Measured, budget: float, goals: Mapping[str, float]) -> dict[str, Any]:
    points, last = run.curve.points, run.answers[-1]
    return {
        "seed": run.curve.seed,
        "tickets": last.tickets,
        "success": at_tokens(run, run.success, budget),
        "success_before": points[0].success,
        "success_at_end": points[-1].success,
        "wrong_per_answer": at_tokens(run, run.wrong_per_answer, budget),
        "wrong_per_answer_before": run.wrong_per_answer[0],
        "wrong_per_answer_at_end": last.wrong_per_answer,
        "answered_share": last.answered / max(last.tickets, 1),
        "root_accuracy": at_tokens(run, run.root_accuracy, budget),
        **{f"seconds_to_{name}": seconds_to(run, goal) for name, goal in goals.items()},
        **{f"tokens_to_{name}": tokens_to(points, goal) for name, goal in goals.items()},
        "seconds": run.seconds[-1],
        "tokens_per_step": run.curve.tokens_per_step,
        "tokens_per_ticket": last.tokens / max(last.tickets, 1),
        "seconds_per_evaluation": run.eval_seconds,
        "peak_memory_mib": run.peak_mib,
        "backbone_share": run.shares.get("backbone_share"),
        "memory_saved": run.shares.get("memory_saved"),
        "points": [
            [point.ledger_tokens, point.success, wrong]
            for point, wrong in zip(points, run.wrong_per_answer, strict=True)
        ],
    }


def _gate_report(typed: Mapping[str, Any], gated: Mapping[str, Any], gate: Mapping[str, float]) -> dict[str, Any]:
    """What the gate saves: shares of the same policy's costs without it, in training and in evaluation."""
    return {
        **gate,
        "saved_token_share": _saved(gated["tokens_per_step"], typed["tokens_per_step"]),
        "saved_token_share_per_ticket": _saved(gated["tokens_per_ticket"], typed["tokens_per_ticket"]),
        "saved_seconds_share": _saved(gated["seconds"], typed["seconds"]),
        "training_speed_up": typed["seconds"] / gated["seconds"] - 1,
        "saved_latency_share": _saved(gated["seconds_per_evaluation"], typed["seconds_per_evaluation"]),
        "success_change": gated["success_at_end"] - typed["success_at_end"],
    }


def _beside(arms: Arms, made: Mapping[str, Any], gate: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """One row per stated figure; what was not run says so."""
    typed, flat = made["typed"], made.get("flat")
    names = ("success", "wrong_per_answer", "seconds_to_common", "peak_memory_mib")
    rows = [_row(name, "flat", typed[name], flat[name] if flat else None, ran=flat is not None) for name in names]
    saved = typed["memory_saved"]
    rows.append(_row("backbone_share", "", typed["backbone_share"]))
    rows.append(_row("memory_saved", "", change=-saved if saved is not None else None))
    rows += [_against(name, arms, made) for name in ("convergence", "coefficients", "root_accuracy")]
    if gate:
        rows.append(_row("gate_f1", "every node runs", gate["f1"], gate["f1_of_running_all"]))
        rows.append(_row("gate_training", "typed", change=gate["training_speed_up"]))
        rows.append(_row("gate_latency", "typed", change=-gate["saved_latency_share"]))
    else:
        rows += [_row(name, "", ran=False) for name in ("gate_f1", "gate_training", "gate_latency")]
    return rows


_OTHER = {"convergence": "no_normalise", "coefficients": "coefficients", "root_accuracy": "credit_own"}


def _against(name: str, arms: Arms, made: Mapping[str, Any]) -> dict[str, Any]:
    """A row about one part of the method, from the arm without it (or, for coefficients, with it)."""
    typed, other = arms["typed"], arms.get(_OTHER[name], ())
    if not other:
        return _row(name, _OTHER[name], ran=False)
    if name == "coefficients":
        plain, own = _at_same_tokens(typed, other, lambda run: run.success)
        return _row(name, "typed", own, plain)
    if name == "root_accuracy":
        adjacent, own = _at_same_tokens(typed, other, lambda run: run.root_accuracy)
        return _row(name, _OTHER[name], adjacent, own, change=_change(own, adjacent))
    goal = common_target([*typed, *other])
    return _row(
        name, _OTHER[name], *(_mean([tokens_to(run.curve.points, goal) for run in runs]) for runs in (typed, other))
    )


def _at_same_tokens(typed: Sequence[Measured], other: Sequence[Measured], reading: Reading) -> list[float | None]:
    budget = common_budget([run.curve for run in (*typed, *other)])
    return [_mean([at_tokens(run, reading(run), budget) for run in runs]) for runs in (typed, other)]


def _row(
    measure: str,
    against: str,
    value: float | None = None,
    base: float | None = None,
    *,
    change: float | None = None,
    ran: bool = True,
) -> dict[str, Any]:
    """`change` is that of `value` against `base` unless it is given."""
    return {
        "measure": measure,
        "stated": STATED[measure],
        "value": value,
        "against": against if ran else f"{against} {NOT_RUN}".strip(),
        "base": base,
        "change": _change(value, base) if change is None else change,
    }


def _change(value: float | None, base: float | None) -> float | None:
    """Relative change, e.g. 0.9 against 0.8: 0.125; None where one is not known or `base` is 0."""
    return None if value is None or not base else value / base - 1


def _saved(value: float, base: float) -> float:
    """Share of `base` that is saved, e.g. 60 of 80: 0.25."""
    return 1 - value / base


def _mean(values: Sequence[float | None]) -> float | None:
    """Over all seeds; None where one seed has no value, so that a target half reached is not reached."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None
