"""The `espalier_gloo` weight-transfer backend: learner weights to vLLM engines over CPU sockets.

vLLM ships transfer backends for GPUs only (`nccl` and friends). This one has the same two halves and the same protocol,
with a gloo process group as the wire, so that a CPU run exercises exactly the code path a GPU run takes. vLLM loads
`register` in each of its processes through the entry-point group `vllm.general_plugins`; the learner calls it itself.

The group has the learner's rank 0 as rank 0 and every engine worker after it (`rank_offset` places the engines of
several actors). Parameters travel in checkpoint format, flattened into buckets of one dtype, and are loaded through
vLLM's layerwise reload, the only path that rebuilds packed CPU weights correctly.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self, cast

import torch
import torch.distributed as dist
from vllm.distributed.utils import (
    stateless_destroy_torch_distributed_process_group,
    stateless_init_torch_distributed_process_group,
)
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
    WeightTransferUpdatePayload,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

from rollout_workers.weight_names import GLOO

BUCKET_BYTES = 64 << 20
"""Parameters are sent in flat buffers of at most this many bytes (a larger parameter gets a buffer of its own)."""


def register() -> None:
    """Registers both halves of the backend in this process; a second call changes nothing."""
    if GLOO not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(GLOO, GlooWeightTransferEngine)
        WeightTransferTrainerFactory.register_engine(GLOO, GlooTrainerWeightTransferEngine)


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """Where an engine worker meets the learner. `world_size` counts the learner's sender and all engine workers."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    timeout_s: float


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """What one push will send, parameter by parameter, in sending order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


@dataclass
class GlooTrainerInitInfo(TrainerInitInfo):
    """The learner's side of the meeting; rank 0 is the sender."""

    backend: ClassVar[str] = GLOO

    master_address: str
    master_port: int
    world_size: int
    timeout_s: float


def buckets(sizes: Sequence[tuple[torch.dtype, int]], limit: int = BUCKET_BYTES) -> list[range]:
    """Splits consecutive parameters, given as (dtype, bytes), into index ranges of one dtype and at most `limit` bytes.

    Both sides compute this from the same metadata, so they agree without talking.
    """
    ranges: list[range] = []
    start, total = 0, 0
    for index, (dtype, size) in enumerate(sizes):
        if index > start and (dtype != sizes[start][0] or total + size > limit):
            ranges.append(range(start, index))
            start, total = index, 0
        total += size
    return [*ranges, range(start, len(sizes))] if sizes else ranges


