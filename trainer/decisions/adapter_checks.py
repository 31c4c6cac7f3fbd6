"""Whether adapters fit: those that a checkpoint was saved with, and those an evaluation needs. Reads no weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.types import Json
from rollout_workers.adapters import FOLDER, WEIGHTS, adapters_of
from trainer.config import RunConfig
from trainer.paths import is_file


def adapter_contradictions(path: Path, then: Mapping[str, Json], config: RunConfig) -> Iterator[str]:
    """Sentences about adapters under which the weights in checkpoint `path` mean nothing. `then`: its settings."""
    old, new = _facts(then), _facts(config.model_dump(mode="json"))
    for key in dict.fromkeys([*new, *old]):
        if old.get(key) != new.get(key):
            yield (
                f"{key}={new.get(key, 'null')} contradicts the checkpoint {path}, which was saved with "
                f"{key}={old.get(key, 'null')}: set it back, or start anew with resume=never."
            )


def missing_adapters(config: RunConfig) -> Iterator[str]:
    """One sentence for each adapter that a typed policy is answered with and that `model.path` does not have."""
    for spec in adapters_of(config.typed):
        file = Path(config.model.path) / FOLDER / spec.name / WEIGHTS
        if not is_file(file):
            yield f"model.path={config.model.path} has no adapter of node {spec.name!r}: {file} is missing."


def _facts(settings: Mapping[str, Any]) -> dict[str, str]:
    """What has to stay: kind of policy, backbone, and every adapter; empty for a policy without decision nodes."""
    decision = settings.get("decision")
    if not decision or decision["policy"] == "flat":
        return {}
    nodes = {f"decision.nodes.{node['name']}.adapter": _shown(node["adapter"]) for node in decision["nodes"]}
    targets = f"[{','.join(settings['learner']['lora']['targets'])}]"
    return {
        "decision.policy": "typed",
        "decision.backbone": decision["backbone"],
        "learner.lora.targets": targets,
    } | nodes


def _shown(adapter: Mapping[str, Any] | None) -> str:
    """E.g. `{rank: 8, alpha: 16.0, head: false, freeze: false}`."""
    if adapter is None:
        return "null"
    parts = [f"{key}: {str(value).lower()}" for key, value in adapter.items()]
    return f"{{{', '.join(parts)}}}"
