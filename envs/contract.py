"""What an environment's step must return, one sentence per fault: the part of the contract that needs no second call.

Code from outside the repository passes through here while a run goes on; `envs.check` looks at everything else.
"""

import math
from collections.abc import Iterator

from envs.types import EndReason, StepResult


def faults(result: object, turns_left: int) -> Iterator[str]:
    """Sentences about one result, none for a good one. `turns_left` is what the step was told."""
    if not isinstance(result, StepResult):
        yield f"step must return (state, envs.types.StepResult), and the result is of type {type(result).__name__}"
        return
    if not isinstance(result.observation, str):
        yield f"observation must be a text, not {type(result.observation).__name__}"
    if turns_left < 0 and result.end is None:
        yield "a step with turns_left=-1 is the last one: its result must have an end (e.g. EndReason.TURN_LIMIT)"
    yield from _number_faults("reward", result.reward, result.end, (-math.inf, math.inf))
    yield from _number_faults("score", result.score, result.end, (0.0, 1.0))


def _number_faults(name: str, value: object, end: EndReason | None, limits: tuple[float, float]) -> Iterator[str]:
    wanted = end is not None and end is not EndReason.ENV_ERROR
    if not wanted:
        if value is not None:
            where = "a failed step (EndReason.ENV_ERROR)" if end else "a step that does not end the trajectory"
            yield f"{name} must be None for {where}, not {value!r}"
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        yield f"{name} must be a finite number where a trajectory ends ({end}), not {value!r}"
    elif not limits[0] <= value <= limits[1]:
        yield f"{name} must be from {limits[0]:g} to {limits[1]:g}, not {value:g}"
