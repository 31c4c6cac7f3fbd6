"""The real scheduler actor against simulated rollout actors, some of which die; and the benchmark's arithmetic."""

import os
import time
from pathlib import Path

import pytest
import ray
from by_hand import spec
from local_ray import local_ray

from rollout_workers import trees
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.growth import TreeRules
from rollout_workers.scheduler import Harvest, start_scheduler
from rollout_workers.types import Sampling
from scripts.bench import scheduler as bench
from scripts.bench.scheduler_actors import BranchMill, Load, latencies, start_host
from scripts.bench.scheduler_page import FULL, PACED, goals, page

RULES = TreeRules(roots=2, nodes_per_round=2, rounds=2)
LOAD = Load(max_branches=4, latency_s=0.2, spread=1.0, seed=3)
"""The second half of 3000 branches takes 24 actors 3 s at least, whatever the machine."""


@pytest.fixture
def cluster():
    here = str(Path.cwd())
    with local_ray(num_cpus=8, runtime_env={"env_vars": {"PYTHONPATH": here}}):
        yield


def half_way(scheduler) -> int:
    """Waits until half of the leaves are grown; how many leaves there are in all."""
    limit = time.monotonic() + 300
    while True:
        progress = ray.get(scheduler.wait.remote(0.02))
        if progress.leaves >= progress.leaves_total // 2:
            return progress.leaves_total
        assert time.monotonic() < limit, progress.waits_for


@pytest.mark.slow
def test_a_process_of_actors_and_single_ones_die_and_each_leaf_comes_exactly_once(cluster):
    scheduler = start_scheduler(24)
    names = [f"rollout-{i}" for i in range(24)]
    killed, wounded, whole = (start_host(names[i::3], LOAD) for i in range(3))
    ray.get([host.start.remote(scheduler) for host in (killed, wounded, whole)])
    tasks = bench.tasks_for(300)
    wanted = CollectionSpec(phase="train-1", tasks=tasks, rules=RULES, sampling=Sampling(), seed=1, steal_after=1.5)
    ray.get(scheduler.begin.remote(wanted))
    assert half_way(scheduler) == len(tasks) * 10
    ray.kill(killed)
    ray.get(wounded.kill.remote(names[1::3][:3]))
    lost = names[0::3] + names[1::3][:3]
    requeued = sum(ray.get([scheduler.actor_lost.remote(name) for name in lost]))
    assert requeued > 0, "they died with branches in hand"
    assert ray.get(scheduler.wait.remote(300.0)).is_complete
    harvest = ray.get(scheduler.take.remote())
    check_each_leaf_once(harvest, 5)
    ledger = harvest.ledger
    assert (ledger.leaves, ledger.trees, ledger.branches_requeued) == (len(tasks) * 10, len(tasks) * 2, requeued)


def check_each_leaf_once(harvest: Harvest, slots: int) -> None:
    for group in harvest.forest:
        for tree in group.trees:
            trees.check(tree)
            assert sorted(tree.nodes[leaf].slot for leaf in trees.leaves(tree)) == list(range(slots))
    assert harvest.ledger.branches == harvest.ledger.leaves, "nothing came twice"


@pytest.mark.slow
def test_1024_actors_bring_each_of_10000_branches_once(cluster):
    load = Load(max_branches=8, latency_s=0.5, spread=0.7)
    tasks = bench.tasks_for(10_000)
    measured = bench.measure("many", load, 1024, tasks, hosts=2)
    check_each_leaf_once(measured.harvest, 3)
    assert [group.task.id for group in measured.harvest.forest] == [task.id for task in tasks]
    assert measured.items == sum(count.branches for count in measured.counts) == len(tasks) * 6
    assert sum(count.branches > 0 for count in measured.counts) > 800, "3332 first chains, at most 4 for each"


@pytest.mark.slow
def test_a_measured_collection_has_a_figure_for_every_key(cluster):
    measured = bench.measure("full", Load(max_branches=4, latency_s=0.05, spread=0.3), 5, bench.tasks_for(600), 2)
    row = measured.row()
    assert (row["actors"], row["items"]) == (5, 600)
    assert 0 < row["cost_per_assignment_us"] * 600 <= 1e6 * row["seconds"] * os.cpu_count()
    assert 0 <= row["idle_share"] <= row["free_share"] <= 1
    assert sum(count.branches for count in measured.counts) == 600
    assert all(value >= 0 for value in row.values())


def test_summary_compares_the_cost_of_few_and_many_actors():
    rows = [
        {"actors": n, "items": 100.0, "assignments_per_s": 1e4, "cost_per_assignment_us": cost, "memory_mb": 1.0}
        for n, cost in ((8.0, 100.0), (64.0, 130.0))
    ]
    paced = [{"idle_share": 0.25, "idle_share_before_tail": 0.0, "tail_s": 1.0, "fairness": 0.5}] * 2
    summary = bench.summary([rows, rows], paced)
    assert summary["actors"] == [8, 64]
    assert summary["flatness"] == 1.3
    assert summary["idle_share"] == [0.25, 0.25]
    assert goals(summary) == {"assignments_5000_per_s": True, "cost_flat_within_1.5": True}
    rows[1]["cost_per_assignment_us"], rows[0]["assignments_per_s"] = 151.0, 4999.0
    assert goals(bench.summary([rows], paced)) == {"assignments_5000_per_s": False, "cost_flat_within_1.5": False}
    assert bench.medians([{"x": 5.0, "y": 1.0}, {"x": 1.0, "y": 7.0}, {"x": 2.0, "y": 3.0}]) == {"x": 2.0, "y": 3.0}
    assert bench.jain([3, 3, 3]) == 1.0
    assert bench.jain([4, 0, 0, 0]) == 0.25


def test_the_page_says_how_much_was_run_and_whether_the_goals_were_reached():
    full = dict.fromkeys(FULL, 0.5) | {"actors": 8.0, "items": 300.0, "assignments_per_s": 9876.0}
    paced = dict.fromkeys(PACED, 0.25) | {"actors": 8.0, "items": 384.0}
    result = bench.summary([[full]] * 5, [paced])
    text = page(result, "the command")
    assert "Medians of 5 collections each" in text
    assert "At most 48 branches per actor, each actor running 8 at a time" in text
    assert "assignments per second with any number of actors: reached (lowest: 9,876)" in text
    assert "| 8 | 300 | 9,876 | 0.5 |" in text
    assert "| 8 | 384 | 0.25 |" in text
    assert "**missed** (2.00)" in page(result | {"flatness": 2.0}, "")


def test_made_up_branches_fit_their_items_and_latencies_have_the_mean_asked_for():
    drawn = latencies(Load(max_branches=1, latency_s=2.0, spread=1.0))
    assert sum(drawn) / len(drawn) == pytest.approx(2.0)
    assert sorted(drawn)[int(0.99 * len(drawn))] > 8.0, "a long tail"
    collection, mill = Collection(spec(3)), BranchMill(LOAD)
    while items := collection.assign("a", 5, 0.0):
        for item in items:
            assert collection.complete(mill.run(item))
    for group in collection.forest():
        for tree in group.trees:
            trees.check(tree)
            assert {trees.depths(tree)[leaf] for leaf in trees.leaves(tree)} == {LOAD.turns}
