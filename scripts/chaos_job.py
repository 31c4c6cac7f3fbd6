"""One training job as a process that things are done to: start it, wait for a moment, see how it ended."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from scripts.chaos_audit import Shape, problems, trained
from scripts.chaos_history import wandb_problems
from scripts.processes import Family, until

ROOT = Path(__file__).resolve().parent.parent
START_S = 1800.0
"""Longest wait for a started job's next step; on a quiet machine it takes a minute."""
STEP_S = 900.0
ORPHAN_S = 90.0
"""So long after the job's end its processes may still be there."""
SHAPE = Shape(tasks=4, roots=2, branches=3)
SMALL = (
    "experiment=quickstart", "tree.rounds=1", "tree.branches_per_node=1", "evaluation.tasks=4",
    "evaluation.every=0", "checkpoint.every=1", "logger.sample_trees=100000", "learner.threads=1",
    "scheduler.poll_s=0.2", "env.max_error_share=1", "rollout.max_branches=64", "rollout.start_timeout_s=1800",
    "learner.start_timeout_s=1800",
)  # fmt: skip

COMMAND = (sys.executable, "-m", "trainer.main")
START_TRIES = 3
NO_RAY = "did not start in time, as on a machine with too much to do"
"""A private Ray that could not start: nothing that the run could help, so it is started again."""


class Failed(Exception):
    """Something was not as promised; the text is a sentence about it."""


def claim(condition: object, sentence: str) -> None:
    """Raises Failed with the sentence unless the condition holds."""
    if not condition:
        raise Failed(sentence)


class Job:
    """A run of its own, started as often as needed with the same command. Use as a context manager, which ends it."""

    def __init__(
        self,
        runs: Path,
        name: str,
        log: Path,
        steps: int,
        settings: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        shape: Shape = SHAPE,
        cluster: str = "local",
        command: Sequence[str] = COMMAND,
    ) -> None:
        """Its folder is `runs`/`name`, what it says goes into `log`; `command` takes the settings."""
        self.folder = runs / name
        self.steps = steps
        self.shape = shape
        self.log = log
        self.tracked_to: int | None = None
        """The last step that W&B has; None: all of them."""
        self._command = [
            *command, *SMALL, f"cluster={cluster}", f"runs_dir={runs}", f"name={name}",
            f"steps={steps}", f"tasks_per_step={shape.tasks}", f"tree.roots={shape.roots}",
            f"tree.nodes_per_round={shape.branches - 1}", *settings,
        ]  # fmt: skip
        more = dict(environment or {})
        path = os.pathsep.join(filter(None, (str(ROOT), more.pop("PYTHONPATH", ""))))
        self._environment = os.environ | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"} | more | {"PYTHONPATH": path}
        self._stack = contextlib.ExitStack()

    def start(self) -> None:
        """Starts the job, or the same job again."""
        self._stack.close()
        self._heard = len(self.output)
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C of a terminal goes to the whole group
                # Where the script runs in the background, Ctrl-C is ignored, and so it would be here.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.family = self._stack.enter_context(Family(self.process.pid))
        self._stack.callback(self._kill)

    def _kill(self) -> None:
        """Ends what is left of it."""
        for process in [self.process, *self.family.alive()]:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.kill()
        self.process.wait()

    def __enter__(self) -> "Job":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def output(self) -> str:
        """Everything that the job said, from its first start on."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    @property
    def said(self) -> str:
        """What it said since it was started last."""
        return self.output[self._heard :]

    @property
    def is_running(self) -> bool:
        """Whether its driver is there."""
        return self.process.poll() is None

    @property
    def step(self) -> int:
        """The newest step on record."""
        return max(trained(self.folder), default=0)

    def wait(self, condition: Callable[[], object], what: str, seconds: float = START_S, look_s: float = 0.1) -> None:
        """Waits while the job runs. Raises Failed if it ends, or after so many seconds."""
        until(lambda: condition() or not self.is_running, seconds, look_s)
        for _ in range(START_TRIES):
            if self.is_running or NO_RAY not in self.said:
                break
            self.start()
            until(lambda: condition() or not self.is_running, seconds, look_s)
        if condition():
            return
        state = "does not come" if self.is_running else f"did not come before the run ended ({self.process.returncode})"
        raise Failed(f"{what} {state}; the run's last line: {self.last_line}")

    @property
    def last_line(self) -> str:
        """The last thing it said."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        return lines[-1] if lines else "(nothing)"

    def wait_for_step(self, step: int) -> None:
        """Until a step is on record."""
        self.wait(lambda: self.step >= step, f"step {step}")

    def moment(self, chance: random.Random, *, collecting: bool = False) -> str:
        """Waits for a random moment of the step after the next one; returns when that was, in words.

        `collecting`: well within the collection, with which a step begins.
        """
        self.wait_for_step(self.step + 1)
        steps = trained(self.folder)
        step = max(steps)
        if collecting:
            after = (0.3 + 0.4 * chance.random()) * (steps[step]["time/collect_s"] or 0.0)
        else:
            took = sum(value or 0.0 for name, value in steps[step].items() if name.startswith("time/"))
            after = chance.random() * took
        time.sleep(after)
        claim(self.is_running, f"the run had ended before anything was done to it: {self.last_line}")
        return f"{after:.1f} s into step {step + 1}"

    def kill(self, *titles: str, chance: random.Random) -> psutil.Process:
        """Kills one of the processes with such a title."""
        found = sorted(self.family.alive(*titles), key=lambda process: process.pid)
        claim(found, f"the run has no process {' or '.join(titles)}")
        victim = chance.choice(found)
        victim.kill()
        return victim

    def send(self, number: signal.Signals, *, to_group: bool = False) -> None:
        """A signal to the driver, or as from a terminal to everything in its process group."""
        if to_group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def end(self, code: int, seconds: float = STEP_S) -> None:
        """Waits for the end. Raises Failed for another exit code, a process left over, or if it goes on."""
        claim(until(lambda: not self.is_running, seconds), f"the run did not end within {seconds:g} s")
        found = self.process.returncode
        claim(found == code, f"the run ended with exit code {found} and not {code}: {self.last_line}")
        left = self.family.outlive(ORPHAN_S)
        claim(not left, f"{len(left)} processes outlived the run: {', '.join(map(_named, left))}")

    def audit(self, finished: int | None = None) -> None:
        """Raises Failed with what is wrong with the leaves and the weights versions on record, or with W&B's record."""
        found = problems(self.folder, self.shape, finished) + wandb_problems(self.folder, self.tracked_to)
        claim(not found, f"{len(found)} things are wrong with the record, e.g. {found[0] if found else ''}")

    def counted(self, metric: str) -> float:
        """Sum of a metric over all steps on record."""
        return sum(values.get(metric) or 0.0 for values in trained(self.folder).values())

    def newest(self, metric: str) -> float:
        """Of the newest step on record; 0 if it is not there."""
        steps = trained(self.folder)
        return (steps[max(steps)].get(metric) or 0.0) if steps else 0.0


def _named(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{' '.join(process.cmdline())[:60]} ({process.pid})"
    return str(process.pid)
