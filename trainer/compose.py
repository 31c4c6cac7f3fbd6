"""From command-line overrides to a validated `RunConfig`: Hydra composes, pydantic validates, faults become sentences.

Owns where the configuration files are found and how an override is read. Starts nothing and writes nothing: no output
folder, no logging set-up, no change of the current folder.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from envs.masking import MASK, is_secret, masked_text
from trainer.config import RunConfig
from trainer.config.keys import all_keys, listed
from trainer.config.sentences import ConfigError, checks_between_keys, empty_paths, from_validation, unknown_key

CONFIG_DIR = Path(__file__).resolve().parent.parent / "conf"
"""conf/ lies beside trainer/: in a checkout, in the image, and in the working folder that `ray job submit` ships."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """What Hydra made of the files and the overrides, before validation."""

    settings: DictConfig
    faults: tuple[str, ...]
    """Sentences about overrides that could not be applied; the others were."""
    experiment: str
    """The option chosen for the group `experiment`, `"run"` without one; it names runs."""


def compose(overrides: Sequence[str], *, config_dir: Path = CONFIG_DIR, now: datetime | None = None) -> RunConfig:
    """The validated configuration of a run.

    `overrides` are written as on the command line, e.g. `["experiment=quickstart", "tree.roots=4"]`; `now` names the
    run when `name` is null. Raises ConfigError with one sentence per fault.
    """
    composed = compose_settings(overrides, config_dir=config_dir)
    if composed.settings.get("name") is None:
        composed.settings.name = f"{composed.experiment}-{now or datetime.now():%Y%m%d-%H%M%S}"
    return validate(composed.settings, earlier=composed.faults)


def compose_settings(overrides: Sequence[str], *, config_dir: Path = CONFIG_DIR) -> Composed:
    """Composes without validating values. Raises ConfigError when Hydra can make nothing of files and overrides."""
    if not (config_dir / "config.yaml").is_file():
        raise ConfigError([f"No configuration in {config_dir}: it must be a folder that holds config.yaml."])
    usable, faults = [], []
    for text in overrides:
        sentences = list(_faults(text, config_dir))
        faults += sentences
        if not sentences:
            usable.append(_forced(text, config_dir))
    try:
        with initialize_config_dir(str(config_dir.resolve()), version_base="1.3"):
            settings = hydra_compose("config", overrides=usable, return_hydra_config=True)
        choice = settings.hydra.runtime.choices.get("experiment")
        settings = OmegaConf.masked_copy(settings, [str(key) for key in settings if key != "hydra"])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([*faults, _first_line(error)]) from error
    experiment = "-".join(choice) if isinstance(choice, ListConfig) else choice or "run"
    return Composed(settings=settings, faults=tuple(faults), experiment=experiment)


def validate(settings: DictConfig, *, earlier: Sequence[str] = ()) -> RunConfig:
    """Checks composed settings; raises ConfigError with the sentences of `earlier` and of every fault found."""
    try:
        plain = _without_unset(cast(dict[str, Any], OmegaConf.to_container(settings, resolve=True)))
    except OmegaConfBaseException as error:
        raise ConfigError([*earlier, _first_line(error)]) from error
    earlier = [*earlier, *empty_paths(plain)]
    try:
        # As JSON, because strict JSON takes a list for a tuple and text for a path, and nothing else for another type.
        config = RunConfig.model_validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        # With an override left out, keys may disagree that the user did set right.
        found = [] if earlier and checks_between_keys(error) else from_validation(error, plain)
        raise ConfigError([*earlier, *found]) from error
    if earlier:
        raise ConfigError(earlier)
    return config


def _without_unset(section: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the keys that a file marks with `???` (a value that the user must give), so that they are missing."""
    return {
        key: _without_unset(value) if isinstance(value, dict) else value
        for key, value in section.items()
        if value != "???"
    }


def _faults(text: str, config_dir: Path) -> Iterator[str]:
    """What is wrong with one override apart from its value."""
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        override = None
    if override is None or not override.key_or_group:
        yield f"Cannot read {_shown(text)!r}: an override is written key=value, e.g. tree.roots=4."
        return
    key = override.key_or_group
    if override.is_sweep_override():
        yield f"{_shown(text)} gives several values: {key} takes one (a list is written [a,b])."
    elif _is_group(key, config_dir):
        yield from _group_faults(override, config_dir)
    elif not _is_known(key):
        yield unknown_key(key)


def _shown(text: str) -> str:
    """An override as it was written, without what is secret in it."""
    key, sign, value = text.partition("=")
    return f"{key}={MASK}" if sign and value and is_secret(key.rpartition(".")[2]) else masked_text(text)


def _group_faults(override: Override, config_dir: Path) -> Iterator[str]:
    options = sorted(path.stem for path in (config_dir / override.key_or_group).glob("*.yaml"))
    value = override.value()
    for choice in value if isinstance(value, list) else [value]:
        if choice not in options:
            accepted, shown = listed(options, "or"), "null" if choice is None else choice
            yield f"{override.key_or_group}={shown} is not accepted: it must be {accepted}."


def _forced(text: str, config_dir: Path) -> str:
    """Groups are chosen as they stand; a value is set whether or not its key stands in the files: pydantic judges."""
    key = OverridesParser.create().parse_override(text).key_or_group
    if text.startswith("~") or key.startswith("hydra"):
        return text
    return text.lstrip("+") if _is_group(key, config_dir) else f"++{text.lstrip('+')}"


def _is_group(key: str, config_dir: Path) -> bool:
    return "." not in key and (config_dir / key).is_dir()


def _is_known(key: str) -> bool:
    return all_keys().is_known(key) or key.startswith(("hydra.", "hydra/"))


def _first_line(error: Exception) -> str:
    line = str(error).strip().splitlines()[0].rstrip(".")
    key = getattr(error, "full_key", None)
    return f"{key} cannot be read: {line}." if key else f"The configuration cannot be composed: {line}."
