"""What one training step collects, and which of it is trained: `advantage.dead_groups` keep, drop or resample."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from envs.types import Task
from rollout_workers.seeds import derive_seed
from rollout_workers.types import Forest, Ledger
from trainer.advantages import TreeAdvantages, advantages, is_dead
from trainer.config import RunConfig
from trainer.metrics import reward_stats
from trainer.task_order import tasks_of_step

if TYPE_CHECKING:
    from rollout_workers.scheduler import Harvest

Collect: TypeAlias = Callable[[str, Sequence[Task], Ledger], "Harvest"]
"""(unique phase name, tasks, what the step's earlier collections cost) -> a finished collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHarvest:
    """The trees of one step with their credit."""

    forest: Forest
    """Everything collected: the groups of the step's own tasks, then those of each further collection."""
    credit: list[list[TreeAdvantages]]
    """`[task][tree]`, parallel to `forest`."""
    trained: tuple[int, ...]
    """Places in `forest` of the groups that the learner gets, e.g. `(0, 2, 3)`; the others count nowhere."""
    ledger: Ledger
    """Cost of everything collected, groups that are not trained included."""
    stats: dict[str, float]
    """`reward/*` of everything collected, for the log."""

    @property
    def for_learner(self) -> tuple[Forest, list[list[TreeAdvantages]]]:
        """The groups that are trained, with their credit."""
        return [self.forest[place] for place in self.trained], [self.credit[place] for place in self.trained]


def collect_step(config: RunConfig, step: int, tasks: Sequence[Task], collect: Collect) -> StepHarvest:
    """Collects the tasks of `step` (all training tasks are `tasks`) and decides which groups are trained.

    A group is dead when each of its advantages is exactly 0. `keep` trains on all groups. `drop` leaves dead ones out
    of the loss, its KL term and its denominators. `resample` also replaces them: a further collection has as many tasks
    as groups are still missing (see `replacements`), all under the same weights, at most
    `advantage.resample_rounds` times.
    """
    rule, rounds, ledger = config.advantage, 0, Ledger()
    forest: Forest = []
    credit: list[list[TreeAdvantages]] = []
    live: list[int] = []
    dead_share = 0.0
    phase, wanted = f"train-{step}", tasks_of_step(tasks, step, config.tasks_per_step, config.seed)
    while wanted:
        harvest = collect(phase, wanted, ledger)
        ledger.add(harvest.ledger)
        forest += harvest.forest
        credit += [advantages(group, rule.kind, rule.singleton) for group in harvest.forest]
        live = [place for place, per_tree in enumerate(credit) if not is_dead(per_tree)]
        if not rounds:
            dead_share = 1 - len(live) / len(forest)
        missing = config.tasks_per_step - len(live)
        if rule.dead_groups != "resample" or rounds == rule.resample_rounds or not missing:
            break
        used = {group.task.id for group in forest}
        wanted = replacements(tasks, used, missing, seed=config.seed, step=step, number=rounds + 1)
        if wanted:
            rounds += 1
            phase = f"train-{step}-resample-{rounds}"
    trained = tuple(range(len(forest))) if rule.dead_groups == "keep" else tuple(live)
    stats = reward_stats(forest, credit) | {
        "reward/dead_groups": dead_share,
        "reward/dropped_groups": float(len(forest) - len(trained)),
        "reward/resampled_groups": float(len(forest) - config.tasks_per_step),
        "reward/resample_rounds": float(rounds),
    }
    return StepHarvest(forest=forest, credit=credit, trained=trained, ledger=ledger, stats=stats)


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
