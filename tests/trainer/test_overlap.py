"""Forests collected ahead of the loop: their order, how far ahead, errors from either side, and the end."""

import queue
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rollout_workers.types import Ledger
from trainer.collecting import StepHarvest
from trainer.forests import Ahead, InTurn

SOON = 60.0
"""Seconds within which a thread that may go on has gone on."""


class Clock:
    """Stands in for the one that `trainer.forests` reads."""

    def __init__(self) -> None:
        self.now = 0.0


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("trainer.forests.time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


def harvest(step: int) -> StepHarvest:
    return StepHarvest(forest=[], credit=[], trained=(), ledger=Ledger(), stats={"step": float(step)}, seconds=0.0)


class Collector:
    """Collects at once, and remembers what it began; `gate` can hold it up, `faulty` makes one step fail."""

    def __init__(self, faulty: int = 0) -> None:
        self.begun: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.faulty = faulty

    def __call__(self, step, check):
        self.begun.append(step)
        if step == self.faulty:
            raise RuntimeError(f"no forest {step}")
        while not self.gate.wait(0.01):
            check()
        return harvest(step)


def until(condition) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


def ahead(collector: Collector, max_staleness: int, last: int = 6, first: int = 1) -> Ahead:
    return Ahead(collector, first=first, last=last, max_staleness=max_staleness, close_s=SOON)


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_forests_come_in_order_and_never_begin_too_early(staleness):
    """Step k may begin once version k - 1 - staleness is pushed, so while version v is newest, up to v + 1 + s."""
    collector = Collector()
    with ahead(collector, staleness) as forests:
        for step in range(1, 7):
            allowed = min(step + staleness, 6)
            until(lambda allowed=allowed: len(collector.begun) == allowed)
            time.sleep(0.02)
            assert collector.begun == list(range(1, allowed + 1)), "no further one begins"
            assert forests.next(step).stats["step"] == step
            forests.pushed(step)


def test_a_resumed_run_begins_at_its_own_step():
    collector = Collector()
    with ahead(collector, 1, first=4, last=6) as forests:
        until(lambda: collector.begun == [4, 5])
        assert forests.next(4).stats["step"] == 4


def test_an_error_of_the_thread_reaches_the_loop_as_it_is():
    with ahead(Collector(faulty=2), 1) as forests:
        assert forests.next(1).stats["step"] == 1
        forests.pushed(1)
        with pytest.raises(RuntimeError, match="no forest 2"):
            forests.next(2)
        with pytest.raises(RuntimeError, match="no forest 2"), forests.hold():
            pass
        assert not forests._thread.is_alive()


def test_an_error_of_the_loop_ends_a_collection_on_its_way():
    collector = Collector()
    collector.gate.clear()
    forests = ahead(collector, 1)

    def loop() -> None:
        with forests:
            until(lambda: collector.begun == [1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    forests._thread.join(SOON)
    assert not forests._thread.is_alive()
    assert collector.begun == [1]


def test_the_thread_ends_with_the_last_forest_and_when_the_loop_ends_early():
    with ahead(Collector(), 1, last=2) as forests:
        forests.next(1)
        forests.next(2)
        until(lambda: not forests._thread.is_alive())
    with ahead(Collector(), 1) as forests:
        forests.next(1)
    assert not forests._thread.is_alive()


def test_no_collection_runs_in_a_hold_and_the_next_one_waits_for_its_end(clock):
    collector = Collector()
    collector.gate.clear()
    with ahead(collector, 2) as forests:
        until(lambda: collector.begun == [1])

        def end_it() -> None:
            until(lambda: forests._is_held)
            clock.now += 5.0
            collector.gate.set()

        threading.Thread(target=end_it).start()
        with forests.hold():
            assert collector.gate.is_set(), "the hold waited for the collection on its way"
            time.sleep(0.05)
            assert collector.begun == [1], "another was allowed but did not begin"
        until(lambda: collector.begun == [1, 2, 3])
        assert forests.next(1).stats["overlap/hold_s"] == 5.0


def test_the_loop_s_wait_and_what_was_hidden_add_up_to_the_collection(clock):
    """The first takes 4 s, of which the loop waits for the last 3; the second is ready when it is asked for."""
    seconds, looks = queue.Queue(), threading.Event()

    class Watched(Ahead):
        def _look(self) -> None:
            looks.set()
            super()._look()

    def collect(step, check):
        return replace(harvest(step), seconds=seconds.get())

    def end_it() -> None:
        assert looks.wait(SOON)
        clock.now += 3.0
        seconds.put(4.0)

    with Watched(collect, first=1, last=2, max_staleness=1, close_s=SOON) as forests:
        clock.now += 1.0
        threading.Thread(target=end_it).start()
        first = forests.next(1).stats
        seconds.put(2.0)
        until(lambda: forests._finished)
        clock.now += 9.0
        second = forests.next(2).stats
    names = ("overlap/wait_s", "overlap/hidden_s", "overlap/collect_s", "overlap/hidden_share")
    assert [first[name] for name in names] == [3.0, 1.0, 4.0, 0.25]
    assert [second[name] for name in names] == [0.0, 2.0, 2.0, 1.0]


def test_without_staleness_forests_are_collected_when_asked_for_in_the_same_thread():
    seen = []

    def collect(step):
        seen.append((step, threading.current_thread()))
        return harvest(step)

    with InTurn(collect) as forests:
        assert forests.next(1).stats == {"step": 1.0}
        forests.pushed(1)
        with forests.hold():
            assert forests.next(2).stats == {"step": 2.0}
    assert seen == [(1, threading.current_thread()), (2, threading.current_thread())]
