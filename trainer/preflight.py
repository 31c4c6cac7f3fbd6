"""Checks of files before any actor starts: model, tasks, corpus, checkpoint. What the cluster must have is beside, in
`trainer/resources.py`, whose two functions are offered here as well.

Everything is read as the driver sees it; nothing heavy is imported and nothing is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envs.rewards import custom_reward
from envs.settings import LocalRetrieverSettings
from envs.tasks import load_tasks
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError
from trainer.model_folder import check_model
from trainer.resources import check_cluster, required_bundles

__all__ = ["Findings", "check_cluster", "check_files", "required_bundles"]

_PREPARE = "python -m envs.prepare --out data/quickstart"


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
    train, train_problems = _count_tasks("env.train_tasks", config.env.train_tasks)
    held_out, eval_problems = _count_tasks("env.eval_tasks", config.env.eval_tasks)
    problems += [*train_problems, *eval_problems]
    if not train_problems and train < config.tasks_per_step:
        problems.append(
            f"tasks_per_step={config.tasks_per_step} must be at most {train}, the number of tasks in "
            f"env.train_tasks={config.env.train_tasks}."
        )
    problems += [*_corpus_problems(config), *_reward_problems(config), *_path_problems(config)]
    if problems:
        raise ConfigError(problems)
    return Findings(
        train_tasks=train, eval_tasks=held_out, notes=(*notes, *config.notes, *_resample_notes(config, train))
    )


def _resample_notes(config: RunConfig, train: int) -> Iterator[str]:
    if config.advantage.dead_groups == "resample" and config.tasks_per_step == train:
        yield (
            f"Note: advantage.dead_groups=resample has nothing to draw with tasks_per_step={train}, since "
            f"env.train_tasks={config.env.train_tasks} has no other tasks: dead groups are left out as under drop."
        )


def _count_tasks(key: str, path: Path) -> tuple[int, list[str]]:
    if not path.is_file():
        return 0, [_missing(key, path)]
    try:
        return len(load_tasks(path)), []
    except ValueError as error:
        sentence = str(error).rstrip(".")
        return 0, [f"{key} cannot be used: {sentence}."]


def _corpus_problems(config: RunConfig) -> Iterator[str]:
    retriever = config.env.retriever
    if isinstance(retriever, LocalRetrieverSettings) and not retriever.corpus.is_file():
        yield _missing("env.retriever.corpus", retriever.corpus)


def _reward_problems(config: RunConfig) -> Iterator[str]:
    if config.env.reward.path is not None:
        try:
            custom_reward(config.env.reward.path)
        except ValueError as error:
            yield f"{str(error).rstrip('.')}."


def _path_problems(config: RunConfig) -> Iterator[str]:
    if config.resume not in {"auto", "never"} and not Path(config.resume).is_dir():
        yield f"resume={config.resume} is not a folder: it must be auto, never or a checkpoint folder."
    if Path(config.runs_dir).exists() and not Path(config.runs_dir).is_dir():
        yield f"runs_dir={config.runs_dir} is a file: it must be a folder, which is made when it does not exist."


def _missing(key: str, path: Path) -> str:
    return (
        f"{key}={path} is not a file (relative paths count from {Path.cwd()}): "
        f"give a file, or make the quickstart's with `{_PREPARE}`."
    )
