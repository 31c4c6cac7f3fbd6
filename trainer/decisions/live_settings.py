"""Settings of a decision policy that may change while a run goes on, and how one change is checked and made.

Keys are dotted: `<node>.rewards.weight`, `<node>.coefficients.entropy_coef` (and `kl_coef`, `clip_low`, `clip_high`),
`levels.automatic` (and `human`, `rules`), `decay_root`, `decay`. A change is validated by the very sections that the
configuration is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

from envs.decisions.settings import CoefficientSettings, DecisionSettings, LevelSettings, NodeRewardSettings
from trainer.config.keys import describe, listed

Number: TypeAlias = float | None
"""A setting's value; None where the key is null."""

_OF_NODES: Mapping[str, tuple[type[BaseModel], tuple[str, ...]]] = {
    "rewards": (NodeRewardSettings, ("weight",)),
    "coefficients": (CoefficientSettings, tuple(CoefficientSettings.model_fields)),
}
_OF_POLICY: Mapping[str, tuple[type[BaseModel], str]] = {
    **{f"levels.{name}": (LevelSettings, name) for name in LevelSettings.model_fields},
    "decay_root": (DecisionSettings, "decay_root"),
    "decay": (DecisionSettings, "decay"),
}


class LiveError(ValueError):
    """A change that cannot be made; the text is one sentence naming the key and what is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that got another value."""

    key: str
    """E.g. `"retrieval.rewards.weight"`."""
    old: Number
    new: Number

    def __str__(self) -> str:
        return f"{self.key} {_shown(self.old)} → {_shown(self.new)}"


def live_keys(decision: DecisionSettings) -> list[str]:
    """Every key that may change during a run of this policy."""
    parts = [f"{section}.{name}" for section, (_, names) in _OF_NODES.items() for name in names]
    return [*(f"{node.name}.{part}" for node in decision.nodes for part in parts), *_OF_POLICY]


def flattened(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys and values of nested mappings, e.g. `("retrieval.rewards.weight", 2)`."""
    for name, value in given.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{key}.")
        else:
            yield key, value


def value_of(decision: DecisionSettings, key: str) -> Number:
    """What a key of `live_keys` is now."""
    found: Number = _holder(decision.model_dump(), key)[key.rpartition(".")[2]]
    return found


def changed(decision: DecisionSettings, wanted: Mapping[str, object]) -> tuple[DecisionSettings, list[Change]]:
    """The settings with all of `wanted` (dotted key -> value) set, and what differs.

    Raises LiveError for the first key or value that is not accepted.
    """
    changes = []
    for key, value in wanted.items():
        if key not in live_keys(decision):
            raise LiveError(f"{key} cannot be changed during a run: {_accepted_keys(decision, key)}.")
        old = value_of(decision, key)
        decision = _with_value(decision, key, value)
        if (new := value_of(decision, key)) != old:
            changes.append(Change(key=key, old=old, new=new))
    return decision, changes


def _with_value(decision: DecisionSettings, key: str, value: object) -> DecisionSettings:
    settings, last = decision.model_dump(), key.rpartition(".")[2]
    _holder(settings, key)[last] = value
    try:
        return DecisionSettings.model_validate(settings, strict=True)
    except ValidationError:
        raise LiveError(f"{key}={_shown(value)} is not accepted: it must be {_accepted(key)}.") from None


def _holder(settings: dict[str, Any], key: str) -> dict[str, Any]:
    """The dictionary within the dumped settings that has the last part of the key."""
    parts = key.split(".")
    if key in _OF_POLICY:
        found: dict[str, Any] = settings["levels"] if parts[0] == "levels" else settings
        return found
    node: dict[str, Any] = next(node for node in settings["nodes"] if node["name"] == parts[0])
    within: dict[str, Any] = node[parts[1]]
    return within


def _accepted(key: str) -> str:
    """What a key accepts, in words, e.g. `"a number of at least 0"`."""
    section, last = _OF_POLICY[key] if key in _OF_POLICY else (_OF_NODES[key.split(".")[1]][0], key.rpartition(".")[2])
    schema = section.model_json_schema()["properties"][last]
    return describe(schema)


def _accepted_keys(decision: DecisionSettings, key: str) -> str:
    node = key.split(".")[0]
    mine = [each for each in live_keys(decision) if each.startswith(f"{node}.")]
    if mine:
        return f"{node} accepts {listed(mine, 'and')}"
    return f"the keys are {listed(live_keys(decision), 'and')}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else "null" if value is None else repr(value)[:60]
