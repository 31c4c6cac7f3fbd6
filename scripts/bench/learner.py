"""Time and memory of one learning pass: each token of a tree once, against one row per leaf, and against TRL.

    python -m scripts.bench.learner --json OUT.json [--page OUT.md] [--model FOLDER | --wide] [--repeats N] [--no-trl]

A pass is forward, loss and backward over all packs of an optimizer step, without the optimizer. Both layouts, and TRL's
GRPOTrainer loss on the same rows, run in turn on one thread each; times are medians. `efficiency` is the speed-up
divided by how many times fewer tokens there are: 1 means that every saved token saved its time.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads

import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from scripts.bench import markdown
from scripts.bench.learner_passes import LOSS, SHAPES, Pass, Shape, grow, peak_bytes
from scripts.bench.learning import checkout
from scripts.bench.result_files import write, write_json
from scripts.bench.trl_side import PINS, TrlProcess
from scripts.bench.wide_model import WORDS, write_wide_model

Row = dict[str, object]
COLUMNS = ("name", "flat_tokens", "unique_tokens", "flat_s", "tree_s", "speedup", "efficiency")
MORE_COLUMNS = ("work_bound", "tree_peak_bytes", "flat_peak_bytes", "trl_s", "speedup_vs_trl")


def measure(model: Path, shapes: Sequence[Shape], repeats: int, trl: TrlProcess | None) -> list[Row]:
    """One row of the result per shape."""
    rows = []
    for index, shape in enumerate(shapes):
        tree, flat = Pass(model, shape, "auto"), Pass(model, shape, "flat")
        runs: dict[str, Callable[[], float]] = {"tree": tree.run, "flat": flat.run}
        if trl is not None:
            runs["trl"] = lambda index=index: trl.run(index)  # type: ignore[misc]
        seconds = interleaved(runs, repeats)
        row = result(shape, tree, seconds)
        row["gradient_difference"] = apart(tree.gradient(), flat.gradient())
        if trl is not None:
            row["trl_gradient_difference"] = apart(trl.gradient(), flat.gradient())
        row["work_bound"] = flat.work() / tree.work() / token_ratio(tree)
        row |= {
            f"{side}_peak_bytes": peak(model, shape, layout) for side, layout in (("tree", "auto"), ("flat", "flat"))
        }
        rows.append(row)
        print(
            "  " + "  ".join(f"{key} {text(row[key])}" for key in (*COLUMNS, *MORE_COLUMNS) if key in row), flush=True
        )
    return rows


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative difference of two gradients, which have to be the same but for rounding."""
    found = float((one - other).norm() / other.norm())
    assert found < 1e-4, f"two ways to the same gradient differ by {found}"
    return found


