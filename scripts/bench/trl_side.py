"""TRL beside ours: its virtual environment, the rows it trains, and the process that runs its passes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch

from rollout_workers.trees import path
from rollout_workers.types import Forest
from scripts.bench.learner_passes import Shape
from trainer.advantages import advantages

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-trl"
TORCH = "2.13.0"
PINS = ("trl==1.16.0", "transformers==5.19.0")


def make_venv() -> Path:
    """Installs TRL into `.venv-trl` unless it is there, in a minute or two; returns its interpreter."""
    python = VENV / "bin" / "python"
    stamp = VENV / ".espalier-stamp"
    wanted = " ".join((TORCH, *PINS))
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"new environment in {VENV}: torch {TORCH} (CPU build), {', '.join(PINS)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    # The CPU build of torch first, as in scripts/setup.sh; uv knows where PyTorch keeps it if pip's indexes do not.
    if subprocess.run([*pip, "--no-deps", f"torch=={TORCH}+cpu"], capture_output=True, check=False).returncode:
        subprocess.run([*pip, "uv"], check=True)
        uv = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(python), "--no-deps"]
        subprocess.run([*uv, "--torch-backend", "cpu", f"torch=={TORCH}"], check=True)
    subprocess.run([*pip, *PINS], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def rows(forest: Forest) -> list[dict[str, object]]:
    """One row per leaf: prompt, completion (steps and observations), which tokens were sampled, and the advantage."""
    found: list[dict[str, object]] = []
    for group in forest:
        for tree, credited in zip(group.trees, advantages(group), strict=True):
            for leaf, advantage in credited.values.items():
                nodes = [tree.nodes[index] for index in path(tree, leaf)]
                completion = [token for node in nodes[1:] for token in (*node.token_ids, *node.observation_ids)]
                sampled = [s for node in nodes[1:] for s in [1] * len(node.token_ids) + [0] * len(node.observation_ids)]
                prompt = list(nodes[0].observation_ids)
                found.append(
                    {"prompt": prompt, "completion": completion, "sampled": sampled, "advantage": float(advantage)}
                )
    return found


class TrlProcess:
    """`scripts/bench/trl_pass.py` in TRL's environment, idle between passes."""

    def __init__(self, model: Path, forests: Sequence[tuple[Shape, Forest]], folder: Path) -> None:
        shapes = [{"name": shape.name, "pack": shape.pack, "rows": rows(forest)} for shape, forest in forests]
        given = folder / "rows.json"
        given.write_text(json.dumps(shapes), encoding="utf-8")
        # -P: the script's folder holds a signal.py, which would stand before Python's own.
        command = [str(make_venv()), "-P", str(ROOT / "scripts/bench/trl_pass.py"), str(model), str(given)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        self._gradient = folder / "gradient.pt"
        self._log = (folder / "trl.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        while self._line() != "ready":
            pass

    def run(self, index: int) -> float:
        """Seconds of one pass over the shape with this index."""
        return float(self._answer(str(index)))

    def gradient(self) -> torch.Tensor:
        """All gradients of the last pass as one vector."""
        self._answer(str(self._gradient))
        found: torch.Tensor = torch.load(self._gradient, weights_only=True)
        return found

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            last = (self._log.read().strip().splitlines() or ["nothing"])[-1]
            raise RuntimeError(f"the TRL process ended; the last it said was: {last}")
        return line.strip()

    def __enter__(self) -> "TrlProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._log.close()
