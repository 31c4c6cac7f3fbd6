"""Worlds that only go forward, as environments: what is played again, what is refused, and what is closed."""

import asyncio
import pickle
import random
from pathlib import Path

import pytest

from envs.check import check
from envs.replayed import Replayed
from envs.types import EndReason, Message, StepResult, Task

TASK = Task(id="t", prompt=(Message(role="user", content="count to three"),), truth=("3",), meta={"expert": ["1"] * 3})


class Counter:
    """Counts steps; the third is right. Notes what is done in each world."""

    def __init__(self, task, log):
        self.log, self.count = log, 0
        log.append("open")

    async def step(self, action, *, turns_left):
        await asyncio.sleep(0)
        self.count += 1
        self.log.append(action[:9])
        if turns_left < 0 or self.count == int(TASK.truth[0]):
            right = float(turns_left >= 0)
            return StepResult(end=EndReason.ANSWERED if right else EndReason.TURN_LIMIT, reward=right, score=right)
        return StepResult(observation=self.shown(action), tool_calls=1)

    def shown(self, action):
        return f"{self.count} so far, {len(action)} letters, {turns_word(action)}"

    def close(self):
        self.log.append("close")


def turns_word(action):
    return "loud" if "!" in action else "quiet"


class Dice(Counter):
    def shown(self, action):
        return str(random.random())


def replayed(log, world=Counter, **settings):
    return Replayed(lambda task: world(task, log), stop=("</act>",), **settings)


async def played(env, state, *actions, turns=9):
    for number, action in enumerate(actions, start=len(state.steps) + 1):
        state, result = await env.step(state, action, turns_left=turns - number)
    return state, result


async def test_one_branch_goes_on_in_its_world_and_a_second_one_plays_again_what_was_done():
    log = []
    env = replayed(log)
    middle, _ = await played(env, env.reset(TASK), "a", "b")
    assert (await played(env, middle, "c"))[1].end is EndReason.ANSWERED
    assert log == ["open", "a", "b", "c", "close"]
    kept = pickle.dumps(middle)
    assert len(kept) < 600
    log.clear()
    elsewhere = replayed(log)
    assert (await played(elsewhere, pickle.loads(kept), "d"))[1].end is EndReason.ANSWERED
    assert log == ["open", "a", "b", "d", "close"]


async def test_branches_of_one_state_have_a_world_each_and_see_the_same():
    log = []
    env = replayed(log)
    start, _ = await played(env, env.reset(TASK), "a")
    results = await asyncio.gather(*(env.step(start, "b!", turns_left=7) for _ in range(3)))
    assert len({result.observation for _, result in results}) == 1
    assert len({state.steps for state, _ in results}) == 1
    assert (log.count("open"), log.count("a"), log.count("close")) == (3, 3, 2), "one is enough for equal states"


async def test_worlds_beyond_those_kept_are_closed_the_oldest_first():
    log = []
    env = replayed(log, kept_worlds=1)
    first, _ = await played(env, env.reset(TASK), "a")
    await played(env, env.reset(TASK), "b")
    assert log == ["open", "a", "open", "b", "close"]
    await played(env, first, "c")
    assert log[5:] == ["open", "a", "c", "close"], "and are played again when they are needed"


async def test_a_world_that_shows_something_else_is_refused_with_a_sentence():
    log = []
    env = replayed(log, Dice)
    start, _ = await played(env, env.reset(TASK), "a")
    assert (await played(env, start, "b"))[1].end is None, "its world is still open"
    state, result = await played(env, start, "b")
    assert state == start
    assert (result.end, result.reward) == (EndReason.ENV_ERROR, None)
    assert result.note == (
        "the world is not deterministic: done again, step 1 ('a') showed something else than the first time; "
        "what is random in it must be seeded by the task"
    )
    assert log[-1] == "close"


async def test_a_world_that_ends_sooner_than_the_first_time_is_refused_too():
    class Shrinking(Counter):
        def __init__(self, task, log):
            super().__init__(task, log)
            self.count = 2 * (log.count("open") - 1)

    env = replayed([], Shrinking)
    middle, _ = await played(env, env.reset(TASK), "a", "b")
    await played(env, middle, "c")
    assert "step 1 ('a') showed something else" in (await played(env, middle, "c"))[1].note


async def test_a_world_that_fails_is_closed():
    class Broken(Counter):
        def shown(self, action):
            raise RuntimeError("the game is gone")

    log = []
    env = replayed(log, Broken)
    with pytest.raises(RuntimeError, match="the game is gone"):
        await played(env, env.reset(TASK), "a")
    assert log == ["open", "a", "close"]


def test_the_contract_holds_for_a_world_that_can_be_replayed_and_not_for_dice(capsys):
    assert check(replayed([]), [TASK]) == 0
    capsys.readouterr()
    assert check(replayed([], Dice), [TASK]) > 0
    told = capsys.readouterr().out
    assert "WRONG  the same state and action give the same result" in told
    assert "WRONG  a branch from the middle equals a replay" in told


def test_the_example_of_the_documentation_keeps_the_contract(capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
    code = next(part.split("```", 1)[0] for part in page.split("```python\n") if part.startswith("from envs.replayed"))
    names = {"__name__": "pile"}
    exec(code, names)
    task = Task(id="t", prompt=TASK.prompt, truth=("3",), meta={"expert": ["x", "x", "x"]})
    assert check(names["make_env"](), [task]) == 0
    assert "3 steps, then answered, score 1.0" in capsys.readouterr().out
