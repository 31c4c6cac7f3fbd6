"""What W&B has on record of a run, against `metrics.jsonl`."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainer.run_folder import Metrics, merged, read_metrics

READ_S = 300.0
"""Longest wait for W&B's reader."""
LOST_STEPS = 2
"""So many steps' metrics may a killed process take with it: W&B writes them down within some seconds."""


def pieces(folder: Path) -> list[Path]:
    """W&B's own files of a run, in the order in which they were begun: one for each start of the run."""
    files = (folder / "wandb").glob("*run-*/run-*.wandb")
    return sorted(files, key=lambda file: file.parent.name.removeprefix("offline-"))


def history(folder: Path) -> dict[int, Metrics]:
    """Step → metrics as W&B has them, read with its own command. Raises CalledProcessError when that cannot."""
    lines = []
    for file in pieces(folder):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=READ_S, check=True).stdout
        records = map(json.loads, said.splitlines())
        rows = [record["history"]["item"] for record in records if record["type"] == "history"]
        lines += [json.dumps(row) for row in rows if not _has_trees(row)]
    return merged(lines)


def _has_trees(row: Mapping[str, object]) -> bool:
    """Whether a row holds no metrics but a table and a page of trees, which come some time after them."""
    return any(name.endswith("/explorer._type") for name in row)


def wandb_problems(folder: Path, last: int | None = None) -> list[str]:
    """Sentences about metrics that W&B does not have, or has otherwise, of the steps up to `last`.

    In each piece `LOST_STEPS` steps may lack some.
    """
    kept, seen = read_metrics(folder / "metrics.jsonl"), history(folder)
    lacking = [step for step in kept if (last is None or step <= last) and _lacks(kept[step], seen.get(step, {}))]
    found = [sentence for step in kept for sentence in _differences(step, kept[step], seen.get(step, {}))]
    if len(lacking) > LOST_STEPS * len(pieces(folder)):
        found.append(f"W&B lacks metrics of the steps {lacking}")
    return found


def _lacks(kept: Metrics, seen: Metrics) -> bool:
    return any(value is not None and name not in seen for name, value in kept.items())


def _differences(step: int, kept: Metrics, seen: Metrics) -> Iterator[str]:
    for name, value in kept.items():
        if value is not None and name in seen and seen[name] != value:
            yield f"W&B has {name} {seen[name]} in step {step}, and metrics.jsonl {value}"
