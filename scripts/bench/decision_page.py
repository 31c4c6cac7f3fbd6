"""The result of the decision benchmark as a page in Markdown."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.bench.markdown import table

MARKS = ("<!-- measured: begin -->", "<!-- measured: end -->")
"""What stands between these lines of a page is written anew; the rest is left alone."""
NAMES = {
    "success": "success at the same tokens",
    "success_before": "success before training",
    "success_at_end": "success at the end",
    "wrong_per_answer": "wrong statements per answer at the same tokens",
    "wrong_per_answer_before": "the same before training",
    "wrong_per_answer_at_end": "the same at the end",
    "answered_share": "tickets with a valid answer at the end",
    "root_accuracy": "tickets whose intent is right, at the same tokens",
    "seconds": "training seconds, all steps",
    "seconds_per_evaluation": "seconds of an evaluation",
    "tokens_per_step": "tokens of a step",
    "tokens_per_ticket": "tokens of a held-out ticket",
    "peak_memory_mib": "peak memory of learner and engine, MiB",
}
"""Measure of an arm -> what it is called on the page."""
BESIDE = {
    "success": "success at the same tokens",
    "wrong_per_answer": "wrong statements per answer, same tokens",
    "seconds_to_common": "training seconds to the highest success that all reach",
    "peak_memory_mib": "peak memory, MiB",
    "backbone_share": "backbone's share of all weights",
    "memory_saved": "weights, gradients and optimizer state, against training the whole model (counted, not measured)",
    "convergence": "normalised rewards: tokens to the highest success that both reach",
    "coefficients": "entropy coefficients by node: success at the same tokens",
    "root_accuracy": "children's rewards reach the root (`adjacent`) or not (`own`): right intents, same tokens",
    "gate_f1": "gate: F1",
    "gate_training": "gate: speed of training",
    "gate_latency": "gate: seconds of an evaluation",
}
"""Row beside a stated figure -> what it is called on the page."""


def page(result: Mapping[str, Any], old: str = "") -> str:
    """The tables, in their place in `old` or, without marks in it, after it."""
    tables = "\n\n".join([MARKS[0], *_parts(result), MARKS[1]])
    before, mark, rest = old.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2] if mark else "\n"
    return f"{before}{tables}{after}" if mark or not before.strip() else f"{before.rstrip()}\n\n{tables}{after}"


def _parts(result: Mapping[str, Any]) -> list[str]:
    arms = [name for name, value in result.items() if isinstance(value, Mapping) and "runs" in value]
    parts = [_told(result, arms), _arms(result, arms), _targets(result, arms)]
    if result.get("beside_stated"):
        parts.append(_beside(result["beside_stated"]))
    if result.get("gate"):
        parts.append(_gate(result["gate"]))
    return parts


def _told(result: Mapping[str, Any], arms: Sequence[str]) -> str:
    runs = ", ".join(f"{name} {len(result[name]['runs'])}" for name in arms)
    tickets = round(result[arms[0]]["tickets"])
    return (
        f"Commit `{result['commit'][:7]}`, `{result['command']}`. Runs: {runs}. Same tokens: "
        f"{result['budget_tokens']:,} of the ledger, which all typed and flat runs have spent. Cells: the mean, and in "
        f"brackets the least and the largest of the seeds. A success of one run on {tickets} tickets has a standard "
        f"error of up to {50 / math.sqrt(tickets):.1f} points; the tickets are the same for all."
    )


def _arms(result: Mapping[str, Any], arms: Sequence[str]) -> str:
    return table(["", *arms], [[told, *(_cell(result[arm], name) for arm in arms)] for name, told in NAMES.items()])


def _targets(result: Mapping[str, Any], arms: Sequence[str]) -> str:
    """Training seconds to each target; a target that a seed misses says how many reach it."""
    goals = [(f"{target:g}", f"{target:g}") for target in result["targets"]]
    if (common := result["common_success"]) is not None:
        goals.append(("common", f"{common:.3f}, the highest that all typed and flat runs reach"))
    rows = [[told, *(_cell(result[arm], f"seconds_to_{name}") for arm in arms)] for name, told in goals]
    return table(["training seconds to a success of", *arms], rows)


def _cell(arm: Mapping[str, Any], name: str) -> str:
    values = [run[name] for run in arm["runs"]]
    known = [value for value in values if value is not None]
    if not known:
        return "never" if "_to_" in name else "none"
    if len(known) < len(values):
        return f"{' and '.join(map(_number, known))}, in {len(known)} of {len(values)} runs"
    spread = f" ({_number(min(known))} to {_number(max(known))})" if len(known) > 1 else ""
    return f"{_number(statistics.fmean(known))}{spread}"


def _beside(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        [
            BESIDE[row["measure"]],
            row["stated"],
            _number(row["value"]),
            row["against"],
            _number(row["base"]),
            "" if row["change"] is None else _percent(row["change"]),
        ]
        for row in rows
    ]
    return table(["measure", "stated", "measured", "against", "which has", "change, measured"], lines)


def _gate(gate: Mapping[str, Any]) -> str:
    shares = [
        ("tokens of training", "saved_token_share"),
        ("tokens of a held-out ticket", "saved_token_share_per_ticket"),
        ("training seconds", "saved_seconds_share"),
        ("seconds of an evaluation", "saved_latency_share"),
    ]
    saved = [[f"saved: {name}", _percent(gate[key])] for name, key in shares]
    quality = [
        ["F1 of its decisions, on tickets that it was not trained on", f"{gate['f1']:.3f}"],
        ["F1 of running every node, the trivial gate", f"{gate['f1_of_running_all']:.3f}"],
        ["nodes that were not needed, and that it skipped", f"{100 * gate['spared']:.1f} %"],
        ["nodes that were needed, and that it ran", f"{100 * gate['recall']:.1f} %"],
    ]
    change = [["success at the end, change in points", f"{100 * gate['success_change']:+.1f}"]]
    return table(["the gate", ""], [*quality, *saved, *change])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %"
