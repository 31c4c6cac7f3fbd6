"""Whether a run can be written where its settings say, and whether what it shall go on from is there."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainer.checkpoint_resume import resumption
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError
from trainer.paths import is_folder

CHECKPOINT_BYTES = 12
"""Of a checkpoint per trained weight: a float32 copy and Adam's two moments."""


def place_problems(config: RunConfig, needs: int) -> Iterator[str]:
    """Sentences about `runs_dir`, `name` and `resume`; `needs` is what the exported policy will take, in bytes."""
    yield from _folder_problems(config, needs)
    yield from _resume_problems(config)


def room_problem(config: RunConfig, free: int, needs: int) -> Iterator[str]:
    """A sentence when the disk of `runs_dir` has `free` bytes and the export alone takes `needs`."""
    if free < needs:
        yield (
            f"runs_dir={config.runs_dir} has {free // 2**20:,} MiB left and the export of the policy takes "
            f"{-(-needs // 2**20):,}: make room or choose another folder."
        )


def room_notes(config: RunConfig, parameters: int) -> Iterator[str]:
    """A note when the disk of `runs_dir` does not hold the checkpoints of a run that trains so many weights."""
    place = Path(config.runs_dir)
    free = shutil.disk_usage(next(path for path in (place, *place.absolute().parents) if path.exists())).free
    yield from room_note(config, free, parameters)


def room_note(config: RunConfig, free: int, parameters: int) -> Iterator[str]:
    """With `free` bytes: those that are kept, the best by a metric, and the next one while it is written, or all."""
    settings = config.checkpoint
    count = min(settings.keep + (settings.best is not None) + 1, -(-config.steps // (settings.every or config.steps)))
    if free < (needs := count * CHECKPOINT_BYTES * parameters):
        yield (
            f"Note: runs_dir={config.runs_dir} has {free // 2**30:,} GiB left and {count} checkpoints take "
            f"{-(-needs // 2**30):,}: one that cannot be written costs a warning and the steps since the one before; "
            "checkpoint.keep and checkpoint.every say how many there are."
        )


def _folder_problems(config: RunConfig, needs: int) -> Iterator[str]:
    runs = Path(config.runs_dir)
    run = runs / config.name
    nearest = next(path for path in (run, *run.parents) if os.path.lexists(path))
    must = "it must be a folder, which is made when it does not exist."
    if nearest == run and not run.is_dir():
        yield f"name={config.name} is taken by a file, {run}: {must}"
    elif nearest == runs and not runs.is_dir():
        yield f"runs_dir={runs} is a file: {must}"
    elif not nearest.is_dir():
        yield f"runs_dir={runs} cannot be made, since {nearest} is a file: {must}"
    elif fault := _write_fault(nearest):
        yield f"runs_dir={runs} cannot be written ({nearest}: {fault}): it must be a folder that can be."
    else:
        yield from room_problem(config, shutil.disk_usage(nearest).free, needs)


def _write_fault(folder: Path) -> str:
    """Why no file can be made there, found by making one without a name; permissions alone don't tell."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _resume_problems(config: RunConfig) -> Iterator[str]:
    if config.resume not in {"auto", "never"} and not is_folder(config.resume):
        yield f"resume={config.resume} is not a folder: it must be auto, never or a checkpoint folder."
        return
    try:
        resumption(config, checksums=False)  # their content is compared when the run begins
    except ConfigError as error:
        yield from error.sentences
