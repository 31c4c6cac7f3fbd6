"""Prompts that are too long: refused or left out (`limits.long_prompts`), never cut."""

from collections.abc import Sequence
from typing import Protocol

from envs.types import Task
from trainer.config import LimitsConfig
from trainer.config.sentences import ConfigError


class PromptCodec(Protocol):
    """What turns a task into the ids of its prompt."""

    def prompt(self, task: Task) -> list[int]:
        """Ids of the chat prompt, ready for the first agent step."""
        ...


def check_prompts(codec: PromptCodec, tasks: Sequence[Task], limits: LimitsConfig) -> list[Task]:
    """The tasks whose prompt has at most `limits.max_prompt_tokens` tokens, in their order.

    Raises ConfigError naming the first task whose prompt is longer, with `long_prompts: skip` only if all are.
    """
    fitting: list[Task] = []
    for task in tasks:
        length = len(codec.prompt(task))
        if length <= limits.max_prompt_tokens:
            fitting.append(task)
        elif limits.long_prompts == "error":
            raise ConfigError(
                [
                    f"The prompt of task {task.id!r} has {length} tokens, more than limits.max_prompt_tokens="
                    f"{limits.max_prompt_tokens}; prompts are never cut: raise the limit, set limits.long_prompts=skip "
                    "or leave the task out."
                ]
            )
    if tasks and not fitting:
        raise ConfigError(
            [
                f"All {len(tasks)} tasks, e.g. {tasks[0].id!r}, have prompts of more than limits.max_prompt_tokens="
                f"{limits.max_prompt_tokens} tokens, so limits.long_prompts=skip leaves none: raise the limit."
            ]
        )
    return fitting


def check_enough(tasks: Sequence[Task], skipped: int, tasks_per_step: int) -> None:
    """Raises ConfigError when so many training tasks were left out that a step can't be filled."""
    if len(tasks) < tasks_per_step:
        raise ConfigError(
            [
                f"tasks_per_step={tasks_per_step} must be at most {len(tasks)}: limits.long_prompts=skip left out "
                f"{skipped} of the {len(tasks) + skipped} training tasks, whose prompts are too long."
            ]
        )


def skip_note(skipped: int, total: int, limits: LimitsConfig) -> str:
    """One sentence for people about tasks that were left out."""
    return (
        f"left out {skipped} of {total} tasks (training and held-out): their prompts have more than "
        f"limits.max_prompt_tokens={limits.max_prompt_tokens} tokens (limits.long_prompts=skip)"
    )
