"""The arithmetic of the chaos and soak scripts: when a record is right, and when memory is flat."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from envs.search_env import SearchState
from envs.types import EndReason, Message, StepResult, Task
from rollout_workers.types import Node, TaskGroup, Tree
from scripts import chaos, soak
from scripts.chaos_audit import Shape, problems
from scripts.chaos_history import history, pieces, wandb_problems
from scripts.chaos_job import Job
from scripts.chaos_stage import chance_of
from scripts.chaos_worlds import BROKEN_TEXT, Strike, UnreliableEnv, drawn, struck, write_plan
from scripts.processes import role
from trainer.run_folder import RunFolder
from trainer.tracking import Tracker

SHAPE = Shape(tasks=1, roots=2, branches=2)


def tree(index: int, version: int, *, slots: tuple[int, ...] = (0, 1)) -> Tree:
    """A prompt and one leaf per slot."""
    leaves = [
        Node(parent=0, token_ids=(7,), logprobs=(-1.0,), versions=(version,), end=EndReason.ANSWERED, reward=1.0,
             score=1.0, slot=slot)
        for slot in slots
    ]  # fmt: skip
    return Tree(task_id="q", index=index, nodes=[Node(parent=-1, observation_ids=(1,)), *leaves])


def run(root: Path, steps: int = 2) -> RunFolder:
    folder = RunFolder(root / "run")
    task = Task(id="q", prompt=(Message(role="user", content="?"),), truth=("x",))
    folder.append_metrics(0, {"push/version": 0.0})
    for step in range(1, steps + 1):
        values = {"tree/trees": 2, "tree/leaves": 4, "ledger/leaves": 4, "push/version": step, "learner/seconds": 1.0}
        values |= {"rollout/stale_leaves": 0, "reward/leaves": 3, "reward/leaves_without_reward": 1}
        folder.append_metrics(step, {name: float(value) for name, value in values.items()})
        group = TaskGroup(task=task, trees=(tree(0, step - 1), tree(1, step - 1)))
        folder.write_forest("step", step, [group], lambda ids: "a" * len(ids))
    folder.write_summary({"steps": steps, "weights_version": steps, "ledger": {"leaves": 4 * steps}})
    return folder


def change(folder: RunFolder, step: int, **changes: object) -> None:
    """Writes a step's trees again, the first one with other fields."""
    from trainer.forest_file import read_forest

    records = read_forest(folder.forest_path("step", step))
    first = dataclasses.replace(records[0].tree, **changes)
    group = TaskGroup(task=records[0].task, trees=(first, records[1].tree))
    folder.write_forest("step", step, [group], lambda ids: "a" * len(ids))


def test_a_good_record_has_no_problems(tmp_path: Path) -> None:
    folder = run(tmp_path)
    assert problems(folder.path, SHAPE, 2) == []
    assert problems(folder.path, SHAPE, None) == []
    folder.forest_path("step", 2).unlink()
    assert problems(folder.path, SHAPE, None) == [], "a killed run may lack its last step's trees"
    assert problems(folder.path, SHAPE, 2) == ["the trees of step 2 are not on record"]


def test_a_lost_a_doubled_and_a_foreign_leaf_are_found(tmp_path: Path) -> None:
    folder = run(tmp_path)
    change(folder, 2, nodes=tree(0, 1, slots=(0,)).nodes)
    assert problems(folder.path, SHAPE, 2) == [
        "tree 0 of task q in step 2 has the leaves {0: 1} per branch, and not one of each of 2"
    ]
    change(folder, 2, nodes=tree(0, 1, slots=(0, 1, 1)).nodes)
    assert "has the leaves {0: 1, 1: 2} per branch" in problems(folder.path, SHAPE, 2)[0]
    change(folder, 2, nodes=tree(0, 0).nodes)
    assert problems(folder.path, SHAPE, 2)[0].endswith("was sampled by the versions [0] of the weights, and not by 1")
    change(folder, 2, nodes=tree(0, 1).nodes, index=1)
    assert problems(folder.path, SHAPE, 2) == ["step 2 has 2 trees, 1 different ones, and not 2"]


def test_what_is_collected_ahead_may_be_a_version_older_and_no_more(tmp_path: Path) -> None:
    ahead = dataclasses.replace(SHAPE, max_staleness=1)
    folder = run(tmp_path, steps=3)
    change(folder, 3, nodes=tree(0, 1).nodes)
    assert problems(folder.path, ahead, 3) == []
    change(folder, 3, nodes=tree(0, 0).nodes)
    assert problems(folder.path, ahead, 3)[0].endswith("by the versions [0] of the weights, and not by 1 or 2")
    change(folder, 3, nodes=tree(0, 2).nodes)
    folder.append_metrics(3, {"rollout/staleness_max": 2.0})
    assert problems(folder.path, ahead, 3) == ["step 3 trained tokens of age 2, more than 1"]


