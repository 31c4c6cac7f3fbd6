"""What Ray says about an actor that failed or died, in one line."""

import re
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

TRANSPORT = re.compile("gloo|nccl|connection", re.IGNORECASE)
"""In the error of a process that lost its connection to another one."""
DEATH_S = 30.0
"""So long Ray may take to notice that the other one died; of a node it learns in about 20 s."""


def cause(error: RayError) -> str:
    """Why an answer did not come; for an error raised in the actor its last line, which names the error.

    Ray's own texts about processes that end have paragraphs of guesses; they are replaced by what is known.
    """
    if isinstance(error, ActorUnavailableError):
        return "its process or its node does not answer"
    if isinstance(error, ActorDiedError) and "its worker process has died" in str(error):
        return "its process ended unexpectedly: killed, out of memory, or crashed"
    return last_line(error)


def dead_peer(error: BaseException, pending: Sequence[Any]) -> tuple[Any, RayError] | None:
    """The call of `pending` whose process died, with what Ray says of it, if that broke the connection of another one.

    Partners see the broken connection, `error`, sooner than Ray the death, for which this waits `DEATH_S` at most. None
    for any other error, and if nobody died.
    """
    until, left = time.monotonic() + DEATH_S, list(pending) if TRANSPORT.search(str(error)) else []
    while left:
        done, left = ray.wait(left, num_returns=1, timeout=max(until - time.monotonic(), 0.0))
        if not done:
            return None
        try:
            ray.get(done[0])
        except RayTaskError:  # another partner
            continue
        except RayError as death:
            return done[0], death
    return None


def never_ran(error: RayError) -> bool:
    """Whether Ray gave the actor up before it had a process, which it does when the node of its bundle is dead."""
    return isinstance(error, ActorDiedError) and "The actor never ran" in str(error)


def last_line(error: BaseException) -> str:
    """The last line of an error's text that says something: with Ray's remote tracebacks, the one that names the cause.

    Tracebacks of exception groups, as of an actor whose tasks failed, have a frame around them, of `|` and `+----`.
    """
    lines = [said for line in str(error).splitlines() if (said := line.strip("| \t")).strip("+- ")]
    return lines[-1] if lines else type(error).__name__
