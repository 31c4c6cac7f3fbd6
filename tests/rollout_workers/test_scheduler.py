"""The scheduler's protocol without Ray: who waits for whom, who is woken by what, and what a closed gate does."""

import asyncio
from types import SimpleNamespace

import pytest
from by_hand import play, spec
from idle_actor import idle_actor
from lines import lines_of

from rollout_workers.collection import Collection
from rollout_workers.growth import TreeRules
from rollout_workers.scheduler import TreeScheduler
from rollout_workers.timed_policy import TimedPolicy

CHAINS = TreeRules(roots=4, rounds=0)


async def waiting(scheduler: TreeScheduler, *actors: str, capacity: int = 4) -> list[asyncio.Task]:
    """Pulls of these actors, one after the other, all of which find nothing yet."""
    pulls = []
    for actor in actors:
        pulls.append(asyncio.create_task(scheduler.pull(actor, capacity, 30.0)))
        await asyncio.sleep(0)
    assert not any(pull.done() for pull in pulls)
    return pulls


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def stop(pulls: list[asyncio.Task]) -> None:
    for pull in pulls:
        pull.cancel()
    await asyncio.gather(*pulls, return_exceptions=True)


async def test_a_pull_without_work_comes_back_empty_after_its_wait():
    scheduler = TreeScheduler()
    assert await scheduler.pull("a", 4, 0.01) == []
    await scheduler.begin(spec(1, rules=CHAINS))
    assert len(await scheduler.pull("a", 3, 30.0)) == 3


async def test_begin_gives_every_waiting_actor_its_share_in_the_order_they_came():
    scheduler = TreeScheduler()
    pulls = await waiting(scheduler, "b", "a", "c")
    await scheduler.begin(spec(3, rules=CHAINS))
    got = [[item.task.id for item in await pull] for pull in pulls]
    assert got == [["q0"] * 4, ["q1"] * 4, ["q2"] * 4]


async def test_a_push_wakes_the_holder_and_nobody_for_whom_there_is_nothing():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(1, rules=TreeRules(roots=1, nodes_per_round=1, rounds=2), steal_after=9.0))
    (chain,) = await scheduler.pull("a", 1, 30.0)
    pulls = await waiting(scheduler, "b", "c", "a", "d")
    await scheduler.push([play(chain)])
    await settle()
    assert [pull.done() for pull in pulls] == [False, False, True, False]
    assert [item.slot for item in await pulls[2]] == [1]
    await stop(pulls)


async def test_results_are_answered_with_work_for_the_room_that_they_leave():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(2, rules=TreeRules(roots=1, nodes_per_round=3, rounds=1)))
    (chain,) = await scheduler.pull("a", 1, 30.0)
    assert [item.slot for item in await scheduler.push([play(chain)], "a", 2)] == [1, 2], "its own tree first"
    assert await scheduler.push([], "a", 0) == [], "no room, or a pull that asks already"
    await scheduler.actor_lost("a")
    assert await scheduler.push([], "a", 4) == [], "the dead get nothing"
    assert len(await scheduler.pull("b", 8, 30.0)) == 4


async def test_idle_actors_are_served_before_those_that_only_have_room():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(2, rules=TreeRules(roots=1, nodes_per_round=2, rounds=1), steal_after=1.0))
    (chain,) = await scheduler.pull("a", 1, 30.0)
    assert await scheduler.pull("b", 1, 30.0)
    pulls = await waiting(scheduler, "b", "c", capacity=1)
    await scheduler.push([play(chain)])  # 2 expansions for a, which has room for 1
    await settle()
    assert [pull.done() for pull in pulls] == [False, True]
    await stop(pulls)


async def test_an_actor_that_runs_nothing_gets_a_part_of_what_a_busier_one_has_room_for():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(1, rules=TreeRules(roots=1, nodes_per_round=4, rounds=1), steal_after=1.5))
    (chain,) = await scheduler.pull("a", 8, 30.0)
    pulls = await waiting(scheduler, "a", "b", "c", capacity=8)
    await scheduler.push([play(chain)])
    assert [len(await pull) for pull in pulls] == [2, 1, 1]


async def test_a_closed_gate_hands_out_nothing_and_says_when_all_is_back():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(1))
    items = await scheduler.pull("a", 8, 30.0)
    draining = asyncio.create_task(scheduler.drain(30.0))
    pulls = await waiting(scheduler, "a", "b", capacity=2)
    await scheduler.push([play(items[0])])
    await settle()
    assert not draining.done()
    assert not await scheduler.drain(0.01), "one is still out"
    await scheduler.push([play(items[1])])
    assert await draining
    assert not any(pull.done() for pull in pulls), "expansions wait behind the gate"
    assert await scheduler.pull("c", 1, 0.01) == []
    await scheduler.open_gate()
    assert len(await pulls[0]) == 2
    assert len(await scheduler.pull("a", 4, 30.0)) == 2
    await stop(pulls)


