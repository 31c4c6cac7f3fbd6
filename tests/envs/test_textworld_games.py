"""Games and demonstrations: the same ones for a seed, won by their expert, with names from the short lists."""

import asyncio
import json
import random
import subprocess
import sys
from itertools import pairwise

import pytest

from envs.tasks import load_tasks
from envs.textworld_demonstrator import Habits, main, play_all
from envs.textworld_game import load
from envs.textworld_games import main as make_files
from envs.textworld_games import make_games
from envs.textworld_maker import Difficulty, make_game, other_names

WIDE = Difficulty(steps=8, rooms=3, things=8)


def test_every_task_tells_its_game_and_its_expert_wins(adventures):
    tasks = load_tasks(adventures / "train.jsonl") + load_tasks(adventures / "heldout.jsonl")
    assert len({task.id for task in tasks}) == len({task.prompt for task in tasks}) == 6
    assert [task.meta["steps"] for task in tasks] == [5, 6, 5, 6, 5, 6]
    for task in tasks:
        position = load(adventures / "games" / task.meta["game"])
        assert task.prompt[-1].content == f"goal: {task.meta['expert'][-1]}. {position.view}"
        assert position.points == 0
        for command in task.meta["expert"]:
            assert not position.won
            assert position.expert[0] in position.commands
            position = position.after(command)
        assert position.won
        assert position.points == position.points_total == 3


def test_the_expert_wins_after_every_detour(adventures):
    rng = random.Random(0)
    for task in load_tasks(adventures / "train.jsonl"):
        position = load(adventures / "games" / task.meta["game"])
        for _ in range(6):
            position = position.after(rng.choice(sorted(position.commands)))
            if position.won or position.lost:
                break
        for _ in range(30):
            if not position.expert:
                break
            position = position.after(position.expert[0])
        assert position.won or position.lost


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_gives_the_same_game_in_every_process(hash_seed):
    code = (
        "import hashlib, json\nfrom envs.textworld_maker import *\n"
        "made = make_game('train/0/0', Difficulty(steps=8, rooms=3, things=8))\n"
        "text = json.dumps([made.game.serialize(), made.goal, made.expert, made.start.view], sort_keys=True)\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", hash_seed)
    ]
    assert runs[0] == runs[1]


def test_different_seeds_give_different_games():
    assert len({make_game(f"train/0/{number}", WIDE).start.view for number in range(4)}) == 4


def test_files_are_not_made_twice(adventures, capsys):
    levels = [Difficulty(steps=steps, rooms=2, things=6) for steps in (5, 6)]
    assert "nothing to do" in make_games(adventures, {"train": 4, "heldout": 2}, levels, seed=0, processes=1)
    assert make_files(["--out", str(adventures), "--train", "0"]) == 2
    assert capsys.readouterr().err == "error: --train, --heldout and --processes must be at least 1\n"


def test_a_difficulty_that_no_game_has():
    with pytest.raises(ValueError, match=r"no game with Difficulty\(steps=5, rooms=11, things=6\) was found in 2"):
        make_game("x/0/0", Difficulty(steps=5, rooms=11, things=6), attempts=2)


def test_other_names_tell_of_another_game_of_the_same_kind():
    text = "goal: put coin on table. hall. red box: locked. floor: red key. you hold: nothing."
    changed = [other_names(random.Random(seed))(text) for seed in range(20)]
    assert len(set(changed)) > 15
    for line in changed:
        words = line.replace(":", "").replace(".", "").split()
        colours = [before for before, noun in pairwise(words) if noun == "key"]
        assert line.count(colours[0]) == 2, "box and key still have one colour"
        assert line.startswith("goal: put ")
        assert line.endswith(" key. you hold: nothing.")


async def test_an_expert_wins_always_and_a_wanderer_sometimes(adventures):
    tasks = load_tasks(adventures / "train.jsonl")
    expert = await play_all(tasks, adventures / "games", Habits(detour=0, slip=0), seed=0, samples=1)
    assert [item.result.score for item in expert] == [1.0] * 4
    assert [len(item.segments) for item in expert] == [9, 11, 9, 11]  # a step and an observation each, but the last
    wanderer = await play_all(tasks, adventures / "games", Habits(), seed=0, samples=6)
    assert 0 < sum(item.result.score == 1.0 for item in wanderer) < 24


def test_demonstrations_can_be_read_back_and_do_not_depend_on_the_run(adventures, tmp_path, capsys):
    arguments = ["--tasks", str(adventures / "train.jsonl"), "--games", str(adventures / "games"), "--rename"]
    for name in ("a", "b"):
        assert main([*arguments, "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()
    assert "total: won " in capsys.readouterr().out
    first = json.loads((tmp_path / "a").read_text().splitlines()[0])
    assert first["segments"][0]["text"].startswith("<act> ")
    assert [segment["train"] for segment in first["segments"][:3]] == [True, False, True]


def test_a_missing_game_is_one_sentence(adventures, tmp_path, capsys):
    arguments = ["--tasks", str(adventures / "train.jsonl"), "--games", str(tmp_path), "--out", str(tmp_path / "x")]
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: game ")


def test_playing_needs_no_loop_of_its_own(adventures):
    tasks = load_tasks(adventures / "heldout.jsonl")
    played = asyncio.run(play_all(tasks, adventures / "games", Habits(), seed=1, samples=1))
    assert all(item.result.end is not None for item in played)
