"""A run that an error ends after some steps: what it has learned is saved, and the same command goes on from there."""

from pathlib import Path

import pytest
from real_runs import Run, Watch

from trainer import checkpoint_manifest
from trainer.checkpoint import step_of, written
from trainer.checkpoint_resume import resumption
from trainer.compose import compose

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_last_finished_step_is_saved_when_the_scheduler_dies(tmp_path: Path) -> None:
    with Run(tmp_path, "r", "steps=9", "checkpoint.every=0") as run, Watch(run.process.pid) as watch:
        run.wait_for_step(2)
        (scheduler,) = watch.alive("ray::SchedulerProcess")
        scheduler.kill()
        said = run.finish(1)
    (path,) = written(run.folder / "checkpoints")
    assert f"step {step_of(path)} is saved; a run of this name goes on from there (resume=auto)" in said
    assert said.splitlines()[-1].startswith("The run stopped: failed while waiting for the tree scheduler to ")
    state = checkpoint_manifest.run_state(path, checkpoint_manifest.check(path))
    assert state["metrics"]["learner/optimizer_steps"] == 1.0, "they are those of the saved step"
    found = resumption(compose(["experiment=quickstart", f"runs_dir={tmp_path}", "name=r"]))
    assert found is not None
    assert (found.path, found.state.totals.step) == (path, step_of(path))
