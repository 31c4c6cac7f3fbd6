"""Reserves what a run needs from the cluster, all or nothing: a bundle per learner rank and one per rollout actor.

One placement group holds them all, so that `cluster.strategy` decides about all. Under `cluster.learner: same_node` the
ranks have a group of their own, since a group knows one strategy: ranks close together, rollout actors anywhere.

When a node dies, Ray gives the bundles that lay on it new places, as soon as other nodes have room.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import placement_group, remove_placement_group

from trainer.config import RunConfig
from trainer.resources import Bundle, Group, groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Ready placement groups; both may be the same one."""

    learner: Any
    """Its first `learner.ranks` bundles are the ranks'; None for an evaluation, which has no learner."""
    rollout: Any
    first_rollout_bundle: int
    """Rollout actor i has bundle `first_rollout_bundle` + i of `rollout`."""


def reserve(config: RunConfig, *, learner: bool = True) -> Reservation:
    """What the run needs; with `learner=False` (evaluation alone) only what its rollout actors need.

    Raises RuntimeError with one sentence when the cluster does not grant it within `cluster.wait_s` seconds.
    """
    wanted = groups(config, learner=learner)
    made: list[Any] = []
    until = time.monotonic() + config.cluster.wait_s
    try:
        for group in wanted:
            made.append(placement_group(list(group.bundles), strategy=group.strategy))
            ray.get(made[-1].ready(), timeout=max(until - time.monotonic(), 0.0))
    except GetTimeoutError:
        for group_made in made:
            remove_placement_group(group_made)
        raise RuntimeError(_refusal(config, wanted)) from None
    first = config.learner.ranks if learner and len(made) == 1 else 0
    return Reservation(learner=made[0] if learner else None, rollout=made[-1], first_rollout_bundle=first)


def release(reservation: Reservation) -> None:
    """Gives the reservation back, and with it every actor in it."""
    if reservation.learner is not None and reservation.learner != reservation.rollout:
        remove_placement_group(reservation.learner)
    remove_placement_group(reservation.rollout)


def _refusal(config: RunConfig, wanted: Sequence[Group]) -> str:
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    placed = " and ".join(f"{_in_words(group.bundles)} placed as {group.strategy}" for group in wanted)
    return (
        f"the cluster did not grant {placed} within cluster.wait_s={config.cluster.wait_s:g} s; "
        f"free now: {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs (is another run using them?)"
    )


def _in_words(bundles: Sequence[Bundle]) -> str:
    cpus = sum(bundle.get("CPU", 0) for bundle in bundles)
    gpus = sum(bundle.get("GPU", 0) for bundle in bundles)
    return f"{len(bundles)} bundles with {cpus:g} CPUs and {gpus:g} GPUs"
