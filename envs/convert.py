"""Command: makes a task file of the question files of public data sets.

`python -m envs.convert data/multihop/train.jsonl hotpotqa=hotpotqa.jsonl musique=musique.parquet` reads records with a
question and its golden answers, from JSONL or Parquet, one input after the other; an input's name makes its ids unique.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.tasks import load_tasks, read_records


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for files that cannot be used)."""
    options = _parser().parse_args(arguments)
    try:
        count = convert(options.out, options.inputs, question=options.question, answers=options.answers)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of reading, it would be a ValueError
        print(f"error: {options.out} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 2
    print(f"Wrote {count} tasks to {options.out}.")
    return 0


def convert(out: Path, inputs: Sequence[str], *, question: str, answers: str) -> int:
    """Writes `out` from inputs such as `"hotpotqa=hotpotqa.jsonl"`; returns the number of tasks.

    `question` and `answers` name fields, with dots for fields of fields, e.g. `"reward_model.ground_truth.target"`. The
    file is there only if every task in it can be loaded. Raises ValueError, one sentence, otherwise.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.stem}.unfinished.jsonl")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            for named in inputs:
                for task in _tasks(named, question, answers):
                    file.write(json.dumps(task, ensure_ascii=False) + "\n")
        count = len(load_tasks(unfinished))
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _tasks(named: str, question: str, answers: str) -> Iterator[dict[str, Any]]:
    name, _, path = named.partition("=")
    if not name or not path:
        raise ValueError(f"{named!r} is no input: write NAME=FILE, e.g. hotpotqa=hotpotqa.jsonl")
    for number, (place, record) in enumerate(read_records(Path(path)), start=1):
        where = f"{path} {place}"
        identifier = record.get("id", number) if isinstance(record, Mapping) else number
        yield {
            "id": f"{name}/{identifier}",
            "prompt": _field(record, question, where),
            "truth": _field(record, answers, where),
            "meta": {"source": name},
        }


def _field(record: Any, name: str, where: str) -> Any:
    for part in name.split("."):
        if not isinstance(record, Mapping) or part not in record:
            raise ValueError(f"{where}: there is no field {name!r}; see --question and --answers")
        record = record[part]
    return record


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.convert", description="Makes a task file of question files.")
    parser.add_argument("out", type=Path, help="the task file to write, JSONL")
    parser.add_argument("inputs", nargs="+", metavar="NAME=FILE", help="question file, JSONL or Parquet, and its name")
    parser.add_argument("--question", default="question", help="field of the question (default: %(default)s)")
    parser.add_argument("--answers", default="golden_answers", help="field of the answers (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
