"""Where the loop gets its forests from: collected when asked for, or ahead of it while the learner trains.

Forest k is what training step k learns from; step k trains version k - 1 of the weights and makes version k. Under
`max_staleness: s` forest k may be begun once version k - 1 - s is pushed, so no token in it is more than s versions old
when it is trained, and at most s forests are begun or waiting while a step learns. With s = 0 that is the synchronous
order, and the forest is collected in the loop's own thread.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeAlias

from trainer.collecting import StepHarvest

LOOK_S = 1.0
"""How often a waiting thread looks whether the other one still lives."""

Check: TypeAlias = Callable[[], None]
"""Called again and again during a collection; raises to end it."""


class Closed(Exception):
    """The loop wants no further forest: ends the collecting thread."""


class ForestSource(Protocol):
    """What the loop asks for forests. Use as a context manager around the training steps."""

    def next(self, step: int) -> StepHarvest:
        """The forest of `step`; steps are asked for in order. Raises what its collection raised."""
        ...

    def pushed(self, version: int) -> None:
        """Tells that every engine has weights `version`, from which later forests may be grown."""
        ...

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block no forest is collected, so that the scheduler is free for an evaluation."""
        ...

    def __enter__(self) -> Self:
        """May start a thread."""
        ...

    def __exit__(self, *error: object) -> None:
        """Ends it."""
        ...


class InTurn:
    """Collects each forest when it is asked for (`max_staleness: 0`)."""

    def __init__(self, collect: Callable[[int], StepHarvest]) -> None:
        self._collect = collect

    def next(self, step: int) -> StepHarvest:
        """Collects it now."""
        return self._collect(step)

    def pushed(self, version: int) -> None:
        """Nothing waits for it."""

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is collected but in `next`."""
        return contextlib.nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A finished forest and how long the collecting thread stood still before it."""

    step: int
    harvest: StepHarvest
    idle_s: float


class Ahead:
    """Collects forests in a thread of its own, in order, up to `max_staleness` of them ahead of the loop.

    Who waits for whom. The loop waits in `next` until the thread has the forest, and in `hold` until the collection on
    its way has ended; both raise what the thread died of. The thread waits before each forest until the version it
    needs was pushed and nobody holds it, unblocked by `pushed`, by the end of a `hold`, and by closing. During a
    collection it waits for the scheduler, at most `scheduler.collect_timeout_s`, and there it calls the check that ends
    it after closing. All waits look at the other side every `LOOK_S` seconds.
    """

    def __init__(
        self,
        collect: Callable[[int, Check], StepHarvest],
        *,
        first: int,
        last: int,
        max_staleness: int,
        close_s: float,
    ) -> None:
        """Forests `first` to `last`; version `first` - 1 is pushed. Closing waits at most `close_s` for the thread."""
        self._collect = collect
        self._steps = range(first, last + 1)
        self._max_staleness = max_staleness
        self._close_s = close_s
        self._version = first - 1
        self._changed = threading.Condition()
        self._finished: deque[_Begun] = deque()
        self._is_collecting = self._is_held = self._is_closed = False
        self._error: BaseException | None = None
        self._held_s = 0.0
        # A daemon: whatever it waits for, it never keeps the process from ending.
        self._thread = threading.Thread(target=self._run, name="collecting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(self._close_s)

    def next(self, step: int) -> StepHarvest:
        """Takes the oldest finished forest; its `stats` get `overlap/*`."""
        began = time.perf_counter()
        with self._changed:
            while not self._finished:
                self._look()
            begun, held_s, self._held_s = self._finished.popleft(), self._held_s, 0.0
        assert begun.step == step, f"step {step} is asked for, forest {begun.step} comes next"
        waited = time.perf_counter() - began
        return replace(begun.harvest, stats=begun.harvest.stats | _overlap(begun, waited, held_s))

    def _look(self) -> None:
        """Waits for a change. Raises what the collecting thread died of."""
        self._raise_error()
        assert self._thread.is_alive(), "the collecting thread ended without a forest or an error"
        self._changed.wait(LOOK_S)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def pushed(self, version: int) -> None:
        """Lets the thread begin what this version allows."""
        with self._changed:
            self._version = version
            self._changed.notify_all()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Waits for the collection on its way; the next one begins after the block."""
        began = time.perf_counter()
        with self._changed:
            self._is_held = True
            while self._is_collecting:
                self._look()
            self._raise_error()
            self._held_s += time.perf_counter() - began
        try:
            yield
        finally:
            with self._changed:
                self._is_held = False
                self._changed.notify_all()

    def _run(self) -> None:
        try:
            for step in self._steps:
                idle_s = self._wait_for_leave(step)
                harvest = self._collect(step, self._check)
                with self._changed:
                    self._finished.append(_Begun(step=step, harvest=harvest, idle_s=idle_s))
                    self._is_collecting = False
                    self._changed.notify_all()
        except Closed:
            pass
        except BaseException as error:  # not swallowed: the loop raises it
            with self._changed:
                self._error = error
                self._is_collecting = False
                self._changed.notify_all()

    def _wait_for_leave(self, step: int) -> float:
        """Seconds until forest `step` may be begun."""
        began = time.perf_counter()
        with self._changed:
            while self._is_held or self._version < step - 1 - self._max_staleness:
                self._check()
                self._changed.wait(LOOK_S)
            self._check()
            self._is_collecting = True
        return time.perf_counter() - began

    def _check(self) -> None:
        if self._is_closed:
            raise Closed


def _overlap(begun: _Begun, waited: float, held_s: float) -> dict[str, float]:
    """`wait_s`: the loop for this forest. `idle_s`: the engines before it, for want of a version or for an evaluation.
    `hidden_s`: of the time it took, what went by while the loop did something else, which is what overlap gained.
    """
    hidden = max(begun.harvest.seconds - waited, 0.0)
    return {
        "overlap/wait_s": waited,
        "overlap/idle_s": begun.idle_s,
        "overlap/hold_s": held_s,
        "overlap/collect_s": begun.harvest.seconds,
        "overlap/hidden_s": hidden,
        "overlap/hidden_share": hidden / max(begun.harvest.seconds, 1e-9),
    }
