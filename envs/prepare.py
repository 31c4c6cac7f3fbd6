"""Command: builds the corpus and the question files of the search task.

`python -m envs.prepare --out data/quickstart` writes corpus.jsonl, train.jsonl, heldout.jsonl and manifest.json, and
does nothing when the folder already holds them, made with the same parameters and package versions.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from envs.corpus import write_corpus
from envs.facts import SOURCES, Facts, load_facts, source_versions
from envs.families import BORN_EARLIER, FAMILIES, QUICKSTART, hops_of
from envs.questions import mix
from envs.types import Json, Task

FORMAT = 1
"""Raised by one whenever the files would come out differently for the same parameters."""
FILES = ("corpus.jsonl", "train.jsonl", "heldout.jsonl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    options = _parser().parse_args(arguments)
    try:
        print(prepare(options.out, options.families, options.hops, options.train, options.heldout, options.seed))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of reading, it would be a ValueError
        print(f"error: {options.out} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def prepare(
    out: Path,
    families: Sequence[str],
    hops: Sequence[int],
    train: int,
    heldout: int,
    seed: int,
    facts_of: Callable[[], Facts] = load_facts,
) -> str:
    """Writes the files unless they are there; returns one sentence for people. Raises ValueError."""
    for name in families:
        hops_of(name)
    if train < 1 or heldout < 1:
        raise ValueError(f"--train {train} --heldout {heldout}: both must be at least 1")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: it must be a folder, which is made when it does not exist")
    made_with: dict[str, Json] = {
        "format": FORMAT,
        "families": list(families),
        "hops": list(hops),
        "train": train,
        "heldout": heldout,
        "seed": seed,
        "packages": dict(source_versions()),
    }
    if is_made(out, made_with, FILES):
        return f"{out} is already there, made with the same parameters; nothing to do."
    facts = facts_of()
    splits = {
        split: mix(facts, families=families, split=split, count=count, seed=seed, hops=hops)
        for split, count in (("train", train), ("heldout", heldout))
    }
    out.mkdir(parents=True, exist_ok=True)
    manifest = out / "manifest.json"
    manifest.unlink(missing_ok=True)
    documents = write_corpus(out / "corpus.jsonl", facts)
    for split, tasks in splits.items():
        write_tasks(out / f"{split}.jsonl", tasks)
    counts: Json = {split: dict(Counter(str(task.meta["family"]) for task in tasks)) for split, tasks in splits.items()}
    record: Json = {"made_with": made_with, "licences": dict(SOURCES), "documents": documents, "questions": counts}
    manifest.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return f"{out}: {documents} documents, {train} training and {heldout} held-out questions."


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Writes one JSON object per task (fields id, prompt, truth, meta); the prompt is the last message's text."""
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            record = {
                "id": task.id,
                "prompt": task.prompt[-1].content,
                "truth": list(task.truth),
                "meta": dict(task.meta),
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def is_made(out: Path, made_with: dict[str, Json], files: Sequence[str]) -> bool:
    """True when the manifest, written last, names the same parameters and every one of `files` exists."""
    try:
        found = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    same = isinstance(found, dict) and found.get("made_with") == made_with
    return same and all((out / name).is_file() for name in files)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.prepare", description="Builds corpus and question files.")
    known = ", ".join((*FAMILIES, BORN_EARLIER))
    parser.add_argument("--out", type=Path, required=True, help="folder to write, e.g. data/quickstart")
    parser.add_argument("--families", nargs="+", default=list(QUICKSTART), metavar="NAME", help=f"among: {known}")
    parser.add_argument("--hops", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="equal parts of these")
    parser.add_argument("--train", type=int, default=4000, help="training questions (default 4000)")
    parser.add_argument("--heldout", type=int, default=400, help="held-out questions (default 400)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
