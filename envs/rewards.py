"""Turns the outcome of a trajectory into one reward, and refuses rewards that no training can use.

An environment gives every reward function to `CheckedReward`, the one place that judges what comes back. It also
catches whatever the function raises, though the branch that runs the environment would: only here are the name of the
function and its accepted range known, and the functions are called without a branch too (demonstrations, own scripts).
"""

import inspect
import math
from dataclasses import dataclass
from numbers import Real
from typing import Protocol, TypeAlias

from envs.dotted_path import check_call, imported
from envs.types import EndReason

RewardRange: TypeAlias = tuple[float, float]
"""The lowest and the highest reward a function may give, e.g. `(-0.2, 1.0)`."""
ROUNDING = 1e-9
"""How far a reward may lie outside its range: 0.2 + 0.4 + 0.3 + 0.1 is a little more than 1."""


class RewardError(Exception):
    """A reward that cannot be used; the message is one sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trajectory ended, all a reward function needs."""

    task_id: str
    """E.g. `"city_capital/ulm"`."""
    truths: tuple[str, ...]
    """Accepted answers."""
    answer: str | None
    """The final answer, None when the agent gave none. Of a game: how it ended, `"won"`, `"lost"` or `"unfinished"`."""
    score: float
    """Task score in [0, 1]; 0 without an answer."""
    format_ok: bool
    """True when every step kept to the format and, where answers are asked for, the last one answered."""
    end: EndReason
    tool_calls: int
    """Searches or commands on the whole path, e.g. `2`."""


class RewardFn(Protocol):
    """Maps an outcome to the trajectory's reward, a finite number."""

    def __call__(self, outcome: Outcome, /) -> float:
        """The reward, e.g. `0.8`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperReward:
    """score − penalty·[format wrong] (Tree-GRPO, arXiv 2509.21240); 1, 0.8, 0 and −0.2 for exact match."""

    penalty: float = 0.2

    @property
    def range(self) -> RewardRange:
        """From −penalty to 1."""
        return (-self.penalty, 1.0)

    def __call__(self, outcome: Outcome) -> float:
        """E.g. 0.8 for a right answer in the wrong format."""
        return outcome.score - (0.0 if outcome.format_ok else self.penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorsReward:
    """The table of the Tree-GRPO authors' code.

    | answer | format valid | format invalid |
    |---|---|---|
    | right | 1 | 1 − penalty |
    | wrong | 0.2 | 0.1 |
    | none | (never valid) | 0 |

    With a partial score s (F1) the entries are max(s, 0.2) and max(s − penalty, 0.1): the table at s = 0 and 1.
    """

    penalty: float = 0.2

    @property
    def range(self) -> RewardRange:
        """From 0 to 1."""
        return (0.0, 1.0)

    def __call__(self, outcome: Outcome) -> float:
        """E.g. 0.2 for a wrong answer in the right format."""
        if outcome.answer is None:
            return 0.0
        if outcome.format_ok:
            return max(outcome.score, 0.2)
        return max(outcome.score - self.penalty, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedReward:
    """A reward function whose every value is a finite number within its range, or a `RewardError`."""

    name: str
    """What people know the function by, e.g. `"my_package.rewards.brevity"`."""
    function: RewardFn
    range: RewardRange | None
    """None: any finite number."""

    def __call__(self, outcome: Outcome) -> float:
        """The function's reward as a float.

        Raises RewardError, naming function, value, task and accepted range, when the function raises, or gives
        something that is not a number, not finite, or outside the range by more than `ROUNDING`.
        """
        try:
            given: object = self.function(outcome)
            reward = float(given) if isinstance(given, Real) else math.nan
        except Exception as error:  # whatever a user's function raises
            problem = f"raised {type(error).__name__} ({_short(str(error))})"
        else:
            low, high = self.range or (-math.inf, math.inf)
            if math.isfinite(reward) and low - ROUNDING <= reward <= high + ROUNDING:
                return reward
            problem = f"gave {_short(str(given) if isinstance(given, Real) else repr(given))}"
        raise RewardError(
            f"the reward function {self.name} {problem} for task {outcome.task_id!r}; "
            f"env.reward.range accepts {self._accepted()}"
        )

    def _accepted(self) -> str:
        return "any finite number" if self.range is None else f"numbers from {self.range[0]:g} to {self.range[1]:g}"


def _short(text: str) -> str:
    """On one line of at most 60 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


_EXAMPLE = Outcome(
    task_id="", truths=(), answer=None, score=0.0, format_ok=True, end=EndReason.TURN_LIMIT, tool_calls=0
)


def custom_reward(path: str) -> RewardFn:
    """The function at a dotted path such as `"my_package.rewards.brevity"`, imported from the import path only.

    Raises ValueError naming the path when it is not a dotted name, cannot be imported or is no function of an outcome.
    """
    key, accepted = "env.reward.path", "a function of envs.rewards.Outcome"
    found = imported(key, path, example="my_package.rewards.brevity", what=accepted)
    if inspect.iscoroutinefunction(found):
        raise ValueError(f"{key} {path!r} is a coroutine function; accepted: {accepted} that returns a number")
    check_call(key, path, found, _EXAMPLE)
    return found
