"""How many bytes of Ray's objects lie on the disk, because the object store of the driver's node is full.

Ray says so in logs that nobody reads, and goes on more slowly. Its public interface has no number for it, so this is
the one file that asks the node's raylet as `ray memory --stats-only` does.
"""

import logging
from typing import Any

logger = logging.getLogger(__name__)

ANSWER_S = 2.0
"""Longest wait for the raylet, which is on the driver's machine; without its answer there are no metrics."""


class StoreWatch:
    """Asks the raylet of the driver's node; a driver that joined as a Ray client has none, and gets no metrics."""

    def __init__(self) -> None:
        self._raylet: Any = None
        self._spilled_before: int | None = None
        """By other jobs of the cluster, and by this one before its first look."""
        self._is_full = False

    def metrics(self) -> dict[str, float]:
        """`system/object_store_disk_mib`: what is on the disk for want of room, or was put there since the first look.

        Warns when that begins. Empty when the raylet does not answer.
        """
        import grpc  # type: ignore[import-untyped]

        try:
            stats = self._stats()
        except (grpc.RpcError, ImportError, LookupError, AttributeError) as error:
            logger.debug("the object store's statistics are not known: %s", error)
            return {}
        if self._spilled_before is None:
            self._spilled_before = int(stats.spilled_bytes_total)
        on_disk = (stats.object_store_bytes_fallback + stats.spilled_bytes_total - self._spilled_before) / 2**20
        if on_disk and not self._is_full:
            logger.warning("Ray's object store is full: %.0f MiB of objects are on the disk, which is slower", on_disk)
        self._is_full = on_disk > 0
        return {"system/object_store_disk_mib": on_disk}

    def _stats(self) -> Any:
        from ray.core.generated import node_manager_pb2

        if self._raylet is None:
            self._raylet = _raylet()
        messages: Any = node_manager_pb2
        request = messages.GetNodeStatsRequest(include_memory_info=False)
        return self._raylet.GetNodeStats(request, timeout=ANSWER_S).store_stats


def _raylet() -> Any:
    """The raylet of this process's node. Raises LookupError when Ray does not name it."""
    import ray
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import node_manager_pb2_grpc

    here = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    node = next((node for node in nodes if node["NodeID"] == here), None)
    if node is None:
        raise LookupError(f"Ray does not know node {here}")
    channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    services: Any = node_manager_pb2_grpc
    return services.NodeManagerServiceStub(channel)
