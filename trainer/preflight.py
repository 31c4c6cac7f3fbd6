"""Checks of files before any actor starts: model, tasks, corpus, checkpoint. What the cluster must have is in
`trainer/resources.py`.

Everything is read as the driver sees it; nothing is written, and nothing heavy imported but for encoders of
`similarity_model`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from envs.corpus import passages
from envs.custom_env import custom_factory
from envs.decisions.making import check_world
from envs.decisions.settings import DecisionSettings
from envs.dotted_path import check_call
from envs.masking import masked_text
from envs.registry import make_env, make_reward
from envs.settings import (
    CustomEnvSettings,
    EnvSettings,
    LocalRetrieverSettings,
    RetrieverSettings,
    SearchEnvSettings,
    TextWorldEnvSettings,
)
from envs.tasks import load_tasks
from rollout_workers.grammar import grammar_problems
from rollout_workers.text_likeness import text_likeness
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError
from trainer.decisions.adapter_checks import missing_adapters
from trainer.model_folder import check_model
from trainer.model_weights import shapes, weight_bytes
from trainer.paths import is_file, is_folder
from trainer.run_place import place_problems, room_notes

CORPUS_READ = 2**28
"""Characters of a corpus that are read before the start, about two seconds; of a larger one the rest is read later."""

_PREPARE = {
    "search": "give a file, or make the quickstart's with `python -m envs.prepare --out data/quickstart`",
    "textworld": "give a file, or make games with `python -m envs.textworld_games --out data/textworld`",
    "custom": "give a file",
    "decision": "give a file, or make those of the shop with `python -m envs.shop.prepare --out data/shop`",
}
"""How files come to be, by environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the checks counted, and what the user should know."""

    train_tasks: int
    eval_tasks: int
    notes: tuple[str, ...] = ()
    """Sentences about what could not be checked, and about settings that may not do what one expects."""


def check_files(config: RunConfig) -> Findings:
    """Raises ConfigError with one sentence per fault of model, tasks, corpus, checkpoint and run folder."""
    problems, notes = check_model(config)
    train, train_problems = _task_ids("env.train_tasks", config.env.train_tasks, config.env.name)
    held_out, eval_problems = _task_ids("env.eval_tasks", config.env.eval_tasks, config.env.name)
    problems += [*train_problems, *eval_problems]
    if not train_problems and len(train) < config.tasks_per_step:
        problems.append(
            f"tasks_per_step={config.tasks_per_step} must be at most {len(train)}, the number of tasks in "
            f"env.train_tasks={config.env.train_tasks}."
        )
    problems += [
        *_world_problems(config.env, config.decision),
        *place_problems(config, weight_bytes(Path(config.model.path))),
    ]
    if problems:
        raise ConfigError(problems)
    notes += [
        *_room_notes(config),
        *config.notes,
        *_resample_notes(config, len(train)),
        *_overlap_notes(train, held_out),
    ]
    return Findings(train_tasks=len(train), eval_tasks=len(held_out), notes=tuple(notes))


def check_evaluation(config: RunConfig) -> None:
    """The part of `check_files` that matters where nothing is trained or written. Raises ConfigError."""
    problems, _ = check_model(config)
    problems += _task_ids("env.eval_tasks", config.env.eval_tasks, config.env.name)[1]
    problems += [*_world_problems(config.env, config.decision), *missing_adapters(config)]
    if problems:
        raise ConfigError(problems)


def _room_notes(config: RunConfig) -> Iterator[str]:
    """Of checkpoints that hold the whole model; adapters are small."""
    is_whole = config.learner.lora.rank == 0 and (config.typed is None or config.typed.backbone == "trained")
    if is_whole and is_folder(config.model.path):
        yield from room_notes(config, sum(map(math.prod, shapes(Path(config.model.path)).values())))


def _resample_notes(config: RunConfig, train: int) -> Iterator[str]:
    if config.advantage.dead_groups == "resample" and config.tasks_per_step == train:
        yield (
            f"Note: advantage.dead_groups=resample has nothing to draw with tasks_per_step={train}, since "
            f"env.train_tasks={config.env.train_tasks} has no other tasks: dead groups are left out as under drop."
        )


def _overlap_notes(train: Sequence[str], held_out: Sequence[str]) -> Iterator[str]:
    if both := sorted(set(train) & set(held_out)):
        yield (
            f"Note: {len(both)} of {len(held_out)} tasks in env.eval_tasks have the id of one in env.train_tasks, e.g. "
            f"{both[0]!r}: success on tasks that were trained says nothing of new ones."
        )


def _task_ids(key: str, path: Path, world: str) -> tuple[list[str], list[str]]:
    """Ids of a task file, and sentences about it."""
    if not is_file(path):
        return [], [_missing(key, path, world)]
    try:
        return [task.id for task in load_tasks(path)], []
    except ValueError as error:
        sentence = str(error).rstrip(".")
        return [], [f"{key} cannot be used: {sentence}."]


def _world_problems(env: EnvSettings, decision: DecisionSettings | None) -> Iterator[str]:
    try:
        if isinstance(env, SearchEnvSettings):
            yield from _retriever_problems(env.retriever)
            make_reward(env.reward)
        elif isinstance(env, TextWorldEnvSettings):
            make_env(env)  # looks at package, folder and reward; games are read later
        elif isinstance(env, CustomEnvSettings):
            # Not called: it may start whatever the environment needs.
            check_call("env.path", env.path, custom_factory(env.path), **env.options)
        elif decision is not None:
            check_world(decision, text_likeness)
            yield from grammar_problems(decision)
    except ValueError as error:
        yield f"{str(error).rstrip('.')}."


def _retriever_problems(retriever: RetrieverSettings) -> Iterator[str]:
    if isinstance(retriever, LocalRetrieverSettings):
        if not is_file(retriever.corpus):
            yield _missing("env.retriever.corpus", retriever.corpus, "search")
            return
        size = 0
        try:
            for passage in passages(retriever.corpus):
                size += len(passage.text)
                if size > CORPUS_READ:
                    break
        except ValueError as error:
            yield f"env.retriever.corpus cannot be used: {str(error).rstrip('.')}."
    elif not _has_host(retriever.url):
        yield (
            f"env.retriever.url={masked_text(retriever.url)} is not accepted: "
            "it must be an address such as http://10.0.0.5:8000/retrieve."
        )


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not any(sign.isspace() for sign in url)
    except ValueError:  # a port that is no number, a bracket that is not closed
        return False


def _missing(key: str, path: Path, world: str) -> str:
    return f"{key}={path} is not a file (relative paths count from {Path.cwd()}): {_PREPARE[world]}."
