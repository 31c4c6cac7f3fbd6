"""Command: makes the shop's database and its tickets.

`python -m envs.shop.prepare --out data/shop` writes shop.sqlite, train.jsonl, heldout.jsonl and manifest.json, and does
nothing when they are there, made with the same parameters. The same seed and counts give the same rows and tickets.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from envs.prepare import is_made, write_tasks
from envs.shop.database import ShopDatabase, write_database
from envs.shop.tickets import counts, tickets
from envs.types import Json

FORMAT = 1
"""Raised by one whenever the files would come out differently for the same parameters."""
DATABASE = "shop.sqlite"
FILES = (DATABASE, "train.jsonl", "heldout.jsonl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    options = _parser().parse_args(arguments)
    numbers = {name: int(getattr(options, name)) for name in ("customers", "orders", "train", "heldout", "seed")}
    try:
        print(prepare(options.out, **numbers))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(out: Path, *, customers: int, orders: int, train: int, heldout: int, seed: int) -> str:
    """Writes the files unless they are there; returns one sentence for people. Raises ValueError, OSError."""
    if train < 1 or heldout < 1:
        raise ValueError(f"--train {train} --heldout {heldout}: both must be at least 1")
    made_with: dict[str, Json] = {"format": FORMAT, "customers": customers, "orders": orders}
    made_with |= {"train": train, "heldout": heldout, "seed": seed}
    manifest = out / "manifest.json"
    if is_made(out, made_with, FILES):
        return f"{out} is already there, made with the same parameters; nothing to do."
    out.mkdir(parents=True, exist_ok=True)
    manifest.unlink(missing_ok=True)
    rows = write_database(out / DATABASE, customers=customers, orders=orders, seed=seed)
    shop, kinds = ShopDatabase(out / DATABASE), dict[str, Json]()
    for split, count in (("train", train), ("heldout", heldout)):
        made = tickets(shop, split=split, count=count, seed=seed)
        write_tasks(out / f"{split}.jsonl", made)
        kinds[split] = dict(counts(made))
    record = {"made_with": made_with, "rows": rows, "tickets": kinds}
    manifest.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return f"{out}: {rows} rows, {train} training and {heldout} held-out tickets."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.shop.prepare", description="Makes the shop and its tickets.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, e.g. data/shop")
    parser.add_argument("--customers", type=int, default=600, help="customers (default 600)")
    parser.add_argument("--orders", type=int, default=1600, help="orders, at most 9000 (default 1600)")
    parser.add_argument("--train", type=int, default=440, help="training tickets (default 440)")
    parser.add_argument("--heldout", type=int, default=154, help="held-out tickets (default 154)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
