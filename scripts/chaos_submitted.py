"""A job on a cluster that lives on: its driver is killed under `ray job submit`, and the job is submitted again."""

import json
import random
import sys
from pathlib import Path

from scripts import chaos_faults as faults
from scripts.chaos_job import ROOT, Job, claim
from scripts.chaos_places import SmallRay
from scripts.chaos_stage import DATA, Scene, Stage, close
from scripts.processes import command_of

STEPS = 8


def play(stage: Stage) -> None:
    """A cluster, and on it a job that goes to its end at the second try."""
    with SmallRay(has_dashboard=True) as cluster:
        job = submitted(stage, cluster)
        with job:
            stage.attempt("submitted_driver_killed", job, lambda chance: driver_killed(job, cluster, chance))
            close(job)
        cluster.check_empty()


def submitted(stage: Stage, cluster: SmallRay) -> Job:
    """`ray job submit` shows the job's output and ends with 1 if the job fails, whatever with."""
    settings = [
        f"seed={stage.seed}", f"model.path={ROOT / 'conf' / 'model' / 'tiny'}",
        f"env.train_tasks={DATA / 'train.jsonl'}", f"env.eval_tasks={DATA / 'heldout.jsonl'}",
        f"env.retriever.corpus={DATA / 'corpus.jsonl'}",
    ]  # fmt: skip
    environment = {"env_vars": {"WANDB_MODE": "offline", "PYTHONUNBUFFERED": "1"}}
    command = [
        str(Path(sys.executable).parent / "ray"), "job", "submit", "--runtime-env-json",
        json.dumps(environment), "--", sys.executable, "-m", "trainer.main",
    ]  # fmt: skip
    runs, log, here = stage.folder / "runs", stage.folder / "submitted.txt", {"RAY_ADDRESS": cluster.dashboard}
    return Job(runs, "submitted", log, STEPS, settings, cluster.environment | here, cluster="any", command=command)


def driver_killed(job: Job, cluster: SmallRay, chance: random.Random) -> str:
    """Kills the driver: nothing of the run may be left in the cluster, and submitted again the job must go on."""
    when = job.moment(chance)
    drivers = [process for process in cluster.family.alive(sys.executable) if "-m trainer.main" in command_of(process)]
    claim(len(drivers) == 1, f"{len(drivers)} drivers run in the cluster")
    drivers[0].kill()
    job.end(1)
    cluster.check_empty()
    return f"killed {when}, nothing of it left in the cluster; {faults.resubmitted(job)}"


SCENE = Scene(faults=("submitted_driver_killed",), play=play)
