"""What scenes are made of: a run, what is done to it, and how it is looked at in the end."""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollout_workers.seeds import derive_seed
from scripts.chaos_job import ROOT, START_S, Job

DATA = ROOT / "data" / "quickstart"
FOREVER = 1000
"""Steps of a run that is ended from outside."""


class Stage(Protocol):
    """What a scene needs of the script."""

    folder: Path
    seed: int

    def wants(self, *names: str) -> bool:
        """Whether one of these faults is to be done."""
        ...

    def attempt(self, name: str, job: Job, fault: Callable[[random.Random], str]) -> None:
        """Does a fault if it is wanted, and keeps what came of it; a run that is gone is started again before."""
        ...

    def fail(self, names: tuple[str, ...], why: str) -> None:
        """None of these faults could be done, or what they left is wrong."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One run and what is done to it."""

    faults: tuple[str, ...]
    play: Callable[[Stage], None]


def close(job: Job) -> None:
    """Lets the run come to its end, or ends it as a cluster would, and checks its record."""
    if not job.is_running:
        job.audit()
    elif job.steps < FOREVER:
        job.end(0, START_S)
        job.audit(job.steps)
    else:
        job.send(signal.SIGTERM)
        job.end(0)
        job.audit()


def chance_of(seed: int, fault: str) -> random.Random:
    """Draws the moments of a fault; the same for a seed, whatever else is done."""
    return random.Random(derive_seed(seed, "chaos", fault))
