"""A real run whose forests are collected ahead: under `push.mode` keep until Ctrl-C, then resumed under drain."""

import signal
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from real_runs import Run, Watch, costs_of, metrics_of, summary_of, until
from search_server import search

from rollout_workers.types import Tree
from trainer.checkpoint import step_of, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SETTINGS = [
    "max_staleness=1",
    "evaluation.tasks=8",
    "evaluation.every=2",
    "checkpoint.every=1",
    "logger.sample_trees=99",
]
LEAVES, TREES = 4 * 12, 4 * 4
SEARCH_S = 1.0
"""So long takes a search, whatever the machine: a push must come while branches are still growing."""


@pytest.fixture(scope="module")
def slow_search() -> Iterator[list[str]]:
    with search(lambda: time.sleep(SEARCH_S)) as settings:
        yield settings


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("overlap")


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics_of(folder) if "learner/loss" in line]


def trees_of(folder: Path, step: int) -> list[Tree]:
    from trainer.forest_file import read_forest

    return [record.tree for record in read_forest(folder / "forest" / f"step-{step:06d}.jsonl")]


def mixed(folder: Path) -> bool:
    return any(line["rollout/mixed_version_branches"] > 0 for line in steps_of(folder))


def check_step(folder: Path, line: dict[str, Any]) -> None:
    """All leaves are there and within the bound; engine and learner agree after the push, and on current tokens."""
    step = line["step"]
    assert (line["tree/leaves"], line["ledger/leaves"], line["tree/trees"]) == (LEAVES, LEAVES, TREES)
    assert (line["rollout/stale_leaves"], line["ledger/discarded_tokens"]) == (0, 0)
    assert line["rollout/ledger_mismatch"] == 0
    assert line["rollout/staleness_max"] <= 1
    assert line["push/version"] == step
    assert line["push/max_abs_logprob_diff"] < 0.02
    assert line["learner/mismatch_max_abs_logprob_diff"] < 1e-3
    assert line["overlap/wait_s"] >= 0
    costs = costs_of(folder, step)
    assert {name: line[f"ledger/{name}"] for name in costs} == pytest.approx(costs), "all branches belong to tasks"
    assert 0 < line["ledger/engine_busy_s"] <= line["overlap/collect_s"]
    trees = trees_of(folder, step)
    assert len(trees) == TREES
    versions = {version for tree in trees for node in tree.nodes for version in node.versions}
    assert versions <= {step - 2, step - 1}, "step k trains version k - 1"


def test_frozen_branches_go_on_and_ctrl_c_ends_both_threads(runs: Path, slow_search: list[str]) -> None:
    settings = ["steps=500", "push.mode=keep", *slow_search, *SETTINGS]
    with Run(runs, "ahead", *settings) as run, Watch(run.process.pid) as watch:
        run.wait_for_step(4)
        run.until(lambda: mixed(run.folder), 300)  # branches went on with new weights
        run.process.send_signal(signal.SIGINT)
        run.process.wait(300)
        assert run.process.returncode == 130, run.output
        assert run.output.rstrip().endswith("Interrupted.")
        until(lambda: not watch.alive("ray::RolloutActor", "ray::LearnerRank", "VLLM::"), 120)
    steps = steps_of(run.folder)
    assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
    for line in steps[:-1]:  # of the last one Ctrl-C may have come between its metrics and its trees
        check_step(run.folder, line)
    assert steps[0]["rollout/staleness_max"] == 0
    assert any(line["rollout/staleness_mean"] > 0 for line in steps), "collection ran ahead"
    assert [line["step"] for line in metrics_of(run.folder) if "eval/success" in line][:3] == [0, 2, 4]


def test_a_resumed_run_collects_anew_and_no_branch_has_two_versions_under_drain(
    runs: Path, slow_search: list[str]
) -> None:
    before = step_of(written(runs / "ahead" / "checkpoints")[-1])
    with Run(runs, "ahead", f"steps={before + 4}", "push.mode=drain", *slow_search, *SETTINGS) as run:
        output = run.finish()
    assert "ActorDiedError" not in output
    assert f"after step {before}" in output
    steps = steps_of(run.folder)[-4:]
    assert [line["step"] for line in steps] == [before + i for i in range(1, 5)]
    assert steps[0]["rollout/staleness_max"] == 0, "the first forest after the restart has the restored version"
    for line in steps:
        check_step(run.folder, line)
        assert line["push/drained"] == 1
        for tree in trees_of(run.folder, line["step"]):
            for _, nodes in groupby(tree.nodes[1:], key=lambda node: node.slot):
                assert len({version for node in nodes for version in node.versions}) == 1
    assert summary_of(run.folder)["staleness"] == {"max": 1.0, "dropped_leaves": 0.0}
    assert summary_of(run.folder)["weights_version"] == before + 4
