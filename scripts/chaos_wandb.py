"""W&B that cannot be reached, or dies, while a run goes on."""

import contextlib
import random
import socket
from collections.abc import Iterator

from scripts.chaos_job import Job, claim
from scripts.processes import command_of, role

STEPS_AFTER = 2
"""So many more steps show that training goes on."""


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(128)
        yield int(silent.getsockname()[1])


def unreachable(job: Job) -> str:
    """W&B does not answer from the start: a warning, and everything is kept for later."""
    job.wait_for_step(1)
    warnings = [line for line in job.said.splitlines() if line.startswith("warning: Weights & Biases could not start")]
    claim(len(warnings) == 1, f"{len(warnings)} warnings say that W&B could not start")
    claim(list((job.folder / "wandb").glob("offline-run-*")), "no offline run was begun in its place")
    claim(job.newest("system/tracking_failed") == 1, "system/tracking_failed is not 1")
    return f"{warnings[0][9:100]}; an offline run was begun, and steps were trained"


def dies(job: Job, chance: random.Random) -> str:
    """W&B's own process is killed: one warning, and everything goes on without it."""
    when, before = job.moment(chance), job.newest("system/tracking_failed")
    services = [process for process in job.family.alive() if role(command_of(process)) == "wandb"]
    claim(services, "the run has no process of W&B")
    job.tracked_to = job.step
    for process in services:
        process.kill()
    step = job.step
    job.wait_for_step(step + STEPS_AFTER)
    warnings = [line for line in job.said.splitlines() if line.startswith("warning: Weights & Biases logging")]
    claim(len(warnings) == 1, f"{len(warnings)} warnings say that W&B takes no more metrics")
    claim(job.newest("system/tracking_failed") == before + 1, "system/tracking_failed did not rise by 1")
    return f"killed {when}: {warnings[0][9:90]}; {STEPS_AFTER} steps were trained without it"
