"""The tables of the signal benchmark as Markdown."""

from collections.abc import Sequence
from typing import Any

from scripts.bench.markdown import table

Row = dict[str, Any]
MARKS = ("<!-- measured: begin -->", "<!-- measured: end -->")
"""What stands between these lines of a page is written anew; the rest is left alone."""


def page(result: Row, old: str = "") -> str:
    """All tables, in their place in `old` or, without marks in it, after it."""
    tables = "\n\n".join([MARKS[0], *(section(row) for row in result["configs"]), MARKS[1]])
    before, mark, rest = old.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2] if mark else "\n"
    return f"{before}{tables}{after}" if mark or not before.strip() else f"{before.rstrip()}\n\n{tables}{after}"


def section(row: Row) -> str:
    """One configuration: what was collected, then what the gradients are worth."""
    reference = row["reference"]
    head = (
        f"### {row['label']}, {row['turns']} turns\n\n"
        f"{row['tasks']} tasks, {row['repeats']} groups of each per arm; chains take {reference['mean_turns']:.1f} "
        f"steps, mean reward {reference['mean_reward']:.3f} ± {reference['reward_std']:.3f}. "
        f"Commit `{row['commit'][:7]}`:\n\n    {row['command']}"
    )
    adam, plain = row["metrics"]["adam"], row["metrics"]["plain"]
    parts = [head, shapes(row["rollouts"]), arms(adam["arms"], plain["arms"])]
    return "\n\n".join(parts)


def shapes(found: Row) -> str:
    """What a group of each shape costs, and what its leaves are worth."""
    lines = [
        (
            name,
            f"{one['leaves_per_group']:.0f}",
            f"{one['tokens_per_group']:,.0f}",
            f"{one['leaves_per_1k_tokens']:.2f}",
            f"{one['leaves_per_token_ratio']:.2f}",
            _number(one["reward_correlation"]),
            _number(one["noise_correlation"]),
            _number(one["expected_worth"]),
            _number(one.get("score_correlation")),
            _number(one.get("score_worth")),
            f"{100 * one['dead_groups']:.0f} %",
            f"{one['mean_reward']:.3f}",
        )
        for name, one in found.items()
    ]
    head = (
        "shape",
        "leaves",
        "tokens",
        "leaves per 1,000",
        "ratio",
        "ρ of rewards",
        "ρ of noise",
        "worth",
        "ρ by scores",
        "worth by scores",
        "dead groups",
        "mean reward",
    )
    return table(head, lines)


def arms(adam: Row, plain: Row) -> str:
    """Factors against the chains that cost about as much, in both metrics."""
    lines = [
        (
            name,
            one["base"].removesuffix(" tree"),
            _factor(one["factor"]["yard"]),
            _factor(plain[name]["factor"]["yard"]),
            _factor(one["factor"]["yard_within"]),
            _factor(one["factor"].get("aim")),
            _factor(plain[name]["factor"].get("aim")),
            _factor(one["factor"]["calm"]),
            _factor(one["factor"]["calm_within"]),
            _factor(one["factor"]["useful"]),
            _with_interval(one["cosine"], one["intervals"]["cosine"]),
            f"{one['halves']['cosine']:.3f}",
        )
        for name, one in adam.items()
    ]
    head = (
        "arm", "against", "**yard**", "yard, plain", "yard, tasks given", "aim", "aim, plain", "calm",
        "calm, tasks given", "useful", "cosine to reference", "halves",
    )  # fmt: skip
    return table(head, lines)


def _factor(found: Row | None) -> str:
    return "-" if found is None else _with_interval(found["value"], found["interval"])


def _with_interval(value: float | None, bounds: Sequence[float] | None) -> str:
    return _number(value) + (f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