async def test_draining_ends_when_the_actor_that_holds_the_last_branch_is_lost():
    scheduler = TreeScheduler()
    assert await scheduler.drain(0.0), "without a collection nothing is out"
    await scheduler.open_gate()
    await scheduler.begin(spec(1))
    await scheduler.pull("a", 8, 30.0)
    draining = asyncio.create_task(scheduler.drain(30.0))
    await settle()
    assert await scheduler.actor_lost("a") == 2
    assert await draining


async def test_what_a_lost_actor_held_goes_to_who_waits_and_it_gets_nothing_any_more():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(1))
    await scheduler.pull("dead", 1, 30.0)
    pulls = await waiting(scheduler, "a")
    assert await scheduler.actor_lost("dead") == 1
    assert len(await pulls[0]) == 2
    assert await scheduler.pull("dead", 1, 0.01) == []


async def test_a_pull_that_waits_when_its_actor_is_lost_is_answered_with_nothing():
    scheduler = TreeScheduler()
    pulls = await waiting(scheduler, "dead", "a")
    await scheduler.actor_lost("dead")
    await scheduler.begin(spec(1))
    assert await pulls[0] == []
    assert len(await pulls[1]) == 2


async def test_the_driver_hears_of_completion_at_once_and_of_failure_as_an_error():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(1, rules=CHAINS))
    seen = asyncio.create_task(scheduler.wait(30.0))
    items = await scheduler.pull("a", 4, 30.0)
    await scheduler.push([play(item) for item in items])
    assert (await seen).is_complete
    await scheduler.take()
    await scheduler.begin(spec(1, rules=CHAINS, lease_timeout_s=0.0, max_attempts=2))
    for _ in range(2):
        assert await scheduler.pull("a", 1, 30.0)
    with pytest.raises(RuntimeError, match="was started 2 times and never came back"):
        await scheduler.wait(30.0)


async def test_an_actor_s_steps_renew_the_leases_of_its_branches_and_a_push_those_of_all():
    told, done = [], asyncio.Event()

    class Scheduler:
        class progressed:
            @staticmethod
            async def remote(name, ids):
                told.append((name, sorted(ids)))
                done.set()

    class Frozen:
        async def pause(self):
            pass

        async def resume(self, version):
            pass

    actor = idle_actor("a", progress_s=0.01)
    actor._engine, actor._policy = Frozen(), TimedPolicy(None, 1.0)
    telling = asyncio.create_task(actor._work_loop._tell(Scheduler))
    actor._work_loop.stepped("x", "y")
    await asyncio.wait_for(done.wait(), 5)
    done.clear()
    actor._running = {telling: "z"}
    await actor.pause()
    await actor.resume(3)
    await asyncio.wait_for(done.wait(), 5)
    telling.cancel()
    assert told == [("a", ["x", "y"]), ("a", ["z"])]


async def test_progress_keeps_a_lease_of_the_collection_that_is_open(monkeypatch):
    now = 0.0
    monkeypatch.setattr("rollout_workers.scheduler.time", SimpleNamespace(monotonic=lambda: now))
    scheduler = TreeScheduler()
    await scheduler.progressed("a", ["train-0/q0/0/0"])
    await scheduler.begin(spec(1, rules=CHAINS, lease_timeout_s=10.0, max_attempts=1))
    items = await scheduler.pull("a", 2, 30.0)
    for _ in range(4):
        now += 6.0
        await scheduler.progressed("a", [item.id for item in items])
    assert not (await scheduler.wait(0.01)).is_complete
    await scheduler.actor_lost("b")
    await scheduler.progressed("b", [item.id for item in items])
    now += 11.0
    with pytest.raises(RuntimeError, match="was started 1 times and never came back"):
        await scheduler.wait(0.01)


async def test_late_branches_and_their_seconds_belong_to_the_next_collection():
    scheduler = TreeScheduler()
    stray = Collection(spec(1)).assign("x", 1, now=0.0)[0]
    late = play(stray)
    late.ledger.engine_busy_s = 0.5
    await scheduler.push([late])
    await scheduler.begin(spec(1, rules=CHAINS))
    items = await scheduler.pull("a", 4, 30.0)
    results = [play(item) for item in items]
    results[0].ledger.engine_busy_s = 2.0
    await scheduler.push(results)
    harvest = await scheduler.take()
    assert harvest.ledger.engine_busy_s == 2.5
    assert (harvest.ledger.branches, harvest.ledger.discarded_tokens, harvest.ledger.sampled_tokens) == (5, 2, 10)
    assert harvest.forest[0].ledger.branches == 4
    assert await scheduler.drain(0.0)


async def test_what_a_push_costs_does_not_depend_on_how_many_actors_wait():
    counts = []
    for number in (4, 400):
        scheduler = TreeScheduler()
        await scheduler.begin(spec(1, rules=TreeRules(roots=1, nodes_per_round=1, rounds=3), steal_after=1e9))
        (chain,) = await scheduler.pull("a", 1, 30.0)
        pulls = await waiting(scheduler, *(f"w{i}" for i in range(number)), "a")
        counts.append(await lines_of(scheduler.push([play(chain)])))
        assert not any(pull.done() for pull in pulls[:-1])
        assert len(await pulls[-1]) == 1
        await stop(pulls)
    assert counts[1] <= counts[0] + 5, counts
