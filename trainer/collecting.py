"""What one training step collects, and which of it is trained: `advantage.dead_groups` keep, drop or resample.

Branches older than `max_staleness` allows go first, before any statistic sees them (`trainer/staleness.py`).
"""

import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from envs.types import Task
from rollout_workers.seeds import derive_seed
from rollout_workers.types import Forest, Ledger
from trainer.advantages import TreeAdvantages, advantages, is_dead
from trainer.config import AdvantageConfig, RunConfig
from trainer.metrics import reward_stats
from trainer.staleness import Stale, fresh, staleness_metrics
from trainer.task_order import tasks_of_step

if TYPE_CHECKING:
    from rollout_workers.scheduler import Harvest
    from trainer.decisions.statistics import Statistics

Collect: TypeAlias = Callable[[str, Sequence[Task], Ledger], "Harvest"]
"""(unique phase name, tasks, what the step's earlier collections cost) -> a finished collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The credit of a forest."""

    advantages: list[list[TreeAdvantages]]
    """`[task][tree]`, parallel to the forest."""
    stats: dict[str, float] = field(default_factory=dict)
    """Metrics about rewards and advantages, by node in typed policies."""
    statistics: "Statistics | None" = None
    """Running statistics with this forest taken in; None in flat policies."""


Creditor: TypeAlias = Callable[[Forest], Given]
"""Everything a step has collected so far -> its credit. Called again after each further collection."""


def flat_credit(rule: AdvantageConfig) -> Creditor:
    """Credit from the rewards of leaves, task by task."""

    def credit(forest: Forest) -> Given:
        return Given(advantages=[advantages(group, rule.kind, rule.singleton) for group in forest])

    return credit


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHarvest:
    """The trees of one step with their credit."""

    forest: Forest
    """Everything collected but what is too old: the groups of the step's own tasks, then those of each further
    collection."""
    credit: list[list[TreeAdvantages]]
    """`[task][tree]`, parallel to `forest`."""
    trained: tuple[int, ...]
    """Places in `forest` of the groups that the learner gets, e.g. `(0, 2, 3)`; the others count nowhere."""
    ledger: Ledger
    """Cost of everything collected, groups that are not trained included."""
    stats: dict[str, float]
    """`reward/*`, `decision/*` and the age of everything collected, for the log."""
    seconds: float
    """Wall time of the collections."""
    statistics: "Statistics | None" = None
    """Running statistics of a typed policy's rewards, this forest included."""

    @property
    def for_learner(self) -> tuple[Forest, list[list[TreeAdvantages]]]:
        """The groups that are trained, with their credit."""
        return [self.forest[place] for place in self.trained], [self.credit[place] for place in self.trained]


def collect_step(
    config: RunConfig, step: int, tasks: Sequence[Task], collect: Collect, creditor: Creditor | None = None
) -> StepHarvest:
    """Collects the tasks of `step` (all training tasks are `tasks`) and decides which groups are trained.

    `creditor` gives credit; without one it is that of leaves by `advantage`.

    Step k trains version k - 1 of the weights: branches with a token more than `max_staleness` versions older are cut
    off first. A group is dead when each of its advantages is exactly 0. `keep` trains on all groups. `drop` leaves dead
    ones out of the loss, its KL term and its denominators. `resample` also replaces them: a further collection has as
    many tasks as groups are still missing (see `replacements`), at most `advantage.resample_rounds` times, under the
    same weights unless collection overlaps learning.
    """
    started = time.perf_counter()
    rule, ledger, cut = config.advantage, Ledger(), Stale()
    forest: Forest = []
    creditor = creditor or flat_credit(rule)
    given = Given(advantages=[])
    live: list[int] = []
    used: set[str] = set()
    wanted, rounds, dead_share = tasks_of_step(tasks, step, config.tasks_per_step, config.seed), 0, 0.0
    while wanted:
        phase = f"train-{step}" + (f"-resample-{rounds}" if rounds else "")
        harvest = collect(phase, wanted, ledger)
        ledger.add(harvest.ledger)
        found, old = fresh(harvest.forest, oldest=step - 1 - config.max_staleness)
        cut.add(old)
        forest += found
        given = creditor(forest)
        used.update(task.id for task in wanted)
        live = [place for place, per_tree in enumerate(given.advantages) if not is_dead(per_tree)]
        if not rounds:
            dead_share = 1 - len(live) / max(len(forest), 1)
        missing = config.tasks_per_step - len(live)
        if rule.dead_groups != "resample" or rounds == rule.resample_rounds or not missing:
            break
        rounds += 1
        wanted = replacements(tasks, used, missing, seed=config.seed, step=step, number=rounds)
        rounds -= not wanted
    trained = tuple(range(len(forest))) if rule.dead_groups == "keep" else tuple(live)
    ledger.discarded_tokens += cut.tokens
    stats = given.stats | reward_stats(forest, given.advantages) | staleness_metrics(forest, step - 1) | cut.metrics
    stats |= {
        "reward/dead_groups": dead_share,
        "reward/dropped_groups": float(len(forest) - len(trained)),
        "reward/resampled_groups": float(len(used) - config.tasks_per_step),
        "reward/resample_rounds": float(rounds),
    }
    seconds = time.perf_counter() - started
    return StepHarvest(
        forest=forest,
        credit=given.advantages,
        trained=trained,
        ledger=ledger,
        stats=stats,
        seconds=seconds,
        statistics=given.statistics,
    )


def replacements(
    tasks: Sequence[Task], used: Collection[str], count: int, *, seed: int, step: int, number: int
) -> tuple[Task, ...]:
    """`count` tasks drawn without replacement from those whose id is not in `used`; fewer if there are not so many.

    The draw depends on the run's `seed`, the `step`, the `number` of the round (from 1) and the order of `tasks` only,
    so that a repeated or resumed run draws the same. The order of the following steps does not change, so a task that
    replaced another one is also trained in the step that it belongs to.
    """
    free = [task for task in tasks if task.id not in used]
    return tuple(random.Random(derive_seed(seed, "resample", step, number)).sample(free, min(count, len(free))))
