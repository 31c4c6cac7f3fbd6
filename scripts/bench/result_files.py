"""Files that benchmarks leave."""

import json
from collections.abc import Mapping
from pathlib import Path


def write(path: Path, content: str) -> None:
    """Writes a text, with the folder it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def write_json(path: Path, result: Mapping[str, object]) -> None:
    """Writes a result. Raises ValueError for a number that JSON does not know (NaN, infinity)."""
    write(path, json.dumps(result, indent=1, allow_nan=False) + "\n")
