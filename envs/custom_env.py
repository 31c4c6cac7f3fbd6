"""Environments from outside this repository: found by their dotted path, and held to the contract at every step."""

from collections.abc import Callable, Mapping
from typing import Any

from envs.contract import faults
from envs.dotted_path import imported
from envs.types import Env, StepResult, Task

PARTS = ("stop", "reset", "step")
"""What an environment has (see `envs.types.Env`)."""


def custom_env(path: str, options: Mapping[str, Any]) -> "CheckedEnv":
    """Calls the function at `path` with the options as keyword arguments.

    Raises ValueError naming the path when it cannot be imported, does not accept the options, or makes something else
    than an environment. Whatever else it raises passes through.
    """
    try:
        made = custom_factory(path)(**options)
    except TypeError as error:
        raise ValueError(f"env.path {path!r} does not accept env.options={dict(options)}: {error}") from error
    missing = [part for part in PARTS if not hasattr(made, part)]
    if missing:
        raise ValueError(
            f"env.path {path!r} made a {type(made).__name__}, which has no {' and no '.join(missing)}: "
            "an environment has stop, reset and step (see envs.types.Env)"
        )
    return CheckedEnv(path, made)


def custom_factory(path: str) -> Callable[..., Any]:
    """The function at `path`, imported and not called. Raises ValueError naming the path when that fails."""
    accepted = "a function that makes an envs.types.Env"
    return imported("env.path", path, example="my_package.world.make_env", what=accepted)


class CheckedEnv:
    """An environment whose every result is a good one or an error: a NaN reward would spoil a step's learning."""

    def __init__(self, path: str, env: Env[Any]) -> None:
        self._path = path
        self.bare = env
        """The environment itself, unchecked."""
        self.stop: tuple[str, ...] = tuple(env.stop)

    def reset(self, task: Task) -> Any:
        """See `envs.types.Env`."""
        return self.bare.reset(task)

    async def step(self, state: Any, action: str, *, turns_left: int) -> tuple[Any, StepResult]:
        """See `envs.types.Env`. Raises RuntimeError naming path and fault when the result breaks the contract."""
        made: object = await self.bare.step(state, action, turns_left=turns_left)
        if not isinstance(made, tuple) or len(made) != 2:
            raise RuntimeError(f"env.path {self._path!r}: step must return (state, envs.types.StepResult)")
        following, result = made
        for fault in faults(result, turns_left):
            raise RuntimeError(f"env.path {self._path!r}: {fault}")
        return following, result
