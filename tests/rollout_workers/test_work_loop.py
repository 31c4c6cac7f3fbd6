"""How rollout actors ask for work: by pulls that go on waiting while pushes bring work, and never more than fits."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from by_hand import play, spec
from idle_actor import idle_actor

from rollout_workers import trees
from rollout_workers.actor import RolloutActor
from rollout_workers.collection import Collection
from rollout_workers.growth import TreeRules
from rollout_workers.scheduler import TreeScheduler
from rollout_workers.types import BranchResult, WorkItem
from rollout_workers.work_loop import WorkLoop
from scripts.bench.scheduler_actors import BranchMill, Load, SimulatedActor, latencies

PAIRS = TreeRules(roots=1, nodes_per_round=2, rounds=1)
BURSTS = TreeRules(roots=1, nodes_per_round=4, rounds=3)
"""Little to do, then more than one actor has room for, in turn."""
ROOM = 3


async def some_turns(rng: random.Random) -> None:
    """Lets others go first, between never and 20 times."""
    for _ in range(rng.randrange(20)):
        await asyncio.sleep(0)


class FarScheduler:
    """A scheduler whose calls and answers take their time, each another."""

    def __init__(self, scheduler: TreeScheduler, seed: int) -> None:
        self._rng = random.Random(seed)
        self.pull, self.push = self._far(scheduler.pull), self._far(scheduler.push)
        self.progressed = self._far(scheduler.progressed)

    def _far(self, method: Callable[..., Awaitable[Any]]) -> SimpleNamespace:
        async def remote(*arguments: Any) -> Any:
            await some_turns(self._rng)
            answer = await method(*arguments)
            await some_turns(self._rng)
            return answer

        return SimpleNamespace(remote=remote)


class Runner:
    """Branches that take some turns, and a look at how many there are."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.running = self.most = 0

    async def run(self, item: WorkItem) -> BranchResult:
        self.running += 1
        self.most = max(self.most, self.running)
        await some_turns(self._rng)
        self.running -= 1
        return play(item)


def rollout_actor(name: str, rng: random.Random) -> RolloutActor:
    """A real one without engine and environment."""
    actor = idle_actor(name, max_branches=ROOM)
    actor._runner = Runner(rng)  # type: ignore[assignment]
    actor._audit = SimpleNamespace(book=lambda ledger: None)  # type: ignore[assignment]
    return actor


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_comes_first_an_actor_never_gets_more_than_fits(seed):
    scheduler = TreeScheduler()
    far, rng = FarScheduler(scheduler, seed), random.Random(seed)
    actors = [rollout_actor(name, rng) for name in ("a", "b", "c")]
    working = [asyncio.create_task(actor.work(far)) for actor in actors]
    for _ in range(2):
        await scheduler.begin(spec(5, rules=BURSTS, steal_after=1.0))
        async with asyncio.timeout(60):
            assert (await scheduler.wait(60.0)).is_complete
        harvest = await scheduler.take()
        assert harvest.ledger.branches == harvest.ledger.leaves == 65
        assert [len(trees.leaves(tree)) for group in harvest.forest for tree in group.trees] == [13] * 5
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    assert max(actor._runner.most for actor in actors) == ROOM


async def test_a_push_brings_work_while_the_pull_goes_on_waiting_for_the_room_that_is_left():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(1, rules=PAIRS, steal_after=9.0))
    (chain,) = await scheduler.pull("a", 4, 30.0)
    pull = asyncio.create_task(scheduler.pull("a", 3, 30.0))
    await asyncio.sleep(0)
    items = await scheduler.push([play(chain)], "a", 4, True)
    assert [item.slot for item in items] == [1, 2]
    assert not pull.done()
    await scheduler.push([play(item) for item in items])
    await scheduler.take()
    await scheduler.begin(spec(8, rules=PAIRS))
    assert len(await pull) == 2, "4 places less the 2 that the push filled"


async def test_a_pull_without_room_left_is_answered_with_nothing():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(1, rules=PAIRS))
    (chain,) = await scheduler.pull("a", 2, 30.0)
    pull = asyncio.create_task(scheduler.pull("a", 1, 30.0))
    await asyncio.sleep(0)
    assert len(await scheduler.push([play(chain)], "a", 2, True)) == 2
    assert await pull == []


