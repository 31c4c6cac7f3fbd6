"""Trees against chains on the quickstart task: the same start, the same schedule, nearly the same tokens per step.

    python -m scripts.bench.learning --json OUT.json [--png OUT.png] [--seeds 0,1,2,3] [--arms tree,chain,intra,inter]
                                     [--steps N] [--chain-roots G] [--runs-dir DIR] [KEY=VALUE ...]

Every run is a process of `python -m trainer.main experiment=quickstart cluster=local`, one at a time, seed by seed
over all arms. The chain arm is the tree's configuration without branches and with G chains per task. G is measured:
before the first run, one run of each of the two (with a seed of their own, which is not counted) shows what a step
costs. Run again after an interruption, it goes on with the first run that has no summary. The JSON is written after
every run.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from omegaconf import OmegaConf

from scripts.bench.learning_curves import Curve, curve, matched_roots
from scripts.bench.learning_report import report
from trainer.compose import compose
from trainer.config.sentences import ConfigError
from trainer.run_folder import masked_config, read_metrics

PILOT_SEED = 1_000
"""Seed of the two runs that measure the chain arm's roots; no run that counts has it."""
TRAINER = (sys.executable, "-m", "trainer.main")
ARMS: Mapping[str, tuple[str, ...]] = {
    "tree": (),
    "chain": ("tree=chain", "tree.nodes_per_round=0", "tree.rounds=0"),
    "intra": ("advantage.kind=intra",),
    "inter": ("advantage.kind=inter",),
}
"""What each arm changes in the shared configuration; `chain` also gets its measured `tree.roots`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run of the comparison."""

    name: str
    """Of its folder under `--runs-dir`, e.g. `chain-seed2`."""
    arm: str
    seed: int
    overrides: tuple[str, ...]
    """All settings that differ from the quickstart's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that did not end well."""

    run: str
    exit_code: int
    last_line: str


class Bench:
    """Runs what is missing and keeps what is there."""

    def __init__(self, runs_dir: Path, shared: Sequence[str], runs: int, trainer: Sequence[str] = TRAINER) -> None:
        self.runs_dir = runs_dir
        self.shared = tuple(shared)
        self.left = runs
        self.failures: list[Failure] = []
        self._trainer = tuple(trainer)
        self._seconds: list[float] = []

    def curve_of(self, name: str, arm: str, seed: int, overrides: Sequence[str]) -> Curve | None:
        """The run's curve, from its folder if it is finished, else after running it; None when it failed."""
        run = Run(name=name, arm=arm, seed=seed, overrides=(*self.shared, *overrides, f"seed={seed}"))
        folder = self.runs_dir / run.name
        if (folder / "summary.json").exists():
            _check_settings(run, self.runs_dir)
            print(f"{run.name}: finished before", flush=True)
        elif not self._train(run):
            self.left -= 1
            return None
        self.left -= 1
        found = curve(arm, seed, read_metrics(folder / "metrics.jsonl"))
        first, last = found.points[0], found.points[-1]
        print(
            f"{run.name}: held-out success {first.success:.2f} -> {last.success:.2f}, "
            f"{found.tokens_per_step:,.0f} tokens per step; {self._time_left()}",
            flush=True,
        )
        return found

    def _train(self, run: Run) -> bool:
        """Runs one training to its end; its output goes to `<runs-dir>/<name>.log`."""
        command = [*self._trainer, *_overrides(run, self.runs_dir)]
        log = self.runs_dir / f"{run.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        print(f"{run.name}: started, output in {log}", flush=True)
        started = time.monotonic()
        with log.open("w") as file:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        self._seconds.append(time.monotonic() - started)
        if code:
            words = log.read_text(errors="replace").strip().splitlines()
            self.failures.append(Failure(run=run.name, exit_code=code, last_line=words[-1] if words else ""))
            print(f"{run.name}: FAILED with exit code {code}: {self.failures[-1].last_line}", flush=True)
        return code == 0

    def _time_left(self) -> str:
        if not self._seconds:
            return f"{self.left} runs left"
        mean = sum(self._seconds) / len(self._seconds)
        return f"{self.left} runs left, about {self.left * mean / 60:.0f} min"


def _overrides(run: Run, runs_dir: Path) -> list[str]:
    return ["experiment=quickstart", "cluster=local", *run.overrides, f"name={run.name}", f"runs_dir={runs_dir}"]


