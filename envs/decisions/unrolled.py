"""A typed environment played as an ordinary one, for what knows ordinary ones only: the check of its contract."""

from dataclasses import replace
from typing import Any

from envs.actions import parse_action
from envs.decisions.contracts import compact
from envs.decisions.flat_env import OUTPUT
from envs.decisions.settings import DecisionSettings
from envs.decisions.types import TypedEnv
from envs.types import EndReason, Json, StepResult, Task


class Unrolled:
    """An `Env` whose steps are answers between `<output>` tags and whose observations are what is asked next."""

    stop: tuple[str, ...] = OUTPUT.stop

    def __init__(self, env: TypedEnv[Any]) -> None:
        self._env = env

    def reset(self, task: Task) -> Any:
        """See `TypedEnv`."""
        return self._env.reset(task)

    async def step(self, state: Any, action: str, *, turns_left: int) -> tuple[Any, StepResult]:
        """See `envs.types.Env`; with no turn left the task is given up."""
        if turns_left < 0:
            return state, replace(self._env.give_up(state), end=EndReason.TURN_LIMIT)
        state, result = await self._env.answer(state, parse_action(action, OUTPUT).content, ())
        if result.end is None:
            result = replace(result, observation=f"<input> {self._env.ask(state).messages[-1].content} </input>")
        return state, result


def with_expected_steps(task: Task, settings: DecisionSettings) -> Task:
    """The task with the right answers of `meta.expected` as the steps of an expert, as far as it has them in order."""
    expected = task.meta.get("expected")
    steps: list[Json] = []
    for node in settings.nodes:
        if not isinstance(expected, dict) or node.name not in expected:
            break
        steps.append(compact(expected[node.name]))
    return replace(task, meta={**task.meta, "expert": steps}) if steps else task
