"""The training runs of the comparison: each a process of its own, one at a time; what is finished is not run again."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from scripts.bench.learning_curves import Curve, curve
from trainer.compose import compose
from trainer.run_folder import masked_config, read_metrics

PYTHON = (sys.executable, "-m")
"""How a module of this project is run as a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run of the comparison."""

    name: str
    """Of its folder under `--runs-dir`, e.g. `chain-seed2`."""
    arm: str
    seed: int
    overrides: tuple[str, ...]
    """All settings that differ from the experiment's, which is the quickstart unless `experiment=` is among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A process that did not end well."""

    run: str
    exit_code: int
    last_line: str


class Bench:
    """Runs what is missing and keeps what is there.

    `samples` is the number of answers per held-out task at temperature 1 that every final policy gives (0: none).
    """

    def __init__(
        self, runs_dir: Path, shared: Sequence[str], runs: int, samples: int = 0, python: Sequence[str] = PYTHON
    ) -> None:
        self.runs_dir = runs_dir
        self.shared = tuple(shared)
        self.left = runs
        self.failures: list[Failure] = []
        self._samples = samples
        self._python = tuple(python)
        self._seconds: list[float] = []

    def curve_of(self, name: str, arm: str, seed: int, overrides: Sequence[str]) -> Curve | None:
        """The run's curve, from its folder if it is finished, else after running it; None when it failed.

        Raises ValueError when the folder holds a finished run with other settings.
        """
        run = Run(name=name, arm=arm, seed=seed, overrides=(*self.shared, *overrides, f"seed={seed}"))
        self.left -= 1
        if not self._trained(run):
            return None
        sampled = self._sampled_success(run) if self._samples else None
        found = curve(arm, seed, read_metrics(self.runs_dir / name / "metrics.jsonl"), sampled)
        first, last = found.points[0], found.points[-1]
        print(
            f"{run.name}: held-out success {first.success:.2f} -> {last.success:.2f}, "
            f"{found.tokens_per_step:,.0f} tokens per step; {self._time_left()}",
            flush=True,
        )
        return found

    def _trained(self, run: Run) -> bool:
        if (self.runs_dir / run.name / "summary.json").exists():
            check_settings(run, self.runs_dir)
            print(f"{run.name}: finished before", flush=True)
            return True
        started = time.monotonic()
        good = self._process(run.name, ["trainer.main", *all_overrides(run, self.runs_dir)])
        self._seconds.append(time.monotonic() - started)
        return good

    def _sampled_success(self, run: Run) -> float | None:
        """Held-out success of the run's final policy at temperature 1; None when that evaluation failed."""
        folder = self.runs_dir / run.name
        result = folder / f"samples-{self._samples}.json"
        command = ["trainer.evaluate", str(folder), "--samples", str(self._samples), "--json", str(result)]
        if not result.exists() and not self._process(f"{run.name}-samples", command):
            return None
        return float(json.loads(result.read_text())["pass@1"])

    def _process(self, name: str, command: Sequence[str]) -> bool:
        """Runs a module to its end; its output goes to `<runs-dir>/<name>.log`. A failure is said and kept."""
        log = self.runs_dir / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        print(f"{name}: started, output in {log}", flush=True)
        with log.open("w") as file:
            code = subprocess.run(
                [*self._python, *command], stdout=file, stderr=subprocess.STDOUT, check=False
            ).returncode
        if code:
            words = log.read_text(errors="replace").strip().splitlines()
            self.failures.append(Failure(run=name, exit_code=code, last_line=words[-1] if words else ""))
            print(f"{name}: FAILED with exit code {code}: {self.failures[-1].last_line}", flush=True)
        return code == 0

    def _time_left(self) -> str:
        if not self._seconds:
            return f"{self.left} runs left"
        mean = sum(self._seconds) / len(self._seconds)
        return f"{self.left} runs left, about {self.left * mean / 60:.0f} min"


def all_overrides(run: Run, runs_dir: Path) -> list[str]:
    """Everything on the command line of the run."""
    return [*on_experiment(run.overrides), "cluster=local", f"name={run.name}", f"runs_dir={runs_dir}"]


def on_experiment(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the quickstart as the experiment unless they name one."""
    named = any(override.startswith("experiment=") for override in overrides)
    return [*([] if named else ["experiment=quickstart"]), *overrides]


def check_settings(run: Run, runs_dir: Path) -> None:
    """Raises ValueError when the run in the folder was made with other settings than the ones asked for now."""
    asked = masked_config(compose(all_overrides(run, runs_dir)).model_dump(mode="json"))
    stored = OmegaConf.to_container(OmegaConf.load(runs_dir / run.name / "config.yaml"))
    assert isinstance(stored, dict)
    if other := sorted(name for name in asked if asked[name] != stored.get(name)):
        raise ValueError(
            f"The run {runs_dir / run.name} was made with other settings ({', '.join(other)}): "
            f"choose another --runs-dir or remove that folder."
        )
