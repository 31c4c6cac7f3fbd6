"""Which tasks a step trains on: a seeded shuffle per pass over the data, computed from the step's number alone.

Because it is a function and not an iterator, a resumed run needs no saved position: step 7 has the same tasks always.
"""

import random
from collections.abc import Sequence

from envs.types import Task
from rollout_workers.seeds import derive_seed


def tasks_of_step(tasks: Sequence[Task], step: int, tasks_per_step: int, seed: int) -> tuple[Task, ...]:
    """Tasks of `step` (from 1). Each pass is a new shuffle; a pass's remainder that fills no step is left out.

    Example: 10 tasks, 4 per step: steps 1 and 2 make the first pass, steps 3 and 4 the second.
    """
    assert 0 < tasks_per_step <= len(tasks), "the preflight compares tasks_per_step with the number of tasks"
    steps_per_pass = len(tasks) // tasks_per_step
    epoch, place = divmod(step - 1, steps_per_pass)
    order = list(range(len(tasks)))
    random.Random(derive_seed(seed, "order", epoch)).shuffle(order)
    chosen = order[place * tasks_per_step : (place + 1) * tasks_per_step]
    return tuple(tasks[index] for index in chosen)
