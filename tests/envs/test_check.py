"""`envs.check`: good environments pass, and each kind of fault is told by its own line."""

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, replace

import pytest

from envs.check import check, main
from envs.check_subject import NAMES, of_document, preset, read_document
from envs.corpus import Passage
from envs.retriever import LocalRetriever
from envs.rewards import PaperReward
from envs.scoring import exact_match
from envs.search_env import SearchEnv
from envs.settings import TextWorldEnvSettings
from envs.types import EndReason, Message, StepResult, Task


def task(name="t", **meta):
    return Task(id=name, prompt=(Message(role="user", content="count to three"),), truth=("3",), meta=meta)


TASKS = [task(expert=["one", "two", "three"])]
LINES = {
    "parts": "has stop, reset and an async step",
    "plays": "the given steps work",
    "resets": "resets are equal",
    "value": "stepping leaves the state as it was",
    "same": "the same state and action give the same result",
    "pickle": "states pickle and go on equally",
    "branch": "a branch from the middle equals a replay",
    "last": "turns_left=-1 ends the trajectory",
    "reward": "reward and score stand where they must",
    "junk": "junk never raises",
    "meet": "branches at the same time don't meet",
    "quick": "steps are quick",
}


@dataclass(frozen=True)
class State:
    said: tuple[str, ...] = ()
    luck: float = 0.0


class Counting:
    """Ends after three steps; does everything right. The faulty ones below each do one thing wrong."""

    stop = ("</act>",)

    def reset(self, task):
        return State()

    async def step(self, state, action, *, turns_left):
        if turns_left < 0:
            return state, StepResult(end=EndReason.TURN_LIMIT, reward=0.0, score=0.0)
        state = replace(state, said=(*state.said, action[:20]))
        if len(state.said) == 3:
            return state, StepResult(end=EndReason.ANSWERED, reward=1.0, score=1.0, tool_calls=1)
        return state, StepResult(observation=f"{len(state.said)} so far", tool_calls=1)


class ListedStop(Counting):
    stop = ["</act>"]  # noqa: RUF012 (the fault)


class RandomReset(Counting):
    def reset(self, task):
        return State(luck=random.random())

    async def step(self, state, action, *, turns_left):
        after, result = await super().step(state, action, turns_left=turns_left)
        return after, replace(result, observation=f"{state.luck}") if result.end is None else result


@dataclass
class Growing:
    said: int = 0


class InPlace(Counting):
    def reset(self, task):
        return Growing()

    async def step(self, state, action, *, turns_left):
        if turns_left < 0:
            return state, StepResult(end=EndReason.TURN_LIMIT, reward=0.0, score=0.0)
        state.said += 1
        return state, StepResult(observation="more")


class Random(Counting):
    async def step(self, state, action, *, turns_left):
        after, result = await super().step(state, action, turns_left=turns_left)
        return after, replace(result, observation=str(random.random())) if result.end is None else result


class NoPickle(Counting):
    def reset(self, task):
        return State(said=(lambda: 0,))


class Fat(Counting):
    def reset(self, task):
        return State(luck="x" * 2_000_000)


class Forgetful(Counting):
    """What was said is left out of a pickled state."""

    def reset(self, task):
        return Lossy()

    async def step(self, state, action, *, turns_left):
        if turns_left < 0:
            return state, StepResult(end=EndReason.TURN_LIMIT, reward=0.0, score=0.0)
        return Lossy(state.said + 1), StepResult(observation=f"{state.said}")


@dataclass(frozen=True)
class Lossy:
    said: int = 0

    def __reduce__(self):
        return Lossy, ()


class KeepsCount(Counting):
    """The world counts, not the state."""

    def __init__(self):
        self.count = 0

    def reset(self, task):
        self.count = 0
        return State()

    async def step(self, state, action, *, turns_left):
        self.count += 1
        after, result = await super().step(state, action, turns_left=turns_left)
        return after, replace(result, observation=f"{self.count}") if result.end is None else result


class NeverEnds(Counting):
    async def step(self, state, action, *, turns_left):
        return state, StepResult(observation="go on")


class WorksAtTheEnd(Counting):
    async def step(self, state, action, *, turns_left):
        after, result = await super().step(state, action, turns_left=turns_left)
        return after, replace(result, tool_calls=1)


class EarlyReward(Counting):
    async def step(self, state, action, *, turns_left):
        after, result = await super().step(state, action, turns_left=turns_left)
        return after, replace(result, reward=0.1) if result.end is None else result


class BigScore(Counting):
    async def step(self, state, action, *, turns_left):
        after, result = await super().step(state, action, turns_left=turns_left)
        return after, replace(result, score=100.0) if result.end is EndReason.ANSWERED else result


class Raises(Counting):
    async def step(self, state, action, *, turns_left):
        action.encode()  # surrogates
        return await super().step(state, action, turns_left=turns_left)


class Echo(Counting):
    async def step(self, state, action, *, turns_left):
        after, result = await super().step(state, action, turns_left=turns_left)
        return after, replace(result, observation=f"you said {action}") if result.end is None else result


class Shared(Counting):
    """Between start and end of a step, the action stands in the environment."""

    async def step(self, state, action, *, turns_left):
        self.action = action
        await asyncio.sleep(0)
        return (
            await super().step(state, f"{self.action}", turns_left=turns_left) if turns_left < 0 else self._said(state)
        )

    def _said(self, state):
        return State(said=(*state.said, self.action)), StepResult(observation=f"{self.action[:20]!r}")


class Failing(Counting):
    async def step(self, state, action, *, turns_left):
        return state, StepResult(end=EndReason.ENV_ERROR, note="the server is down")


