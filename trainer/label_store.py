"""Queue and labels of one run folder as the label server sees them: read as they grow, asked by node, and added to.

Nothing is kept that the two files do not hold, so a server can stop and start at any time, several can run at once, and
labels that others drop in count from the next look on. Of queued steps only the place in the file is kept in memory.
"""

import json
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from envs.types import Json
from trainer.decisions.feedback_files import LABELS, QUEUE, Label, Position, append_lines, label_line, new_labels

SHOWN = ("id", "step", "task", "node", "depth", "instruction", "input", "output", "fault", "found", "parts", "prompt")
"""Fields of a queued step that a person looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a step's line lies in the queue."""

    start: int
    node: str
    step: int


class LabelStore:
    """Thread-safe. Every question looks at the files first."""

    def __init__(self, run: Path) -> None:
        """Raises ValueError (one sentence) when `run` is no folder, or its feedback would lie outside of it."""
        if not run.is_dir():
            raise ValueError(f"{run} is not a run folder; give the path of a folder such as runs/<name>")
        self.run = run.resolve()
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}
        self._by_step: dict[int, list[str]] = {}
        self._read = 0
        """Bytes of the queue that have been read."""
        self._labels: dict[str, Label] = {}
        self._position = Position()
        self.max_age = _max_age(self.run / "config.yaml")
        """Training steps after which a label is of no use to training; None if the run doesn't tell."""
        self._look()

    def next(self, node: str = "", skip: Collection[str] = ()) -> dict[str, Json] | None:
        """The step to label next: of the newest training step first, in the queue's order; None without any.

        `node`: of this one only; empty: of all.
        """
        with self._lock:
            self._look()
            for step in sorted(self._by_step, reverse=True):
                for name in self._by_step[step]:
                    if name not in self._labels and name not in skip and node in ("", self._places[name].node):
                        return self._shown(name)
        return None

    def step(self, name: str) -> dict[str, Json] | None:
        """A queued step by its id, with the label it has."""
        with self._lock:
            self._look()
            return self._shown(name) if name in self._places else None

    def add(self, label: Label) -> None:
        """Writes a label down. Raises KeyError when no such step is queued."""
        with self._lock:
            self._look()
            if label.id not in self._places:
                raise KeyError(label.id)
            append_lines(self._file(LABELS), [label_line(label)])
            self._look()

    def progress(self) -> dict[str, Json]:
        """How many steps are queued and labelled, in all and by node in order of their names."""
        with self._lock:
            self._look()
            queued: dict[str, int] = {}
            labelled: dict[str, int] = {}
            for name, place in self._places.items():
                queued[place.node] = queued.get(place.node, 0) + 1
                labelled[place.node] = labelled.get(place.node, 0) + (name in self._labels)
        nodes: list[Json] = [
            {"name": node, "queued": queued[node], "labelled": labelled[node]} for node in sorted(queued)
        ]
        return {"queued": sum(queued.values()), "labelled": sum(labelled.values()), "nodes": nodes}

    def _file(self, name: str) -> Path:
        """One of the two files, never outside the run folder: a link that leads out is refused."""
        path = self.run / "feedback" / name
        if not path.resolve().is_relative_to(self.run):
            raise ValueError(f"{path} leads out of the run folder {self.run}; feedback is read and written inside it")
        return path

    def _look(self) -> None:
        """Takes in what both files have got since the last look."""
        path = self._file(QUEUE)
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                while (line := file.readline()).endswith(b"\n"):
                    self._take(line)
                    self._read += len(line)
        found = new_labels(self._file(LABELS), self._position)
        self._position = found.position
        self._labels |= {label.id: label for label in found.labels}

    def _take(self, line: bytes) -> None:
        try:
            step = json.loads(line)
            place = _Place(start=self._read, node=str(step["node"]), step=int(step["step"]))
            name = str(step["id"])
        except (KeyError, TypeError, ValueError):
            return
        if name not in self._places:
            self._by_step.setdefault(place.step, []).append(name)
        self._places[name] = place

    def _shown(self, name: str) -> dict[str, Json]:
        with self._file(QUEUE).open("rb") as file:
            file.seek(self._places[name].start)
            line: dict[str, Any] = json.loads(file.readline())
        label = self._labels.get(name)
        return {key: line.get(key) for key in SHOWN} | {
            "age": max(self._by_step) - self._places[name].step,
            "max_age": self.max_age,
            "label": label.label if label else None,
            "note": label.note if label else "",
        }


def _max_age(config: Path) -> int | None:
    """`decision.feedback.max_age` of a run's settings; None if it cannot be read from there."""
    try:
        found = OmegaConf.select(OmegaConf.load(config), "decision.feedback.max_age")
    except Exception:  # a damaged file, of which OmegaConf and YAML raise many kinds; labelling does not depend on it
        return None
    return found if isinstance(found, int) else None