def _check_settings(run: Run, runs_dir: Path) -> None:
    """Raises ValueError when the run in the folder was made with other settings than the ones asked for now."""
    asked = masked_config(compose(_overrides(run, runs_dir)).model_dump(mode="json"))
    stored = OmegaConf.to_container(OmegaConf.load(runs_dir / run.name / "config.yaml"))
    assert isinstance(stored, dict)
    if other := sorted(name for name in asked if asked[name] != stored.get(name)):
        raise ValueError(
            f"The run {runs_dir / run.name} was made with other settings ({', '.join(other)}): "
            f"choose another --runs-dir or remove that folder."
        )


def measured_roots(bench: Bench, leaves: int) -> int:
    """Chains per task of the chain arm, from one run of the tree and one with three quarters of its leaves as chains.

    Raises ValueError when one of the two runs failed.
    """
    guess = max(2, round(0.75 * leaves))
    chains = (*ARMS["chain"], f"tree.roots={guess}")
    tree = bench.curve_of("pilot-tree", "tree", PILOT_SEED, ARMS["tree"])
    chain = bench.curve_of("pilot-chain", "chain", PILOT_SEED, chains)
    if tree is None or chain is None:
        raise ValueError("The pilot runs failed, so the chain arm's size is unknown; see their logs.")
    roots = matched_roots(tree.tokens_per_step, chain.tokens_per_step, guess)
    print(
        f"A step costs {tree.tokens_per_step:,.0f} tokens with trees and {chain.tokens_per_step:,.0f} with {guess} "
        f"chains per task: the chain arm gets {roots}.",
        flush=True,
    )
    return roots


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; the exit code is 1 if a run failed and 2 for a setting that cannot be used."""
    options = _parser().parse_args(arguments)
    try:
        return compare(options, sys.argv[1:] if arguments is None else arguments)
    except ConfigError as error:
        print(*error.sentences, sep="\n", file=sys.stderr)
    except ValueError as error:
        print(error, file=sys.stderr)
    return 2


def compare(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """All runs, then the figure. Raises ConfigError or ValueError for settings that cannot be used."""
    shared = [*options.overrides, *([f"steps={options.steps}"] if options.steps else [])]
    config = compose(["experiment=quickstart", *shared])
    if not config.evaluation.every:
        raise ValueError("evaluation.every=0 leaves nothing between start and end: set it to at least 1.")
    measures = "chain" in options.arms and options.chain_roots is None
    bench = Bench(options.runs_dir, shared, len(options.arms) * len(options.seeds) + 2 * measures)
    roots = measured_roots(bench, config.tree.leaves_per_task) if measures else options.chain_roots
    arms = {arm: (*ARMS[arm], *([f"tree.roots={roots}"] if arm == "chain" else [])) for arm in options.arms}
    header = {
        "command": shlex.join(["python", "-m", "scripts.bench.learning", *arguments]),
        "commit": _commit(),
        "shared_overrides": shared,
        "arms_overrides": arms,
        "settings": config.model_dump(mode="json", exclude={"name", "runs_dir", "seed"}),
    }
    curves: list[Curve] = []
    for seed in options.seeds:
        for arm, overrides in arms.items():
            if found := bench.curve_of(f"{arm}-seed{seed}", arm, seed, overrides):
                curves.append(found)
            result = header | report(curves) | {"failed": [asdict(failure) for failure in bench.failures]}
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    if options.png and curves:
        from scripts.bench.learning_plot import draw

        draw(curves, options.png)
    return 1 if bench.failures else 0


def _commit() -> str:
    """The checkout's commit, with `+changes` when tracked files differ from it."""
    git = ["git", "-C", os.fspath(Path(__file__).resolve().parent)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True, check=False).returncode
    return f"{commit or 'unknown'}{'+changes' if changed else ''}"


def _seeds(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts) or str(PILOT_SEED) in parts:
        raise argparse.ArgumentTypeError(f"{text!r} must be different whole numbers of at least 0, not {PILOT_SEED}")
    return [int(part) for part in parts]


def _arms(text: str) -> list[str]:
    arms = text.split(",")
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown; accepted: {', '.join(ARMS)}")
    return arms


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.learning", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of all arms")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--png", type=Path, help="where the figure goes (needs matplotlib)")
    parser.add_argument("--seeds", type=_seeds, default=[0, 1, 2, 3], metavar="0,1,2,3")
    parser.add_argument("--arms", type=_arms, default=list(ARMS), metavar=",".join(ARMS))
    parser.add_argument("--steps", type=int, help="training steps of each run (default: the experiment's)")
    parser.add_argument("--chain-roots", type=int, metavar="G", help="chains per task of the chain arm; not measured")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/learning"), help="folder of all runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
