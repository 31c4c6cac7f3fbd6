"""A run that goes on from a checkpoint gives, bit for bit on a CPU, what the uninterrupted one gives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from real_runs import Run, metrics_of, repeatable, summary_of

from trainer import checkpoint_manifest
from trainer.checkpoint import folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SIX = ["steps=6", "checkpoint.every=3", "evaluation.tasks=8"]


def numbers(run: Path) -> dict[int, dict[str, float]]:
    """The repeatable metrics of every step."""
    from trainer.run_folder import read_metrics

    return {step: repeatable(metrics) for step, metrics in read_metrics(run / "metrics.jsonl").items()}


def saved(run: Path, step: int) -> tuple[dict[str, checkpoint_manifest.FileSum], dict[str, Any]]:
    """Sums of the learner's files, and the run's state."""
    path = folder(run / "checkpoints", step)
    manifest = checkpoint_manifest.check(path)
    files = {name: total for name, total in manifest.files.items() if name != manifest.run}
    return files, checkpoint_manifest.run_state(path, manifest)


def sampled(run: Path, step: int) -> list[tuple[str, int, list[tuple[int, ...]]]]:
    """Task, tree and sampled ids of the step's stored trees."""
    from trainer.forest_file import read_forest

    records = read_forest(run / "forest" / f"step-{step:06d}.jsonl")
    return [(record.task.id, record.tree.index, [node.token_ids for node in record.tree.nodes]) for record in records]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps at a stretch, with a checkpoint after the third that is written while the fourth goes on."""
    runs = tmp_path_factory.mktemp("runs")
    Run(runs, "straight", *SIX).finish()
    return runs / "straight"


@pytest.fixture(scope="module")
def resumed(straight: Path) -> Path:
    """A run of its own from that checkpoint; the newer one lies beside it, damaged."""
    run = straight.with_name("resumed")
    shutil.copytree(straight / "checkpoints", run / "checkpoints")
    shutil.copytree(straight / "wandb", run / "wandb", ignore=shutil.ignore_patterns("offline-run-*", "*latest*"))
    newest = folder(run / "checkpoints", 6)
    with (newest / "learner-00000-of-00001.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\xff\xff\xff")
    said = Run(straight.parent, "resumed", *SIX, "logger.forest_every=1").finish()
    assert f"checkpoint {newest} is damaged and passed over: the content of learner-00000-of-00001.safetensors" in said
    assert "after step 3" in said
    assert "changed settings" not in said
    return run


def test_weights_and_moments_are_the_same(straight: Path, resumed: Path) -> None:
    one, other = ((run / "export" / "model.safetensors").read_bytes() for run in (straight, resumed))
    assert one == other
    assert saved(straight, 6)[0] == saved(resumed, 6)[0]
    assert saved(straight, 3)[0] != saved(straight, 6)[0]


def test_metrics_are_the_same(straight: Path, resumed: Path) -> None:
    one, other = numbers(straight), numbers(resumed)
    assert sorted(one) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(other) == [3, 4, 5, 6]
    assert {step: other[step] for step in (4, 5, 6)} == {step: one[step] for step in (4, 5, 6)}
    assert "push/max_abs_logprob_diff" in other[3]
    assert other[3].items() <= one[3].items()  # the first push is the one that the third step ended with
    assert "learner/grad_norm" in one[4]


def test_tasks_and_samples_are_the_same(straight: Path, resumed: Path) -> None:
    for step in (4, 5, 6):
        assert sampled(straight, step) == sampled(resumed, step)
    assert saved(straight, 6)[1]["next_tasks"] == saved(resumed, 6)[1]["next_tasks"]
    tasks = {name for name, _, _ in sampled(straight, 4)}
    assert tasks <= set(saved(straight, 3)[1]["next_tasks"])


def test_totals_go_on(straight: Path, resumed: Path) -> None:
    one, other = summary_of(straight), summary_of(resumed)
    for key in ("steps", "weights_version", "eval", "parity", "staleness"):
        assert one[key] == other[key]
    for key in ("leaves", "trees", "sampled_tokens", "branches"):
        assert one["ledger"][key] == other["ledger"][key]
    before = saved(straight, 3)[1]["totals"]["seconds"]
    assert other["time_s"]["total"] > before["total"]
    for phase in ("collect", "learn"):
        own = sum(line.get(f"time/{phase}_s", 0.0) for line in metrics_of(resumed) if line["step"] > 3)
        assert other["time_s"][phase] == pytest.approx(before[phase] + own, abs=0.02)


def test_the_damaged_checkpoint_is_kept_apart(resumed: Path) -> None:
    assert [path.name for path in (resumed / "checkpoints").glob("step-*")] != []
    assert [path.name for path in (resumed / "checkpoints" / "abandoned").glob("*/*")] == ["step-000006"]


def test_a_contradiction_ends_the_run_before_it_starts(straight: Path) -> None:
    place = folder(straight / "checkpoints", 3)
    said = Run(straight.parent, "refused", *SIX, f"resume={place}", "model.dtype=bfloat16").finish(2)
    assert f"model.dtype=bfloat16 contradicts the checkpoint {place}, which was saved with model.dtype=float32" in said
    run = json.loads((straight / "summary.json").read_text())
    assert run["steps"] == 6
