"""The files of human feedback in `runs/<name>/feedback/`: steps that wait for a label, and labels.

Owns their formats, one JSON object per line. `queue.jsonl` is written by the run alone. `labels.jsonl` is written by
the label server and by whoever drops labels in. `unknown.jsonl` has those labels that name no queued step, written by
the run. All only grow; a reader takes whole lines and forgives the half of one that a crash left.
"""

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envs.decisions.types import StepRecord
from trainer.decisions.record_json import record_from_json, record_to_json
from trainer.decisions.statistics import Running

QUEUE, LABELS, UNKNOWN = "queue.jsonl", "labels.jsonl", "unknown.jsonl"
MAX_LINE_BYTES = 2**16
"""Longest line of labels.jsonl: one label with a note of several pages."""
MAX_ID = 1_000
MAX_NOTE = 4_000
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedStep:
    """One typed step as it waits for a label: what a person looks at, and what training needs when the label comes."""

    id: str
    """Unique in the run and equal in a repeated run: `"train-3/<task>/<tree>/<index>"`."""
    step: int
    """Training step that trained it, from 1."""
    task: str
    depth: int
    """Of its decision node in the declaration; 0 for the root."""
    instruction: str
    record: StepRecord
    prompt: str
    """Text of the prompt as the model saw it."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Under the policy that sampled it, one per sampled id."""
    versions: tuple[int, ...]
    total: float
    """Its total reward as it was trained."""
    statistics: Running | None
    """Of its node's raw rewards, by which it was normalised then; None without normalisation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a person said about one step."""

    id: str
    label: float
    """0: wrong, 1: right, anything between."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How much of labels.jsonl has been read."""

    bytes: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLabels:
    """What has come since the last look."""

    labels: tuple[Label, ...]
    problems: tuple[str, ...]
    """One sentence for each line that is no label, naming file and line."""
    position: Position


def queue_line(step: QueuedStep) -> str:
    """One line of queue.jsonl, without the newline."""
    line: dict[str, Any] = {name: getattr(step, name) for name in _PLAIN}
    line |= record_to_json(step.record)
    line["statistics"] = asdict(step.statistics) if step.statistics else None
    line |= {name: list(getattr(step, name)) for name in _ARRAYS}
    return json.dumps(line, ensure_ascii=True, allow_nan=False)


def queued_step(line: Mapping[str, Any]) -> QueuedStep:
    """The inverse of `queue_line`. Raises KeyError, TypeError or ValueError for another object."""
    statistics = Running(**line["statistics"]) if line["statistics"] else None
    values: dict[str, Any] = {name: line[name] for name in _PLAIN}
    values |= {name: tuple(line[name]) for name in _ARRAYS}
    return QueuedStep(**values, record=record_from_json(line), statistics=statistics)


_PLAIN = ("id", "step", "task", "depth", "instruction", "prompt", "total")
_ARRAYS = ("prompt_ids", "token_ids", "logprobs", "versions")


def read_queue(path: Path) -> Iterator[QueuedStep]:
    """Every whole line of a queue; nothing if there is no file. Lines that are not of this format are skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for text in file:
            try:
                yield queued_step(json.loads(text))
            except (KeyError, TypeError, ValueError, AttributeError):
                continue


def parsed_label(value: object) -> Label:
    """A label from a JSON value. Raises ValueError with one sentence that says what is accepted."""
    if not isinstance(value, dict) or not {"id", "label"} <= set(value) <= {"id", "label", "note"}:
        raise ValueError('accepted is an object such as {"id": "train-3/shop/7/0/2", "label": 0.75, "note": "polite"}')
    name, label, note = value["id"], value["label"], value.get("note") or ""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID:
        raise ValueError(f"id must be the id of a queued step, a text of at most {MAX_ID} characters")
    if isinstance(label, bool) or not isinstance(label, int | float) or not 0 <= label <= 1:
        raise ValueError("label must be a number from 0 to 1")
    if not isinstance(note, str) or len(note) > MAX_NOTE:
        raise ValueError(f"note must be a text of at most {MAX_NOTE} characters")
    return Label(id=name, label=float(label), note=note)


def new_labels(path: Path, position: Position) -> NewLabels:
    """The labels behind `position`. A file that has become shorter is read again from its start.

    The last line needs no newline if it is a whole object. OSError passes if the file is there and cannot be read.
    """
    if not path.exists():
        return NewLabels(labels=(), problems=(), position=position)
    labels: list[Label] = []
    problems: list[str] = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset, number = (position.bytes, position.lines) if size >= position.bytes else (0, 0)
        file.seek(max(offset - 1, 0))
        if offset and file.read(1) != b"\n" and file.peek(1)[:1] == b"\n":
            offset += 1  # the end of a line that was taken without it
        file.seek(offset)
        while text := file.readline(MAX_LINE_BYTES + 1):
            long = len(text) > MAX_LINE_BYTES
            while long and not text.endswith(b"\n") and (text := file.readline(MAX_LINE_BYTES)):
                pass
            label = None if long else _label(text)
            if not text.endswith(b"\n") and not isinstance(label, Label):
                break  # still being written
            offset, number = file.tell(), number + 1
            if isinstance(label, Label):
                labels.append(label)
            elif long or text.strip():
                problems.append(f"{path} line {number}: {label or f'longer than {MAX_LINE_BYTES:,} bytes'}")
    return NewLabels(labels=tuple(labels), problems=tuple(problems), position=Position(bytes=offset, lines=number))


def _label(text: bytes) -> Label | str:
    """The label of a line, or what is wrong with it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "not JSON"
    try:
        return parsed_label(value)
    except ValueError as error:
        return str(error)


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Adds whole lines in one write under a lock, each on a line of its own whatever the file ended with."""
    if not lines:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        start = file.seek(0, os.SEEK_END)
        file.seek(max(start - 1, 0))
        begin = "" if start == 0 or file.read(1) == b"\n" else "\n"
        file.write((begin + "".join(line + "\n" for line in lines)).encode())
        file.flush()
        os.fsync(file.fileno())


def label_line(label: Label) -> str:
    """One line of labels.jsonl, without the newline."""
    assert math.isfinite(label.label)
    return json.dumps({"id": label.id, "label": label.label} | ({"note": label.note} if label.note else {}))
