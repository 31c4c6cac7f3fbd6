"""Which faults are done to one run, and in which order; every start of a run takes a minute.

A scene has faults that a run survives, one after the other, and then some that end it, each followed by the same
command again. At its end the record of the whole run is checked: see `scripts/chaos_audit.py`.
"""

import contextlib
from functools import partial

from envs.tasks import load_tasks
from scripts import chaos_faults as faults
from scripts import chaos_limits, chaos_policies, chaos_submitted, chaos_wandb
from scripts import chaos_spoils as spoils
from scripts.chaos_audit import Shape
from scripts.chaos_engine import install
from scripts.chaos_job import Failed, Job
from scripts.chaos_places import SmallRay, full, read_only, small_disk
from scripts.chaos_retriever import MoodyRetriever
from scripts.chaos_stage import DATA, FOREVER, Scene, Stage, chance_of, close
from scripts.chaos_worlds import drawn, write_plan
from trainer.task_order import tasks_of_step

ENV_FAULTS = ("env_raises", "env_hangs", "env_junk", "env_huge_text", "env_not_utf8")
RETRIEVER_FAULTS = ("retriever_down", "retriever_slow", "retriever_500", "retriever_invalid_json")
WORLD = Shape(tasks=12, roots=2, branches=2)
STRUCK_STEPS = range(1, 7)
"""The environment misbehaves in some of these; which, and for which tasks, is drawn."""


def world(stage: Stage) -> None:
    """Environments and retrievers that misbehave; then SIGTERM."""
    tasks = load_tasks(DATA / "train.jsonl")
    of_step = {step: [task.id for task in tasks_of_step(tasks, step, WORLD.tasks, stage.seed)] for step in STRUCK_STEPS}
    planned = drawn(ENV_FAULTS, of_step, chance_of(stage.seed, "env"))
    plan = {task: strike for task, strike in planned.items() if stage.wants(strike.fault)}
    file = stage.folder / "plan.json"
    write_plan(file, plan)
    with MoodyRetriever(DATA / "corpus.jsonl") as server:
        settings = [
            f"seed={stage.seed}", "env=custom", "~env.topk", "env.path=scripts.chaos_worlds.make_env",
            f"env.options.url='{server.url}'", f"env.options.plan={file}", f"env.train_tasks={DATA / 'train.jsonl'}",
            f"env.eval_tasks={DATA / 'heldout.jsonl'}", "env.max_tool_seconds=5",
        ]  # fmt: skip
        with Job(stage.folder / "runs", "world", stage.folder / "world.txt", 30, settings, shape=WORLD) as job:
            for name in sorted(ENV_FAULTS, key=partial(spoils.last_step, plan)):
                stage.attempt(name, job, partial(spoils.env_fault, job, plan, file, name))
            for name in RETRIEVER_FAULTS:
                stage.attempt(name, job, partial(spoils.retriever_fault, job, server, name))
            stage.attempt("sigterm", job, lambda chance: faults.sigterm(job, chance))
            close(job)
            spoils.healthy(job, plan, [*STRUCK_STEPS, job.step] if plan else [job.step])


def actors(stage: Stage) -> None:
    """Rollout actors and engines that die, while W&B does not answer; then Ctrl-C."""
    (stage.folder / "plugin").mkdir()
    trigger, environment = install(stage.folder / "plugin")
    with contextlib.ExitStack() as stack:
        settings = [f"seed={stage.seed}", f"rollout.actors={faults.ACTORS}"]
        if stage.wants("wandb_unreachable"):
            port = stack.enter_context(chaos_wandb.silent_port())
            environment |= {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_API_KEY": "0" * 40}
            environment |= {"WANDB_MODE": "online"}
            settings += ["logger.mode=online", "logger.timeout_s=15"]
        runs, log = stage.folder / "runs", stage.folder / "actors.txt"
        job = stack.enter_context(Job(runs, "actors", log, FOREVER, settings, environment))
        stage.attempt("wandb_unreachable", job, lambda _: chaos_wandb.unreachable(job))
        stage.attempt("rollout_actor_killed", job, lambda rng: faults.actor_lost(job, rng, "ray::RolloutActor"))
        stage.attempt("engine_killed", job, lambda rng: faults.actor_lost(job, rng, "VLLM::EngineCore"))
        stage.attempt("engine_raises", job, lambda rng: faults.engine_raises(job, rng, trigger))
        stage.attempt("wandb_dies", job, partial(chaos_wandb.dies, job))
        stage.attempt("ctrl_c", job, lambda chance: faults.ctrl_c(job, chance))
        close(job)


def processes(stage: Stage) -> None:
    """Processes without which a run cannot go on: it ends, and the same command goes on."""
    settings = [f"seed={stage.seed}", "learner.ranks=2"]
    with Job(stage.folder / "runs", "processes", stage.folder / "processes.txt", 12, settings) as job:
        stage.attempt(
            "scheduler_killed", job, lambda rng: faults.ends(job, rng, "ray::SchedulerProcess", "tree scheduler")
        )
        stage.attempt(
            "learner_rank_killed", job, lambda rng: faults.ends(job, rng, "ray::LearnerRank", r"learner rank \d")
        )
        stage.attempt("driver_killed_and_resubmitted", job, lambda chance: faults.driver_killed(job, chance))
        close(job)


def places(stage: Stage) -> None:
    """A disk that is full, or read-only, when checkpoints are written; a full object store."""
    with contextlib.ExitStack() as stack:
        disk, of_disk = stage.folder / "disk", ("checkpoint_disk_full", "checkpoint_read_only")
        if stage.wants(*of_disk):
            try:
                stack.enter_context(small_disk(disk))
            except Failed as why:
                stage.fail(of_disk, str(why))
        cluster = stack.enter_context(SmallRay())
        runs, log, settings = disk / "runs", stage.folder / "places.txt", [f"seed={stage.seed}"]
        job = Job(runs, "places", log, 24, settings, cluster.environment, cluster="any")
        saved = job.folder / "checkpoints"
        with job:
            stage.attempt(
                of_disk[0], job, lambda rng: spoils.checkpoint_fault(job, rng, full(disk), "No space left on device")
            )
            stage.attempt(
                of_disk[1], job, lambda rng: spoils.checkpoint_fault(job, rng, read_only(saved), "Read-only file")
            )
            stage.attempt("object_store_full", job, lambda rng: spoils.store_full(job, rng, cluster))
            close(job)
        cluster.check_empty()


SCENES = {
    "world": Scene(faults=(*ENV_FAULTS, *RETRIEVER_FAULTS, "sigterm"), play=world),
    "actors": Scene(
        faults=("wandb_unreachable", "rollout_actor_killed", "engine_killed", "engine_raises", "wandb_dies", "ctrl_c"),
        play=actors,
    ),
    "processes": Scene(
        faults=("scheduler_killed", "learner_rank_killed", "driver_killed_and_resubmitted"), play=processes
    ),
    "places": Scene(faults=("checkpoint_disk_full", "checkpoint_read_only", "object_store_full"), play=places),
    "submitted": chaos_submitted.SCENE,
    "limits": chaos_limits.SCENE,
    "ahead": chaos_policies.SCENE_AHEAD,
    "typed": chaos_policies.SCENE_TYPED,
}
