"""The tree scheduler under load: the real scheduler actor and protocol, rollout actors that only sleep.

    python -m scripts.bench.scheduler --json OUT.json [--page OUT.md] [--actors 8,64,256,1024] [--items 100000]

Two kinds of collections per number of actors. `full`: branches so short that the actors together could do several times
more than the scheduler can hand out, so that the scheduler is what is measured; all of `--items`, with all numbers of
actors in turn, `--rounds` times, of which the medians count. `paced`: branches with a long tail at a rate that the
scheduler can follow, at most 48 per actor; for idleness, tail and fairness; once.
The cost of an assignment is CPU time of the scheduler's process (all of its threads: unpickling results, growing trees,
handing out, pickling items), from `begin` to the last result. The exit code is 1 if a goal was missed.
"""

import argparse
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil  # type: ignore[import-untyped]
import ray

from envs.types import Message, Task
from rollout_workers.collection import CollectionSpec
from rollout_workers.growth import TreeRules
from rollout_workers.scheduler import Harvest, start_scheduler
from rollout_workers.types import Sampling
from scripts.bench.result_files import print_json, say, write, write_json
from scripts.bench.scheduler_actors import (
    FULL_BRANCHES,
    PACED_BRANCHES,
    PACED_ITEMS_PER_ACTOR,
    ActorCount,
    Load,
    start_host,
)
from scripts.bench.scheduler_page import goals, page

ACTORS = (8, 64, 256, 1024)
RULES = TreeRules(roots=2, nodes_per_round=2, rounds=1)
"""6 branches per task: 2 first chains, then 2 expansions of each tree."""
FULL_RATE = 50_000
"""Branches per second that the actors of `full` could do."""
PACED_RATE = 1_500
"""Branches per second that the actors of `paced` do when none is idle."""
PACED_LATENCY_S = 0.5
"""Shortest mean latency of `paced`; with few actors it decides, not the rate."""
FULL_SPREAD, PACED_SPREAD = 0.3, 0.7
"""Of a branch's time (`Load.spread`); with 0.7, 1 branch in 100 takes 4 times the mean and some 8 times."""
LAST_SHARE = 0.05
"""The tail is the time of the last 5 % of the branches, when there is no longer work for everybody."""
WAIT_S, POLL_S = 600.0, 0.1

Row = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One collection."""

    actors: int
    load: Load
    items: int
    seconds: float
    tail_s: float
    cpu_s: float
    """CPU time of the scheduler's process."""
    memory_mb: float
    """Resident memory of the scheduler's process when the last branch was back."""
    take_s: float
    """Handing over the forest."""
    counts: Sequence[ActorCount]
    before_tail: Sequence[ActorCount]
    harvest: Harvest

    def row(self) -> Row:
        """What the page and the JSON file show."""
        ledger = self.harvest.ledger
        steady_s = max(self.seconds - self.tail_s, 1e-9)
        return {
            "actors": self.actors,
            "items": self.items,
            "latency_s": self.load.latency_s,
            "seconds": self.seconds,
            "assignments_per_s": self.items / self.seconds,
            "cost_per_assignment_us": 1e6 * self.cpu_s / self.items,
            "scheduler_busy": self.cpu_s / self.seconds,
            "items_per_pull": self.items / sum(count.pulls for count in self.counts),
            "items_per_push": self.items / sum(count.pushes for count in self.counts),
            "memory_mb": self.memory_mb,
            "take_s": self.take_s,
            "idle_share": idle_share(self.counts, self.seconds),
            "idle_share_before_tail": idle_share(self.before_tail, steady_s),
            "free_share": sum(c.free_s for c in self.counts) / (self.actors * self.load.max_branches * self.seconds),
            "tail_s": self.tail_s,
            "fairness": jain([count.branches for count in self.counts]),
            "stolen_share": ledger.branches_stolen / self.items,
        }


def idle_share(counts: Sequence[ActorCount], seconds: float) -> float:
    """Share of the actors' time in which they had no branch at all."""
    return sum(count.idle_s for count in counts) / (len(counts) * seconds)


def jain(values: Sequence[float]) -> float:
    """Jain's index (sum x)² / (n · sum x²): 1 when all are equal, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def tasks_for(items: int) -> tuple[Task, ...]:
    """As few tasks as give at least `items` branches."""
    count = math.ceil(items / (RULES.roots * RULES.leaves_per_tree))
    question = "In which country does the river that flows through the city lie, and what is the capital of it? " * 3
    return tuple(
        Task(id=f"task/{i}", prompt=(Message(role="user", content=f"{question}{i}"),), truth=("x",))
        for i in range(count)
    )


def measure(phase: str, load: Load, actors: int, tasks: tuple[Task, ...], hosts: int) -> Measured:
    """Runs one collection with fresh processes."""
    scheduler = start_scheduler(actors)
    names = [f"rollout-{i}" for i in range(actors)]
    processes = [start_host(names[i::hosts], load) for i in range(min(hosts, actors))]
    process = psutil.Process(ray.get(scheduler.__ray_call__.remote(pid_of)))
    ray.get([host.start.remote(scheduler) for host in processes])
    time.sleep(1.0)  # every actor waits for work, as between two steps of a run
    spec = CollectionSpec(
        phase=phase,
        tasks=tasks,
        rules=RULES,
        sampling=Sampling(),
        seed=load.seed,
        steal_after=1.5,
        lease_timeout_s=WAIT_S,
    )
    ray.get([host.reset.remote() for host in processes])
    cpu, started = cpu_s(process), time.monotonic()
    ray.get(scheduler.begin.remote(spec))
    before_tail: list[ActorCount] = []
    tail, ended = collect(scheduler, lambda: before_tail.extend(settle(processes)))
    counts = settle(processes)
    cpu, seconds = cpu_s(process) - cpu, ended - started
    memory_mb = process.memory_info().rss / 2**20
    taken = time.monotonic()
    harvest = ray.get(scheduler.take.remote(), timeout=WAIT_S)
    take_s = time.monotonic() - taken
    for handle in [*processes, scheduler]:
        ray.kill(handle)
    return Measured(
        actors=actors,
        load=load,
        items=harvest.ledger.leaves,
        seconds=seconds,
        tail_s=ended - tail,
        cpu_s=cpu,
        memory_mb=memory_mb,
        take_s=take_s,
        counts=counts,
        before_tail=before_tail,
        harvest=harvest,
    )


def pid_of(_scheduler: object) -> int:
    """Runs in the scheduler's process."""
    return os.getpid()


