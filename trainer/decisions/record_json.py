"""What a typed step did, as one JSON object: in forest files, and for the report."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from envs.decisions.types import Gating, NodeReward, StepRecord


def record_to_json(record: StepRecord) -> dict[str, Any]:
    """Levels of reward that say nothing, and odds and gating where there are none, are left out."""
    line: dict[str, Any] = {name: getattr(record, name) for name in _TEXTS}
    line["reward"] = {name: value for name, value in asdict(record.reward).items() if value is not None}
    line["parts"] = [list(part) for part in record.parts]
    if record.odds:
        line["odds"] = [list(one) for one in record.odds]
    if record.gating:
        line["gating"] = [asdict(gate) for gate in record.gating]
    return line


def record_from_json(line: Mapping[str, Any]) -> StepRecord:
    """The inverse of `record_to_json`. Raises KeyError, TypeError or ValueError for another object."""
    return StepRecord(
        **{name: str(line[name]) for name in _TEXTS},
        reward=NodeReward(**{name: float(value) for name, value in line["reward"].items()}),
        parts=tuple((str(name), float(value)) for name, value in line["parts"]),
        odds=tuple((str(text), float(value)) for text, value in line.get("odds", ())),
        gating=tuple(Gating(**gate) for gate in line.get("gating", ())),
    )


_TEXTS = ("node", "input", "output", "fault", "found")
