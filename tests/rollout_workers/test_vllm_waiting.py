"""How readers of vLLM's shared memory wait, with a recorder in the place of vLLM's own way to wait."""

import time
from types import SimpleNamespace

import pytest
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

from rollout_workers.vllm_waiting import FIRST_SLEEP_MS, LATER_SLEEP_MS, LOOP_S, sleep_while_waiting

LONG_AGO, VLLMS_LOOP_S = 100.0, 50.0


@pytest.fixture
def waits(monkeypatch):
    """What vLLM's own `wait` was told: (seconds in a loop, longest sleep in ms)."""
    told = []
    monkeypatch.setattr(
        SpinCondition, "wait", lambda self, timeout_ms=None: told.append((self.busy_loop_s, timeout_ms))
    )
    sleep_while_waiting()
    return told


def reader(idle_s):
    return SimpleNamespace(last_read=time.monotonic() - idle_s, busy_loop_s=VLLMS_LOOP_S)


def test_a_reader_loops_briefly_then_sleeps_in_short_pieces_and_then_in_longer_ones(waits):
    for idle_s, timeout_ms in ((1.0, 5000), (LONG_AGO, 5000), (LONG_AGO, None), (LONG_AGO, 7)):
        waiting = reader(idle_s)
        SpinCondition.wait(waiting, timeout_ms)
        assert waiting.busy_loop_s == VLLMS_LOOP_S, "it is only lent"
    assert waits == [(LOOP_S, FIRST_SLEEP_MS), (LOOP_S, LATER_SLEEP_MS), (LOOP_S, LATER_SLEEP_MS), (LOOP_S, 7)]


def test_a_second_call_changes_nothing(waits):
    once = SpinCondition.wait
    sleep_while_waiting()
    assert SpinCondition.wait is once


def test_what_vllm_raises_passes_and_leaves_the_reader_as_it_was(monkeypatch):
    def fail(self, timeout_ms=None):
        raise OSError("cancelled")

    monkeypatch.setattr(SpinCondition, "wait", fail)
    sleep_while_waiting()
    waiting = reader(LONG_AGO)
    with pytest.raises(OSError, match="cancelled"):
        SpinCondition.wait(waiting)
    assert waiting.busy_loop_s == VLLMS_LOOP_S