def interleaved(runs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Medians of the seconds of each, run in turn; one round before them does not count."""
    rounds = [{name: run() for name, run in runs.items()} for _ in range(repeats + 1)][1:]
    return {name: statistics.median(one[name] for one in rounds) for name in runs}


def result(shape: Shape, tree: Pass, seconds: Mapping[str, float]) -> Row:
    """What the JSON says about a shape, but for memory."""
    stats = tree.packed.stats
    speedup = seconds["flat"] / seconds["tree"]
    row: Row = {
        "name": shape.name,
        "layout": tree.layout,
        "max_tokens_per_pack": shape.pack,
        "packs": int(stats["tree/packs"]),
        "flat_tokens": int(stats["tree/flat_tokens"]),
        "unique_tokens": int(stats["tree/unique_tokens"]),
        "repeated_tokens": int(stats["tree/repeated_tokens"]),
        "flat_s": seconds["flat"],
        "tree_s": seconds["tree"],
        "speedup": speedup,
        "efficiency": speedup / token_ratio(tree),
    }
    if "trl" in seconds:
        row |= {"trl_s": seconds["trl"], "speedup_vs_trl": seconds["trl"] / seconds["tree"]}
    return row


def token_ratio(one: Pass) -> float:
    """Tokens of one row per leaf over unique tokens."""
    stats = one.packed.stats
    return stats["tree/flat_tokens"] / stats["tree/unique_tokens"]


def peak(model: Path, shape: Shape, layout: str) -> int:
    """`peak_bytes` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(peak_bytes, model, shape, layout).result()


def text(value: object) -> str:
    """For the table: seconds and ratios with three digits, bytes in MB."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value / 1e6:.0f} MB" if isinstance(value, int) and value > 1_000_000 else str(value)


def table(rows: Sequence[Row]) -> str:
    """All shapes as a Markdown table."""
    columns = [column for column in (*COLUMNS, *MORE_COLUMNS) if column in rows[0]]
    return markdown.table(columns, [[text(row[column]) for column in columns] for row in rows])


PAGE = """# One learning pass: trees, rows per leaf, TRL

    {command}

Commit `{commit}`. Forward, loss and backward over all packs of an optimizer step, without the optimizer: {model} in
float32, one thread, medians of {repeats} rounds in which all sides run in turn, torch {torch}, transformers
{transformers}. The loss has clip and dual clip, no KL. All sides flush denormal numbers to zero, as the learner does.

{table}

- `flat_s`: one row per leaf (`learner.layout=flat`), rows end to end without padding. `tree_s`: `learner.layout=auto`.
  Both have the same `learner.max_tokens_per_pack`, which the JSON beside this page lists.
- `efficiency` is the speed-up over flat divided by flat ÷ unique tokens: 1 if every saved token saved its time.
  `work_bound` is the same with floating-point operations in place of seconds: the most that `efficiency` is if
  operations are all as fast. Attention's are slower than others, which lowers the bound in time. Unique tokens stand
  later on their paths than repeated ones, so each sees more ([method.md](../method.md), Layouts), and more of them are
  sampled ones, which need logits.
- peak bytes: most resident memory during a pass, over model and gradients, each in a fresh process.
"""
TRL_NOTE = """\
- `trl_s`: {pins}, its `GRPOTrainer.compute_loss` and backward on the same rows with the same advantages,
  clip and dual clip. Batches hold rows of like length, as many as fit into a pack. TRL takes the mean over the rows
  of a batch, which is weighted here with the batch's share of the rows: so both compute the same gradient, and its
  one differed from that of `flat` by at most {difference:.1e} of its size. TRL does more work for it: it pads rows,
  computes logits for the tokens of observations too, and sums up metrics in each call.
"""


def page(settings: Mapping[str, object], rows: Sequence[Row]) -> str:
    """The result as a Markdown page."""
    found = PAGE.format(**{**settings, "table": table(rows)})
    if settings["trl"] is None:
        return found
    worst = max(float(str(row["trl_gradient_difference"])) for row in rows)
    return found + TRL_NOTE.format(pins=" with ".join(PINS), difference=worst)


def settings_of(given: argparse.Namespace, arguments: Sequence[str]) -> Row:
    """What the JSON says about the whole measurement."""
    return {
        "command": shlex.join(["python", "-m", "scripts.bench.learner", *arguments]),
        "commit": checkout(),
        "model": WORDS if given.wide else str(given.model),
        "threads": 1,
        "repeats": given.repeats,
        "dtype": "float32",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "loss": LOSS.model_dump(),
        "trl": None if given.no_trl else list(PINS),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--page", type=Path, help="also write the result as Markdown")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, default=Path("conf/model/tiny"), help="Hugging Face folder")
    which.add_argument("--wide", action="store_true", help=f"{WORDS} instead")
    parser.add_argument("--repeats", type=int, default=5, help="counted rounds per shape")
    parser.add_argument("--no-trl", action="store_true", help="leave TRL out")
    return parser


def main() -> None:
    """Measures, prints the table, writes the JSON and the page."""
    given = _parser().parse_args()
    settings = settings_of(given, sys.argv[1:])
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in the learner
    disable_progress_bar()  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        model, trl = given.model.resolve(), None
        if given.wide:
            model = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_wide_model(model, given.model)
        if not given.no_trl:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            vocabulary = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
            forests = [(shape, grow(shape, vocabulary)) for shape in SHAPES]
            trl = stack.enter_context(TrlProcess(model, forests, folder))
        rows = measure(model, SHAPES, given.repeats, trl)
    write_json(given.json, {"settings": settings, "shapes": rows})
    if given.page is not None:
        write(given.page, page(settings, rows))
    print(table(rows))


if __name__ == "__main__":
    main()
