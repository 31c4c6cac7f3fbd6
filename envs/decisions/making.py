"""Makes the environment of a decision policy: its world, its judge and its gate."""

from typing import Any

from envs.decisions.flat_env import FlatDecisionEnv
from envs.decisions.gate import load_gate
from envs.decisions.rewards import Encoders, Judge
from envs.decisions.settings import DecisionSettings
from envs.decisions.typed_env import TypedDecisionEnv
from envs.decisions.types import DecisionWorld
from envs.dotted_path import check_call, imported

WORLDS = {
    "shop": "envs.shop.world.ShopWorld",
    "travel": "envs.decisions.examples.TravelWorld",
    "orders": "envs.decisions.examples.OrdersWorld",
}
"""Worlds that come with the project."""
PARTS = ("request", "act", "score")
"""What a world has (see `envs.decisions.types.DecisionWorld`)."""


def make_decision_env(
    settings: DecisionSettings, encoders: Encoders | None = None
) -> TypedDecisionEnv | FlatDecisionEnv:
    """The environment that the `decision` section describes. `encoders`: for nodes that use `similarity_model`.

    Raises ValueError (one sentence) for a world or a function that is not there, and for a gate that can't be read.
    """
    world = make_world(settings)
    if settings.policy == "flat":
        return FlatDecisionEnv(settings, world)
    return TypedDecisionEnv(settings, world, Judge(settings, encoders), load_gate(settings))


def make_world(settings: DecisionSettings) -> DecisionWorld:
    """The world with its options. Raises ValueError naming the path when it is not there or is no world."""
    path = world_path(settings)
    try:
        made: Any = _found(path)(**settings.options)
    except TypeError as error:
        raise ValueError(
            f"decision.world {path!r} does not accept decision.options={dict(settings.options)}: {error}"
        ) from error
    missing = [part for part in PARTS if not hasattr(made, part)]
    if missing:
        raise ValueError(
            f"decision.world {path!r} made a {type(made).__name__}, which has no {' and no '.join(missing)}: "
            "a world has request, act and score (see envs.decisions.types.DecisionWorld)"
        )
    world: DecisionWorld = made
    return world


def check_world(settings: DecisionSettings, encoders: Encoders | None = None) -> None:
    """What can be told without making the world, which may open whatever it needs. Raises ValueError."""
    path = world_path(settings)
    check_call("decision.world", path, _found(path), **settings.options)
    Judge(settings, encoders)
    load_gate(settings)


def world_path(settings: DecisionSettings) -> str:
    """Dotted path of the world."""
    return WORLDS.get(settings.world, settings.world)


def _found(path: str) -> Any:
    accepted = f"{', '.join(WORLDS)}, or a function that makes an envs.decisions.types.DecisionWorld"
    return imported("decision.world", path, example="my_package.world.make_world", what=accepted)
