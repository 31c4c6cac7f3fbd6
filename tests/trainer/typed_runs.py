"""Runs of the learner with adapters of decision nodes on a micro model: settings, and packs that mix nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from learner_runs import packs, run_config
from pydantic import TypeAdapter

from envs.decisions.settings import DecisionSettings
from envs.settings import EnvSettings
from trainer.config import LossConfig, RunConfig
from trainer.types import RankPacks, TreePack

TASKS = {"name": "decision", "train_tasks": "train.jsonl", "eval_tasks": "eval.jsonl"}
OUTPUT = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
Adapters = Mapping[str, Mapping[str, object] | None]
FOUR: Adapters = {
    "intent": {"rank": 2, "alpha": 6.0},
    "policy": None,
    "check": {"rank": 2, "freeze": True},
    "response": {"rank": 4, "alpha": 4.0, "head": True},
}
"""`THREE`, and a child whose adapter is frozen."""
THREE: Adapters = {
    "intent": {"rank": 2, "alpha": 6.0},
    "policy": None,
    "response": {"rank": 4, "alpha": 4.0, "head": True},
}
"""A root with a small adapter, a child that the backbone answers, and one whose adapter has an output head."""


def decision(adapters: Adapters = THREE, **settings: object) -> DecisionSettings:
    """A root and its children, with these adapters."""
    root, *others = adapters
    nodes = [
        {
            "name": name,
            "parent": root if name in others else None,
            "instruction": "Say what it is.",
            "output_schema": OUTPUT,
            "adapter": adapter,
        }
        for name, adapter in adapters.items()
    ]
    return DecisionSettings.model_validate({"world": "shop", "nodes": nodes} | settings)


def typed_config(
    model: Path, adapters: Adapters = THREE, loss: LossConfig | None = None, backbone: str = "frozen", **learner: object
) -> RunConfig:
    flat = run_config(model, loss, **learner)
    env = TypeAdapter(EnvSettings).validate_python(TASKS)
    return flat.model_copy(update={"env": env, "decision": decision(adapters, backbone=backbone)})


def voiced(pack: TreePack, voices: Sequence[int]) -> TreePack:
    """The pack with a voice for each tree, by the tree's first token: the same however trees are split and packed."""
    starts = np.flatnonzero(pack.positions == 0)
    lengths = np.diff([*starts, pack.tokens])
    return replace(pack, voice=np.repeat(np.array(voices)[pack.ids[starts] % len(voices)], lengths))


def typed_packs(config: RunConfig, seed: int, capacity: int, voices: Sequence[int]) -> list[RankPacks]:
    """`learner_runs.packs` whose trees are said by the nodes `voices`."""
    batches = packs(config, seed, capacity)
    return [[[voiced(pack, voices) for pack in members] for members in ranks] for ranks in batches]
