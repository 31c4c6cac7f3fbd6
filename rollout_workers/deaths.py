"""What Ray says about an actor that failed or died, in one line."""

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError


def cause(error: RayError) -> str:
    """Why an answer did not come; for an error raised in the actor its last line, which names the error.

    Ray's own texts about processes that end have paragraphs of guesses; they are replaced by what is known.
    """
    if isinstance(error, ActorUnavailableError):
        return "its process or its node does not answer"
    if isinstance(error, ActorDiedError) and "its worker process has died" in str(error):
        return "its process ended unexpectedly: killed, out of memory, or crashed"
    return last_line(error)


def never_ran(error: RayError) -> bool:
    """Whether Ray gave the actor up before it had a process, which it does when the node of its bundle is dead."""
    return isinstance(error, ActorDiedError) and "The actor never ran" in str(error)


def last_line(error: BaseException) -> str:
    """The last line of an error's text that says something: with Ray's remote tracebacks, the one that names the cause.

    Tracebacks of exception groups, as of an actor whose tasks failed, have a frame around them, of `|` and `+----`.
    """
    lines = [said for line in str(error).splitlines() if (said := line.strip("| \t")).strip("+- ")]
    return lines[-1] if lines else type(error).__name__
