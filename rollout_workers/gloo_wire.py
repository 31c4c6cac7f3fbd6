"""Parameters over a gloo group of CPU sockets, from rank 0 to all others: the wire of the `espalier_gloo` backend.

Small parameters travel together in flat buckets of one dtype; both sides compute the same buckets from the same names,
dtypes and shapes. Both sides work ahead: while one bucket is filled or loaded, the next ones are on the wire, so that a
push costs the slower of sending and loading, not their sum.
"""

import ctypes
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

BUCKET_BYTES = 8 << 20
"""Consecutive small parameters share a bucket of at most this many bytes; a larger one has a bucket of its own."""
AHEAD = 2
"""Buckets that are on their way while another one is filled (sender) or loaded (receiver)."""
AHEAD_BYTES = 96 << 20
"""A receiver lets more of them come, up to this many bytes: what is loaded takes longer than what is on the wire."""
KEPT_BYTES = 256 << 20
"""Most freed memory that a receiver keeps for the next push."""
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Of glibc's malloc.h."""

Named: TypeAlias = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Parameters of one dtype that travel in one message, e.g. the weight and bias of a normalisation."""

    dtype: torch.dtype
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def elements(self) -> list[int]:
        """Per parameter, e.g. `[6, 1]` for shapes (2, 3) and ()."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    @property
    def bytes(self) -> int:
        """Of all of them, e.g. 7 · 4 = 28 in float32."""
        return sum(self.elements) * self.dtype.itemsize

    def parts(self, flat: torch.Tensor) -> Iterator[Named]:
        """The parameters as views of `flat`, a tensor with one dimension."""
        for name, shape, piece in zip(self.names, self.shapes, torch.split(flat, self.elements), strict=True):
            yield name, piece.view(shape)


def buckets(parameters: Iterable[tuple[str, torch.dtype, Sequence[int]]], limit: int = BUCKET_BYTES) -> list[Bucket]:
    """Splits consecutive (name, dtype, shape) into buckets of one dtype and at most `limit` bytes."""
    groups: list[list[tuple[str, torch.dtype, Sequence[int]]]] = []
    total = 0
    for parameter in parameters:
        size = parameter[1].itemsize * torch.Size(parameter[2]).numel()
        if not groups or groups[-1][0][1] != parameter[1] or total + size > limit:
            groups.append([])
            total = 0
        groups[-1].append(parameter)
        total += size
    return [
        Bucket(dtype=group[0][1], names=tuple(p[0] for p in group), shapes=tuple(tuple(p[2]) for p in group))
        for group in groups
    ]


def join(address: str, port: int, rank: int, world_size: int, timeout_s: float) -> Any:
    """Meets the others where rank 0 listens; returns a gloo group apart from the process's own groups.

    Its sockets are those of the interface that reaches rank 0, whatever the node's host name resolves to, unless
    GLOO_SOCKET_IFNAME names an interface. Raises RuntimeError when not all have come after `timeout_s` seconds.
    """
    gloo: Any = dist.ProcessGroupGloo
    limit = timedelta(seconds=timeout_s)
    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, world_size, is_master=rank == 0, timeout=limit, wait_for_workers=False
    )
    options = gloo._Options()
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        options._devices = [gloo.create_device(interface=interface)]
    else:
        options._devices = [gloo.create_device(hostname=own_address(address) if rank else address)]
    options._timeout = limit
    return gloo(dist.PrefixStore("espalier", store), rank, world_size, options)  # type: ignore[attr-defined]


def keep_freed_memory() -> None:
    """Lets this process use freed buffers again. Fresh pages for every push cost about as much as the transfer.

    Settings of glibc's allocator, which by itself gives buffers above 32 MiB back at once; without effect elsewhere.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def own_address(peer: str) -> str:
    """The address of this node on the way to `peer`. No packet is sent."""
    family = socket.getaddrinfo(peer, None)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])


def send(group: Any, layout: Sequence[Bucket], stream: Iterator[Named]) -> None:
    """Sends what `stream` yields in the order of `layout`; each tensor need only be valid until the next is read.

    Waits for the receivers to take what is sent. Raises RuntimeError when one is lost or too slow.
    """
    room = max((bucket.bytes for bucket in layout if len(bucket.names) > 1), default=0)
    spare = [torch.empty(room, dtype=torch.uint8) for _ in range(AHEAD + 1)]
    going: deque[Any] = deque()
    for turn, bucket in enumerate(layout):
        if len(bucket.names) == 1:  # sent as it lies, so it must be out before the next is read
            going.append(_broadcast(group, _next(stream, bucket.names[0]).cpu().contiguous()))
            _finish(going, 0)
            continue
        flat = spare[turn % len(spare)][: bucket.bytes].view(bucket.dtype)
        for name, place in bucket.parts(flat):
            place.copy_(_next(stream, name))
        going.append(_broadcast(group, flat))
        _finish(going, AHEAD)
    _finish(going, 0)


def received(group: Any, layout: Sequence[Bucket]) -> Iterator[Named]:
    """The parameters in the order of `layout`, as they come in. Raises RuntimeError when the sender is lost."""
    coming: deque[tuple[Bucket, torch.Tensor, Any]] = deque()
    for bucket in layout:
        flat = torch.empty(sum(bucket.elements), dtype=bucket.dtype)
        coming.append((bucket, flat, _broadcast(group, flat)))
        if len(coming) > AHEAD and sum(flat.nbytes for _, flat, _ in coming) > AHEAD_BYTES:
            yield from _arrived(*coming.popleft())
    for item in coming:
        yield from _arrived(*item)


def _arrived(bucket: Bucket, flat: torch.Tensor, work: Any) -> Iterator[Named]:
    work.wait()
    yield from bucket.parts(flat)


def _broadcast(group: Any, tensor: torch.Tensor) -> Any:
    """Begins to send `tensor` from rank 0 to all others, in the background."""
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    return group.broadcast([tensor], options)


def _finish(going: deque[Any], left: int) -> None:
    while len(going) > left:
        going.popleft().wait()


def _next(stream: Iterator[Named], expected: str) -> torch.Tensor:
    name, tensor = next(stream)
    assert name == expected, f"the source yields {name} where {expected} was announced"
    return tensor.detach()
