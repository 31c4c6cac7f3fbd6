"""What the comparison of typed and flat policies reads off one finished run. No process is started here."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from envs.decisions.rewards import reference_of
from envs.decisions.types import Values
from envs.shop.rules import NODES
from envs.shop.world import ANSWER, wrong_statements
from envs.types import Task
from scripts.bench.learning_curves import Curve, success_at
from trainer.forest_file import read_forest
from trainer.run_folder import Metrics, read_metrics

PHASES = ("time/collect_s", "time/learn_s", "time/push_s")
SHARES = ("decision/backbone_share", "decision/memory_saved")
"""Metrics that a typed run logs once, before its first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The greedy answers of one evaluation to the held-out tickets."""

    tickets: int
    answered: int
    """Tickets that got a valid answer; the others were ended by an invalid output."""
    wrong: int
    """Statements of answers that contradict the database."""
    roots_right: int
    """Tickets of which the first node said just what is expected of it."""
    tokens: int
    """Sampled tokens and those of prompts, each once."""

    @property
    def wrong_per_answer(self) -> float | None:
        """Wrong statements per answer; None without answers."""
        return self.wrong / self.answered if self.answered else None

    @property
    def root_accuracy(self) -> float:
        """Share of the tickets whose first node is right."""
        return self.roots_right / max(self.tickets, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One finished run."""

    curve: Curve
    seconds: tuple[float, ...]
    """Training seconds (collect, learn, push; no evaluation) before each point of the curve."""
    eval_seconds: float
    """Of one evaluation, the mean of those after training began."""
    answers: tuple[Answers, ...]
    """Of the evaluation at each point of the curve."""
    peak_mib: float
    """Of learner ranks, rollout actors and engines together."""
    shares: Mapping[str, float]
    """`backbone_share` and `memory_saved` of a typed policy; empty for a flat one."""

    @property
    def wrong_per_answer(self) -> list[float | None]:
        """At each point of the curve."""
        return [answers.wrong_per_answer for answers in self.answers]

    @property
    def root_accuracy(self) -> list[float | None]:
        """At each point of the curve."""
        return [answers.root_accuracy for answers in self.answers]

    @property
    def success(self) -> list[float | None]:
        """At each point of the curve."""
        return [point.success for point in self.curve.points]


def read_run(folder: Path, curve: Curve, peak_mib: float) -> Measured:
    """Reads a run's folder. Raises ValueError when the trees of an evaluation are not there."""
    metrics = read_metrics(folder / "metrics.jsonl")
    files = [folder / "forest" / f"eval-{point.step:06d}.jsonl" for point in curve.points]
    if missing := [file for file in files if not file.is_file()]:
        raise ValueError(f"{missing[0]} is not there: remove {folder}, and it runs again")
    return Measured(
        curve=curve,
        seconds=training_seconds(curve, metrics),
        eval_seconds=statistics.fmean(metrics[point.step].get("time/eval_s") or 0.0 for point in curve.points[1:]),
        answers=tuple(map(answers_in, files)),
        peak_mib=peak_mib,
        shares={name.partition("/")[2]: value for name in SHARES if (value := metrics[0].get(name)) is not None},
    )


def training_seconds(curve: Curve, metrics: Mapping[int, Metrics]) -> tuple[float, ...]:
    """Seconds of all training steps up to each point of the curve: steps of 4 and 6 s and points 0, 2 give 0, 10."""
    spent = {step: sum(values.get(name) or 0.0 for name in PHASES) for step, values in metrics.items() if step > 0}
    return tuple(sum(s for step, s in spent.items() if step <= point.step) for point in curve.points)


def seconds_to(run: Measured, target: float) -> float | None:
    """Training seconds until success first reaches `target`, linear between evaluations; None if it never does."""
    reached = [point.success for point in run.curve.points]
    if reached[0] >= target:
        return 0.0
    for (before, after), (began, ended) in zip(pairwise(reached), pairwise(run.seconds), strict=True):
        if before < target <= after:
            return began + (target - before) / (after - before) * (ended - began)
    return None


def at_tokens(run: Measured, values: Sequence[float | None], tokens: float) -> float | None:
    """A reading of each evaluation, at this many ledger tokens: linear between those that have one, else None.

    Example: 2 wrong statements per answer at 0 tokens and 1 at 100 give 1.5 at 50.
    """
    points = [
        replace(point, success=value)
        for point, value in zip(run.curve.points, values, strict=True)
        if value is not None
    ]
    return success_at(points, tokens) if points else None


def common_target(runs: Sequence[Measured]) -> float:
    """The highest success that all runs reach in some evaluation."""
    return min(max(point.success for point in run.curve.points) for run in runs)


def answers_in(path: Path) -> Answers:
    """Counts over an evaluation's forest file, which must hold every held-out ticket."""
    rows = list(_played(path))
    given = [(values, task) for values, task, _ in rows if ANSWER in values]
    return Answers(
        tickets=len(rows),
        answered=len(given),
        wrong=sum(wrong_statements(values, task) for values, task in given),
        roots_right=sum(values.get(NODES[0]) == reference_of(task, NODES[0]) for values, task, _ in rows),
        tokens=sum(tokens for _, _, tokens in rows),
    )


def _played(path: Path) -> Iterator[tuple[Values, Task, int]]:
    """(values by node, task, tokens) of every leaf; no values where the trajectory ended without a result."""
    for record in read_forest(path):
        nodes = record.tree.nodes
        tokens = sum(len(node.token_ids) + len(node.observation_ids) for node in nodes)
        for leaf in (node for node in nodes if node.is_leaf):
            values: Any = json.loads(leaf.result) if leaf.result else {}
            yield values, record.task, tokens
