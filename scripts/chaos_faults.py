"""The faults that end or cost processes, each as: do it at a random moment, then see whether the run does as promised.

A function returns what happened in words and raises Failed. What is promised: docs/faults.md.
"""

import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

from scripts.chaos_job import ORPHAN_S, STEP_S, Job, claim
from scripts.processes import until
from trainer.checkpoint import step_of, written

ACTORS = 2
"""Rollout actors of the run that loses some."""


def actor_lost(job: Job, chance: random.Random, title: str) -> str:
    """Kills a rollout actor or its engine: another one must take its place, and its branches must not be lost."""
    when = job.moment(chance)
    return _replaced(job, f"killed {when}", lambda: job.kill(title, chance=chance))


def engine_raises(job: Job, chance: random.Random, trigger: Path) -> str:
    """Makes an engine raise in its model's forward pass; as if it had died."""
    when = job.moment(chance)

    def raise_once() -> None:
        trigger.touch()
        job.wait(lambda: not trigger.exists(), "an engine that meets the fault", STEP_S)

    return _replaced(job, f"raised {when}", raise_once)


def env_blocks(job: Job, chance: random.Random, trigger: Path) -> str:
    """Makes an environment stop its actor: others must take its branches over, and the next push must replace it."""
    when, where = job.moment(chance), chance.choice(("reset", "step"))

    def block() -> None:
        trigger.write_text(where, encoding="utf-8")
        job.wait(lambda: not trigger.exists(), f"a {where} that blocks", STEP_S)

    before = job.counted("ledger/branches_requeued")
    said = _replaced(job, f"a {where} blocked {when}", block)
    claim(job.counted("ledger/branches_requeued") > before, "ledger/branches_requeued did not rise")
    claim(re.search("pushing weights version .* failed .*push.timeout_s", job.said), "no push said that it failed")
    return said


def _replaced(job: Job, what: str, harm: Callable[[], object]) -> str:
    lost = re.compile(r"rollout actor (\S+) died \((.+)\): (\d+) branches queued again, (\S+) starts in its place")
    before = len(lost.findall(job.said))
    counted, requeued = job.newest("rollout/actors_replaced"), job.counted("ledger/branches_requeued")
    harm()
    job.wait(lambda: len(lost.findall(job.said)) > before, "a replacement", STEP_S)
    counted_by = job.step + job.shape.max_staleness  # the steps before were collected when nothing had happened
    job.wait(lambda: job.step > counted_by and job.newest("push/actors") == ACTORS, f"a push to {ACTORS} engines")
    heard = lost.findall(job.said)[before:]
    replaced = job.newest("rollout/actors_replaced") - counted
    claim(replaced == len(heard), f"rollout/actors_replaced rose by {replaced:g}, and {len(heard)} were replaced")
    queued = sum(int(branches) for _, _, branches, _ in heard)
    again = job.counted("ledger/branches_requeued") - requeued
    claim(again >= queued, f"ledger/branches_requeued rose by {again:g}, and {queued} were queued again")
    is_right = until(lambda: len(job.family.alive("VLLM::EngineCore")) == ACTORS, ORPHAN_S)
    claim(is_right, f"{len(job.family.alive('VLLM::EngineCore'))} engines run and not {ACTORS}")
    names, cause, fresh = ", ".join(name for name, *_ in heard), heard[0][1], ", ".join(name for *_, name in heard)
    return f"{what}: {names} died ({cause[:80]}), {queued} branches queued again, {fresh} joined by step {job.step}"


def ends(job: Job, chance: random.Random, title: str, said: str) -> str:
    """Kills a process that a run cannot do without: it must end with code 1 and a sentence, and go on when started."""
    when = job.moment(chance)
    job.kill(title, chance=chance)
    sentence = stopped(job, said)
    return f"killed {when}, exit code 1 ({sentence[:140]}); {resubmitted(job)}"


def stopped(job: Job, said: str) -> str:
    """Waits until the run ends by itself; its one sentence about that. Raises Failed if `said` is not found in it."""
    job.end(1)
    sentences = [line for line in job.said.splitlines() if line.startswith("The run stopped: ")]
    claim(len(sentences) == 1, f"{len(sentences)} sentences say why the run stopped")
    claim(re.search(said, sentences[0]), f"the sentence does not say why it stopped: {sentences[0]}")
    claim("Traceback (most" not in job.said, "a traceback is among what the run said")
    return sentences[0]


def actors_stand_still(job: Job, chance: random.Random, abort_s: float) -> str:
    """Stops all rollout actors in the middle of a collection: a warning, then the end, and no process left."""
    when = job.moment(chance, collecting=True)
    actors = job.family.alive("ray::RolloutActor")
    claim(len(actors) == ACTORS, f"{len(actors)} rollout actors run and not {ACTORS}")
    for actor in actors:
        actor.suspend()
    sentence = stopped(
        job, rf"no branch finished for \d+ s, more than scheduler\.watchdog_abort_s={abort_s:g}: .* holds "
    )
    claim("WARNING no branch finished for " in job.said, "there was no warning before")
    return f"stopped {when}, a warning, exit code 1 ({sentence[:140]})"


def driver_killed(job: Job, chance: random.Random) -> str:
    """Kills the driver: everything that it started must end too, and the same command must go on."""
    when = job.moment(chance)
    job.process.kill()
    job.end(-signal.SIGKILL)
    return f"killed {when}; {resubmitted(job)}"


def sigterm(job: Job, chance: random.Random) -> str:
    """The newest finished step must be saved, with exit code 0, and the same command must go on after it."""
    when = job.moment(chance)
    job.send(signal.SIGTERM)
    job.end(0)
    claim(job.said.rstrip().endswith("Stopped by SIGTERM."), f"its last line is {job.last_line}")
    saved = saved_step(job)
    claim(saved == job.step, f"step {job.step} was the last one, and step {saved} is saved")
    return f"sent {when}, step {saved} saved, exit code 0; {resubmitted(job)}"


def ctrl_c(job: Job, chance: random.Random) -> str:
    """As from a terminal: everything must end, with exit code 130."""
    when = job.moment(chance)
    job.send(signal.SIGINT, to_group=True)
    job.end(130)
    claim(job.last_line == "Interrupted.", f"its last line is {job.last_line}")
    return f"sent to the process group {when}, exit code 130, nothing left"


def saved_step(job: Job) -> int:
    """The step of the newest checkpoint, 0 without any."""
    return max(map(step_of, written(job.folder / "checkpoints")), default=0)


def resubmitted(job: Job) -> str:
    """Starts the same command again; says where it went on. Raises Failed unless that is the newest checkpoint."""
    saved, known, before = saved_step(job), job.step, job.newest("system/resumes")
    claim(known - saved <= 1, f"step {known} was on record and step {saved} was the newest checkpoint")
    job.start()
    wanted = f"after step {saved}" if saved else "run folder"
    job.wait(lambda: wanted in job.said, f"the words {wanted!r}")
    job.wait_for_step(known + 1)
    resumes = job.newest("system/resumes") - before
    claim(resumes == bool(saved), f"system/resumes rose by {resumes:g}")
    return f"the same command went on after step {saved}"