def _join(address: str, port: int, rank: int, world_size: int, timeout_s: float) -> dist.ProcessGroup:
    group = stateless_init_torch_distributed_process_group(
        address, port, rank, world_size, "gloo", timeout=timedelta(seconds=timeout_s)
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


def _broadcast(group: dist.ProcessGroup, flat: torch.Tensor) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([flat], options).wait()


def _layout(metadata: Sequence[ParamMeta]) -> list[range]:
    return buckets([(m.dtype, m.dtype.itemsize * int(torch.Size(m.shape).numel())) for m in metadata])


class GlooWeightTransferEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """The receiving half; lives in each vLLM worker process."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _group: dist.ProcessGroup | None = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Joins the learner's group, leaving an earlier one (after the set of actors changed)."""
        self.shutdown()
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = _join(
            init_info.master_address, init_info.master_port, rank, init_info.world_size, init_info.timeout_s
        )

    def start_weight_update(self) -> None:
        """Opens vLLM's layerwise reload for weights in checkpoint format."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Closes the layerwise reload: repacks and copies what arrived into the live tensors."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call]

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives one push. (The base class synchronises an accelerator, which a CPU worker does not have.)"""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Receives bucket after bucket and hands each parameter to the model's own loader."""
        if self._group is None:
            raise RuntimeError("weight transfer was not initialised: call init_weight_transfer_engine first")
        metadata = [
            ParamMeta(name, getattr(torch, dtype), tuple(shape))
            for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        ]
        cast("Any", self.model).load_weights(self._received(self._group, metadata))

    def _received(self, group: dist.ProcessGroup, metadata: Sequence[ParamMeta]) -> Iterator[tuple[str, torch.Tensor]]:
        for bucket in _layout(metadata):
            sizes = [int(torch.Size(metadata[i].shape).numel()) for i in bucket]
            flat = torch.empty(sum(sizes), dtype=metadata[bucket.start].dtype)
            _broadcast(group, flat)
            for index, piece in zip(bucket, torch.split(flat, sizes), strict=True):
                yield metadata[index].name, piece.view(metadata[index].shape).to(self.device)

    def shutdown(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            stateless_destroy_torch_distributed_process_group(self._group)
            self._group = None


class GlooTrainerWeightTransferEngine(TrainerWeightTransferEngine[GlooTrainerInitInfo]):
    """The sending half; lives in each learner rank, of which only rank 0 talks to the engines."""

    init_info_cls = GlooTrainerInitInfo

    def __init__(self, *, client: VLLMWeightSyncClient, source: WeightSource, is_sender: bool) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._group: dist.ProcessGroup | None = None

    @classmethod
    def trainer_init(
        cls, init_info: GlooTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> Self:
        """Meets the engines: they are asked to join while this side opens the group's store."""
        assert source is not None, "a full push needs a WeightSource"
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if not engine.is_sender:
            return engine
        worker_info = GlooInitInfo(
            master_address=init_info.master_address,
            master_port=init_info.master_port,
            rank_offset=1,
            world_size=init_info.world_size,
            timeout_s=init_info.timeout_s,
        )
        pool = ThreadPoolExecutor(max_workers=1)
        try:
            joined = pool.submit(client.init_weight_transfer_engine, asdict(worker_info))
            engine._group = _join(
                init_info.master_address, init_info.master_port, 0, init_info.world_size, init_info.timeout_s
            )
            joined.result(timeout=init_info.timeout_s)
        finally:
            # Joining this thread after a failure would wait for workers that never answer.
            pool.shutdown(wait=False)
        return engine

    def send_weights(self) -> None:
        """Sends every parameter of the source once. All ranks walk it, since reading may be a collective."""
        assert self.source is not None
        metadata = self.source.metadata()
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        update = GlooUpdateInfo(
            names=[m.name for m in metadata],
            dtype_names=[str(m.dtype).removeprefix("torch.") for m in metadata],
            shapes=[list(m.shape) for m in metadata],
        )
        self.client.start_weight_update()
        pool = ThreadPoolExecutor(max_workers=1)
        try:
            received = pool.submit(self.client.update_weights, asdict(update))
            self._send(self.source, metadata)
            received.result()
        finally:
            pool.shutdown(wait=False)  # see trainer_init
        self.client.finish_weight_update()

    def _send(self, source: WeightSource, metadata: Sequence[ParamMeta]) -> None:
        stream = iter(source)
        try:
            self._send_buckets(stream, metadata)
        finally:
            for _ in stream:  # after a failure too: the other ranks take part in reading to the end
                pass

    def _send_buckets(self, stream: Iterator[tuple[str, torch.Tensor]], metadata: Sequence[ParamMeta]) -> None:
        assert self._group is not None
        for bucket in _layout(metadata):
            sizes = [int(torch.Size(metadata[i].shape).numel()) for i in bucket]
            flat = torch.empty(sum(sizes), dtype=metadata[bucket.start].dtype)
            for index, place in zip(bucket, torch.split(flat, sizes), strict=True):
                name, tensor = next(stream)
                assert name == metadata[index].name, f"source yields {name}, metadata says {metadata[index].name}"
                place.copy_(tensor.reshape(-1))
            _broadcast(self._group, flat)

    def shutdown(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            stateless_destroy_torch_distributed_process_group(self._group)
            self._group = None


class CallbackSource(WeightSource):
    """A `WeightSource` over two functions of the learner: what it holds, and a fresh pass over the full tensors."""

    def __init__(
        self,
        parameter_info: Callable[[], Sequence[tuple[str, str, Sequence[int]]]],
        parameters: Callable[[], Iterator[tuple[str, torch.Tensor]]],
    ) -> None:
        """`parameter_info` gives (name, dtype such as "float32", full shape) in the order of `parameters`."""
        self._parameter_info = parameter_info
        self._parameters = parameters

    def metadata(self) -> list[ParamMeta]:
        """Names, dtypes and full shapes, without gathering anything."""
        return [ParamMeta(name, getattr(torch, dtype), tuple(shape)) for name, dtype, shape in self._parameter_info()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One pass, of copies: packed senders hold several tensors while the source frees what it gathered."""
        return ((name, tensor.clone()) for name, tensor in self._parameters())


class ActorsClient:
    """vLLM's weight-sync calls fanned out to several rollout actors, each call limited in time.

    vLLM's own Ray client gives every actor the same rank; here each actor's workers get their own.
    """

    def __init__(self, actors: Sequence[Any], workers_per_actor: int, timeout_s: float) -> None:
        self._actors = list(actors)
        self._workers_per_actor = workers_per_actor
        self._timeout_s = timeout_s

    @property
    def world_size(self) -> int:
        """The learner's sender and every engine worker."""
        return 1 + len(self._actors) * self._workers_per_actor

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Asks every actor to join the group, its workers after those of the actors before it."""
        first = init_info["rank_offset"]
        self._wait(
            actor.init_weight_transfer_engine.remote(
                {**init_info, "rank_offset": first + index * self._workers_per_actor}
            )
            for index, actor in enumerate(self._actors)
        )

    def start_weight_update(self) -> None:
        """Opens one push on every actor."""
        self._wait(actor.start_weight_update.remote() for actor in self._actors)

    def update_weights(self, update_info: WeightTransferUpdatePayload) -> None:
        """Has every actor receive; returns when all have."""
        self._wait(actor.update_weights.remote(update_info) for actor in self._actors)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Closes the push on every actor (versions are set when the actors resume)."""
        self._wait(actor.finish_weight_update.remote() for actor in self._actors)

    def _wait(self, calls: Iterable[Any]) -> None:
        import ray

        ray.get(list(calls), timeout=self._timeout_s)


def connect(
    *,
    backend: str,
    rank: int,
    address: str,
    port: int,
    timeout_s: float,
    client: ActorsClient,
    source: WeightSource,
) -> TrainerWeightTransferEngine[Any]:
    """Joins learner and engines into one transfer group; call it on every learner rank, rank 0 sends.

    `backend` is `espalier_gloo` or `nccl` (vLLM's own; not run on a GPU yet).
    `send_weights()` of the result does one push.
    """
    register()
    info: TrainerInitInfo
    if backend == GLOO:
        info = GlooTrainerInitInfo(
            master_address=address,
            master_port=port,
            world_size=client.world_size,
            timeout_s=timeout_s,
            rank=rank,
        )
    else:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        info = NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=client.world_size, rank=rank)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
