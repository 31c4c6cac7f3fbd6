"""For the table of `test_bad_input.py`: what a row is, the good folder that it changes, and short ways to write rows.

A row is run in a folder in which `GOOD` is accepted, but for what the row changes.
"""

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow
import pyarrow.parquet
import pytest

import trainer.main
from trainer.compose import compose

GOOD = (
    *("experiment=quickstart", "name=r", "tasks_per_step=2", "model.path=model", "env.train_tasks=train.jsonl"),
    *("env.eval_tasks=heldout.jsonl", "env.retriever.corpus=corpus.jsonl", "cluster=local", "dry_run=true"),
)
BARE = tuple(part for part in GOOD if not part.startswith(("experiment=", "env.retriever.")))
"""For environments other than the quickstart's."""
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_position_embeddings": 2048,
    "vocab_size": 8,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
SHAPES = {"model.embed_tokens.weight": (8, 4), "model.layers.0.self_attn.q_proj.weight": (4, 4)}
CODE = """\
import envs.types
number = 3
def fine(outcome): return 1.0
def greedy(outcome, task): return 1.0
async def later(outcome): return 1.0
def world(width): return None
"""
SHORT = {
    "{train}": "env.train_tasks cannot be used: train.jsonl line 2:",
    "{parquet}": "env.train_tasks cannot be used: train.parquet",
    "{corpus}": "env.retriever.corpus cannot be used: corpus",
    "{model}": "model.path=model cannot be used:",
    "{missing}": (
        "is not a file (relative paths count from {here}): give a file, or make the quickstart's with "
        "`python -m envs.prepare --out data/quickstart`."
    ),
    "{folder}": "it must be a folder, which is made when it does not exist.",
    "{name}": "is not accepted: it must be null, or letters, digits, dots, dashes and underscores, at most 128.",
    "{integer}": "is not accepted: it must be an integer of at least 1.",
}
"""What many sentences have in common; `{here}` is the folder."""
FOLDER = object()
"""In the place of a file's content: a folder has its name."""

Content: TypeAlias = "str | bytes | object | Callable[[Path], None] | None"
"""Of a file; None takes it away, a function makes it."""


def task(number: int, **changes: object) -> dict[str, object]:
    return {"id": f"t{number}", "prompt": "Where is Ulm?", "truth": ["Germany"]} | changes


def lines(*records: object) -> str:
    return "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)


def safetensors(shapes: Mapping[str, tuple[int, int]]) -> bytes:
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        size = 4 * rows * columns
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def vocabulary(count: int) -> str:
    return json.dumps({"model": {"vocab": {f"w{number}": number for number in range(count)}}, "added_tokens": []})


def gibibyte(path: Path) -> None:
    """A good line, and one of 2^30 bytes: a hole in the file, which takes no room on the disk."""
    path.write_text(lines(task(1)))
    with path.open("ab") as file:
        file.truncate(2**30)


def unreadable(path: Path) -> None:
    """A file that nobody can read: its first byte is none of this process's memory."""
    path.symlink_to("/proc/self/mem")


def forbidden(path: Path) -> None:
    """A file of somebody else's. Root reads everything."""
    if os.geteuid() == 0:
        pytest.skip("run as root, whom no file refuses")
    path.write_text(lines(task(1)))
    path.chmod(0)


def stored(path: Path) -> None:
    """The settings of a run, as its folder keeps them (JSON is YAML)."""
    path.write_text(compose(GOOD).model_dump_json())


@dataclass(frozen=True, kw_only=True)
class Bad:
    """One row."""

    says: str
    """All of standard error, in short (see `SHORT`)."""
    args: Sequence[str] = ()
    files: Mapping[str, Content] = field(default_factory=dict)
    command: Callable[[Sequence[str]], int] = trainer.main.main
    good: Sequence[str] = GOOD
    """What stands before `args`."""


def settings(says: str, *args: str) -> Bad:
    """Overrides of a run, which are refused before anything is looked at."""
    return Bad(says=says, args=args)


def decision(says: str, *args: str) -> Bad:
    """Overrides of the travel example."""
    return Bad(says=says, args=["env=decision", "decision=travel", *args], good=BARE)


def other(command: Callable[[Sequence[str]], int], says: str, *args: str, **files: Content) -> Bad:
    """Another command."""
    return Bad(
        says=says, args=args, command=command, good=(), files={n.replace("__", "."): c for n, c in files.items()}
    )


def line(record: object, says: str) -> Bad:
    """The training tasks with another line 2."""
    return Bad(says=f"{{train}} {says}", files={"train.jsonl": lines(task(1), record, task(3))})


def rows(says: str, *records: Mapping[str, object], cut: int | None = None) -> Bad:
    """Training tasks in Parquet, the file cut off after so many bytes."""

    def write(path: Path) -> None:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), path)
        path.write_bytes(path.read_bytes()[:cut])

    args = ["env.train_tasks=train.parquet"]
    return Bad(says=f"{{parquet}} {says}", args=args, files={"train.parquet": write})


def corpus(content: Content, says: str) -> Bad:
    """Another corpus."""
    return Bad(says=f"{{corpus}}{says}", files={"corpus.jsonl": content})


def reward(path: str, says: str, files: Mapping[str, Content] | None = None) -> Bad:
    """A reward of the user's own."""
    args = ["env.reward.kind=custom", f"env.reward.path={path}"]
    return Bad(says=f"env.reward.path {path!r} {says}", args=args, files=files or {})


def model(files: Mapping[str, Content], says: str) -> Bad:
    """Another file in the model's folder."""
    return Bad(says=f"{{model}} {says}", files={f"model/{name}": content for name, content in files.items()})


def config(**changes: object) -> dict[str, Content]:
    """The model's config.json with other entries; None leaves one out."""
    return {"config.json": json.dumps({name: v for name, v in (CONFIG | changes).items() if v is not None})}


def model_config(**changes: object) -> dict[str, Content]:
    """The same as a file of the whole folder."""
    return {f"model/{name}": content for name, content in config(**changes).items()}


def model_files() -> dict[str, Content]:
    return {
        "config.json": json.dumps(CONFIG),
        "tokenizer.json": vocabulary(8),
        "tokenizer_config.json": json.dumps({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}),
        "model.safetensors": safetensors(SHAPES),
    }


def make(folder: Path, files: Mapping[str, Content]) -> None:
    for name, content in files.items():
        path: Any = folder / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is FOLDER:
            path.mkdir()
        elif callable(content):
            content(path)
        elif content is not None:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def run(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        return command(arguments)
    except SystemExit as ended:  # argparse
        return int(ended.code or 0)