class Blocking(Counting):
    """Ends at its first step, which takes its time."""

    async def step(self, state, action, *, turns_left):
        if "one" in action:
            time.sleep(0.3)  # noqa: ASYNC251 (the fault)
        return state, StepResult(end=EndReason.ANSWERED, reward=1.0, score=1.0)


def wrong_lines(env, capsys, tasks=TASKS, **settings):
    """The lines that don't hold, as a dict from the clause's name to what is said."""
    count = check(env, tasks, **settings)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(f"{len(LINES) - count} of {len(LINES)} clauses hold")
    told = [line.removeprefix("WRONG  ").partition(": ") for line in lines if line.startswith("WRONG")]
    assert len(told) == count
    return {name: text for name, _, text in told}


def test_a_good_environment_passes(capsys):
    assert wrong_lines(Counting(), capsys) == {}


def test_questions_pass_without_being_told_what_to_do(capsys):
    env = SearchEnv(
        LocalRetriever([Passage(id="1", title="3", text="3 is a number.")]), score=exact_match, reward=PaperReward()
    )
    assert wrong_lines(env, capsys, [task()], max_turns=4) == {}


@pytest.mark.parametrize(
    ("env", "line", "words"),
    [
        (ListedStop, "parts", "stop must be a tuple"),
        (Failing, "plays", "ended with ENV_ERROR: the server is down"),
        (RandomReset, "resets", "seed whatever is random"),
        (InPlace, "value", "step 1 changed the state passed in"),
        (Random, "same", "draw nothing that is not seeded"),
        (NoPickle, "pickle", "does not pickle"),
        (Fat, "pickle", "a state has 2,000,"),
        (Forgetful, "pickle", "a pickled state before step 2 goes on differently"),
        (KeepsCount, "branch", "a branch from before step 2 differs from playing all again"),
        (NeverEnds, "last", "did not end the trajectory"),
        (WorksAtTheEnd, "last", "ran a tool"),
        (EarlyReward, "reward", "reward must be None for a step that does not end the trajectory, not 0.1"),
        (BigScore, "reward", "score must be from 0 to 1, not 100"),
        (Raises, "junk", "raised UnicodeEncodeError"),
        (Echo, "junk", "put a stop string into the observation"),
        (Shared, "meet", "share nothing between them"),
        (Blocking, "quick", "a step holds up the process for 0."),
    ],
)
def test_each_fault_is_told_by_its_line(env, line, words, capsys):
    told = wrong_lines(env(), capsys)
    assert words in told[LINES[line]], told


def test_adventures_pass_by_their_settings(adventures, tmp_path, capsys):
    section = {
        "name": "textworld",
        "train_tasks": f"{adventures}/train.jsonl",
        "eval_tasks": f"{adventures}/heldout.jsonl",
        "games": f"{adventures}/games",
    }
    (tmp_path / "env.json").write_text(json.dumps(section))
    (tmp_path / "config.yaml").write_text(json.dumps({"seed": 0, "env": section}))  # JSON is YAML
    found = of_document(read_document(tmp_path / "env.json"), "env.json")
    assert isinstance(found.settings, TextWorldEnvSettings)
    assert main([str(tmp_path / "config.yaml"), "--count", "1"]) == 0
    assert f"{len(LINES)} of {len(LINES)} clauses hold, on 1 task" in capsys.readouterr().out


@pytest.fixture
def data(adventures, shop_data, tmp_path, monkeypatch):
    """A folder data/ as the presets expect it, in the current folder."""
    folder = tmp_path / "data"
    (folder / "quickstart").mkdir(parents=True)
    (folder / "textworld").symlink_to(adventures)
    (folder / "shop").symlink_to(shop_data)
    (folder / "quickstart" / "corpus.jsonl").write_text(json.dumps({"id": "1", "title": "3", "text": "3 is a number."}))
    (folder / "quickstart" / "heldout.jsonl").write_text(json.dumps({"id": "t", "prompt": "?", "truth": "3"}))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_environments_that_come_with_the_project_are_known_by_name(name, data, capsys):
    assert main([name, "--count", "1"]) == 0
    assert f"{len(LINES)} of {len(LINES)} clauses hold, on 1 task" in capsys.readouterr().out


def test_a_decision_is_played_to_its_end_from_a_whole_configuration(data, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"seed": 0, **preset("decision")}))
    assert main([str(tmp_path / "config.json"), "--count", "1", "--max-turns", "1"]) == 0
    assert re.search(r"the given steps work: e.g. 4 steps, then answered, score 1.0", capsys.readouterr().out)


def test_a_dotted_path_with_options_and_a_file_of_actions(tmp_path, capsys):
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "t", "prompt": "?", "truth": "x"}))
    (tmp_path / "actions.txt").write_text("<act> one </act>\n<act> two </act>\n")
    arguments = [f"{__name__}.Random", "--tasks", str(tmp_path / "tasks.jsonl")]
    assert main([*arguments, "--actions", str(tmp_path / "actions.txt")]) == 1
    assert "WRONG  the same state and action give the same result" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a.b"], "error: env.path 'a.b' cannot be imported"),
        ([f"{__name__}.Counting"], "error: --tasks is needed with a dotted path"),
        ([f"{__name__}.Counting", "--options", "{"], "error: --options '{' is not JSON"),
        (["search"], "error: corpus data/quickstart/corpus.jsonl cannot be read"),
        (["nowhere.yaml"], "error: settings nowhere.yaml cannot be read"),
        (["bad.json"], "error: settings bad.json: textworld.games: Field required"),
        (["odd.yaml"], "error: settings odd.yaml cannot be read: not YAML"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"name": "textworld", "train_tasks": "a", "eval_tasks": "b"}')
    (tmp_path / "odd.yaml").write_text("a: [")
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(sentence)
