"""What benchmarks leave: files, and their result as JSON on standard output. What they say meanwhile goes elsewhere."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path


def write(path: Path, content: str) -> None:
    """Writes a text, with the folder it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def write_json(path: Path, result: Mapping[str, object]) -> None:
    """Writes a result. Raises ValueError for a number that JSON does not know (NaN, infinity)."""
    write(path, json.dumps(result, indent=1, allow_nan=False) + "\n")


def print_json(result: Mapping[str, object], *, without: tuple[str, ...] = ()) -> None:
    """Prints a result; what is long and in the file anyway can be left out."""
    print(json.dumps({key: value for key, value in result.items() if key not in without}, indent=1))


def say(text: str) -> None:
    """A line for people while the benchmark runs."""
    print(text, file=sys.stderr, flush=True)
