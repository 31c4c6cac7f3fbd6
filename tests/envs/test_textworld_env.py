"""The text adventure environment on real games."""

import asyncio
import json
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from envs.rewards import CheckedReward, PaperReward
from envs.tasks import load_tasks
from envs.textworld_env import TextWorldEnv, plain_command
from envs.types import EndReason


def make(adventures, **settings):
    return TextWorldEnv(adventures / "games", reward=settings.pop("reward", PaperReward()), **settings)


@pytest.fixture
def task(adventures):
    return load_tasks(adventures / "train.jsonl")[0]


@pytest.fixture
def env(adventures):
    return make(adventures)


def act(command):
    return f"<act> {command} </act>"


async def play(env, task, actions, turns=12):
    """States and results of each step, the state before the first one included."""
    states, results = [env.reset(task)], []
    for used, action in enumerate(actions, start=1):
        state, result = await env.step(states[-1], action, turns_left=turns - used)
        states.append(state)
        results.append(result)
        if result.end is not None:
            break
    return states, results


async def test_the_expert_wins_and_points_come_on_the_way(env, task):
    expert = task.meta["expert"]
    _, results = await play(env, task, [act(command) for command in expert])
    assert len(results) == task.meta["steps"] == 5
    assert [result.end for result in results] == [None] * 4 + [EndReason.ANSWERED]
    assert (results[-1].score, results[-1].reward, results[-1].tool_calls) == (1.0, 1.0, 1)
    assert [f"{points} of 3 points." in result.observation for result in results for points in (1, 2)].count(True) == 2
    assert all(result.observation.startswith("<obs> ") for result in results[:-1])


@pytest.mark.parametrize("command", ["open banana", "go up", "", "look", "inventory", "take the moon from the sky"])
async def test_what_changes_nothing_leaves_the_game_as_it_was(env, task, command):
    (before, after), (result,) = await play(env, task, [act(command)] if command else ["<act>x</act>"])
    assert result.end is None
    assert after == replace(before, steps=1)
    assert env.position(after).view in result.observation
    assert result.observation.startswith("<obs> nothing happens. ") == (command not in ("look", "inventory"))


async def test_the_last_command_ends_and_a_turn_beyond_it_runs_nothing(env, task):
    expert = [act(command) for command in task.meta["expert"]]
    states, results = await play(env, task, expert[:4], turns=4)
    assert (results[-1].end, results[-1].score) == (EndReason.TURN_LIMIT, pytest.approx(2 / 3))
    for action in (expert[4], "no action at all"):
        state, result = await env.step(states[-1], action, turns_left=-1)
        assert result.score == pytest.approx(2 / 3)
        assert result.tool_calls == 0
        assert state.commands == states[-1].commands
    assert result.end is EndReason.INVALID_ACTION


async def test_a_broken_format_costs_once_and_for_good(env, task):
    expert = [act(command) for command in task.meta["expert"]]
    _, results = await play(env, task, [f"I will {expert[0]}", *expert[1:]])
    assert (results[-1].score, results[-1].reward) == (1.0, 0.8)
    _, results = await play(env, task, [f"<think> why not </think>{step}" for step in expert])
    assert results[-1].reward == 1.0
    _, results = await play(env, task, [*expert[:4], "open it"])
    assert (results[-1].end, results[-1].score) == (EndReason.INVALID_ACTION, pytest.approx(2 / 3))
    assert results[-1].reward == pytest.approx(2 / 3 - 0.2)


async def test_only_winning_counts_when_asked_for(adventures, task):
    env = make(adventures, score="won")
    expert = [act(command) for command in task.meta["expert"]]
    for count, score in ((4, 0.0), (5, 1.0)):
        _, results = await play(env, task, expert[:count], turns=count)
        assert results[-1].score == score


