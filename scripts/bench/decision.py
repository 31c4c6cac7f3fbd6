"""Typed decision nodes against one flat policy, on the same tickets of the shop, with the same tokens and seeds.

    python -m scripts.bench.decision --json OUT.json [--page OUT.md] [--seeds 0,1] [--arms typed,flat,gated]
                                     [--targets 0.5,0.6,0.7,0.8] [--steps N] [--runs-dir DIR] [KEY=VALUE ...]

Every run is a process of `python -m trainer.main experiment=shop cluster=local`, one at a time, seed by seed. `typed`
is the experiment as it is, and records the root's odds, from which the gate is trained (that is in its seconds); `flat`
the same nodes as one policy in one growing context, whose whole model is trained by the outcome alone; `gated` the
typed policy with a gate that was trained on what the first typed run left. Three more arms take one part of the method
each: `no_normalise`, `credit_own`, `coefficients`. Success and wrong statements of typed and flat are those of greedy
answers, read at the ledger tokens that all their runs have spent. Run again after an interruption, it goes on with the
first run that has no summary. The JSON is written after every run.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scripts.bench import peak_memory
from scripts.bench.decision_gate import trained_gate
from scripts.bench.decision_page import page
from scripts.bench.decision_readings import Measured, read_run
from scripts.bench.decision_report import report
from scripts.bench.learning import checkout, seeds_in
from scripts.bench.learning_runs import Bench
from scripts.bench.result_files import write, write_json
from trainer.compose import compose
from trainer.config.sentences import ConfigError

ARMS = {
    "typed": ("decision.gate.record_odds=true",),
    "flat": ("decision.policy=flat", "learner.lr=5e-4"),
    "gated": (),
    "no_normalise": ("decision.normalise=false",),
    "credit_own": ("decision.credit=own",),
    "coefficients": (
        "decision.nodes.2.coefficients.entropy_coef=0.05",
        "decision.nodes.3.coefficients.entropy_coef=0.35",
    ),
}
"""What each arm changes in the shared configuration. The gated arm also gets its gate. `coefficients` has the stated
figures: 0.05 for the node that checks (policy), 0.35 for the one that writes (response). Below the root the shop has
one level of nodes, so `decision.credit=all` is the same as the default `adjacent`; `own` is what differs."""
USUAL = ("typed", "flat", "gated")
SHARED = ("experiment=shop", "logger=none", "logger.sample_trees=64")


class Comparison:
    """The runs of one comparison, and what has been measured so far."""

    def __init__(self, options: argparse.Namespace, command: Sequence[str]) -> None:
        """Raises ConfigError for settings that cannot be used."""
        shared = [*SHARED, *options.overrides, *([f"steps={options.steps}"] if options.steps else [])]
        config = compose([*shared, "name=settings"])
        # Every held-out ticket is kept, so that the statements of all answers can be counted.
        self._shared = [*shared, f"evaluation.sample_trees={config.evaluation.tasks}"]
        self._options = options
        self._dir: Path = options.runs_dir
        watched = (sys.executable, "-m", "scripts.bench.peak_memory", str(self._dir))
        self.bench = Bench(self._dir, self._shared, len(options.arms) * len(options.seeds), python=watched)
        self.measured: dict[str, list[Measured]] = {arm: [] for arm in options.arms}
        self.gate: dict[str, float] = {}
        self._header = {
            "command": shlex.join(["python", "-m", "scripts.bench.decision", *command]),
            "commit": checkout(),
            "shared_overrides": self._shared,
            "arms_overrides": ARMS,
            "settings": config.model_dump(mode="json", exclude={"name", "runs_dir", "seed"}),
        }

    def run(self, arm: str, seed: int) -> None:
        """Runs what is missing of one arm and seed, and takes it into the result."""
        overrides = list(ARMS[arm])
        if arm == "gated":
            gate, self.gate = trained_gate(self._dir, f"typed-seed{self._options.seeds[0]}")
            overrides.append(f"decision.gate.path={gate}")
        name = f"{arm}-seed{seed}"
        if curve := self.bench.curve_of(name, arm, seed, overrides):
            peak = peak_memory.read(self._dir, name).workers_mib
            self.measured[arm].append(read_run(self._dir / name, curve, peak))

    def write(self) -> None:
        """The JSON, and the page if one is wanted."""
        options = self._options
        result = self._header | report(self.measured, options.targets, self.gate)
        result |= {"failed": [asdict(failure) for failure in self.bench.failures]}
        write_json(options.json, result)
        if options.page and any(self.measured.values()):
            old = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
            write(options.page, page(result, old))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; the exit code is 1 if a run failed and 2 for a setting that cannot be used."""
    options = _parser().parse_args(arguments)
    if (more := [arm for arm in options.arms if arm not in ("typed", "flat")]) and "typed" not in options.arms:
        print(f"--arms {','.join(more)} needs typed too, which it is compared with.", file=sys.stderr)
        return 2
    try:
        comparison = Comparison(options, sys.argv[1:] if arguments is None else arguments)
        for seed in options.seeds:
            for arm in options.arms:
                comparison.run(arm, seed)
                comparison.write()
    except ConfigError as error:
        print(*error.sentences, sep="\n", file=sys.stderr)
        return 2
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if comparison.bench.failures else 0


def _arms(text: str) -> list[str]:
    arms = text.split(",")
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown; accepted: {', '.join(ARMS)}")
    return sorted(arms, key=list(ARMS).index)


def _targets(text: str) -> list[float]:
    targets = [float(part) for part in text.split(",")]
    if wrong := [target for target in targets if not 0 < target <= 1]:
        raise argparse.ArgumentTypeError(f"{wrong[0]:g} is no success; accepted: numbers above 0, at most 1")
    return targets


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.decision", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of all arms")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--page", type=Path, help="Markdown page whose tables are written anew")
    parser.add_argument("--seeds", type=seeds_in, default=[0, 1], metavar="0,1")
    parser.add_argument(
        "--arms", type=_arms, default=list(USUAL), metavar=",".join(USUAL), help=f"of {', '.join(ARMS)}"
    )
    parser.add_argument(
        "--targets",
        type=_targets,
        default=[0.5, 0.6, 0.7, 0.8],
        metavar="0.5,0.6,0.7,0.8",
        help="values of success whose training seconds are read off",
    )
    parser.add_argument("--steps", type=int, help="training steps of each run (default: the experiment's)")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/decision"), help="folder of all runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