def cpu_s(process: Any) -> float:
    """CPU seconds of all threads of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def collect(scheduler: Any, at_tail: Callable[[], None]) -> tuple[float, float]:
    """Waits for the forest; (time when all but the last 5 % were back, time when all were). Calls `at_tail` then."""
    limit = time.monotonic() + WAIT_S
    tail: float | None = None
    while True:
        progress = ray.get(scheduler.wait.remote(POLL_S), timeout=60)
        now = time.monotonic()
        if tail is None and progress.leaves >= (1 - LAST_SHARE) * progress.leaves_total:
            tail = now
            at_tail()
        if progress.is_complete:
            assert tail is not None, "what is complete is complete to 95 %"
            return tail, now
        assert now < limit, f"not complete after {WAIT_S:.0f} s: {progress.waits_for}"


def settle(processes: Sequence[Any]) -> list[ActorCount]:
    """What all simulated actors did up to now."""
    return [count for part in ray.get([host.settle.remote() for host in processes]) for count in part.values()]


def full(actors: int, items: int, seed: int, hosts: int) -> Measured:
    """More load than the scheduler can take."""
    load = Load(max_branches=FULL_BRANCHES, latency_s=actors * FULL_BRANCHES / FULL_RATE, spread=FULL_SPREAD, seed=seed)
    return measure(f"full-{actors}", load, actors, tasks_for(items), hosts)


def paced(actors: int, items: int, seed: int, hosts: int) -> Measured:
    """A load that the scheduler can follow."""
    latency_s = max(actors * PACED_BRANCHES / PACED_RATE, PACED_LATENCY_S)
    load = Load(max_branches=PACED_BRANCHES, latency_s=latency_s, spread=PACED_SPREAD, seed=seed)
    return measure(f"paced-{actors}", load, actors, tasks_for(min(items, actors * PACED_ITEMS_PER_ACTOR)), hosts)


def medians(rows: Sequence[Row]) -> Row:
    """Of several collections the median of each figure."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def summary(rounds: Sequence[Sequence[Row]], paces: Sequence[Row]) -> dict[str, Any]:
    """The content of the JSON file: one entry per number of actors in every list. `rounds`: of `full`."""
    fulls = [medians(rows) for rows in zip(*rounds, strict=True)]
    costs = [row["cost_per_assignment_us"] for row in fulls]
    return {
        "actors": [int(row["actors"]) for row in fulls],
        "items": [int(row["items"]) for row in fulls],
        "assignments_per_s": [row["assignments_per_s"] for row in fulls],
        "cost_per_assignment_us": costs,
        "flatness": max(costs) / min(costs),
        "memory_mb": [row["memory_mb"] for row in fulls],
        "idle_share": [row["idle_share"] for row in paces],
        "idle_share_before_tail": [row["idle_share_before_tail"] for row in paces],
        "tail_s": [row["tail_s"] for row in paces],
        "fairness": [row["fairness"] for row in paces],
        "full": fulls,
        "rounds": [list(rows) for rows in rounds],
        "paced": list(paces),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "ray": ray.__version__},
    }


def main(arguments: Sequence[str]) -> int:
    """Runs both collections for each number of actors and writes the files; the exit code is 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.scheduler", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, required=True, help="file for the result")
    parser.add_argument("--page", type=Path, help="also write the result as Markdown")
    parser.add_argument("--actors", type=lambda text: [int(part) for part in text.split(",")], default=list(ACTORS))
    parser.add_argument("--items", type=int, default=100_000, help="branches per collection")
    parser.add_argument("--rounds", type=int, default=3, help="collections of `full` per number of actors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=1, help="processes that share the simulated actors")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {options.rounds}")
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)

    def each(name: str, run: Callable[[int, int, int, int], Measured]) -> list[Row]:
        rows = []
        for actors in options.actors:
            rows.append(row := run(actors, options.items, options.seed, options.hosts).row())
            say(f"{name:6}  " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
        return rows

    try:
        rounds = [each("full", full) for _ in range(options.rounds)]
        result = summary(rounds, each("paced", paced))
    finally:
        ray.shutdown()
    reached = goals(result)
    result |= {"goals": reached}
    print_json(result, without=("full", "rounds", "paced"))
    write_json(options.json, result)
    if options.page is not None:
        write(options.page, page(result, " ".join(["python -m scripts.bench.scheduler", *arguments])))
    return 0 if all(reached.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
