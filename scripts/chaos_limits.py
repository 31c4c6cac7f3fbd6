"""One run with narrow bounds: an actor that blocks is replaced, and what lasts too long or fails too often ends it."""

from functools import partial

from scripts import chaos_faults as faults
from scripts import chaos_spoils as spoils
from scripts.chaos_audit import Shape
from scripts.chaos_job import Job
from scripts.chaos_retriever import MoodyRetriever
from scripts.chaos_stage import DATA, FOREVER, Scene, Stage, close

SHAPE = Shape(tasks=12, roots=3, branches=3)
ABORT_S = 120.0
MAX_SHARE = 0.05
BOUNDS = (
    f"rollout.actors={faults.ACTORS}", "rollout.turn_timeout_s=40", "scheduler.lease_timeout_s=50",
    "scheduler.max_attempts=20", "push.timeout_s=60", "scheduler.watchdog_s=60",
    f"scheduler.watchdog_abort_s={ABORT_S:g}", f"env.max_error_share={MAX_SHARE:g}", "env.max_tool_seconds=5",
)  # fmt: skip


def play(stage: Stage) -> None:
    """An environment that blocks, then two faults that end the run."""
    trigger = stage.folder / "trigger"
    with MoodyRetriever(DATA / "corpus.jsonl") as server:
        settings = [
            f"seed={stage.seed}", *BOUNDS, "env=custom", "~env.topk", "env.path=scripts.chaos_worlds.make_env",
            f"env.options.url='{server.url}'", f"env.options.trigger={trigger}",
            f"env.train_tasks={DATA / 'train.jsonl'}", f"env.eval_tasks={DATA / 'heldout.jsonl'}",
        ]  # fmt: skip
        with Job(stage.folder / "runs", "limits", stage.folder / "limits.txt", FOREVER, settings, shape=SHAPE) as job:
            stage.attempt("env_blocks", job, lambda chance: faults.env_blocks(job, chance, trigger))
            stage.attempt("actors_stand_still", job, partial(faults.actors_stand_still, job, abort_s=ABORT_S))
            stage.attempt("retriever_stays_down", job, partial(spoils.retriever_gone, job, server, max_share=MAX_SHARE))
            close(job)


SCENE = Scene(faults=("env_blocks", "actors_stand_still", "retriever_stays_down"), play=play)
