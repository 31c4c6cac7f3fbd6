"""Runs of other kinds than the quickstart: one that collects ahead of learning, and one whose policy is typed."""

import contextlib
import json
import random

from scripts import chaos_faults as faults
from scripts.chaos_audit import Shape
from scripts.chaos_job import SHAPE, Job, claim
from scripts.chaos_stage import FOREVER, Scene, Stage, close
from scripts.chaos_wandb import STEPS_AFTER
from scripts.chaos_wandb_server import WandbServer

AHEAD = Shape(tasks=4, roots=2, branches=3, max_staleness=1)
UNFINISHED = "warning: Weights & Biases did not take everything: "
TICKETS = ("Where is {}?", "May I give {} back?", "{} has not come.")
ORDERS = {"A17": ("on_its_way", "none"), "A18": ("done", "return"), "A19": ("done", "none")}
"""Of conf/decision/orders.yaml, with the right answers of its two other nodes."""


def ahead(stage: Stage) -> None:
    """Forests are collected one version ahead, with W&B online: a lost actor, a W&B that falls silent, SIGTERM."""
    with contextlib.ExitStack() as stack:
        settings, environment = [f"seed={stage.seed}", "max_staleness=1", f"rollout.actors={faults.ACTORS}"], {}
        server = stack.enter_context(WandbServer()) if stage.wants("wandb_falls_silent") else None
        if server is not None:
            settings += ["logger.mode=online", "logger.timeout_s=15"]
            environment = server.environment
        runs, log = stage.folder / "runs", stage.folder / "ahead.txt"
        job = stack.enter_context(Job(runs, "ahead", log, FOREVER, settings, environment, AHEAD))
        stage.attempt("overlapped_actor_killed", job, lambda rng: faults.actor_lost(job, rng, "ray::RolloutActor"))
        if server is not None:
            stage.attempt("wandb_falls_silent", job, lambda rng: falls_silent(job, server, rng))
        stage.attempt("overlapped_sigterm", job, lambda chance: faults.sigterm(job, chance))
        close(job)
        claim(server is None or UNFINISHED in job.output, "nothing was said about what W&B had not taken at the end")


def falls_silent(job: Job, server: WandbServer, chance: random.Random) -> str:
    """W&B answers no more: steps go on; at the end W&B is waited for as long as promised, and a warning says so."""
    when = job.moment(chance)
    claim(server.asked, "W&B was not asked for anything")
    server.fall_silent()
    job.wait_for_step(job.step + STEPS_AFTER)
    return f"after {server.asked} answers silent from {when} on; {STEPS_AFTER} steps were trained meanwhile"


def typed(stage: Stage) -> None:
    """A typed policy that loses a rollout actor."""
    tasks = stage.folder / "orders.jsonl"
    tasks.write_text("".join(map(_line, range(len(ORDERS) * len(TICKETS)))), encoding="utf-8")
    settings = [
        f"seed={stage.seed}", f"rollout.actors={faults.ACTORS}", "env=decision", "~env.topk", "decision=orders",
        f"env.train_tasks={tasks}", f"env.eval_tasks={tasks}",
    ]  # fmt: skip
    with Job(stage.folder / "runs", "typed", stage.folder / "typed.txt", FOREVER, settings, shape=SHAPE) as job:
        stage.attempt("typed_actor_killed", job, lambda rng: faults.actor_lost(job, rng, "ray::RolloutActor"))
        close(job)


def _line(number: int) -> str:
    order, place = list(ORDERS)[number % len(ORDERS)], number // len(ORDERS)
    delivery, offer = ORDERS[order]
    expected = {"order": {"order": order}, "shipping": {"delivery": delivery}, "after_sales": {"offer": offer}}
    task = {"id": f"{order}-{place}", "prompt": TICKETS[place].format(order), "truth": [order]}
    return json.dumps(task | {"meta": {"expected": expected}}) + "\n"


SCENE_AHEAD = Scene(faults=("overlapped_actor_killed", "wandb_falls_silent", "overlapped_sigterm"), play=ahead)
SCENE_TYPED = Scene(faults=("typed_actor_killed",), play=typed)
