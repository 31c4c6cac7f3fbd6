"""The checkpoint folders of a run: their names, which one a run goes on from, and which are kept.

`<run>/checkpoints/step-000012/` is a checkpoint, `step-000012.part` one that is being written or was interrupted, and
`abandoned/` holds those of steps that the run has gone back behind. What is inside a folder is in
`trainer/checkpoint_manifest.py`; writing beside the loop in `trainer/checkpoint_writer.py`.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envs.types import Json
from trainer import checkpoint_manifest
from trainer.checkpoint_manifest import Damaged
from trainer.config import CheckpointConfig

ABANDONED = "abandoned"
PART = ".part"
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A usable checkpoint."""

    path: Path
    state: dict[str, Json]
    """The state of the run, as it was given to `checkpoint_manifest.seal`."""
    notes: tuple[str, ...] = ()
    """One sentence for each newer checkpoint that was passed over."""


def folder(checkpoints: Path, step: int) -> Path:
    """Folder of the checkpoint taken after `step` steps, e.g. `checkpoints/step-000012`."""
    return checkpoints / f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step in a checkpoint folder's name. ValueError if the name is not of the form `step-000012`."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not a checkpoint folder: its name must look like step-000012")
    return int(match[1])


def written(checkpoints: Path) -> list[Path]:
    """Folders that were written to their end, damaged or not, oldest first; empty if there is no folder at all."""
    if not checkpoints.is_dir():
        return []
    return sorted((path for path in checkpoints.iterdir() if _NAME.fullmatch(path.name)), key=step_of)


def find(
    resume: str, checkpoints: Path, *, checksums: bool = True, check: Callable[[dict[str, Json]], object] = dict
) -> Found | None:
    """The checkpoint that the setting `resume` means, or None to start anew.

    `auto`: the newest usable one in `checkpoints`, None if there is none at all; `never`: None; otherwise the path of a
    checkpoint folder. Raises ValueError if that one is not usable, and if there are some and none is: a run must not
    begin again unasked. Without `checksums` the files' sizes are compared, not their content. `check` raises Damaged
    for the state of a run that cannot be gone on from.
    """
    if resume == "never":
        return None
    if resume != "auto":
        return _usable(resume, checksums, check)
    notes: list[str] = []
    for path in reversed(written(checkpoints)):
        try:
            state = _state(path, checksums)
            check(state)
        except Damaged as damage:
            notes.append(f"checkpoint {path} is damaged and passed over: {damage}")
            continue
        return Found(path=path, state=state, notes=tuple(notes))
    if notes:
        raise ValueError(
            f"resume=auto finds no usable checkpoint ({'; '.join(notes)}): give the folder of another one, or start "
            f"anew with resume=never"
        )
    return None


def prune(checkpoints: Path, settings: CheckpointConfig) -> list[Path]:
    """Removes all but the newest `checkpoint.keep` and the best by `checkpoint.best`; returns what was removed."""
    folders = written(checkpoints)
    kept = {*folders[-settings.keep :], best(checkpoints, settings)}
    removed = [path for path in folders if path not in kept]
    for path in removed:
        shutil.rmtree(path.rename(path.with_name(path.name + PART)))  # interrupted, it is no damaged checkpoint
    return removed


def best(checkpoints: Path, settings: CheckpointConfig) -> Path | None:
    """The checkpoint with the best value of the metric `checkpoint.best`, of equals the newest; None without any."""
    if settings.best is None:
        return None
    values: list[tuple[float, int, Path]] = []
    for path in written(checkpoints):
        try:
            metrics = _state(path, checksums=False)["metrics"]
        except (Damaged, KeyError):
            continue
        value = metrics.get(settings.best) if isinstance(metrics, dict) else None
        if isinstance(value, int | float):
            values.append((value if settings.best_mode == "max" else -value, step_of(path), path))
    return max(values)[2] if values else None


def part_of(path: Path) -> Path:
    """Where the checkpoint `path` is written until it is complete; made empty. Raises OSError."""
    part = path.with_name(path.name + PART)
    if part.exists():
        shutil.rmtree(part)
    part.mkdir(parents=True)
    return part


def drop_parts(checkpoints: Path) -> None:
    """Removes what interrupted runs have left."""
    for part in checkpoints.glob(f"step-*{PART}"):
        shutil.rmtree(part, ignore_errors=True)


def publish(part: Path) -> Path:
    """Gives a sealed folder its name. Checkpoints of the same step and of later ones go to `abandoned/`.

    Those exist when the run has gone back to an earlier one, by choice or since they are damaged; the newest by number
    must be the newest of this run.
    """
    path = part.with_name(part.name.removesuffix(PART))
    for other in [other for other in written(path.parent) if step_of(other) >= step_of(path)]:
        _set_aside(other)
    part.rename(path)
    checkpoint_manifest.sync_folder(path.parent)
    return path


def leave_behind(checkpoints: Path, start: Path | None) -> list[Path]:
    """Moves what a run that begins at the checkpoint `start` (None: anew) does not go on from to `abandoned/`.

    These are all checkpoints after `start`, or all if it is none of this run. Left in place, they would be taken for
    this run's own when it is started again before it has saved anything. Returns where they lay. Raises OSError.
    """
    is_own = start is not None and start.parent.resolve() == checkpoints.resolve()
    later = [path for path in written(checkpoints) if not (is_own and start and step_of(path) <= step_of(start))]
    for path in later:
        _set_aside(path)
    return later


def _set_aside(path: Path) -> None:
    aside, number = path.parent / ABANDONED, 1
    while (aside / f"{number:03d}").exists():
        number += 1
    place = aside / f"{number:03d}"
    place.mkdir(parents=True)
    path.rename(place / path.name)


def _usable(resume: str, checksums: bool, check: Callable[[dict[str, Json]], object]) -> Found:
    path = Path(resume)
    step_of(path)
    try:
        state = _state(path, checksums)
        check(state)
    except Damaged as damage:
        raise ValueError(f"resume={resume} is not a usable checkpoint: {damage}") from None
    return Found(path=path, state=state)


def _state(path: Path, checksums: bool) -> dict[str, Json]:
    manifest = checkpoint_manifest.check(path, checksums=checksums)
    if manifest.step != step_of(path):
        raise Damaged(f"it is the checkpoint of step {manifest.step} under another name")
    return checkpoint_manifest.run_state(path, manifest)