@pytest.mark.slow
def test_wandb_has_what_metrics_jsonl_has_also_over_two_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = RunFolder(tmp_path / "run")
    for first in (1, 3):
        tracker = Tracker(folder, {"steps": 4})
        for step in (first, first + 1, first + 2):
            values = {"learner/loss": 0.1 * step, "reward/mean": float("nan"), "push/version": float(step)}
            folder.append_metrics(step, values)
            tracker.log(step, values)
        tracker.finish()
    assert len(pieces(folder.path)) == 2
    assert {step: values["push/version"] for step, values in history(folder.path).items()} == {
        n: n for n in range(1, 6)
    }
    assert wandb_problems(folder.path) == []
    folder.append_metrics(5, {"push/version": 6.0})
    assert wandb_problems(folder.path) == ["W&B has push/version 5 in step 5, and metrics.jsonl 6.0"]
    for step in range(6, 11):
        folder.append_metrics(step, {"push/version": float(step)})
    assert wandb_problems(folder.path)[1:] == ["W&B lacks metrics of the steps [6, 7, 8, 9, 10]"]
    assert len(wandb_problems(folder.path, last=5)) == 1


def test_strikes_are_drawn_from_the_seed_and_none_twice() -> None:
    tasks = {step: [f"{step}/{place}" for place in range(12)] for step in (1, 2, 3)}
    plan = drawn(("env_raises", "env_hangs"), tasks, chance_of(1, "env"))
    assert plan == drawn(("env_raises", "env_hangs"), tasks, chance_of(1, "env"))
    assert plan.keys() != drawn(("env_raises", "env_hangs"), tasks, chance_of(2, "env")).keys()
    assert Counter(strike.fault for strike in plan.values()) == {"env_raises": 4, "env_hangs": 4}
    assert all(task.startswith(f"{strike.step}/") for task, strike in plan.items())
    assert {strike.turn for strike in plan.values()} == {0, 1}


async def test_every_second_branch_of_a_struck_task_is_struck_and_written_down(tmp_path: Path) -> None:
    class Searching:
        stop = ()

        async def step(self, state: SearchState, action: str, *, turns_left: int) -> tuple[SearchState, StepResult]:
            return state, StepResult(observation="found")

    file = tmp_path / "plan.json"
    write_plan(file, {"q": Strike(fault="env_not_utf8", step=1, turn=0, parity=0)})
    env = UnreliableEnv(Searching(), file, None)
    seen = []
    for task in ("q", "q", "other", "q", "q"):
        state = SearchState(task_id=task, truths=("x",))
        seen.append((await env.step(state, "?", turns_left=2))[1].observation)
    assert seen == ["found", BROKEN_TEXT, "found", "found", BROKEN_TEXT]
    later = SearchState(task_id="q", truths=("x",), searches=1)
    assert (await env.step(later, "?", turns_left=1))[1].observation == "found", "it was planned for the first search"
    assert struck(file) == {"q": 2}


def test_metrics_and_summary_must_agree_with_the_settings(tmp_path: Path) -> None:
    folder = run(tmp_path)
    assert problems(folder.path, SHAPE, 3) == ["the steps on record are [1, 2] and not 1 to 3"]
    folder.append_metrics(2, {"push/version": 1.0, "reward/leaves": 4.0})
    folder.write_summary({"steps": 2, "weights_version": 1, "ledger": {"leaves": 9}})
    assert problems(folder.path, SHAPE, 2) == [
        "step 2 has push/version 1.0 and not 2",
        "step 2 gave credit to 4 leaves, 1 had no reward, of 4",
        "the summary has (steps, weights version, leaves) (2, 1, 9) and not (2, 2, 8)",
    ]
    assert problems(tmp_path / "none", SHAPE, None) == ["the steps on record are [] and not 1 to 0"]


