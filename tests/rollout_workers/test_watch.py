"""A collection that stands still: what is said of forest and actors, when it is said, and when the run gives up."""

import asyncio

import pytest
from by_hand import play, spec

from rollout_workers.collection import Collection
from rollout_workers.growth import TreeRules
from rollout_workers.scheduler import TreeScheduler
from rollout_workers.watch import MAX_SHOWN, ActorWatch, Watchdog


def test_each_actor_says_what_it_holds_and_when_it_was_heard_last():
    watch, held = ActorWatch(), {"a": 2, "b": 0, "c": 5}
    for name, asked, gave in (("a", 100.0, 90.0), ("b", 129.0, 50.0), ("c", 40.0, None)):
        watch.asked(name, asked)
        if gave is not None:
            watch.gave(name, gave)
    assert watch.describe(held.__getitem__, 10.0, 130.0) == (
        "c holds 5 branches, no result for 120 s, asked for work 90 s ago; "
        "a holds 2 branches, no result for 40 s, asked for work 30 s ago; "
        "b holds 0 branches, no result for 80 s, asked for work 1 s ago"
    )
    assert "a holds 2 branches, no result for 25 s" in watch.describe(held.__getitem__, 105.0, 130.0), "begun since"
    watch.lost("c")
    assert "c holds" not in watch.describe(held.__getitem__, 10.0, 130.0)


def test_of_many_actors_the_most_silent_are_shown():
    watch = ActorWatch()
    assert watch.describe(lambda _: 0, 0.0, 1.0) == "no actor has asked for work"
    for number in range(MAX_SHOWN + 3):
        watch.asked(f"r{number}", 0.0)
        watch.gave(f"r{number}", float(number))
    said = watch.describe(lambda _: 1, 0.0, 60.0)
    assert said.startswith("r0 holds 1 branches, no result for 60 s")
    assert said.endswith("; and 3 more actors")
    assert said.count("holds") == MAX_SHOWN


def test_the_watchdog_warns_again_and_again_and_then_gives_up(caplog):
    dog = Watchdog(warn_s=10.0, abort_s=30.0, now=0.0)
    for now in range(1, 31):
        dog.look(float(now), float(now), lambda: "a holds it")
    assert [record.getMessage() for record in caplog.records] == [
        "no branch finished for 11 s: a holds it",
        "no branch finished for 22 s: a holds it",
    ]
    with pytest.raises(RuntimeError, match=r"no branch finished for 31 s, more than .*watchdog_abort_s=30: a holds it"):
        dog.look(31.0, 31.0, lambda: "a holds it")


def test_the_watchdog_is_silent_while_branches_come_back(caplog):
    dog = Watchdog(warn_s=10.0, abort_s=30.0, now=0.0)
    for now in range(1, 100):
        dog.look(now % 10.0, float(now), pytest.fail)
    assert not caplog.records


def test_the_report_of_a_collection_has_leaves_trees_and_the_branches_out_longest():
    collection = Collection(spec(2, rules=TreeRules(roots=1, rounds=0)))
    (first,) = collection.assign("a", 1, now=5.0)
    collection.assign("b", 1, now=25.0)
    assert collection.report(30.0) == (
        "0 of 2 leaves grown, 0 branches queued, 2 branches held by a, b; 0 of 2 trees complete; "
        "branch train-1/q0/0/0 made no step for 25 s (start 1 of 3); "
        "branch train-1/q1/0/0 made no step for 5 s (start 1 of 3)"
    )
    collection.renew("a", [first.id], now=28.0)
    assert collection.report(30.0).split("; ")[2] == "branch train-1/q1/0/0 made no step for 5 s (start 1 of 3)"
    collection.complete(play(first))
    assert "1 of 2 trees complete; branch train-1/q1/0/0" in collection.report(30.0)


async def test_the_scheduler_reports_forest_and_actors():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(2, rules=TreeRules(roots=2, rounds=0)))
    for name in ("a", "b", "dead"):
        assert await scheduler.pull(name, 2, 0.01) or name == "dead"
    await scheduler.actor_lost("dead")
    await asyncio.sleep(0.05)
    await scheduler.push([play(item) for item in Collection(scheduler._collection.spec).assign("a", 1, 0.0)], actor="a")
    said = await scheduler.report()
    assert said.startswith("1 of 4 leaves grown, 0 branches queued, 3 branches held by a, b; 1 of 4 trees complete")
    assert said.index("b holds ") < said.index("a holds "), "the longest silence first"
    assert "dead" not in said
