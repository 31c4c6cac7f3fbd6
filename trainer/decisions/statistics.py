"""Running mean and standard deviation of each decision node's raw reward (Welford's method, in batches).

Values never change: taking in a batch gives new statistics, so a thread that collects ahead of the loop and the loop
itself can each hold their own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from envs.types import Json
from trainer.leaf_advantages import mean

ROUNDING = 1e-9
"""A standard deviation of at most this share of the mean (or of 1) is rounding: equal rewards that were put together
from different levels differ in their last digits, and must not become advantages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Count, mean and sum of squared differences from the mean of all values so far."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the values so far (divided by n), e.g. `1.0` of (0, 2); 0 for fewer than two."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def merged(self, other: "Running") -> "Running":
        """Of the values of both (Chan, Golub and LeVeque 1979). Equal means stay exactly what they are."""
        if not self.count or not other.count:
            return other if not self.count else self
        count, gap = self.count + other.count, other.mean - self.mean
        return Running(
            count=count,
            mean=self.mean + gap * other.count / count,
            squares=self.squares + other.squares + gap * gap * self.count * other.count / count,
        )

    def with_batch(self, values: Sequence[float]) -> "Running":
        """With these values taken in, whose order does not matter."""
        if not values:
            return self
        middle = mean(values)
        squares = math.fsum((value - middle) ** 2 for value in values)
        return self.merged(Running(count=len(values), mean=middle, squares=squares))

    def normal(self, value: float) -> float:
        """(value - mean) / std, about N(0, 1) over a long stream; 0 where all values so far are equal."""
        if self.std <= ROUNDING * max(abs(self.mean), 1.0):
            return 0.0
        return (value - self.mean) / self.std


Statistics: TypeAlias = Mapping[str, Running]
"""By node name. A node without an entry has seen no reward."""


def with_batches(known: Statistics, batches: Mapping[str, Sequence[float]]) -> dict[str, Running]:
    """The statistics with each node's new raw rewards taken in."""
    return dict(known) | {name: known.get(name, Running()).with_batch(values) for name, values in batches.items()}


def statistics_to_json(statistics: Statistics) -> dict[str, Json]:
    """For a checkpoint."""
    return {name: asdict(running) for name, running in statistics.items()}


def statistics_from_json(saved: Mapping[str, Any]) -> dict[str, Running]:
    """The inverse of `statistics_to_json`."""
    return {name: Running(**values) for name, values in saved.items()}
