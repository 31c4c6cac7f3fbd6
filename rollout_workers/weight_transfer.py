"""The `espalier_gloo` weight-transfer backend: learner weights to vLLM engines over CPU sockets.

vLLM ships transfer backends for GPUs only (`nccl` and friends). This one has the same two halves and the same protocol,
with a gloo process group as the wire, so that a CPU run exercises exactly the code path a GPU run takes. vLLM loads
`register` in each of its processes through the entry-point group `vllm.general_plugins`; the learner calls it itself.

The group has the learner's rank 0 as rank 0 and every engine worker after it (`rank_offset` places the engines of
several actors). Parameters travel in checkpoint format (`rollout_workers/gloo_wire.py`), and are loaded through vLLM's
layerwise reload, the only path that rebuilds packed CPU weights correctly.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, cast

import torch
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

from rollout_workers import gloo_wire
from rollout_workers.weight_names import ADAPTERS, GLOO, SLEEPING


def register() -> None:
    """Registers both halves of the backend in this process; a second call changes nothing.

    It is also where an engine with adapters prepares them, and where one on CPUs learns to sleep.
    """
    if GLOO not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(GLOO, GlooWeightTransferEngine)
        WeightTransferTrainerFactory.register_engine(GLOO, GlooTrainerWeightTransferEngine)
    if SLEEPING in os.environ:
        from rollout_workers.vllm_waiting import sleep_while_waiting

        sleep_while_waiting()
    if ADAPTERS in os.environ:
        from rollout_workers import vllm_adapters

        vllm_adapters.register()


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


class GlooWeightTransferEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """The receiving half; lives in each vLLM worker process."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _group: Any = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Joins the learner's group, leaving an earlier one (after the set of actors changed)."""
        self.shutdown()
        gloo_wire.keep_freed_memory()
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = gloo_wire.join(
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
        layout = gloo_wire.buckets(
            (name, getattr(torch, dtype), shape)
            for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        )
        arriving = gloo_wire.received(self._group, layout)
        cast("Any", self.model).load_weights((name, tensor.to(self.device)) for name, tensor in arriving)

    def shutdown(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.shutdown()
            self._group = None


class GlooTrainerWeightTransferEngine(TrainerWeightTransferEngine[GlooTrainerInitInfo]):
    """The sending half; lives in each learner rank, of which only rank 0 talks to the engines."""

    init_info_cls = GlooTrainerInitInfo

    def __init__(self, *, client: VLLMWeightSyncClient, source: WeightSource, is_sender: bool) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._group: Any = None
        self.seconds: dict[str, float] = {}
        """The parts of the last push: `open` (all engines prepare), `send` (until the last byte has left this process)
        and `load` (until every engine has loaded what it received)."""

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
            engine._group = gloo_wire.join(
                init_info.master_address, init_info.master_port, 0, init_info.world_size, init_info.timeout_s
            )
            joined.result(timeout=init_info.timeout_s)
        except RuntimeError:  # of gloo, which knows who is missing; an engine that failed says why
            if joined.done():
                joined.result()
            raise
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
        clock = [time.perf_counter()]
        self.client.start_weight_update()
        clock.append(time.perf_counter())
        pool = ThreadPoolExecutor(max_workers=1)
        try:
            received = pool.submit(self.client.update_weights, asdict(update))
            self._send(self.source, metadata)
            clock.append(time.perf_counter())
            received.result()
        finally:
            pool.shutdown(wait=False)  # see trainer_init
        self.client.finish_weight_update()
        clock.append(time.perf_counter())
        parts = zip(("open", "send", "load"), itertools.pairwise(clock), strict=True)
        self.seconds = {part: end - begin for part, (begin, end) in parts}

    def _send(self, source: WeightSource, metadata: Sequence[ParamMeta]) -> None:
        stream = source.borrowed() if isinstance(source, CallbackSource) else iter(source)
        try:
            gloo_wire.send(self._group, gloo_wire.buckets((m.name, m.dtype, m.shape) for m in metadata), stream)
        finally:
            for _ in stream:  # after a failure too: the other ranks take part in reading to the end
                pass

    def shutdown(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.shutdown()
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

    def borrowed(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One pass without copies: each tensor is valid until the next one is read."""
        return self._parameters()


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
