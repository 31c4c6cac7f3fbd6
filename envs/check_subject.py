"""What `envs.check` is asked to check, by the name it has here, by a file of settings, or by a dotted path."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from envs.custom_env import custom_env
from envs.decisions.rewards import Encoders
from envs.decisions.settings import DecisionSettings
from envs.decisions.types import TypedEnv
from envs.decisions.unrolled import Unrolled, with_expected_steps
from envs.registry import make_env
from envs.settings import CustomEnvSettings, EnvSettings
from envs.types import Env, Task

CONF = Path(__file__).resolve().parent.parent / "conf"
"""The presets of runs, beside this package in a checkout and in the image."""
NAMES = ("search", "textworld", "decision")
"""Environments with a preset of their own; that of `decision` is the shop."""
EXAMPLE = "shop"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An environment, and the settings that it comes from."""

    env: Env[Any]
    settings: EnvSettings | None = None
    """None for a dotted path, which says nothing about tasks."""
    decision: DecisionSettings | None = None

    @property
    def steps(self) -> int:
        """Steps of a whole decision, which turn limits do not hold for; 0 elsewhere."""
        return len(self.decision.nodes) if self.decision else 0

    def shown(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks with what an agent would do in them, as far as they say it."""
        return [with_expected_steps(task, self.decision) if self.decision else task for task in tasks]


def subject(text: str, options: str) -> Subject:
    """The environment that the command line names. Raises ValueError, one sentence."""
    if text in NAMES:
        return of_document(preset(text), f"of conf/env/{text}.yaml")
    if Path(text).suffix in (".yaml", ".yml", ".json"):
        return of_document(read_document(Path(text)), text)
    try:
        given = json.loads(options)
    except ValueError as error:
        raise ValueError(f"--options {options!r} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f'--options {options!r} is not a JSON object such as {{"width": 3}}')
    return Subject(env=custom_env(text, given).bare)  # what `CheckedEnv` turns into errors shall have its own line


def preset(name: str) -> dict[str, Any]:
    """The sections `env` and `decision` of a run with this environment and no other settings."""
    document = {"env": read_document(CONF / "env" / f"{name}.yaml")}
    if name == "decision":
        document["env"] |= read_document(CONF / "experiment" / f"{EXAMPLE}.yaml")["env"]
        document["decision"] = read_document(CONF / "decision" / f"{EXAMPLE}.yaml")
    return document


def read_document(path: Path) -> Any:
    """What a YAML or JSON file holds. Raises ValueError naming the file."""
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"settings {path} cannot be read: {error}") from None


def _yaml(text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError("YAML needs the package pyyaml; use a .json file, or run: pip install pyyaml") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {str(error).splitlines()[0]}") from None


def of_document(document: Any, where: str) -> Subject:
    """The environment of settings: an `env` section, or something that has one and perhaps a `decision` section.

    Raises ValueError, one sentence that begins with where the settings stand.
    """
    sections = document if isinstance(document, dict) and "env" in document else {"env": document}
    settings = _valid(TypeAdapter[EnvSettings](EnvSettings), sections["env"], "env", where)
    decision = sections.get("decision") if settings.name == "decision" else None
    if decision is not None:
        decision = _valid(TypeAdapter(DecisionSettings), decision, "decision", where)
    return Subject(env=bare_env(settings, decision), settings=settings, decision=decision)


def _valid(adapter: TypeAdapter[T], section: Any, name: str, where: str) -> T:
    try:
        return adapter.validate_python(section)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"].startswith("union_tag") and not key:
            raise ValueError(f"settings {where}: env.name must be search, textworld, custom or decision") from None
        raise ValueError(f"settings {where}: {key or name}: {first['msg']}") from None


def bare_env(
    settings: EnvSettings, decision: DecisionSettings | None = None, encoders: Encoders | None = None
) -> Env[Any]:
    """The environment of the settings; one from outside without what catches its faults. Raises ValueError.

    A typed one is unrolled, and takes answers that are not valid for what they are (`contracts: penalty`).
    """
    if isinstance(settings, CustomEnvSettings):
        return custom_env(settings.path, settings.options).bare
    lenient = None if decision is None else decision.model_copy(update={"contracts": "penalty"})
    made = make_env(settings, lenient, encoders)
    return Unrolled(made) if isinstance(made, TypedEnv) else made
