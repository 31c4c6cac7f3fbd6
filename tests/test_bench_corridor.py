"""The corridor, a world whose reward is decided at one turn, and what theory says of branches there."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from envs.check import check
from envs.tasks import load_tasks
from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, TaskGroup, Tree
from scripts.bench import corridor_tasks
from scripts.bench.corridor import Corridor
from scripts.bench.corridor_tasks import commands, make_task
from scripts.bench.signal_math import decided_worth
from scripts.bench.signal_rollouts import noise_correlation, unsureness
from trainer.demonstrations import read_demonstrations

TASK = Task(
    id="c",
    prompt=(Message(role="user", content="bring me the opal. you can open the glass door."),),
    truth=("opal",),
    meta={"doors": ["glass", "iron"], "gems": ["ruby", "opal"], "choice": 2},
)
OPEN, TAKE = "<act> open the {} door and go on </act>", "<act> take the {} and go on </act>"


async def walked(*steps, turns_left=9):
    world = Corridor()
    state = world.reset(TASK)
    for step in steps:
        state, result = await world.step(state, step, turns_left=turns_left)
    return result


async def test_the_gem_decides_and_shows_in_nothing_before_the_end():
    assert (await walked(OPEN.format("glass"))).observation == "<obs> you can take the ruby or the opal. </obs>"
    for gem, score in (("opal", 1.0), ("ruby", 0.0)):
        steps = (OPEN.format("glass"), TAKE.format(gem), OPEN.format("iron"))
        assert (await walked(*steps[:2])).observation == "<obs> you can open the iron door. </obs>"
        result = await walked(*steps)
        assert (result.end, result.reward, result.score) == (EndReason.ANSWERED, score, score)


async def test_what_is_not_possible_ends_the_path():
    for wrong in (OPEN.format("oak"), TAKE.format("opal"), "open", ""):
        result = await walked(wrong)
        assert (result.end, result.reward) == (EndReason.INVALID_ACTION, 0.0)
    assert (await walked(OPEN.format("glass"), turns_left=0)).end is EndReason.TURN_LIMIT
    assert (await walked(OPEN.format("glass"), turns_left=-1)).end is EndReason.TURN_LIMIT


async def test_a_branch_is_a_second_call_with_the_same_state():
    world = Corridor()
    state, _ = await world.step(world.reset(TASK), OPEN.format("glass"), turns_left=9)
    kept = pickle.loads(pickle.dumps(state))
    ends = [(await world.step(one, TAKE.format("ruby"), turns_left=9))[0].taken for one in (state, kept, state)]
    assert ends == ["ruby"] * 3
    assert state == kept


@pytest.mark.parametrize("change", [{"doors": None}, {"choice": 4}, {"gems": ["opal"]}, {"gems": ["ruby", "jade"]}])
def test_a_task_without_a_path_is_one_sentence(change):
    with pytest.raises(ValueError, match="task 'c': meta needs doors"):
        Corridor().reset(replace(TASK, meta=TASK.meta | change))


def test_the_contract_of_environments_holds(capsys):
    tasks = [make_task(f"train/0/{number}", 10, choice) for number, choice in enumerate((1, 5, 10))]
    assert check(Corridor(), tasks, max_turns=10) == 0
    assert "10 steps, then answered, score 1.0" in capsys.readouterr().out


def test_files_depend_on_the_options_only_and_put_the_gems_where_they_are_told(tmp_path):
    for name in ("a", "b"):
        out = ["--out", str(tmp_path / name), "--turns", "4", "--choice", "3", "--train", "20", "--heldout", "5"]
        assert corridor_tasks.main(out) == 0
    train, heldout = (load_tasks(tmp_path / "a" / f"{split}.jsonl") for split in ("train", "heldout"))
    assert train == load_tasks(tmp_path / "b" / "train.jsonl")
    assert {len(task.meta["doors"]) for task in train} == {3}
    assert {task.meta["choice"] for task in [*train, *heldout]} == {3}
    assert not {task.id for task in train} & {task.id for task in heldout}
    assert len(read_demonstrations(tmp_path / "a" / "expert.jsonl")) == 20


def test_the_demonstrator_opens_every_door_and_errs_at_the_gems_only(tmp_path):
    assert corridor_tasks.main(["--out", str(tmp_path), "--demos", "400", "--right", "0.3"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "demos.jsonl").read_text().splitlines()]
    said = ["".join(part["text"] for part in line["segments"] if part["train"]) for line in lines]
    assert all(text.count("</act>") == 10 and text.count("take the") == 1 for text in said)
    wanted = [line["messages"][0]["content"].split(".")[0].rpartition(" ")[2] for line in lines]
    right = sum(f"take the {gem} " in text for gem, text in zip(wanted, said, strict=True))
    assert 0.23 < right / len(lines) < 0.37  # 0.3, with a standard deviation of 0.023


def test_an_expert_takes_what_is_asked_for():
    walk = Corridor().reset(TASK)
    assert list(commands(walk, "opal")) == [
        "open the glass door and go on",
        "take the opal and go on",
        "open the iron door and go on",
    ]


def test_a_choice_outside_the_path_is_one_sentence(tmp_path, capsys):
    assert corridor_tasks.main(["--out", str(tmp_path), "--choice", "11"]) == 2
    assert "--choice 11 must be a turn of the path: from 1 to --turns (10)" in capsys.readouterr().err


def test_branches_win_after_and_lose_before_the_turn_that_decides():
    # The last turn decides: nothing is repeated, and a branch costs 0.55 of a chain.
    assert decided_worth(2, 10, 10) == pytest.approx(3 / 2.1)
    # The first one decides: 9 of 10 branches repeat it, two branches both in 0.81.
    assert decided_worth(2, 10, 1) == pytest.approx(3 / 2.1 / (1 + 2 * (0.9 + 0.9 + 0.81) / 3))
    # The same by chance.
    rng = np.random.default_rng(0)
    starts = rng.integers(10, size=(100_000, 6))
    alike = np.concatenate([np.ones((len(starts), 1), bool), starts >= 5], axis=1)
    pairs = [np.mean(alike[:, a] & alike[:, b]) for a in range(7) for b in range(a)]
    expected = 7 / (1 + (10 - starts).sum(axis=1).mean() / 10) / (1 + 6 * np.mean(pairs))
    assert decided_worth(6, 10, 5) == pytest.approx(expected, rel=0.01)


def test_leaves_share_noise_only_where_the_policy_was_unsure():
    sure, unsure = 0.0, float(np.log(0.5))

    def step(parent, logprob, **more):
        return Node(parent=parent, token_ids=(1, 2), logprobs=(sure, logprob), versions=(0, 0), **more)

    def forest(first, second, other):
        nodes = [Node(parent=-1, observation_ids=(5,)), step(0, first, observation_ids=(6,))]
        nodes += [step(1, second, end=EndReason.ANSWERED, reward=one, score=one) for one in (1.0, other)]
        return [TaskGroup(task=TASK, trees=(Tree(task_id="c", index=0, nodes=nodes),))]

    assert unsureness(step(0, unsure)) == pytest.approx(0.25)
    early, late = forest(unsure, sure, 1.0), forest(sure, unsure, 0.0)
    assert noise_correlation([early], {"c": 0.5}, unsureness) == pytest.approx(1)
    assert noise_correlation([early], {"c": 0.5}) == 0.5
    assert noise_correlation([late], {"c": 0.5}, unsureness) == 0
    assert noise_correlation([late], {"c": 0.5}) == -0.5
