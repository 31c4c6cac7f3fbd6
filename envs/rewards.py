"""Turns the outcome of a trajectory into one reward."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from envs.types import EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trajectory ended, all a reward function needs."""

    truths: tuple[str, ...]
    """Accepted answers."""
    answer: str | None
    """The final answer, None when the agent gave none."""
    score: float
    """Task score in [0, 1]; 0 without an answer."""
    format_ok: bool
    """True when every step kept to the format and the last one answered."""
    end: EndReason
    tool_calls: int
    """Searches made on the whole path, e.g. `2`."""


class RewardFn(Protocol):
    """Maps an outcome to the trajectory's reward, a finite number."""

    def __call__(self, outcome: Outcome, /) -> float:
        """The reward, e.g. `0.8`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperReward:
    """score − penalty·[format wrong] (Tree-GRPO, arXiv 2509.21240); 1, 0.8, 0 and −0.2 for exact match."""

    penalty: float = 0.2

    def __call__(self, outcome: Outcome) -> float:
        """Between −penalty and 1."""
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

    def __call__(self, outcome: Outcome) -> float:
        """Between 0 and 1."""
        if outcome.answer is None:
            return 0.0
        if outcome.format_ok:
            return max(outcome.score, 0.2)
        return max(outcome.score - self.penalty, 0.1)


def custom_reward(path: str) -> RewardFn:
    """The function at a dotted path such as `"my_package.rewards.brevity"`, imported from the import path only.

    Raises ValueError naming the path when it is not a dotted name, cannot be imported or is not callable.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"env.reward.path {path!r} is not a dotted path such as my_package.rewards.brevity")
    try:
        found: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"env.reward.path {path!r} cannot be imported: {error}") from None
    if not callable(found):
        raise ValueError(f"env.reward.path {path!r} is not a function; accepted: a function of envs.rewards.Outcome")
    reward: Callable[[Outcome], float] = found
    return reward
