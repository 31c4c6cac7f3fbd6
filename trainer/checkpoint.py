"""Checkpoint folders of a run: their names, which one is complete, which are kept, and the driver's own state.

`<run>/checkpoints/step-000012/` holds what the learner saved and `driver.json`. The driver writes that file last and
atomically, so a folder that has it is complete; one without it was interrupted and is never resumed from.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from envs.types import Json

_NAME = re.compile(r"step-(\d{6,})")
_STATE = "driver.json"


def folder(checkpoints: Path, step: int) -> Path:
    """Folder of the checkpoint taken after `step` steps, e.g. `checkpoints/step-000012`."""
    return checkpoints / f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step in a checkpoint folder's name. ValueError if the name is not of the form `step-000012`."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not a checkpoint folder: its name must look like step-000012")
    return int(match[1])


def complete(checkpoints: Path) -> list[Path]:
    """Complete checkpoint folders, oldest first; empty if there is no folder at all."""
    if not checkpoints.is_dir():
        return []
    found = [path for path in checkpoints.iterdir() if _NAME.fullmatch(path.name) and (path / _STATE).is_file()]
    return sorted(found, key=step_of)


def find(resume: str, checkpoints: Path) -> Path | None:
    """The checkpoint that the setting `resume` means, or None to start anew.

    `auto`: the newest complete one in `checkpoints`; `never`: None; otherwise the path of a checkpoint folder. Raises
    ValueError if that path is not a complete checkpoint.
    """
    if resume == "never":
        return None
    if resume == "auto":
        newest = complete(checkpoints)
        return newest[-1] if newest else None
    path = Path(resume)
    step_of(path)
    if not (path / _STATE).is_file():
        raise ValueError(f"resume={resume} is not a complete checkpoint: it has no {_STATE}")
    return path


def finish(path: Path, state: Mapping[str, Json]) -> None:
    """Writes the driver's state into the folder that the learner has saved to, which makes it complete."""
    path.mkdir(parents=True, exist_ok=True)
    part = path / f"{_STATE}.part"
    part.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    part.replace(path / _STATE)


def driver_state(path: Path) -> dict[str, Json]:
    """What `finish` wrote."""
    state = json.loads((path / _STATE).read_text(encoding="utf-8"))
    assert isinstance(state, dict)
    return state


def prune(checkpoints: Path, keep: int) -> list[Path]:
    """Removes all but the newest `keep` complete checkpoints and every interrupted one older than the newest.

    Returns what was removed.
    """
    done = complete(checkpoints)
    if not done:
        return []
    kept, newest = set(done[-keep:]), step_of(done[-1])
    folders = [path for path in checkpoints.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    removed = sorted(path for path in folders if path not in kept and step_of(path) < newest)
    for path in removed:
        shutil.rmtree(path)
    return removed
