"""Changing a decision policy's settings while its run goes on: `runs/<name>/live.yaml` (or `live.json`).

The loop looks at the file before each step. It holds the wanted values, nested or dotted:

    retrieval: {rewards: {weight: 2}}
    levels.human: 0.4

One wrong key or value, and nothing of the file is taken over until it is written again. A value that is taken out of
the file stays as it is. The command writes the file whole, so the loop never reads half of it:

    python -m trainer.decisions.live runs/shop retrieval.rewards.weight=2 levels.human=0.4
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError  # type: ignore[import-untyped]

from envs.decisions.settings import DecisionSettings
from trainer.decisions.live_settings import Change, LiveError, changed, flattened
from trainer.run_folder import write_atomic

FILES = ("live.yaml", "live.json")
"""Names of the file in a run's folder; the first one that is there counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look found."""

    settings: DecisionSettings
    """The settings from now on."""
    changes: tuple[Change, ...] = ()
    warning: str = ""
    """One sentence on why the file was not taken over; empty otherwise."""


class LiveFile:
    """The watched file of one run. One thread looks at it: the loop's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._judged: bytes | None = None
        """Content that was taken over or refused already, so that a refusal is told once."""

    def look(self, settings: DecisionSettings) -> Seen:
        """`settings` with what the file wants changed; unchanged without a file, and with one seen before."""
        path = next((self._folder / name for name in FILES if (self._folder / name).is_file()), None)
        try:
            content = path.read_bytes() if path is not None else None
            if path is None or content is None or content == self._judged:
                return Seen(settings=settings)
            self._judged = content
            new, changes = changed(settings, parsed(path, content))
        except LiveError as error:
            return Seen(settings=settings, warning=f"{path}: {error} Nothing of the file is taken over.")
        except OSError as error:
            return Seen(settings=settings, warning=f"{path} cannot be read ({error.strerror}); nothing changes.")
        return Seen(settings=new, changes=tuple(changes))


def parsed(path: Path, content: bytes) -> dict[str, object]:
    """Dotted key -> value. Raises LiveError if the content is no mapping of them."""
    try:
        text = content.decode()
        given = json.loads(text) if path.suffix == ".json" else OmegaConf.to_container(OmegaConf.create(text))
    except (ValueError, YAMLError, OmegaConfBaseException) as error:
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise LiveError(f"it is no {path.suffix[1:].upper()} ({first}).") from None
    if not isinstance(given, Mapping):
        raise LiveError("it must hold keys with values, e.g. retrieval.rewards.weight: 2.")
    return {str(key): value for key, value in flattened({str(name): value for name, value in given.items()})}


def write_live(folder: Path, wanted: Mapping[str, object]) -> tuple[Path, list[Change]]:
    """Adds values to the file of a run and writes it whole; returns it, and what differs from the configuration.

    Raises LiveError if the run has no decision policy, or for a key or value that is not accepted: then the file stays.
    """
    decision = _configured(folder / "config.yaml")
    path = next((folder / name for name in FILES if (folder / name).is_file()), folder / FILES[0])
    known = parsed(path, path.read_bytes()) if path.is_file() else {}
    merged = known | dict(wanted)
    _, changes = changed(decision, merged)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in merged.items()]
    text = "\n".join(lines) if path.suffix == ".yaml" else "{" + ",\n ".join(lines) + "}"
    write_atomic(path, text + "\n")
    return path, changes


def _configured(path: Path) -> DecisionSettings:
    try:
        stored: Any = OmegaConf.to_container(OmegaConf.load(path))
        if not isinstance(stored, dict) or not isinstance(stored.get("decision"), dict):
            raise LiveError(f"{path} has no decision section: only runs of a decision policy change while they run.")
        return DecisionSettings.model_validate(stored["decision"])
    except (OSError, ValidationError, YAMLError, OmegaConfBaseException) as error:
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise LiveError(f"{path} cannot be read: {first}.") from None


def _pairs(texts: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise LiveError(f"Cannot read {text!r}: a setting is written key=value.")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 2 after one sentence on what is not accepted."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.decisions.live", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("run", type=Path, help="run folder, e.g. runs/shop")
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE", help="e.g. retrieval.rewards.weight=2")
    options = parser.parse_args(arguments)
    try:
        path, changes = write_live(options.run, _pairs(options.settings))
    except (LiveError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    said = "; ".join(map(str, changes)) or "nothing differs from the configuration"
    print(f"{path}: {said}. The run takes it over before its next step.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
