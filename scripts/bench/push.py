"""What a weight push costs: a real learner and a real engine, beside a memory copy and a socket of the same bytes.

    python -m scripts.bench.push --json OUT.json [--page OUT.md] [--pushes N] [--only tiny|large]

Each model gets a run of its own: learner, engine, two training steps of the quickstart's shape (the second is the
measured step), then pushes. After each push the same number of bytes is copied in memory and sent to another process
over a loopback socket, so that all three see the same machine; figures are medians. `seconds` is the push alone, from
the engines' pause to their resumption. The comparison of log-probabilities that follows every push is `probe_s`, and
`share_with_probe` is both. The large model is random, and its step has one task instead of 16: a whole step takes
longer, so that its shares are rather too high than too low. The exit code is 1 if a goal was missed.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads

import ray
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config
from transformers.utils.logging import disable_progress_bar

from scripts.bench import markdown
from scripts.bench.push_wires import Socket, copy_seconds
from scripts.bench.result_files import print_json, say, write, write_json
from trainer.cluster import connect
from trainer.compose import compose
from trainer.packing import pack_forest
from trainer.push import probe_contexts
from trainer.session import Session

Row = dict[str, Any]
PARTS = ("pause_s", "open_s", "send_s", "load_s", "resume_s")
COLUMNS = (
    "model", "bytes", "seconds", "share_of_step", "share_with_probe", "socket_seconds", "times_socket",
    "memcpy_seconds", *PARTS, "probe_s",
)  # fmt: skip
MAX_SHARE, MAX_TIMES_SOCKET = 0.05, 2.0
TINY = Path("conf/model/tiny")
STEPS = 2
"""The last one is measured; the first compiles kernels."""


def measure(name: str, overrides: Sequence[str], pushes: int, runs: Path) -> Row:
    """One row of the result. Needs a connected Ray."""
    config = compose(["experiment=quickstart", "cluster=local", f"name={name}", f"runs_dir={runs}", *overrides])
    with Session(config) as session:
        session.progress.start(STEPS, title=name)
        session.pusher.use_probes([session.codec.prompt(task) for task in session.eval_tasks])
        session.pusher.push(0)
        step_s = [train(session, step) for step in range(1, STEPS + 1)][-1]
        rounds = pushed(session, STEPS, pushes)
    return row(name, rounds, step_s) | {"step_tasks": config.tasks_per_step}


def train(session: Session, step: int) -> float:
    """One step as the training loop does it, without what only writes logs; returns its seconds."""
    config, started = session.config, time.perf_counter()
    found = session.forest(step)
    packed = pack_forest(*found.for_learner, config.loss, config.learner, session.hidden_size, step - 1)
    session.learner.train(packed.mini_batches)
    session.pusher.use_probes(probe_contexts(found.forest, config.push.probe_prompts))
    session.pusher.push(step)
    return time.perf_counter() - started


def pushed(session: Session, version: int, pushes: int) -> list[dict[str, float]]:
    """`push/*` metrics with `memcpy` and `socket` seconds of the same bytes, per round; one before them is not kept."""
    rounds = []
    with Socket() as socket:
        for index in range(pushes + 1):
            metrics = session.pusher.push(version + index)
            size = int(metrics["push/bytes"])
            rounds.append(metrics | {"memcpy": copy_seconds(size), "socket": socket.seconds(size)})
    return rounds[1:]


def row(name: str, rounds: Sequence[Mapping[str, float]], step_s: float) -> Row:
    """Medians over the rounds, and their ratios."""

    def median(key: str) -> float:
        return statistics.median(one[key] for one in rounds)

    seconds, socket_s, probe_s = median("push/seconds"), median("socket"), median("push/probe_s")
    return {
        "model": name,
        "bytes": int(median("push/bytes")),
        "seconds": seconds,
        "step_seconds": step_s,
        "share_of_step": seconds / step_s,
        "share_with_probe": (seconds + probe_s) / step_s,
        "memcpy_seconds": median("memcpy"),
        "socket_seconds": socket_s,
        "times_socket": statistics.median(one["push/seconds"] / one["socket"] for one in rounds),
        **{part: median(f"push/{part}") for part in PARTS},
        "probe_s": probe_s,
        "max_abs_logprob_diff": max(one["push/max_abs_logprob_diff"] for one in rounds),
    }


def goals(result: Mapping[str, Any]) -> dict[str, bool]:
    """What the benchmark is meant to show of the largest model, each true or false."""
    return {
        "at_most_0.05_of_the_step": result["share_of_step"] <= MAX_SHARE,
        "within_2_times_the_socket": result["times_socket"] <= MAX_TIMES_SOCKET,
    }


def verdicts(result: Mapping[str, Any]) -> str:
    """The goals in words."""
    share, socket = map(markdown.verdict, goals(result).values())
    return (
        f"- At most {MAX_SHARE:.0%} of the step: {share} ({result['share_of_step']:.1%} for the {result['model']} "
        f"model, {result['share_with_probe']:.1%} with the comparison after it).\n"
        f"- Within {MAX_TIMES_SOCKET:g} times the socket: {socket} ({result['times_socket']:.2f} times)."
    )


def write_random_model(folder: Path, hidden: int, layers: int) -> None:
    """A decoder of the tiny model's kind with random weights, and its tokenizer."""
    config = Qwen2Config.from_pretrained(TINY)
    heads = max(hidden // 64, 1)
    config.update(
        {
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_window_layers": layers,
            "layer_types": ["full_attention"] * layers,
        }
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)  # type: ignore[no-untyped-call]
    AutoTokenizer.from_pretrained(TINY).save_pretrained(folder)


def text(value: object) -> str:
    """For the table: seconds and ratios with three digits, bytes in MB."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value / 1e6:.0f} MB" if isinstance(value, int) and value > 1_000_000 else str(value)


def table(rows: Sequence[Row]) -> str:
    """All models as a Markdown table."""
    return markdown.table(COLUMNS, [[text(one[column]) for column in COLUMNS] for one in rows])


PAGE = """# A weight push

    {command}

From the learner (one rank) to one rollout actor over gloo, medians of {pushes} pushes on {machine}, {cores} cores,
torch {torch}. After each push the same bytes were copied in memory, and sent to another process over a loopback
socket.

{verdicts}

{table}

- `seconds`: from the engines' pause to their resumption; `times_socket`: the median of its ratio to the socket.
- `share_of_step`: of a whole training step of the quickstart's shape, for the large model with 1 task instead of 16;
  `share_with_probe`: the push and the comparison, which runs at every push.
- `open_s`: the engine prepares; `send_s`: until the last byte has left the learner, while the engine loads what has
  come; `load_s`: the rest of loading. `probe_s`: engine and learner compare log-probabilities afterwards, while the
  branches in flight go on.
- A small model is far from the socket whatever the bytes take: pausing, opening and closing cost some calls between
  processes each.
"""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--page", type=Path, help="also write the result as Markdown")
    parser.add_argument("--pushes", type=int, default=9, help="counted pushes per model")
    parser.add_argument("--only", choices=["tiny", "large"], help="one model instead of both")
    parser.add_argument("--hidden", type=int, default=1024, help="width of the large model")
    parser.add_argument("--layers", type=int, default=8, help="layers of the large model")
    parser.add_argument("--tasks", type=int, default=16, help="tasks of the tiny model's step")
    return parser.parse_args()


def main() -> int:
    """Measures, prints and writes the JSON, writes the page; the exit code is 1 if a goal was missed."""
    given = arguments()
    disable_progress_bar()  # type: ignore[no-untyped-call]
    quiet = ["logger.mode=disabled", "logger.sample_trees=0", "evaluation.tasks=4"]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        connect(compose(["experiment=quickstart", "cluster=local"]))
        if given.only != "large":
            rows.append(measure("tiny", [*quiet, f"tasks_per_step={given.tasks}"], given.pushes, Path(folder)))
        if given.only != "tiny":
            write_random_model(Path(folder) / "model", given.hidden, given.layers)
            large = [*quiet, f"model.path={folder}/model", "tasks_per_step=1"]
            rows.append(measure("large", large, given.pushes, Path(folder)))
        ray.shutdown()
    settings = {"pushes": given.pushes, "hidden": given.hidden, "layers": given.layers, "dtype": "float32"}
    settings |= {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    largest = max(rows, key=lambda one: int(str(one["bytes"])))
    reached = goals(largest)
    result = {**largest, "models": rows, "goals": reached, "settings": settings}
    say(f"{table(rows)}\n{verdicts(largest)}")
    print_json(result)
    write_json(given.json, result)
    if given.page is not None:
        command = " ".join(["python -m scripts.bench.push", *sys.argv[1:]])
        write(given.page, PAGE.format(**settings, command=command, verdicts=verdicts(largest), table=table(rows)))
    return 0 if all(reached.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
