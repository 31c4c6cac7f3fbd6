"""Runs of the learner on a micro model: their settings, their packs, and what came out of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from pydantic import TypeAdapter
from random_forests import random_forest
from transformers import AutoModelForCausalLM

from envs.settings import EnvSettings
from trainer.advantages import advantages
from trainer.config import LearnerConfig, LossConfig, ModelConfig, RunConfig
from trainer.learner import LearnerGroup
from trainer.packing import pack_forest
from trainer.types import RankPacks

Run: TypeAlias = Callable[..., list[Any]]
"""Calls a function in every rank's process with (index, port, arguments) and returns the answers by rank."""
LORA = {"rank": 4, "alpha": 8.0}
EVERYTHING = {"mini_batches": 2, "epochs": 2, "grad_clip": 0.5, "warmup_share": 0.5}
"""Settings of the comparison: two optimizer steps per pass, two passes, gradients longer than the clip, a warm-up."""
SPLIT = 36
"""A size of packs at which trees are split: no path of the forests with seeds 1 and 2 has more than 31 tokens."""


def run_config(model: Path, loss: LossConfig | None = None, **learner: object) -> RunConfig:
    settings: dict[str, object] = {
        "lr": 1e-3,
        "warmup_share": 0.0,
        "eps": 1e-4,
        "grad_clip": 1e6,
        "start_timeout_s": 300.0,
    }
    env = {
        "name": "search",
        "train_tasks": "train.jsonl",
        "eval_tasks": "eval.jsonl",
        "retriever": {"kind": "local", "corpus": "corpus.jsonl"},
    }
    return RunConfig(
        name="test",
        steps=4,
        model=ModelConfig(path=str(model)),
        env=TypeAdapter(EnvSettings).validate_python(env),
        loss=loss or LossConfig(kl_coef=0.05),
        learner=LearnerConfig.model_validate(settings | learner),
    )


def packs(config: RunConfig, seed: int, capacity: int) -> list[RankPacks]:
    """Packs of a random forest; some of its trees are split if and only if `capacity` is `SPLIT`."""
    forest = random_forest(seed)
    learner = config.learner.model_copy(update={"max_tokens_per_pack": capacity})
    packed = pack_forest(forest, [advantages(group) for group in forest], config.loss, learner, 64)
    assert (packed.stats["tree/repeated_tokens"] > 0) == (capacity == SPLIT)
    return packed.mini_batches


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def largest_difference(one: Path, other: Path) -> float:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def save(group: LearnerGroup, folder: Path) -> None:
    """The learner's share of a checkpoint, all of it on the disk."""
    folder.mkdir(parents=True)
    group.begin_save(folder)
    assert len(group.wait_saved(folder, 60.0)) == len(list(folder.glob("learner-*.safetensors"))) > 0


def start(ranks: dict[int, list[Any]], config: RunConfig) -> LearnerGroup:
    """A new learner in the shared ranks; an error would end them."""
    group = LearnerGroup(config, ranks[config.learner.ranks])
    group.begin(16)
    return group
