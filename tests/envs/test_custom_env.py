"""Environments from outside the repository, by dotted path."""

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from envs.custom_env import custom_env
from envs.registry import make_env
from envs.settings import EnvSettings
from envs.types import EndReason, Message, StepResult, Task

TASK = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "environments.md"


@dataclass(frozen=True)
class Counting:
    """Counts its steps; gives whatever result it was made with."""

    result: object = StepResult(observation="go on")
    stop: tuple[str, ...] = ("!",)

    def reset(self, task):
        return 0

    async def step(self, state, action, *, turns_left):
        return state + 1, self.result


def no_env(**options):
    return 5


def just_a_result():
    class Odd(Counting):
        async def step(self, state, action, *, turns_left):
            return self.result

    return Odd()


def make(**options):
    return custom_env(f"{__name__}.Counting", options)


async def test_the_function_gets_the_options_and_steps_pass_through():
    settings = TypeAdapter(EnvSettings).validate_python(
        {
            "name": "custom",
            "train_tasks": "a.jsonl",
            "eval_tasks": "b.jsonl",
            "path": f"{__name__}.Counting",
            "options": {"stop": ("?",)},
        }
    )
    env = make_env(settings)
    assert env.stop == ("?",)
    assert await env.step(env.reset(TASK), "a", turns_left=3) == (1, StepResult(observation="go on"))


@pytest.mark.parametrize(
    ("path", "options", "sentence"),
    [
        ("nowhere", {}, "env.path 'nowhere' is not a dotted path such as my_package.world.make_env"),
        ("no_such.thing", {}, "env.path 'no_such.thing' cannot be imported: No module named 'no_such'"),
        (f"{__name__}.TASK", {}, "is not a function; accepted: a function that makes an envs.types.Env"),
        (f"{__name__}.Counting", {"size": 3}, r"does not accept env.options=\{'size': 3\}: .*'size'"),
        (f"{__name__}.no_env", {"size": 3}, "made a int, which has no stop and no reset and no step"),
    ],
)
def test_what_is_no_environment(path, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        custom_env(path, options)


END = EndReason.ANSWERED


@pytest.mark.parametrize(
    ("result", "turns_left", "sentence"),
    [
        (StepResult(end=END, reward=math.nan, score=0.0), 1, "reward must be a finite number .* not nan"),
        (StepResult(end=END, reward=1.0), 1, "score must be a finite number .* not None"),
        (StepResult(end=END, reward=1.0, score=1.5), 1, "score must be from 0 to 1, not 1.5"),
        (StepResult(end=END, reward=True, score=1.0), 1, "reward must be a finite number .* not True"),
        (StepResult(reward=1.0), 1, "reward must be None for a step that does not end"),
        (StepResult(end=EndReason.ENV_ERROR, score=0.0), 1, "score must be None for a failed step"),
        (StepResult(observation=b"x"), 1, "observation must be a text, not bytes"),
        (StepResult(), -1, "turns_left=-1 is the last one: its result must have an end"),
        ("done", 1, "the result is of type str"),
    ],
)
async def test_a_result_that_would_spoil_learning_is_an_error(result, turns_left, sentence):
    env = make(result=result)
    with pytest.raises(RuntimeError, match=rf"env.path '{__name__}.Counting': .*{sentence}"):
        await env.step(0, "a", turns_left=turns_left)


async def test_a_step_must_return_two_things():
    with pytest.raises(RuntimeError, match="step must return"):
        await custom_env(f"{__name__}.just_a_result", {}).step(0, "a", turns_left=1)


async def test_good_ends_pass():
    for result in (StepResult(end=END, reward=-3, score=0), StepResult(end=EndReason.ENV_ERROR, note="x")):
        assert (await make(result=replace(result)).step(0, "a", turns_left=-1))[1] == result


def example(tmp_path, monkeypatch):
    """The environment of the documentation, as a module that can be imported."""
    code = PAGE.read_text(encoding="utf-8").split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "guessing.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("guessing", None)
    return code


async def test_the_example_of_the_documentation_works(tmp_path, monkeypatch):
    code = example(tmp_path, monkeypatch)
    assert len(code.splitlines()) <= 36
    env = custom_env("guessing.make_env", {"highest": 9})
    task = Task(id="guess/7", prompt=TASK.prompt, truth=("7",))
    state = env.reset(task)
    state, low = await env.step(state, "<act> 3 </act>", turns_left=2)
    _, wrong = await env.step(state, "<act> ? </act>", turns_left=1)
    _, right = await env.step(state, "<act> 7 </act>", turns_left=1)
    _, out = await env.step(state, "", turns_left=-1)
    assert (low.observation, low.end) == (" higher ", None)
    assert (wrong.end, wrong.reward) == (EndReason.INVALID_ACTION, 0.0)
    assert (right.end, right.reward, right.score) == (EndReason.ANSWERED, 1.0, 1.0)
    assert out.end is EndReason.TURN_LIMIT
