"""How good the policy gradient of trees and of chains is per token, at a fixed policy; nothing is trained.

    python -m scripts.bench.signal --json OUT.json [--page OUT.md] [--tasks T] [--repeats R] [--arms 4,8,2x2x1,2x6x1]
                                   [--kinds tree,inter,edge] [--turns 4,8,12] [KEY=VALUE ...]

Every arm (so many chains, or trees ROOTSxNODESxROUNDS, with :RULE for another `tree.picking`) collects R independent
groups of the same T tasks under the weights of `model.path`, on one engine, each collection with an empty prefix cache.
Each group's gradient comes from the learner's own credit, packs, forward pass and loss (no KL or entropy term), and is
kept as a seeded random projection.

Arms of different expectation are compared by what they have along a direction that is known to be useful, per noise:
- `reference`: so many chains with a leave-one-out baseline and no normalisation, independent of all arms, are an
  unbiased but noisy estimate of the gradient of the expected reward (`useful`, `cosine`).
- the yardstick, with `--demos`: the gradient of the log-likelihood of an expert's demonstrations. It has no noise of
  rollouts, so its figures (`yard`) are the sharp ones; that it is useful shows in the reference's `along` above 0.
  `aim` takes the demonstration of the group's own task instead, and counts the noise along it only, task given: how
  surely a group says what to do in its task. It needs the fewest tasks, and at least two groups of each.
`calm` compares noise and tokens alone, for arms of the same expectation. `factor` is a figure over that of the chains
that cost about as much, with `advantage.kind=tree` (GRPO): so many times the tokens would chains need for a gradient as
good. The metric `adam` is the same with gradients scaled as Adam scales them. OUT.json is written anew after every
`--part` tasks; its entries of other labels and turns stay.
"""

import argparse
import asyncio
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from envs.registry import make_env
from scripts.bench import result_files
from scripts.bench.learning_runs import on_experiment
from scripts.bench.rollout_runs import Bench
from scripts.bench.signal_arms import REFERENCE, Row, Study
from scripts.bench.signal_gradients import Gradients
from scripts.bench.signal_page import page
from scripts.bench.signal_rollouts import Shape, chosen_tasks, collect
from trainer.advantages import KINDS
from trainer.compose import compose
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError
from trainer.demonstrations import Example, encode, read_demonstrations
from trainer.session import fleet_settings, load_tokenizer


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes; the exit code is 2 for a setting that cannot be used."""
    options = _parser().parse_args(arguments)
    about = {
        "command": shlex.join(["python", "-m", "scripts.bench.signal", *(arguments or sys.argv[1:])]),
        "commit": _commit(),
    }
    try:
        return asyncio.run(measure_all(options, about))
    except ConfigError as error:
        print(*error.sentences, sep="\n", file=sys.stderr)
    except ValueError as error:
        print(error, file=sys.stderr)
    return 2


async def measure_all(options: argparse.Namespace, about: Row) -> int:
    """One entry per number of turns, written anew after each part of the tasks.

    Raises ConfigError or ValueError for settings that cannot be used.
    """
    overrides = on_experiment(options.overrides)
    config = compose(overrides)
    shapes = {REFERENCE: Shape(roots=options.reference)} | {text: Shape.parse(text) for text in options.arms}
    if not any(shape.is_chain for name, shape in shapes.items() if name != REFERENCE):
        raise ValueError("--arms needs at least one number of chains that trees are compared with")
    tasks = chosen_tasks(config, options.tasks)
    label = options.label or next(o.partition("=")[2] for o in overrides if o.startswith("experiment="))
    configs = [with_turns(config, turns) for turns in options.turns or [config.limits.max_turns]]
    env: Any = make_env(config.env)
    bench = Bench(fleet_settings(config).actor.engine, unhurried=False)
    try:
        gradients = Gradients(config)
        experts = examples(config, options.demos) if options.demos else {}
        studies = [Study(gradients, shapes, options.kinds, options.dimensions, experts) for _ in configs]
        for start in range(0, len(tasks), options.part):
            for one, study in zip(configs, studies, strict=True):
                part = tasks[start : start + options.part]
                study.add(await collect(bench, env, one, shapes, part, options.repeats))
                head = {"label": label, "turns": one.limits.max_turns, "repeats": options.repeats}
                write(head | about | study.row(options.budgets), options)
    finally:
        bench.shutdown()
    return 0


def examples(config: RunConfig, path: Path) -> dict[str, Example]:
    """Demonstrations by task, as token ids. Raises ValueError for a file that cannot be read."""
    tokenizer = load_tokenizer(config.model)
    return {one.task_id: encode(one, tokenizer) for one in read_demonstrations(path)}


def write(row: Row, options: argparse.Namespace) -> None:
    """Puts an entry into the result and, if there is one, the page."""
    known = json.loads(options.json.read_text())["configs"] if options.json.exists() else []
    result = _plain({"configs": merged(known, row)})
    result_files.write_json(options.json, result)
    if options.page:
        old = options.page.read_text() if options.page.exists() else ""
        result_files.write(options.page, page(result, old))
    print(f"{row['label']}, {row['turns']} turns: {row['tasks']} tasks written", flush=True)


def with_turns(config: RunConfig, turns: int) -> RunConfig:
    """The same run with `limits.max_turns=turns`."""
    return config.model_copy(update={"limits": config.limits.model_copy(update={"max_turns": turns})})


def merged(known: Sequence[Row], new: Row) -> list[Row]:
    """`new` in the place of an entry with its label and turns, or behind all others."""
    place = (new["label"], new["turns"])
    kept = [new if (row["label"], row["turns"]) == place else row for row in known]
    return kept if new in kept else [*kept, new]


def _commit() -> str:
    git = ["git", "-C", os.fspath(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _plain(value: Any) -> Any:
    """The same for JSON: numbers with six digits, null for what is not finite."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _numbers(text: str) -> list[int]:
    if not all(part.isdecimal() and int(part) > 0 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers of at least 1, such as 4,8,12")
    return [int(part) for part in text.split(",")]


def _kinds(text: str) -> list[str]:
    if unknown := [kind for kind in text.split(",") if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown; accepted: {', '.join(KINDS)}")
    return text.split(",")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.signal", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of all arms")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--page", type=Path, help="where tables for people go")
    parser.add_argument("--label", help="name of the entry in the result (default: the experiment)")
    parser.add_argument("--tasks", type=int, default=64, help="training tasks (default 64)")
    parser.add_argument("--part", type=int, default=16, help="tasks after which the result is written (default 16)")
    parser.add_argument("--demos", type=Path, help="an expert's demonstrations, for the yardstick")
    parser.add_argument("--repeats", type=int, default=2, help="groups per task and arm (default 2)")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=["4", "8", "2x2x1", "2x6x1"])
    parser.add_argument("--kinds", type=_kinds, default=["tree", "inter", "edge"], help="advantages of trees")
    parser.add_argument("--turns", type=_numbers, help="values of limits.max_turns (default: the experiment's)")
    parser.add_argument("--reference", type=int, default=16, help="chains per group of the reference (default 16)")
    parser.add_argument("--dimensions", type=int, default=16_384, help="of the random projection")
    parser.add_argument("--budgets", type=_numbers, default=[10_000, 100_000], help="tokens of `batch_cosine`")
    return parser


if __name__ == "__main__":
    sys.exit(main())
