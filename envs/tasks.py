"""Loads tasks from JSONL and Parquet files: fields id, prompt, truth and, if wanted, meta."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.json_lines import MAX_LINE_BYTES, json_lines
from envs.types import Message, Task

REQUIRED = ("id", "prompt", "truth")
ROLES = ("system", "user", "assistant", "tool")
ROWS_AT_ONCE = 1024
"""Of Parquet."""


def load_tasks(path: Path, *, instruction: str = "", limit: int | None = None) -> list[Task]:
    """Reads and checks a task file; `instruction` is put before each question, `limit` keeps the first tasks.

    `prompt` is a text or a list of `{"role", "content"}` ending with the user's, `truth` a text or a list of texts.
    Raises ValueError, one sentence naming file and line (row, for Parquet), for anything else.
    """
    tasks: list[Task] = []
    seen: dict[str, str] = {}
    for place, record in read_records(path):
        task = _task(record, f"{path} {place}")
        if task.id in seen:
            raise ValueError(f"{path} {place}: id {task.id!r} is already used in {seen[task.id]}; ids must be unique")
        seen[task.id] = place
        tasks.append(task)
    if not tasks:
        raise ValueError(f"{path} has no tasks; expected one per line with the fields {', '.join(REQUIRED)}")
    return [with_instruction(task, instruction) for task in tasks[:limit]]


def chosen_tasks(tasks: Sequence[Task], count: int) -> list[Task]:
    """`count` of the tasks in their order: equally many of each `meta["source"]`, as far as each goes; the first ones.

    Tasks that name no source are one source together, so a file without sources gives its first `count` tasks. E.g.
    sources a a a a b c c and a count of 5 give a a b c c; a remainder goes to the sources whose next task comes first.
    """
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int]] = []
    for place, task in enumerate(tasks):
        source = str(task.meta.get("source"))
        turns.append((seen[source], place))
        seen[source] += 1
    return [tasks[place] for place in sorted(place for _, place in sorted(turns)[:count])]


def with_instruction(task: Task, instruction: str) -> Task:
    """Puts a text and a blank line before the user's last message; an empty text changes nothing."""
    if not instruction:
        return task
    question = task.prompt[-1]
    asked = replace(question, content=f"{instruction}\n\n{question.content}")
    return replace(task, prompt=(*task.prompt[:-1], asked))


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Each record of a JSONL or Parquet file with its place, e.g. `("line 7", {"id": "ulm", ...})`.

    Raises ValueError, one sentence naming file and line, for what cannot be read. Values of records are not checked.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"{path}: unknown kind of task file; accepted: .jsonl, .parquet")
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
        else:
            yield from ((f"line {number}", record) for number, record in json_lines(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(f"{path} needs pyarrow, which is not installed; run: pip install pyarrow") from None
    number = 0
    try:
        with path.open("rb") as file:
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=ROWS_AT_ONCE):
                _check_sizes(batch, f"{path} row", number)
                try:
                    rows = batch.to_pylist()
                except (ValueError, OverflowError) as error:  # e.g. text that is not UTF-8, a date in the year 300000
                    raise pyarrow.ArrowInvalid(str(error)) from None
                for row in rows:
                    number += 1
                    yield f"row {number}", {name: value for name, value in row.items() if value is not None}
    except pyarrow.ArrowException as error:
        first = str(error).splitlines()[0].partition(". ")[0]
        raise ValueError(f"{path} cannot be read as Parquet: {first}") from None


def _check_sizes(batch: Any, place: str, before: int) -> None:
    """Refuses a row of more bytes than a line of JSON Lines may have. `before`: rows in the batches before this one."""
    if batch.nbytes <= MAX_LINE_BYTES:
        return
    for index in range(batch.num_rows):
        if batch.slice(index, 1).nbytes > MAX_LINE_BYTES:
            raise ValueError(
                f"{place} {before + index + 1}: longer than {MAX_LINE_BYTES:,} bytes, the most that a row may have"
            )


def _task(record: Any, place: str) -> Task:
    if not isinstance(record, dict):
        raise ValueError(f"{place}: expected an object with the fields {', '.join(REQUIRED)}")
    for name in REQUIRED:
        if name not in record:
            raise ValueError(f"{place}: field {name!r} is missing; required fields are {', '.join(REQUIRED)}")
    identifier, meta = record["id"], record.get("meta", {})
    if not isinstance(identifier, str) or not identifier.strip():
        raise ValueError(f"{place}: field 'id' must be a text that is not empty")
    if not isinstance(meta, dict):
        raise ValueError(f"{place}: field 'meta' must be an object")
    for fault in _not_json(meta):
        raise ValueError(f"{place}: field 'meta' must hold what JSON can, and not {fault}")
    return Task(id=identifier, prompt=_prompt(record["prompt"], place), truth=_truth(record["truth"], place), meta=meta)


def _not_json(value: Any) -> Iterator[str]:
    """What Parquet can hold and a forest file can't, e.g. `"a datetime"` or `"the number nan"`."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _not_json(item)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"the number {value}"
    elif value is not None and not isinstance(value, str | int | float):
        yield f"a {type(value).__name__}"


def _prompt(value: Any, place: str) -> tuple[Message, ...]:
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise ValueError(f"{place}: field 'prompt' must be a text or a list of messages with role and content")
    messages = []
    for item in items:
        role, content = (item.get("role"), item.get("content")) if isinstance(item, dict) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            raise ValueError(f"{place}: a message of 'prompt' needs a role among {', '.join(ROLES)} and a text content")
        messages.append(Message(role=role, content=content))
    if messages[-1].role != "user" or not messages[-1].content.strip():
        raise ValueError(f"{place}: the last message of 'prompt' must be the user's, and not empty")
    return tuple(messages)


def _truth(value: Any, place: str) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise ValueError(f"{place}: field 'truth' must be a text or a list of texts, none of them empty")
    return tuple(items)
