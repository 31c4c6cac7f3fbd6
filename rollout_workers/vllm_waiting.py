"""How the processes of a vLLM engine wait for each other where the model runs on CPUs: asleep.

An engine's core and its worker talk through shared memory, and whoever waits looks there in a loop for a second before
it sleeps. On GPUs that saves microseconds per step. On CPUs the loop takes a core from those that compute: the learner,
other engines, the engine's own worker while it loads new weights. `scripts/bench/engine_waiting.py` measures it.
"""

import functools
import time
from typing import Any

LOOP_S = 0.02
"""A reader looks in a loop for so long first, in which most engine steps are computed: waking up would delay them."""
FIRST_SLEEP_MS, LATER_SLEEP_MS = 1, 50
"""Longest sleep without a look, in the second in which vLLM would loop and after it. What is written wakes a reader,
but such a call may get lost."""


def sleep_while_waiting() -> None:
    """Changes how readers of this process wait; a second call changes nothing."""
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    vllms_own = SpinCondition.wait
    if hasattr(vllms_own, "__wrapped__"):
        return

    @functools.wraps(vllms_own)
    def wait(self: Any, timeout_ms: int | None = None) -> None:
        waited, vllms_loop_s = time.monotonic() - self.last_read, self.busy_loop_s
        longest = FIRST_SLEEP_MS if waited < vllms_loop_s else LATER_SLEEP_MS
        self.busy_loop_s = min(LOOP_S, vllms_loop_s)
        try:
            vllms_own(self, longest if timeout_ms is None else min(longest, timeout_ms))
        finally:
            self.busy_loop_s = vllms_loop_s

    SpinCondition.wait = wait  # type: ignore[method-assign]
