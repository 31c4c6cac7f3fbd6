"""Trains the gate of the decision benchmark on what a typed run left, once."""

import subprocess
import sys
from pathlib import Path


def trained_gate(runs_dir: Path, run: str) -> tuple[Path, dict[str, float]]:
    """(the gate's file, its quality on tickets it was not trained on), from `run`'s trees.

    Raises ValueError when that run is not there or the training fails.
    """
    gate, log = runs_dir / "gate.safetensors", runs_dir / "gate.log"
    if not (gate.exists() and log.exists()):
        trees = sorted(map(str, (runs_dir / run / "forest").glob("step-*.jsonl")))  # no held-out tickets
        command = [sys.executable, "-m", "trainer.gate", *trees, "--out", str(gate)]
        print(f"gate: trained on {run}, output in {log}", flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"The gate could not be trained: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        log.write_text(done.stdout, encoding="utf-8")
    return gate, quality(log.read_text(encoding="utf-8"))


def quality(told: str) -> dict[str, float]:
    """What two lines of the gate's table say, e.g. `"all  0.950  0.900  0.924  0.800  300"`: precision, recall, F1, the
    share of unneeded nodes that are spared; and `"run all  ..."`, the F1 of running every node.
    """
    lines = told.splitlines()
    line = next(line.split() for line in lines if line.startswith("all "))
    trivial = next(line.removeprefix("run all").split() for line in lines if line.startswith("run all "))
    names = ("precision", "recall", "f1", "spared")
    found = {name: float(value) for name, value in zip(names, line[1:5], strict=True)}
    return found | {"f1_of_running_all": float(trivial[2])}
