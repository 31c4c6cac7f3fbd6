"""Joining the Ray cluster that `cluster.address` names."""

import os

from trainer.config import RunConfig
from trainer.config.sentences import ConfigError


def connect(config: RunConfig) -> None:
    """Joins the cluster, or starts a private one with at least 8 logical CPUs, since an idle actor uses none.

    Raises ConfigError (one sentence) when no cluster answers.
    """
    import ray

    address = config.cluster.address
    if address == "local":
        ray.init(address="local", num_cpus=max(8, os.cpu_count() or 1), include_dashboard=False, log_to_driver=False)
        return
    try:
        ray.init(address=address, log_to_driver=False)
    except ConnectionError as error:
        raise ConfigError(
            [
                f"No Ray cluster answers for cluster.address={address}: start one with `ray start --head`, "
                "or choose cluster=local for a private one."
            ]
        ) from error
