"""Real training jobs of the tiny model to which something happens at a random moment.

    python -m scripts.chaos --json OUT.json [--only NAME ...] [--seed N]

Each fault is injected for real: processes are killed, disks are full, servers are gone. Then it is checked that the run
finishes or stops as docs/faults.md promises, that each leaf was trained once and by the right version of the weights,
that the exit code is right, and that no process is left. `--only` may be given several times. Needs
`python -m envs.prepare --out data/quickstart`, Linux, and root for the faults of disks. One seed takes about an
hour on two cores. Exit code 0 only if every fault went as promised.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.chaos_job import Failed, Job
from scripts.chaos_scenes import SCENES
from scripts.chaos_stage import Scene, chance_of

FAULTS = tuple(fault for scene in SCENES.values() for fault in scene.faults)
Outcome = dict[str, bool | str | float]


class Runner:
    """One scene after the other, and what came of each fault."""

    def __init__(self, seed: int, wanted: Sequence[str], folder: Path, json_file: Path) -> None:
        """The result is written to `json_file` again after each fault, so that a stopped run leaves what it found."""
        self.seed = seed
        self.folder = folder
        self.outcomes: dict[str, Outcome] = {}
        self._wanted = tuple(wanted)
        self._json_file = json_file

    def wants(self, *names: str) -> bool:
        """See `chaos_stage.Stage`."""
        return not set(names).isdisjoint(self._wanted)

    def play(self, name: str, scene: Scene) -> None:
        """All wanted faults of a scene; what goes wrong at its end is held against each of them."""
        names = tuple(fault for fault in scene.faults if fault in self._wanted)
        if not names:
            return
        root, self.folder = self.folder, self.folder / name
        (self.folder / "runs").mkdir(parents=True)
        try:
            scene.play(self)
        except Failed as why:
            self.fail(names, f"at the end of the scene: {why}")
        except Exception as error:
            self.fail(names, f"at the end of the scene: {type(error).__name__}: {error}")
        finally:
            self.folder = root

    def attempt(self, name: str, job: Job, fault: Callable[[random.Random], str]) -> None:
        """See `chaos_stage.Stage`."""
        if name not in self._wanted or name in self.outcomes:
            return
        started, is_ok = time.monotonic(), True
        try:
            if not job.is_running:
                job.start()
            detail = fault(chance_of(self.seed, name))
        except Failed as why:
            is_ok, detail = False, str(why)
        except Exception as error:  # a fault of the script: the other ones are still done
            is_ok, detail = False, f"{type(error).__name__}: {error}"
        self._keep(name, is_ok, detail, time.monotonic() - started)

    def fail(self, names: tuple[str, ...], why: str) -> None:
        """See `chaos_stage.Stage`."""
        for name in names:
            before = self.outcomes.get(name)
            if name in self._wanted and (before is None or before["ok"]):
                self._keep(name, False, why, float(before["seconds"]) if before else 0.0)

    def _keep(self, name: str, is_ok: bool, detail: str, seconds: float) -> None:
        self.outcomes[name] = {"ok": is_ok, "detail": detail, "seconds": round(seconds, 1)}
        print(f"{'ok    ' if is_ok else 'FAILED'}  {name} ({seconds:.0f} s): {detail}", flush=True)
        write_report(self._json_file, self.seed, self._wanted, self.outcomes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    wanted = options.only or FAULTS
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    runner = Runner(options.seed, wanted, root, options.json)
    for name, scene in SCENES.items():
        runner.play(name, scene)
    found = write_report(options.json, options.seed, wanted, runner.outcomes)
    good = sum(bool(outcome["ok"]) for outcome in found.values())
    print(f"{good} of {len(found)} faults went as promised; {options.json}")
    is_ok = good == len(found)
    if is_ok:
        with contextlib.suppress(OSError):
            shutil.rmtree(root)
    else:
        print(f"what the runs said and left is in {root}")
    return 0 if is_ok else 1


def write_report(file: Path, seed: int, wanted: Sequence[str], outcomes: dict[str, Outcome]) -> dict[str, Outcome]:
    """Writes the result and gives its faults. One that nothing is known of (yet) did not go as promised."""
    unknown: Outcome = {"ok": False, "detail": "it was not injected", "seconds": 0.0}
    found = {name: outcomes.get(name, unknown) for name in wanted}
    file.parent.mkdir(parents=True, exist_ok=True)
    result = {"seed": seed, "machine": f"{os.cpu_count()} CPU cores", "faults": found}
    file.write_text(json.dumps(result, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.chaos", description="Does harm to real training jobs.")
    parser.add_argument("--json", type=Path, required=True, help="file for the result")
    parser.add_argument("--only", action="append", choices=FAULTS, metavar="NAME", help=f"one of {', '.join(FAULTS)}")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of the runs (default 0)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
