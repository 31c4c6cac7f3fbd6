"""Real training runs of the tiny model, as processes, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from scripts.processes import Family

ROOT = Path(__file__).parent.parent
Watch = Family
SMALL = ["tasks_per_step=4", "evaluation.tasks=12", "logger.sample_trees=4"]


def heed_ctrl_c() -> None:
    """For a process about to start: where tests run in the background Ctrl-C is ignored, and so it would be there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def costs_of(folder: Path, step: int) -> dict[str, float]:
    """What the tasks of a step cost, summed over its ledger file."""
    total: Counter[str] = Counter()
    for line in (folder / "ledger" / f"step-{step:06d}.jsonl").read_text().splitlines():
        total.update({name: value for name, value in json.loads(line).items() if name != "task"})
    return dict(total)


def is_logged(folder: Path, step: int) -> bool:
    file = folder / "metrics.jsonl"
    return file.exists() and f'"step": {step},' in file.read_text()


CLOCKS = ("time/", "system/", "checkpoint/", "push/seconds", "learner/seconds", "_per_s", "env_seconds", "busy")
CACHED = ("cached", "prefill_tokens_computed", "prefill_overhead")
"""Which of two simultaneous prompts fills the cache is a race."""


def repeatable(metrics: Mapping[str, float]) -> dict[str, float]:
    """What a repeated run gives again, bit for bit: all but times, loads and what the cache held."""
    return {
        name: value
        for name, value in metrics.items()
        if not name.endswith("_s") and not any(part in name for part in (*CLOCKS, *CACHED))
    }


class Run:
    """The command with an experiment's settings, made small. Use as a context manager, which ends it."""

    def __init__(
        self,
        runs: Path,
        name: str,
        *overrides: str,
        cluster: str = "local",
        experiment: str = "quickstart",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = runs / name
        self._log = runs / f"{name}.txt"
        command = [sys.executable, "-m", "trainer.main", f"experiment={experiment}", f"cluster={cluster}"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, f"runs_dir={runs}", f"name={name}", *SMALL, *overrides],
                cwd=ROOT,
                env=os.environ | (environment or {}),
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=heed_ctrl_c,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def finish(self, returncode: int = 0) -> str:
        """Waits for its end; returns what it said."""
        self.process.wait(800)
        assert self.process.returncode == returncode, self.output
        return self.output

    def wait_for_step(self, step: int) -> None:
        """Returns as soon as `step` is logged, which is when the next collection begins."""
        self.until(lambda: is_logged(self.folder, step), 600)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """The driver does nothing within the block: what takes long there is done before its next step all the same."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Waits for `condition` while the run goes on."""
        until(lambda: condition() or self.process.poll() is not None, seconds)
        assert condition(), self.output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.05)
