"""Whether memory stays flat: a long run of the tiny model, with the memory of each of its processes.

    python -m scripts.soak --json OUT.json [--steps 300] [--page PAGE.md]

Steps are as small as they can be (two tasks of four leaves), so that the number of steps is what counts; every step is
logged to W&B (offline) with its trees, every 25th is saved, every 100th evaluated. Every few seconds the anonymous
memory of each process is read (its own heap, no files); the shared memory of Ray's object store is a series of its own.
Growth is the median of the last tenth of the samples against the median of the tenth after the warm-up, which is the
first fifth; beside it stands the slope of a straight line through the second half of the samples. Exit code 0 only if
no process grew by 5 % or more; of a process of a few MiB, whose heap moves by more than that from one garbage
collection to the next, growth below 4 MiB is none.

On CPUs the engine's oneDNN keeps up to 1,024 compiled kernels, one per shape of a batch: about 350 MiB, which fill up
over the first hundreds of steps. Here it keeps 128 (ONEDNN_PRIMITIVE_CACHE_CAPACITY), so that anything else would show.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.chaos_audit import Shape
from scripts.chaos_job import START_S, Job
from scripts.processes import command_of, role

SAMPLE_S = 4.0
WARM_UP, PART = 0.2, 0.1
"""Shares of the samples."""
BOUND = 0.05
FLOOR_MIB = 4.0
"""Less growth than this is none."""
ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
LONGEST_S = 6 * 3600.0
POINTS = 100
"""At most so many samples of a series are kept in the result."""
SHAPE = Shape(tasks=2, roots=2, branches=2)
STORE = "object store"
UNJUDGED = ("other", "idle worker")
"""Small helpers of Ray that come and go."""
Series = list[tuple[float, float]]
"""(seconds since the first step, MiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one process, in MiB."""

    own: float
    """Proportional share of anonymous memory."""
    shared: float
    """Proportional share of shared memory."""


def memory(pid: int) -> Memory | None:
    """From `/proc/PID/smaps_rollup`; None for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    return parsed(text)


def parsed(text: str) -> Memory | None:
    """The numbers of a `smaps_rollup`; None if they are not there."""
    kib = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:] if len(line.split()) >= 2}
    if not {"Pss_Anon", "Pss_Shmem"} <= kib.keys():
        return None
    return Memory(own=kib["Pss_Anon"] / 1024, shared=kib["Pss_Shmem"] / 1024)


def growth(values: Sequence[float]) -> float:
    """Median of the last tenth relative to the median of the tenth after the warm-up, minus 1.

    E.g. 20 samples: the 2 after the first 4 against the last 2; (10, 10) against (11, 11) is 0.1. With too few samples
    for that, one is taken in place of a tenth. What grows from nothing counts as if it had grown from 1 MiB.
    """
    part, begin = max(round(len(values) * PART), 1), round(len(values) * WARM_UP)
    first, last = (statistics.median(part) for part in (values[begin : begin + part], values[-part:]))
    return last / first - 1 if first else last


def is_flat(values: Sequence[float]) -> bool:
    """Whether a process, in MiB, did not grow."""
    rate = growth(values)
    return rate < BOUND or rate * (statistics.median(values) or 1.0) < FLOOR_MIB


