"""Trees against chains on one experiment's task: the same start and schedule, nearly the same tokens per step.

    python -m scripts.bench.learning --json OUT.json [--png OUT.png] [--seeds 0,1,2,3] [--arms tree,chain,intra,inter]
                                     [--steps N] [--chain-roots G] [--samples S] [--runs-dir DIR] [KEY=VALUE ...]

Every run is a process of `python -m trainer.main experiment=quickstart cluster=local` (another `experiment=` may be
given), one at a time, seed by seed over all arms. The chain arm is the tree's configuration without branches and with
G chains per task. G is measured: before the first run, one run of each of the two (with a seed of their own, which is
not counted) shows what a step costs. Run again after an interruption, it goes on with the first run that has no
summary. The JSON is written after every run. Success on the way is greedy, as in training; `--samples` adds each final
policy's at temperature 1.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from scripts.bench.learning_curves import Curve, matched_roots
from scripts.bench.learning_report import report
from scripts.bench.learning_runs import Bench, on_experiment
from scripts.bench.result_files import write_json
from trainer.compose import compose
from trainer.config.sentences import ConfigError

PILOT_SEED = 1_000
"""Seed of the two runs that measure the chain arm's roots; no run that counts has it."""
ARMS: Mapping[str, tuple[str, ...]] = {
    "tree": (),
    "chain": ("tree=chain", "tree.nodes_per_round=0", "tree.rounds=0"),
    "intra": ("advantage.kind=intra",),
    "inter": ("advantage.kind=inter",),
}
"""What each arm changes in the shared configuration; `chain` also gets its measured `tree.roots`."""


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
    config = compose(on_experiment(shared))
    if not config.evaluation.every:
        raise ValueError("evaluation.every=0 leaves nothing between start and end: set it to at least 1.")
    if options.samples < 0:
        raise ValueError(f"--samples must be 0 or more, not {options.samples}.")
    measures = "chain" in options.arms and options.chain_roots is None
    bench = Bench(options.runs_dir, shared, len(options.arms) * len(options.seeds) + 2 * measures, options.samples)
    roots = measured_roots(bench, config.tree.leaves_per_task) if measures else options.chain_roots
    arms = {arm: (*ARMS[arm], *([f"tree.roots={roots}"] if arm == "chain" else [])) for arm in options.arms}
    header = {
        "command": shlex.join(["python", "-m", "scripts.bench.learning", *arguments]),
        "commit": checkout(),
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
            write_json(options.json, result)
    if options.png and curves:
        from scripts.bench.learning_plot import draw

        draw(curves, options.png)
    return 1 if bench.failures else 0


def checkout() -> str:
    """The checkout's commit, with `+changes` when tracked files differ from it."""
    git = ["git", "-C", os.fspath(Path(__file__).resolve().parent)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True, check=False).returncode
    return f"{commit or 'unknown'}{'+changes' if changed else ''}"


def seeds_in(text: str) -> list[int]:
    """Reads e.g. `"0,1,2"`, for a command line."""
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
    parser.add_argument("--seeds", type=seeds_in, default=[0, 1, 2, 3], metavar="0,1,2,3")
    parser.add_argument("--arms", type=_arms, default=list(ARMS), metavar=",".join(ARMS))
    parser.add_argument("--steps", type=int, help="training steps of each run (default: the experiment's)")
    parser.add_argument("--chain-roots", type=int, metavar="G", help="chains per task of the chain arm; not measured")
    parser.add_argument("--samples", type=int, default=0, help="answers per task at temperature 1 of each final policy")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/learning"), help="folder of all runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