async def test_a_push_gets_nothing_while_the_answer_of_a_pull_is_on_its_way():
    scheduler = TreeScheduler()
    await scheduler.begin(spec(2, rules=PAIRS))
    first, _ = await scheduler.pull("a", 2, 30.0)
    assert await scheduler.push([play(first)], "a", 1, True) == []
    assert len(await scheduler.push([], "a", 1)) == 1


@pytest.mark.parametrize("seed", range(5))
async def test_simulated_actors_keep_to_their_room_too(seed, monkeypatch):
    load = Load(max_branches=ROOM, latency_s=1e-4, spread=0.5, seed=seed)
    scheduler, mill, times = TreeScheduler(), BranchMill(load), latencies(load)
    actors = [SimulatedActor(name, load, mill, times) for name in ("a", "b")]
    most: dict[SimulatedActor, int] = {}
    change = SimulatedActor._change

    def look(actor: SimulatedActor, by: int) -> None:
        change(actor, by)
        most[actor] = max(most.get(actor, 0), actor._running)

    monkeypatch.setattr(SimulatedActor, "_change", look)
    working = [asyncio.create_task(actor.work(FarScheduler(scheduler, seed))) for actor in actors]
    await scheduler.begin(spec(5, rules=BURSTS))
    assert (await scheduler.wait(60.0)).is_complete
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    assert max(most.values()) == ROOM
    assert sum(actor.settle().branches for actor in actors) == 65


class Listener:
    """Notes what is told of branches that have made a step."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []
        self.progressed = SimpleNamespace(remote=self._progressed)
        self.push = SimpleNamespace(remote=self._push)

    async def _progressed(self, actor: str, items: list[str]) -> None:
        self.told.append(("call", sorted(items)))

    async def _push(
        self, results: list[BranchResult], actor: str, capacity: int, pulls: bool, stepped: list[str]
    ) -> list[WorkItem]:
        self.told.append(("push", sorted(stepped)))
        return []


async def test_a_push_tells_of_steps_and_a_call_does_where_nothing_is_pushed(monkeypatch):
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    listener, chain = Listener(), Collection(spec(1, rules=PAIRS)).assign("a", 1, 0.0)[0]
    loop = WorkLoop("a", free=lambda: 0, begin=lambda items: None, progress_s=5.0)
    tasks = [asyncio.create_task(work(listener)) for work in (loop._push, loop._tell)]

    async def pass_until(moment: float) -> None:
        nonlocal now
        now = moment
        for _ in range(10):
            await asyncio.sleep(0)

    await pass_until(0.0)
    loop.stepped("x", "y", chain.id)
    await pass_until(4.9)
    assert not listener.told
    await pass_until(5.0)
    loop.stepped("y", chain.id)
    loop.ended(play(chain))
    await pass_until(7.4)
    loop.ended(play(chain))
    await pass_until(7.6)
    loop.stepped("z")
    await pass_until(10.1)
    await pass_until(12.7)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert listener.told == [
        ("call", sorted(["x", "y", chain.id])),
        ("push", []),  # told 2.4 s ago; and a branch that has ended is none to tell of
        ("push", ["y"]),
        ("call", ["z"]),
    ]


async def test_steps_told_by_a_push_renew_leases(monkeypatch):
    now = 0.0
    monkeypatch.setattr("rollout_workers.scheduler.time", SimpleNamespace(monotonic=lambda: now))
    scheduler = TreeScheduler()
    await scheduler.begin(spec(2, rules=PAIRS, lease_timeout_s=10.0, max_attempts=1))
    first, second = await scheduler.pull("a", 2, 30.0)
    for _ in range(3):
        now += 6.0
        await scheduler.push([], "a", 0, False, [first.id, second.id])
        assert not (await scheduler.wait(0.0)).is_complete
    now += 11.0
    with pytest.raises(RuntimeError, match="was started 1 times and never came back"):
        await scheduler.wait(0.0)
