"""Runs a module of this project and measures the memory of its processes, twice a second.

    python -m scripts.bench.peak_memory FOLDER MODULE [ARGUMENT ...]

writes FOLDER/NAME.memory.json, where NAME is what the run's own `name=NAME` says. A run that goes on in its folder
FOLDER/NAME keeps the larger peak of what went before.

All processes that the run starts are counted, by parentage: Ray's, the learner's ranks, the rollout actors, and the
engines'. Memory is resident memory; pages that processes share count in each. Linux only (`/proc`).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

EVERY_S = 0.5
PAGE = os.sysconf("SC_PAGE_SIZE")
LEARNER, ENGINE = ("LearnerRank", "RolloutActor"), "VLLM"
MIB = 2**20


@dataclass(slots=True, kw_only=True)
class Peak:
    """Largest sums of one run, in MiB; the parts need not be of one moment."""

    total_mib: float = 0.0
    """All processes of the run."""
    workers_mib: float = 0.0
    """Learner ranks, rollout actors and engines: what grows with the model and its training."""
    seconds: float = 0.0
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process at one moment."""

    pid: int
    parent: int
    resident: int
    """Bytes."""
    title: str
    """Its command line, as far as it tells."""

    @property
    def is_worker(self) -> bool:
        """Whether it is a learner's rank, a rollout actor, or one of an engine's own processes."""
        return self.title.startswith(f"{ENGINE}::") or any(f"ray::{name}" in self.title for name in LEARNER)


def descendants(processes: Iterable[Process], ancestor: int) -> list[Process]:
    """Those that `ancestor` started, directly or not, itself included. E.g. of 1 <- 2 <- 3 and 4, and 2: 2 and 3."""
    by_parent: dict[int, list[Process]] = {}
    found: list[Process] = []
    for process in processes:
        by_parent.setdefault(process.parent, []).append(process)
        if process.pid == ancestor:
            found.append(process)
    for process in found:  # grows while it is read
        found += by_parent.get(process.pid, ())
    return found


def add(peak: Peak, processes: Iterable[Process]) -> None:
    """Takes one moment into the peak."""
    seen = list(processes)
    peak.total_mib = max(peak.total_mib, sum(process.resident for process in seen) / MIB)
    workers = sum(process.resident for process in seen if process.is_worker)
    peak.workers_mib = max(peak.workers_mib, workers / MIB)


def together(before: Peak, after: Peak) -> Peak:
    """Of a run in two parts: the larger sums, all seconds, and how it ended."""
    return Peak(
        total_mib=max(before.total_mib, after.total_mib),
        workers_mib=max(before.workers_mib, after.workers_mib),
        seconds=before.seconds + after.seconds,
        exit_code=after.exit_code,
    )


def all_processes() -> list[Process]:
    """Every process that can be read now."""
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
    return [process for folder in folders if (process := _process(folder))]


def run(command: Sequence[str], every_s: float = EVERY_S) -> Peak:
    """Runs a command to its end; its output is this process's own."""
    peak, started = Peak(), time.monotonic()
    child = subprocess.Popen(command)
    while child.poll() is None:
        add(peak, descendants(all_processes(), child.pid))
        time.sleep(every_s)
    peak.seconds, peak.exit_code = time.monotonic() - started, child.returncode
    return peak


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code of what it ran."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    names = [word.removeprefix("name=") for word in words if word.startswith("name=")]
    if len(words) < 2 or not names:
        print("usage: python -m scripts.bench.peak_memory FOLDER MODULE name=NAME [ARGUMENT ...]", file=sys.stderr)
        return 2
    folder, name = Path(words[0]), names[-1]
    before = read(folder, name) if (folder / name).is_dir() and file_of(folder, name).exists() else Peak()
    peak = run([sys.executable, "-m", *words[1:]])
    file_of(folder, name).write_text(json.dumps(asdict(together(before, peak))) + "\n", encoding="utf-8")
    return peak.exit_code


def read(folder: Path, name: str) -> Peak:
    """What `main` wrote for a run."""
    return Peak(**json.loads(file_of(folder, name).read_text(encoding="utf-8")))


def file_of(folder: Path, name: str) -> Path:
    """Where it is written."""
    return folder / f"{name}.memory.json"


def _process(folder: Path) -> Process | None:
    """None for one that ended meanwhile. In `stat` the name may hold anything, so what follows its bracket is read."""
    try:
        parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        resident = int((folder / "statm").read_text().split()[1]) * PAGE
        title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (OSError, IndexError, ValueError):
        return None
    return Process(pid=int(folder.name), parent=parent, resident=resident, title=title)


if __name__ == "__main__":
    sys.exit(main())