def slope(series: Series) -> float | None:
    """MiB per second over the second half, by least squares; None with fewer than two samples in it.

    E.g. 10, 10, 12, 14 MiB at 0, 4, 8 and 12 s: from 12 to 14 in 4 s is 0.5.
    """
    half = series[len(series) // 2 :]
    if len(half) < 2:
        return None
    return statistics.linear_regression([at for at, _ in half], [mib for _, mib in half]).slope


def thinned(series: Series) -> Series:
    """At most `POINTS` samples, evenly spaced, the first and the last among them."""
    if len(series) <= POINTS:
        return series
    return [series[round(i * (len(series) - 1) / (POINTS - 1))] for i in range(POINTS)]


class Sampler:
    """Reads the memory of a job's processes in a thread, by role; of several with one role, that of the largest."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.series: dict[str, Series] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Sampler":
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            now = time.monotonic() - self._began
            for name, mib in self._look().items():
                self.series.setdefault(name, []).append((round(now, 1), round(mib, 2)))

    def _look(self) -> dict[str, float]:
        found: dict[str, float] = {STORE: 0.0}
        named = [(role(command_of(process)), process.pid) for process in self._job.family.alive()]
        for name, pid in [("driver", self._job.process.pid), *named]:
            if (used := memory(pid)) is not None:
                found[name] = max(found.get(name, 0.0), used.own)
                found[STORE] += used.shared
        return found


def result(series: Mapping[str, Series], steps: int, seconds: float) -> dict[str, object]:
    """The content of the JSON file. A role that was not there from the warm-up to the end is not judged."""
    longest = max(map(len, series.values()), default=0)
    roles: dict[str, dict[str, object]] = {}
    for name, samples in sorted(series.items()):
        values = [mib for _, mib in samples]
        is_judged, rise = name not in UNJUDGED and len(values) > 0.9 * longest and max(values) > 0, slope(samples)
        roles[name] = {
            "samples": len(values),
            "median_mib": round(statistics.median(values), 1),
            "peak_mib": round(max(values), 1),
            "growth": round(growth(values), 4) if is_judged else None,
            "ok": is_flat(values) if is_judged else None,
            "mib_per_1000_steps": None if rise is None else round(rise * seconds / steps * 1000, 2),
            "series": thinned(samples),
        }
    worst = max((float(str(row["growth"])) for row in roles.values() if row["growth"] is not None), default=0.0)
    return {
        "steps": steps,
        "seconds": round(seconds),
        "sample_s": SAMPLE_S,
        "warm_up": WARM_UP,
        "machine": f"{os.cpu_count()} CPU cores",
        "worst_growth": worst,
        "ok": all(row["ok"] is not False for row in roles.values()),
        "processes": roles,
    }


def page(found: Mapping[str, object], command: str) -> str:
    """The result as a Markdown page."""
    processes = found["processes"]
    assert isinstance(processes, dict)
    rows = [
        f"| {name} | {row['median_mib']} | {row['peak_mib']} | {_shown(row['mib_per_1000_steps'])} | "
        + ("not judged |" if row["growth"] is None else f"{100 * row['growth']:+.2f} % {'' if row['ok'] else '(!)'} |")
        for name, row in processes.items()
    ]
    seconds = float(str(found["seconds"]))
    return (
        "# Memory over a long run\n\n"
        f"`{command}`: {found['steps']} steps of the tiny model in {seconds / 60:.0f} minutes, on {found['machine']}."
        "\n\n"
        f"{(chr(10) * 2).join((__doc__ or '').split(chr(10) * 2)[2:]).strip()}\n\n"
        "| process | median, MiB | peak, MiB | slope, MiB per 1,000 steps | growth |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\n"
        f"{'No process grew' if found['ok'] else 'Processes marked (!) grew'} beyond the bounds. Helpers of Ray that "
        "come and go are not judged. The object store is the shared memory of all processes together.\n"
    )


def _shown(rise: object) -> str:
    return "–" if rise is None else f"{rise:+}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description="Records memory over a long run.")
    parser.add_argument("--json", type=Path, required=True, help="file for the result")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default 300)")
    parser.add_argument("--page", type=Path, help="Markdown file for the result")
    options = parser.parse_args(arguments)
    settings = ["checkpoint.every=25", "evaluation.every=100", "logger.sample_trees=8", "push.probe_tokens=8"]
    with tempfile.TemporaryDirectory(prefix="soak-") as root:
        job = Job(Path(root) / "runs", "soak", Path(root) / "soak.txt", options.steps, settings, ENVIRONMENT, SHAPE)
        with job:
            job.wait_for_step(1)
            began = time.monotonic()
            with Sampler(job) as sampler:
                job.wait(lambda: job.step >= options.steps, "the last step", LONGEST_S, SAMPLE_S)
                seconds = time.monotonic() - began
            found = result(sampler.series, options.steps, seconds)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            if options.page:
                command = f"python -m scripts.soak --json {options.json} --steps {options.steps}"
                options.page.write_text(page(found, command), encoding="utf-8")
            job.end(0, START_S)
        job.audit(options.steps)
    print(f"worst growth {float(str(found['worst_growth'])):.2%} over {options.steps} steps; {options.json}")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