def test_every_wanted_fault_is_in_the_result_from_the_first_outcome_on(tmp_path: Path) -> None:
    class Done:
        is_running = True

    file = tmp_path / "out" / "chaos.json"
    runner = chaos.Runner(3, ["ctrl_c", "sigterm"], tmp_path, file)
    runner.attempt("ctrl_c", cast("Job", Done()), lambda _: "it ended")
    found = json.loads(file.read_text())["faults"]
    assert found["ctrl_c"] == {"ok": True, "detail": "it ended", "seconds": 0.0}
    assert found["sigterm"] == {"ok": False, "detail": "it was not injected", "seconds": 0.0}
    runner.fail(("ctrl_c",), "at the end of the scene: a process is left")
    assert json.loads(file.read_text())["faults"]["ctrl_c"]["ok"] is False
    assert len(set(chaos.FAULTS)) == len(chaos.FAULTS) == 30


def test_moments_depend_on_seed_and_fault_alone() -> None:
    assert chance_of(1, "sigterm").random() == chance_of(1, "sigterm").random()
    assert len({chance_of(seed, name).random() for seed in (1, 2) for name in ("sigterm", "ctrl_c")}) == 4


def test_roles() -> None:
    assert role("ray::RolloutActor.work") == "rollout actor"
    assert role("VLLM::EngineCore") == "engine core"
    assert role("/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=y") == "raylet"
    assert role("/x/wandb/bin/wandb-core --port-filename y") == "wandb"
    assert role("python -m y raylet/raylet") == "other"


def test_growth_is_that_of_the_last_tenth_over_the_one_after_the_warm_up() -> None:
    assert soak.growth([99.0] * 4 + [10.0] * 14 + [11.0] * 2) == pytest.approx(0.1)
    assert soak.growth([10.0] * 20) == 0
    assert soak.growth([5.0]) == 0
    assert soak.growth([100.0 + i for i in range(100)]) == pytest.approx(194.5 / 124.5 - 1)


def test_what_was_nothing_after_the_warm_up_grows_as_if_from_1_mib() -> None:
    assert soak.growth([0.0] * 20) == 0
    assert soak.growth([0.0] * 18 + [3.0] * 2) == 3
    assert soak.is_flat([0.0] * 18 + [3.0] * 2)
    assert not soak.is_flat([0.0] * 18 + [500.0] * 2)
    assert not soak.is_flat([0.0] * 9 + [500.0] * 11)


def test_the_slope_is_that_of_the_second_half() -> None:
    assert soak.slope([(0.0, 10.0), (4.0, 10.0), (8.0, 12.0), (12.0, 14.0)]) == pytest.approx(0.5)
    assert soak.slope([(0.0, 10.0)]) is None
    rising = [(float(i), 100.0 + i) for i in range(100)]
    found = soak.result({"driver": rising, "raylet": rising[:1]}, 300, 60.0)
    assert [found["processes"][name]["mib_per_1000_steps"] for name in ("driver", "raylet")] == [200.0, None], (
        "1 MiB per second at 5 steps per second"
    )
    assert "| driver | 149.5 | 199.0 | +200.0 | " in soak.page(found, "command")


def test_a_small_process_may_move_by_a_few_mib() -> None:
    assert soak.is_flat([10.0] * 10 + [13.0] * 10)
    assert not soak.is_flat([10.0] * 10 + [20.0] * 10)
    assert soak.is_flat([1000.0] * 10 + [1049.0] * 10)
    assert not soak.is_flat([1000.0] * 10 + [1051.0] * 10)


def test_samples_are_thinned_evenly_and_roles_that_came_late_are_not_judged() -> None:
    series = [(float(i), 1.0) for i in range(1000)]
    thin = soak.thinned(series)
    assert (len(thin), thin[0], thin[-1]) == (soak.POINTS, series[0], series[-1])
    assert soak.thinned(series[:7]) == series[:7]
    grown = [(float(i), 100.0 + i) for i in range(100)]
    found = soak.result({"driver": grown, "late": grown[:50], "other": grown}, 300, 60.0)
    assert (found["ok"], found["worst_growth"]) == (False, pytest.approx(194.5 / 124.5 - 1, abs=1e-4))
    assert {name: row["growth"] is None for name, row in found["processes"].items()} == {
        "driver": False, "late": True, "other": True,
    }  # fmt: skip
    assert "| late | 124.5 | 149.0 | +200.0 | not judged |" in soak.page(found, "command")


def test_memory_is_read_from_the_kernels_summary() -> None:
    text = "55d0-7ffc ---p 0 00:00 0   [rollup]\nRss: 9 kB\nPss_Anon:   2048 kB\nPss_Shmem:  1024 kB\n"
    assert soak.parsed(text) == soak.Memory(own=2.0, shared=1.0)
    assert soak.parsed("x\nRss: 9 kB\n") is None
