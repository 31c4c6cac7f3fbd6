"""Where a process of a run is: said once per actor when it starts, so that a log tells which machine to look at."""

import os
from dataclasses import dataclass
from typing import Self

import ray


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A process on a node."""

    node: str
    """First 8 digits of Ray's node id, e.g. `"3fa2c1d0"`, as the dashboard shows it."""
    address: str
    """Of the node, e.g. `"10.0.0.3"`."""
    pid: int

    @classmethod
    def here(cls) -> Self:
        """Of the calling process, an actor of Ray's."""
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return cls(node=ray.get_runtime_context().get_node_id()[:8], address=address, pid=os.getpid())

    def __str__(self) -> str:
        return f"node {self.node} ({self.address}), pid {self.pid}"
