"""Reserves what a run needs from the cluster, all or nothing: a bundle per learner rank, then one per rollout actor."""

from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import placement_group, remove_placement_group

from trainer.config import RunConfig
from trainer.resources import required_bundles


def reserve(config: RunConfig, *, learner: bool = True) -> Any:
    """A ready placement group. Bundles 0 to `learner.ranks` - 1 are the ranks', the others the rollout actors'.

    With `learner=False` (evaluation alone) there are only the rollout actors'.

    Raises RuntimeError with one sentence when the cluster does not grant it within `cluster.wait_s` seconds.
    """
    bundles = required_bundles(config)[0 if learner else config.learner.ranks :]
    group = placement_group(bundles, strategy=config.cluster.strategy)
    try:
        ray.get(group.ready(), timeout=config.cluster.wait_s)
    except GetTimeoutError:
        remove_placement_group(group)
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        raise RuntimeError(
            f"the cluster did not grant {_in_words(bundles)} within cluster.wait_s={config.cluster.wait_s:g} s; "
            f"free now: {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs (is another run using them?)"
        ) from None
    return group


def release(group: Any) -> None:
    """Gives the reservation back, and with it every actor in it."""
    remove_placement_group(group)


def _in_words(bundles: list[dict[str, float]]) -> str:
    cpus = sum(bundle.get("CPU", 0) for bundle in bundles)
    gpus = sum(bundle.get("GPU", 0) for bundle in bundles)
    return f"{len(bundles)} bundles with {cpus:g} CPUs and {gpus:g} GPUs"
