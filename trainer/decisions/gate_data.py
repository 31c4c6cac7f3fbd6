"""Examples for a gate: the root's output distribution in stored trees, with which nodes each task needs.

Labels file, JSON Lines: `{"id": "shop/17", "needs": ["retrieval", "policy"]}`: the task's id, and the children of the
root that must run for it; the others may be skipped. A task whose data have `meta["needs"]` is labelled by that, unless
the file has its id too.
"""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.decisions.settings import DecisionSettings
from envs.json_lines import json_lines
from trainer.forest_file import read_forest

Labels = Mapping[str, frozenset[str]]
"""Children of the root that each task needs, by task id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One answer of the root."""

    task_id: str
    odds: tuple[tuple[str, float], ...]
    """See `envs.decisions.odds.root_odds`."""
    needs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the files hold."""

    examples: tuple[Example, ...]
    unlabelled: int
    """Tasks with stored odds that have no label."""
    unknown: tuple[str, ...]
    """Ids in the labels file that no stored tree has, in the order of the file."""


def forest_files(paths: Iterable[Path]) -> tuple[list[Path], Path | None]:
    """(forest files in order, config of the run that they are from) of run folders and files.

    Raises ValueError for a path that is neither, and for a run folder without forest files.
    """
    files: list[Path] = []
    config: Path | None = None
    for path in paths:
        folder = path / "forest" if path.is_dir() else path.parent
        found = sorted(folder.glob("*.jsonl")) if path.is_dir() else [path]
        if not found or not all(file.is_file() for file in found):
            raise ValueError(f"{path} is neither a forest file nor a run folder with forest/*.jsonl")
        files += found
        beside = folder.parent / "config.yaml"
        config = config or (beside if beside.is_file() else None)
    return files, config


def declaration(config: Path | None) -> DecisionSettings:
    """The decision section of a stored run. Raises ValueError with one sentence if there is none."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from pydantic import ValidationError
    from yaml import YAMLError  # type: ignore[import-untyped]

    if config is None:
        raise ValueError("no config.yaml lies beside the forest files: give a run folder, which has the declaration")
    try:
        stored: Any = OmegaConf.to_container(OmegaConf.load(config))
        section = stored.get("decision") if isinstance(stored, dict) else None
        if section is None:
            raise ValueError(f"{config} has no decision section: a gate belongs to a typed policy")
        section["gate"] = {**section.get("gate", {}), "path": None}
        return DecisionSettings(**section)
    except (OSError, OmegaConfBaseException, YAMLError, ValidationError) as error:
        raise ValueError(f"{config} cannot be read: {str(error).splitlines()[0]}") from None


def read_labels(path: Path, nodes: Sequence[str]) -> dict[str, frozenset[str]]:
    """The labels file. Raises ValueError, one sentence naming file and line, for a line that is no label."""
    labels: dict[str, frozenset[str]] = {}
    try:
        for number, line in json_lines(path):
            place = f"{path} line {number}"
            if not isinstance(line, dict) or not isinstance(line.get("id"), str) or set(line) != {"id", "needs"}:
                raise ValueError(f'{place}: a label is {{"id": task id, "needs": [node, ...]}}, not {_short(line)}')
            if line["id"] in labels:
                raise ValueError(f"{place}: task {line['id']!r} has a label already")
            labels[line["id"]] = _needs(line["needs"], nodes, place)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return labels


def read_material(files: Sequence[Path], labels: Labels, nodes: Sequence[str]) -> Material:
    """All answers of the root in the files that have odds and a label.

    Raises ValueError for a file that cannot be read and for a task whose `meta["needs"]` names other nodes.
    """
    examples: list[Example] = []
    seen: set[str] = set()
    unlabelled: set[str] = set()
    for file in files:
        try:
            records = read_forest(file)
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from None
        for record in records:
            task = record.task
            seen.add(task.id)
            found = [node.record.odds for node in record.tree.nodes if node.record is not None and node.record.odds]
            needs = labels.get(task.id)
            if needs is None and "needs" in task.meta:
                needs = _needs(task.meta["needs"], nodes, f"task {task.id!r}, meta")
            if found and needs is None:
                unlabelled.add(task.id)
            elif needs is not None:
                examples += [Example(task_id=task.id, odds=odds, needs=needs) for odds in found]
    unknown = tuple(task_id for task_id in labels if task_id not in seen)
    return Material(examples=tuple(examples), unlabelled=len(unlabelled), unknown=unknown)


def split_by_task(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """(to train on, to measure on): a task is in one of them only, so that none is known by heart when it is measured.

    About `share` of the tasks are measured on, at least one. Raises ValueError for fewer than two tasks.
    """
    tasks = sorted({example.task_id for example in examples})
    if len(tasks) < 2:
        raise ValueError(f"a gate needs labelled answers of at least 2 tasks, not of {len(tasks)}")
    random.Random(seed).shuffle(tasks)
    held = set(tasks[: min(max(round(share * len(tasks)), 1), len(tasks) - 1)])
    return (
        [example for example in examples if example.task_id not in held],
        [example for example in examples if example.task_id in held],
    )


def _needs(value: Any, nodes: Sequence[str], place: str) -> frozenset[str]:
    wrong = [name for name in value if name not in nodes] if isinstance(value, list) else [value]
    if wrong:
        raise ValueError(
            f"{place}: needs must be a list of children of the root ({', '.join(nodes)}), not {_short(value)}"
        )
    return frozenset(value)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
