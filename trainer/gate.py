"""The command `python -m trainer.gate`: trains a gate on the trees of a run, and says how well it decides.

It needs the root's odds in the forest files: a run with `decision.gate.record_odds=true`, which keeps enough trees
(`logger.sample_trees`). Labels say which children of the root each task needs (see `trainer.decisions.gate_data`).
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envs.decisions.gate import MOST_WEIGHTS, Gate, gate_inputs
from envs.decisions.tree import Declared
from trainer.decisions.gate_data import Material, declaration, forest_files, read_labels, read_material, split_by_task

if TYPE_CHECKING:
    from trainer.decisions.gate_training import Counts

HELD_OUT = 0.2
"""Share of the tasks that the gate is measured on."""
SHOWN_IDS = 10


def run(options: argparse.Namespace) -> dict[str, "Counts"]:
    """Trains, writes and measures; prints what it does. Raises ValueError with one sentence."""
    files, config = forest_files(options.trees)
    settings = declaration(config)
    declared, inputs = Declared(settings), gate_inputs(settings)
    nodes = declared.children(declared.root)
    if not inputs or not nodes:
        raise ValueError(f"node {declared.root!r} has no {'children' if inputs else 'enumerated outputs'} to decide on")
    weights = options.hidden * (len(inputs) + 1) + len(nodes) * (options.hidden + 1)
    if weights > MOST_WEIGHTS:
        raise ValueError(f"--hidden {options.hidden} gives {weights:,} weights; a gate has at most {MOST_WEIGHTS:,}")
    labels = read_labels(options.labels, nodes) if options.labels else {}
    material = read_material(files, labels, nodes)
    _tell(material)
    train, held = split_by_task(material.examples, HELD_OUT, options.seed)

    from trainer.decisions.gate_training import measure, save_gate, train_gate

    found = train_gate(train, inputs, nodes, hidden=options.hidden, steps=options.steps, seed=options.seed)
    save_gate(options.out, found, inputs, nodes)
    gate = Gate.from_file(options.out, settings.gate.threshold if options.threshold is None else options.threshold)
    counts = measure(gate, held)
    print(f"{len(train)} answers to train on, {len(held)} of other tasks to measure on, threshold {gate.threshold:g}")
    print(*table(counts), sep="\n")
    print(f"saved {gate.weights:,} weights to {options.out}")
    return counts


def table(counts: Mapping[str, "Counts"]) -> list[str]:
    """One line per child, one for all decisions together, and one for a gate that runs every child.

    `spared`: share of the children that were not needed and were skipped. F1 without it says little: where most
    children are needed, running all of them has a high one.
    """
    from trainer.decisions.gate_training import Counts

    whole = Counts()
    for one in counts.values():
        whole = whole.plus(one)
    rows = [*counts.items(), ("all", whole), ("run all", whole.running_all)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{'':{width}}  precision  recall     f1  spared  needed"]
    for name, one in rows:
        numbers = f"{one.precision:9.3f}  {one.recall:6.3f}  {one.f1:5.3f}  {one.spared_share:6.3f}"
        lines.append(f"{name:{width}}  {numbers}  {one.right + one.missed:6d}")
    return lines


def _tell(material: Material) -> None:
    """Labels and tasks that don't meet are ignored, and said."""
    if material.unknown:
        more = f" and {len(material.unknown) - SHOWN_IDS} more" if len(material.unknown) > SHOWN_IDS else ""
        shown = ", ".join(material.unknown[:SHOWN_IDS])
        print(f"ignored {len(material.unknown)} labels of tasks that no tree has: {shown}{more}")
    if material.unlabelled:
        print(f"ignored {material.unlabelled} tasks without a label")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for what cannot be used, with one sentence)."""
    try:
        run(_parser().parse_args(arguments))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.gate", description="Trains the gate of a typed policy.")
    parser.add_argument("trees", nargs="+", type=Path, help="run folders, or forest files of runs")
    parser.add_argument("--labels", type=Path, help="JSON Lines of {id, needs} (default: the tasks' own meta.needs)")
    parser.add_argument("--out", type=Path, required=True, help="file to write, e.g. gate.safetensors")
    parser.add_argument("--hidden", type=_positive, default=32, help="hidden units (default 32)")
    parser.add_argument("--steps", type=_positive, default=500, help="optimizer steps (default 500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--threshold", type=_share, help="a child runs from this probability on (default: decision.gate.threshold)"
    )
    return parser


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def _share(text: str) -> float:
    value = float(text)
    if math.isnan(value) or not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
