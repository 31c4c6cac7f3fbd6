"""Real runs on the tiny model: through `ray job submit`, on several ranks and actors, and with an actor killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_runs import ROOT, SMALL, Run, Watch, metrics_of, repeatable, summary_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three training steps, launched as a newcomer does."""
    runs = tmp_path_factory.mktemp("runs")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        ["scripts/quickstart.sh", "steps=3", "name=three", f"runs_dir={runs}", "checkpoint.every=2", *SMALL],
        cwd=ROOT, env=environment, text=True, capture_output=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held-out success" in done.stdout
    return runs / "three"


def test_three_steps_through_ray_job_submit(quickstart: Path) -> None:
    summary = summary_of(quickstart)
    assert (summary["steps"], summary["weights_version"]) == (3, 3)
    assert summary["eval"]["before"]["n"] == summary["eval"]["after"]["n"] == 12
    assert summary["parity"]["max_abs_logprob_diff"] < 0.02
    ledger = summary["ledger"]
    assert (ledger["leaves"], ledger["trees"]) == (3 * 4 * 12, 3 * 4 * 4)
    assert ledger["prefill_tokens_cached"] > 0
    assert ledger["sampled_tokens"] > 0
    steps = [line for line in metrics_of(quickstart) if "learner/loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert [line["push/version"] for line in steps] == [1.0, 2.0, 3.0]
    assert all(line["learner/grad_norm"] > 0 for line in steps)
    assert all(line["rollout/ledger_mismatch"] == 0 for line in steps)
    assert all(line["learner/mismatch_max_abs_logprob_diff"] < 1e-3 for line in steps)


def test_the_run_folder_is_complete(quickstart: Path) -> None:
    from trainer.forest_file import read_forest

    records = read_forest(quickstart / "forest" / "step-000003.jsonl")
    assert records
    for record in records:
        nodes = record.tree.nodes
        assert all(version == 2 for node in nodes for version in node.versions), "step 3 samples from version 2"
        assert all(len(node.token_ids) == len(node.logprobs) for node in nodes)
    names = {path.name for path in (quickstart / "checkpoints").iterdir()}
    assert names == {"step-000002", "step-000003"}
    assert list((quickstart / "wandb").glob("offline-run-*"))
    assert "<html" in (quickstart / "report.html").read_text()[:2000]
    assert (quickstart / "config.yaml").is_file()


def test_the_export_loads_and_evaluates(quickstart: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(quickstart / "export")
    assert model.config.vocab_size >= len(AutoTokenizer.from_pretrained(quickstart / "export"))
    done = subprocess.run(
        [sys.executable, "-m", "trainer.evaluate", str(quickstart), "cluster.address=local", "--samples", "2"],
        cwd=ROOT, text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["success"] == pytest.approx(summary_of(quickstart)["eval"]["after"]["success"], abs=0.1)
    assert 0.0 <= result["pass@1"] <= result["pass@2"] <= 1.0


def test_a_seed_fixes_a_run(quickstart: Path, tmp_path: Path) -> None:
    """The same three steps without `ray job submit`: all numbers but times and loads are the same, bit for bit."""
    Run(tmp_path, "again", "steps=3", "checkpoint.every=2").finish()

    def numbers(folder: Path) -> list[dict[str, float]]:
        return [repeatable(line) for line in metrics_of(folder) if line["step"] <= 3]

    assert numbers(tmp_path / "again") == numbers(quickstart)


def test_a_resumed_run_goes_on_from_its_checkpoint(quickstart: Path) -> None:
    before = metrics_of(quickstart)
    run = Run(quickstart.parent, "three", "steps=4", "checkpoint.every=2")
    assert "resumed from" in run.finish()
    assert summary_of(quickstart)["steps"] == 4
    assert metrics_of(quickstart)[: len(before)] == before
    last = [line for line in metrics_of(quickstart) if "learner/loss" in line][-1]
    assert (last["step"], last["push/version"]) == (4, 4.0)


def test_ranks_stage_3_and_two_actors_train_and_survive_a_killed_actor(tmp_path: Path) -> None:
    shape = ["tree.roots=4", "tree.nodes_per_round=3", "tree.rounds=2", "learner.zero_stage=3", "learner.ranks=2"]
    with Run(tmp_path, "wide", "steps=3", *shape, "rollout.actors=2") as run, Watch(run.process.pid) as watch:
        run.wait_for_step(1)  # so that a collection or a push is going on
        first, _ = watch.alive("ray::RolloutActor")
        first.kill()
        output = run.finish()
    summary = summary_of(tmp_path / "wide")
    assert "died" in output
    assert summary["rollout_actors_replaced"] >= 1
    assert (summary["steps"], summary["ledger"]["leaves"]) == (3, 3 * 4 * 4 * 7)
    assert summary["parity"]["max_abs_logprob_diff"] < 0.02
