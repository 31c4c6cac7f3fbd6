"""Prompts that are too long, by both settings of `limits.long_prompts`."""

import pytest

from envs.types import Message, Task
from trainer.config import LimitsConfig
from trainer.config.sentences import ConfigError
from trainer.prompts import check_enough, check_prompts, skip_note


class Letters:
    def prompt(self, task: Task) -> list[int]:
        return [ord(letter) for letter in task.prompt[-1].content]


def task(text: str) -> Task:
    return Task(id=text, prompt=(Message(role="user", content=text),), truth=("x",))


TASKS = [task("abcd"), task("abcde"), task("a")]


def test_by_default_a_long_prompt_is_an_error_that_names_its_task() -> None:
    with pytest.raises(ConfigError, match=r"task 'abcde' has 5 tokens, more than limits.max_prompt_tokens=4; .*skip"):
        check_prompts(Letters(), TASKS, LimitsConfig(max_prompt_tokens=4))


def test_skip_leaves_long_prompts_out_whole_and_keeps_the_order() -> None:
    limits = LimitsConfig(max_prompt_tokens=4, long_prompts="skip")
    assert [each.id for each in check_prompts(Letters(), TASKS, limits)] == ["abcd", "a"]
    assert check_prompts(Letters(), [], limits) == []
    assert skip_note(1, 3, limits).startswith("left out 1 of 3 tasks")


def test_when_nothing_remains_or_too_little_for_a_step_it_is_an_error() -> None:
    limits = LimitsConfig(max_prompt_tokens=1, long_prompts="skip")
    with pytest.raises(ConfigError, match=r"All 2 tasks, e.g. 'abcd', have prompts of more than .*=1 tokens"):
        check_prompts(Letters(), TASKS[:2], limits)
    check_enough(TASKS, 0, 3)
    with pytest.raises(ConfigError, match=r"tasks_per_step=4 must be at most 3: .* left out 2 of the 5"):
        check_enough(TASKS, 2, 4)
