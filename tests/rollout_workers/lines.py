"""What something costs as a number of executed lines of Python: the same on every machine, however busy it is."""

import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any


class Counter:
    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> "Counter":
        self.lines += event == "line"
        return self


def lines_in(run: Callable[[], object]) -> int:
    """Lines that a call executes, loops inside of comprehensions included."""
    counter, before = Counter(), sys.gettrace()
    sys.settrace(counter)
    try:
        run()
    finally:
        sys.settrace(before)
    return counter.lines


async def lines_of(coroutine: Coroutine[Any, Any, object]) -> int:
    """Lines that a coroutine executes which waits for nothing."""

    def run() -> None:
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise AssertionError("it waits")

    return lines_in(run)
