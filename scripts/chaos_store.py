"""A job that takes all of a Ray cluster's object store and holds it: `python -m scripts.chaos_store`.

The cluster is the one that RAY_ADDRESS names. It prints one line when the store is full, and ends with its standard
input. What it holds is in use, so Ray can neither drop nor spill it; whatever else is put into the store has to go to
the disk.
"""

import logging
import os
import sys
import time

import numpy as np
import ray
from ray._private.internal_api import memory_summary

PIECE = 4_000_000
"""Bytes per object."""
LINES = ("Plasma memory usage", "Plasma filesystem mmap usage")
TRIES = 60


def main() -> int:
    """Fills, tells, waits. Exit code 1 if the store would not be full."""
    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    pieces = int(ray.cluster_resources()["object_store_memory"]) // PIECE  # type: ignore[no-untyped-call]
    held = [_held() for _ in range(pieces + 1)]  # the last one finds no room, and goes to the disk
    for _ in range(TRIES):
        words = usage()
        if len(words) == len(LINES):
            break
        time.sleep(0.5)
    else:
        print(f"{len(held)} pieces do not fill it: {words}", flush=True)
        return 1
    print(f"full: {'; '.join(words)}", flush=True)
    sys.stdin.read()
    return 0


def _held() -> object:
    """An object of one piece. The reference goes, and the value in shared memory is in use as long as it is held."""
    return ray.get(ray.put(np.zeros(PIECE - 1000, np.uint8)))


def usage() -> list[str]:
    """Ray's words about the store: how full it is, and how much is on the disk for want of room, if any is."""
    summary = memory_summary(os.environ["RAY_ADDRESS"], stats_only=True)  # type: ignore[no-untyped-call]
    return [line.strip() for line in summary.splitlines() if line.startswith(LINES)]


if __name__ == "__main__":
    sys.exit(main())
