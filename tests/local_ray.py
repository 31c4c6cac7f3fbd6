"""A Ray of the test process's own, which leaves nothing behind: not even where its start or its end fails."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STARTS = 2
QUIET = {"enable_open_telemetry": False, "enable_metrics_collection": False}
"""The threads of a process's second Ray that export metrics outlive `ray.shutdown` (Ray 2.60), and one that wakes up
while the process ends is a segmentation fault."""


@contextmanager
def local_ray(**settings: Any) -> Iterator[None]:
    """Ray with `settings`, started here, within the block. A start that fails (the machine is busy) is tried again."""
    import ray

    for attempt in range(STARTS):
        ray.shutdown()
        try:
            ray.init(address="local", include_dashboard=False, log_to_driver=False, _system_config=QUIET, **settings)
            break
        except Exception as error:
            ray.shutdown()  # a start that failed half-way counts as a start
            if attempt == STARTS - 1:
                raise
            warnings.warn(f"Ray did not start: {error}", stacklevel=3)
    try:
        yield
    finally:
        ray.shutdown()
