"""One played task as a demonstration to imitate, and what the demonstrators' commands share."""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envs.types import StepResult, Task


@dataclass(slots=True, kw_only=True)
class Demonstration:
    """One played task; grows while a demonstrator plays."""

    task: Task
    segments: list[tuple[str, bool]] = field(default_factory=list)
    """Text and whether the agent wrote it (and a model is trained on it)."""
    result: StepResult = field(default_factory=StepResult)
    """Of the last step."""

    @property
    def score(self) -> float:
        """The task's score, 0 where there is none."""
        return self.result.score or 0.0

    def add(self, action: str, result: StepResult) -> StepResult:
        """Notes a step and what it caused; returns that."""
        self.segments.append((action, True))
        if result.end is None:
            self.segments.append((result.observation, False))
        self.result = result
        return result

    def record(self, renamed: Callable[[str], str] = str) -> dict[str, object]:
        """The JSON object of the demonstrations file, with every text passed through `renamed`."""
        return {
            "task_id": self.task.id,
            "messages": [{"role": message.role, "content": renamed(message.content)} for message in self.task.prompt],
            "segments": [{"text": renamed(text), "train": train} for text, train in self.segments],
        }


def right_by_level(demos: Sequence[Demonstration], level: str) -> list[tuple[str, float, int]]:
    """(e.g. `"hops 2"`, share with score 1, how many) per value of `meta[level]`, then for all, called `"total"`."""
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for demo in demos:
        for key in (f"{level} {demo.task.meta[level]}", "total"):
            counts[key] += 1
            right[key] += demo.score == 1.0
    return [(key, right[key] / counts[key], counts[key]) for key in sorted(counts)]


def write_records(path: Path, records: Iterable[dict[str, object]]) -> None:
    """Writes the demonstrations file, one JSON object per line."""
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def probability(text: str) -> float:
    """A command-line option that is a probability."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a probability between 0 and 1")
    return value
