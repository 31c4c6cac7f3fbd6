"""Joining the Ray cluster that `cluster.address` names."""

import logging
import os
from typing import Any

from trainer.config import RunConfig
from trainer.config.sentences import ConfigError

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Actors' own output stays in Ray's logs, so that the run's display stays readable."""


def connect(config: RunConfig) -> None:
    """Joins the cluster, or starts a private one with at least 8 logical CPUs, since an idle actor uses none.

    Raises ConfigError (one sentence) when no cluster answers.
    """
    import ray

    address = config.cluster.address
    try:
        if address == "local":
            cpus = max(8, os.cpu_count() or 1)
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **_QUIET)
        else:
            ray.init(address=address, **_QUIET)
    except ConnectionError as error:
        raise ConfigError(
            [
                f"No Ray cluster answers for cluster.address={address}: start one with `ray start --head`, "
                "or choose cluster=local for a private one."
            ]
        ) from error
