"""Command: makes text adventures and the task files that name them.

`python -m envs.textworld_games --out data/textworld` writes train.jsonl, heldout.jsonl, a folder `games` and
manifest.json, and does nothing when they are there, made with the same parameters. A game depends on its seed only.
"""

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from envs.prepare import write_tasks
from envs.textworld_game import textworld
from envs.textworld_maker import Difficulty, make_game
from envs.types import Json, Message, Task

FORMAT = 1
"""Raised by one whenever the files would come out differently for the same parameters."""
REPORT_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    options = _parser().parse_args(arguments)
    levels = [Difficulty(steps=steps, rooms=options.rooms, things=options.things) for steps in options.steps]
    counts = {"train": options.train, "heldout": options.heldout}
    try:
        print(make_games(options.out, counts, levels, options.seed, options.processes))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def make_games(out: Path, counts: dict[str, int], levels: Sequence[Difficulty], seed: int, processes: int) -> str:
    """Writes everything unless it is there; returns one sentence for people. Raises ValueError.

    Game `number` of a split has the level `number % len(levels)` and the seed `"<split>/<seed>/<number>"`.
    """
    textworld()
    if min(counts.values()) < 1 or processes < 1:
        raise ValueError("--train, --heldout and --processes must be at least 1")
    made_with: dict[str, Json] = {
        "format": FORMAT,
        "games": dict(counts),
        "levels": [[level.steps, level.rooms, level.things] for level in levels],
        "seed": seed,
        "textworld": importlib.metadata.version("textworld"),
    }
    manifest, started = out / "manifest.json", time.monotonic()
    if manifest.is_file() and json.loads(manifest.read_text(encoding="utf-8")) == made_with:
        return f"{out} is already there, made with the same parameters; nothing to do."
    (out / "games").mkdir(parents=True, exist_ok=True)
    manifest.unlink(missing_ok=True)
    with ProcessPoolExecutor(processes) as pool:
        for split, count in counts.items():
            chosen = [levels[number % len(levels)] for number in range(count)]
            names = [f"{split}/{seed}/{number}" for number in range(count)]
            tasks = pool.map(_make_one, [out / "games"] * count, names, chosen, chunksize=4)
            write_tasks(out / f"{split}.jsonl", list(_shown(tasks, split, count)))
    manifest.write_text(json.dumps(made_with, indent=2) + "\n", encoding="utf-8")
    return f"{out}: {sum(counts.values())} games in {time.monotonic() - started:.0f} s."


def _make_one(folder: Path, seed: str, level: Difficulty) -> Task:
    """Makes one game, writes its file, and returns its task."""
    made = make_game(seed, level)
    split, _, number = seed.split("/")
    file = f"{split}-{int(number):05d}.json"
    made.game.save(str(folder / file))
    meta: dict[str, Json] = {
        "game": file,
        "split": split,
        "steps": level.steps,
        "rooms": level.rooms,
        "expert": list(made.expert),
    }
    prompt = f"goal: {made.goal}. {made.start.view}"
    return Task(id=f"textworld/{seed}", prompt=(Message(role="user", content=prompt),), truth=("won",), meta=meta)


def _shown(tasks: Iterator[Task], split: str, count: int) -> Iterator[Task]:
    """Passes the tasks on and says how far it is."""
    reported = time.monotonic()
    for number, task in enumerate(tasks, start=1):
        if number == count or time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            print(f"{split}: {number} of {count} games", flush=True)
        yield task


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.textworld_games", description="Makes text adventures.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, e.g. data/textworld")
    parser.add_argument("--train", type=int, default=300, help="training games (default 300)")
    parser.add_argument("--heldout", type=int, default=100, help="held-out games (default 100)")
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[6, 7, 8, 9], metavar="N", help="levels: commands an expert needs"
    )
    parser.add_argument("--rooms", type=int, default=3, help="rooms of a game (default 3)")
    parser.add_argument("--things", type=int, default=8, help="containers, supporters, objects, keys (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="games made at once (default 2)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