async def test_a_game_that_is_lost_ends_with_the_points_made(adventures, task, tmp_path):
    """None that is made here can be lost; games from elsewhere may say what must not happen."""
    from textworld.generator.game import Event, Game, Quest

    file, expert = task.meta["game"], task.meta["expert"]
    game = Game.load(str(adventures / "games" / file))
    *milestones, quest = game.quests
    fatal = Event(conditions=quest.win_events[0].actions[2].postconditions)
    game.quests = [*milestones, Quest(win_events=quest.win_events, fail_events=[fatal], reward=quest.reward)]
    game.save(str(tmp_path / file))
    answers = []
    env = TextWorldEnv(tmp_path, reward=lambda outcome: answers.append(outcome.answer) or outcome.score)
    _, results = await play(env, task, [act(command) for command in expert])
    assert [result.end for result in results] == [None, None, EndReason.ANSWERED]
    assert answers == ["lost"]
    assert results[-1].score == results[-1].reward == pytest.approx(2 / 3)


async def test_a_branch_equals_a_replay_however_few_positions_are_kept(adventures, task):
    expert = [act(command) for command in task.meta["expert"]]
    states, results = await play(make(adventures), task, expert)
    forgetful = make(adventures, kept_positions=1)
    for turn in (4, 1, 3, 0, 2):
        kept = pickle.dumps(states[turn])
        assert len(kept) < 600
        state, result = await forgetful.step(pickle.loads(kept), expert[turn], turns_left=11 - turn)
        assert (state, result) == (states[turn + 1], results[turn])
        assert pickle.dumps(states[turn]) == kept


async def test_branches_at_the_same_time_do_not_meet(env, task):
    expert = [act(command) for command in task.meta["expert"]]
    state = env.reset(task)
    stray = [[act(command)] for command in env.position(state).commands]
    played = await asyncio.gather(play(env, task, expert), *(play(env, task, steps) for steps in stray))
    assert played[0][1][-1].score == 1.0
    assert env.reset(task) == state


async def test_a_changed_game_is_a_failure_with_a_note(env, adventures, task, tmp_path):
    expert = [act(command) for command in task.meta["expert"]]
    states, _ = await play(env, task, expert[:3])
    other = load_tasks(adventures / "train.jsonl")[1]
    (tmp_path / task.meta["game"]).write_bytes((adventures / "games" / other.meta["game"]).read_bytes())
    changed = TextWorldEnv(tmp_path, reward=PaperReward())
    for state in (states[0], states[3]):
        _, result = await changed.step(state, expert[0], turns_left=3)
        assert (result.end, result.reward) == (EndReason.ENV_ERROR, None)
        assert task.meta["game"] in result.note


async def test_a_useless_reward_is_a_failure(adventures, task):
    env = make(adventures, reward=CheckedReward(name="mine", function=lambda outcome: float("nan"), range=None))
    _, results = await play(env, task, ["nothing"])
    assert results[-1].end is EndReason.ENV_ERROR
    assert "mine gave nan" in results[-1].note


def test_the_outcome_says_how_a_game_ended(adventures, task):
    seen = []
    env = make(adventures, reward=lambda outcome: seen.append(outcome) or 0.0)
    expert = [act(command) for command in task.meta["expert"]]
    for actions, turns in ((expert, 12), (expert[:2], 2), (["?"], 12)):
        asyncio.run(play(env, task, actions, turns))
    assert [(outcome.answer, outcome.tool_calls) for outcome in seen] == [("won", 5), ("unfinished", 2), (None, 0)]


@pytest.mark.parametrize("game", [None, 3, "../train-00000.json", "nope.json"])
def test_a_task_without_its_game(env, task, game):
    with pytest.raises(ValueError, match=r"game"):
        env.reset(replace(task, meta={"game": game}))


def test_a_file_that_is_no_game(tmp_path, task):
    (tmp_path / task.meta["game"]).write_text(json.dumps({"version": 1}))
    with pytest.raises(ValueError, match="is not a TextWorld game"):
        TextWorldEnv(tmp_path, reward=PaperReward()).reset(task)
    with pytest.raises(ValueError, match="is not a folder"):
        TextWorldEnv(tmp_path / "nope", reward=PaperReward())


def test_commands_are_read_kindly():
    assert plain_command("  Open  the BOX. ") == "open the box"
    assert len(plain_command("x" * 10**6)) == 101


def test_a_machine_without_the_package_says_what_to_install():
    code = "import sys; sys.modules['textworld'] = None\nfrom envs.textworld_game import textworld\ntextworld()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'espalier-rl[textworld]'" in done.stderr.splitlines()[-1]
