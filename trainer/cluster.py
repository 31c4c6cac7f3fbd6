"""Joining the Ray cluster that `cluster.address` names."""

import logging
import math
import os
import socket
from typing import Any

from trainer.config import RunConfig
from trainer.config.sentences import ConfigError

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Actors' own output stays in Ray's logs, so that the run's display stays readable."""
_START_WAIT = "RAY_gcs_server_port_wait_time_s"
"""Environment variable with Ray's longest wait, in whole seconds, for its own server processes."""
_TOO_SLOW = ("The current node timed out during startup", "Timed out waiting for file", "Failed to start GCS")
"""How messages of Ray begin when a private cluster did not come up in time: an `Exception` and two `RuntimeError`."""


def connect(config: RunConfig) -> None:
    """Joins the cluster, or starts a private one with at least 8 logical CPUs, since an idle actor uses none.

    `auto` is the cluster that the environment variable RAY_ADDRESS names (`ray job submit` sets it), else the one that
    was started on this machine. Raises ConfigError (one sentence) when no cluster answers, or the private one does not
    come up in time.
    """
    address, named = config.cluster.address, os.environ.get("RAY_ADDRESS", "")
    if address == "auto" and not _listens(named, config.cluster.connect_timeout_s):
        raise ConfigError(
            [
                f"No Ray cluster answers at RAY_ADDRESS={named}, which cluster.address=auto joins: correct or unset "
                "the variable, or choose cluster=local for a private one."
            ]
        )
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else a line of its own may come after the run's last one
    import ray

    try:
        if address == "local":
            # Ray's own 30 s are too short on a busy machine. Its wait for the node itself is fixed, also at 30 s.
            os.environ.setdefault(_START_WAIT, str(math.ceil(config.cluster.start_timeout_s)))
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
    except Exception as error:  # Ray has no type of its own for this
        if address != "local" or not is_start_timeout(error):
            raise
        raise ConfigError(
            [
                "The private Ray of cluster.address=local did not start in time, as on a machine with too much to do: "
                "try again when it has less, or start one with `ray start --head` and choose cluster.address=auto."
            ]
        ) from error


def _listens(address: str, limit_s: float) -> bool:
    """Whether something listens at HOST:PORT; True for what is no such address, which Ray judges itself.

    Ray itself would go on trying for more than five minutes.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=limit_s).close()
    except OSError:
        return False
    return True


def is_start_timeout(error: Exception) -> bool:
    """Whether Ray gave up waiting for processes that it had started itself."""
    return str(error).startswith(_TOO_SLOW)
