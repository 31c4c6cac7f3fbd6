"""The learner as Ray sees it: `LearnerRank`, one actor per rank, and `LearnerGroup`, the driver's handle on them.

Concurrency: the driver calls every rank with the same method at the same time and waits for all of them; ranks wait for
each other inside DeepSpeed's collectives. A rank that fails or dies leaves the others waiting in a collective, so the
first error kills all ranks and is raised in the driver. Every wait has a time limit.

Calls of two threads could reach the ranks in different orders, which would leave them in different collectives. So each
method holds `LearnerGroup.turn` while it waits for the ranks; who waits for the turn waits for that time limit.
"""

import math
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollout_workers.adapters import AdapterFile
from rollout_workers.deaths import cause, dead_peer, last_line
from rollout_workers.places import Place
from trainer.checkpoint_manifest import FileSum, receipts
from trainer.config import RunConfig
from trainer.types import RankPacks, TreePack

if TYPE_CHECKING:
    from trainer.checkpoint_shards import ShardWriter
    from trainer.engine import LearnerEngine
    from trainer.phase import Phase

Sequences = Sequence[tuple[Sequence[int], int]]
"""(ids, how many of the last ids to score) per sequence."""

_RECEIPT_S = 0.1
"""How often the driver looks whether the ranks' shares of a checkpoint are written."""
_LINK_ERRORS = (RuntimeError, TimeoutError, ray.exceptions.RayError)
"""What a lost engine looks like to a rank: gloo and NCCL raise RuntimeError, calls of a dead actor a RayError, and a
late answer is a TimeoutError."""


class PushError(RuntimeError):
    """The weights did not reach the rollout engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushLink:
    """How weights travel to the rollout engines."""

    backend: str
    """vLLM's name of the weight-transfer backend, `"espalier_gloo"` or `"nccl"`."""
    timeout_s: float
    """Longest wait for the engines in one part of a push."""
    join_timeout_s: float
    """Longest wait for them to join: they are loaded already, so one that takes longer is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one push moved, and where its time went."""

    bytes: int
    """Of all parameters, once, however many engines received them."""
    seconds: dict[str, float]
    """Per part, e.g. `{"open": 0.002, "send": 0.5, "load": 0.02}`; empty for a transport that does not say."""


class LearnerRank:
    """One rank. Heavy libraries load in `start`, under the environment the actor was given."""

    _engine: "LearnerEngine"
    _phase: "Phase"
    _writer: "ShardWriter"
    _sender: Any = None
    """Trainer side of vLLM's weight transfer."""

    def meeting_point(self) -> tuple[str, int]:
        """Address of this node and a free port on it, where rank 0 will listen."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
            return address, int(probe.getsockname()[1])

    def start(self, config: RunConfig, index: int, address: str, port: int, total_updates: int) -> Place:
        """Loads the model and joins the other ranks; returns where it runs."""
        from trainer.checkpoint_shards import ShardWriter
        from trainer.engine import LearnerEngine, Rank
        from trainer.phase import Phase

        rank = Rank(
            index=index,
            count=config.learner.ranks,
            address=address,
            port=port,
            timeout_s=max(config.learner.start_timeout_s, config.learner.step_timeout_s),
        )
        self._engine = LearnerEngine(config, rank, total_updates)
        self._phase = Phase(self._engine, config)
        self._writer = ShardWriter()
        return Place.here()

    def ping(self) -> None:
        """Answers when what was asked before is done."""

    def train(self, mini_batches: list[list[TreePack]]) -> dict[str, float]:
        """Runs a learning phase on this rank's packs."""
        return self._phase.run(mini_batches)

    def logprobs(self, sequences: Sequences, adapter: str | None) -> list[list[float]]:
        """Log-probabilities of the last ids of each sequence."""
        return self._engine.logprobs(sequences, adapter)

    def shares(self) -> dict[str, float]:
        """What a typed policy trains and holds."""
        return self._engine.shares

    def adapters(self, known: Mapping[str, str]) -> dict[str, AdapterFile]:
        """The adapters of a typed policy, on rank 0."""
        files = self._engine.adapter_files()
        return {name: AdapterFile.of(content, known.get(name)) for name, content in files.items()}

    def connect_push(
        self, link: PushLink, index: int, address: str, port: int, actors: Sequence[Any], workers_per_actor: int
    ) -> str | None:
        """Joins the engines of `actors` for weight pushes, leaving the group joined before; returns why it failed."""
        from rollout_workers import weight_transfer

        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None
        client = weight_transfer.ActorsClient(actors, workers_per_actor, link.timeout_s)
        source = weight_transfer.CallbackSource(self._engine.parameter_info, self._engine.full_parameters)
        try:
            self._sender = weight_transfer.connect(
                backend=link.backend,
                rank=index,
                address=address,
                port=port,
                timeout_s=link.join_timeout_s,
                client=client,
                source=source,
            )
        except _LINK_ERRORS as error:
            return last_line(error)
        return None

    def push(self) -> Sent | str:
        """Sends the current weights; returns what was sent, or why it failed."""
        assert self._sender is not None, "connect_push comes first"
        try:
            self._sender.send_weights()
        except _LINK_ERRORS as error:
            return last_line(error)
        sent_bytes = sum(meta.dtype.itemsize * math.prod(meta.shape) for meta in self._sender.source.metadata())
        return Sent(bytes=int(sent_bytes), seconds=getattr(self._sender, "seconds", {}))

    def begin_save(self, path: Path) -> None:
        """Copies this rank's share into memory, and writes it into the folder `path` beside whatever comes next."""
        self._writer.begin(path, self._engine.share(bad_steps=self._phase.bad_steps))

    def save_failure(self) -> str | None:
        """Why the share copied last was not written; None while it is being written and after a success."""
        return self._writer.failure

    def load(self, path: Path) -> None:
        """Restores this rank's share."""
        self._phase.bad_steps = int(str(self._engine.load(path)["bad_steps"]))

    def export(self, path: Path) -> None:
        """Takes part in writing the Hugging Face folder."""
        self._engine.export(path)


class LearnerGroup:
    """All ranks of the learner. Made by `LearnerGroup.start`."""

    def __init__(self, config: RunConfig, ranks: Sequence[Any]) -> None:
        self._config = config
        self._ranks = list(ranks)
        self.turn = threading.RLock()
        """Held by the thread that uses the ranks. Take it around calls that belong together, e.g. learn and push."""
        self.places: list[Place] = []
        """Of the ranks that have started."""
        self._pings: list[Any] = []
        self.shares: dict[str, float] = {}
        """What a typed policy trains and holds, as `decision/*` metrics; empty for a flat one."""

    @classmethod
    def start(
        cls, config: RunConfig, total_updates: int, placement_group: PlacementGroup | None = None
    ) -> "LearnerGroup":
        """Starts `learner.ranks` actors, in the first bundles of `placement_group` if there is one.

        `total_updates` is the number of optimizer steps of the whole run (`RunConfig.optimizer_steps`). Raises
        RuntimeError when the ranks are not up within `learner.start_timeout_s`, and the ranks' own errors as they are.
        """
        group = cls(config, [_actor(config, index, placement_group) for index in range(config.learner.ranks)])
        group.begin(total_updates)
        return group

    def begin(self, total_updates: int) -> None:
        """Loads the model into every rank; on ranks that have one already it starts anew from `model.path`."""
        limit = self._config.learner.start_timeout_s
        address, port = self._wait([self._ranks[0].meeting_point.remote()], "rank 0 to start", limit)[0]
        starts = [
            rank.start.remote(self._config, i, address, port, total_updates) for i, rank in enumerate(self._ranks)
        ]
        self.places = self._wait(starts, "the ranks to load the model and meet", limit)
        if self._config.typed is not None:
            self.shares = self._wait([self._ranks[0].shares.remote()], "the learner to count its weights", limit)[0]

    def train(self, mini_batches: Sequence[RankPacks]) -> dict[str, float]:
        """Runs a learning phase; `mini_batches` as in `PackedForest`. Returns `learner/*` metrics over all ranks."""
        shares = [[packs[index] for packs in mini_batches] for index in range(len(self._ranks))]
        with self.turn:
            calls = [rank.train.remote(share) for rank, share in zip(self._ranks, shares, strict=True)]
            metrics: dict[str, float] = self._wait(calls, "the learning phase", self._config.learner.step_timeout_s)[0]
        return metrics

    def logprobs(self, sequences: Sequences, adapter: str | None = None) -> list[list[float]]:
        """For each (ids, n) the log-probabilities of the last n ids under the current weights.

        They are taken at `rollout.temperature`, like the rollout engine's. Of a typed policy, under the adapter of the
        node `adapter`, or with None under the backbone alone.
        """
        found: list[list[float]] = self._everywhere("logprobs", "log-probabilities", sequences, adapter)[0]
        return found

    def adapters(self, known: Mapping[str, str]) -> dict[str, AdapterFile]:
        """The adapters of a typed policy as they are now; without the contents of those whose digest is in `known`."""
        found: dict[str, AdapterFile] = self._everywhere("adapters", "the adapters", known)[0]
        return found

    def connect_push(self, link: PushLink, actors: Sequence[Any], workers_per_actor: int) -> None:
        """Joins rank 0 and the engines of `actors` into one transfer group; all ranks must take part in a push.

        Raises PushError when an engine does not join; the learner goes on living.
        """
        limit = link.timeout_s + self._config.learner.start_timeout_s  # for a rank's first import of vllm
        with self.turn:
            address, port = self._wait([self._ranks[0].meeting_point.remote()], "a port for the weight push", limit)[0]
            calls = [
                rank.connect_push.remote(link, index, address, port, actors, workers_per_actor)
                for index, rank in enumerate(self._ranks)
            ]
            failures = self._wait(calls, "the rollout engines to join the weight push", limit)
        if failed := next((failure for failure in failures if failure), None):
            raise PushError(f"the rollout engines did not all join the weight push: {failed}")
        self._push_limit_s = 4 * link.timeout_s  # start, update, finish, and the sending itself

    def push(self) -> Sent:
        """Sends the weights to the engines joined by `connect_push`; returns what rank 0 sent.

        Raises PushError when the transfer failed; the learner goes on living, the engines may hold a mixture.
        """
        with self.turn:
            sent = self._wait([rank.push.remote() for rank in self._ranks], "the weight push", self._push_limit_s)
        if failed := next((result for result in sent if isinstance(result, str)), None):
            raise PushError(f"the weight push failed: {failed}")
        first: Sent = sent[0]
        return first

    def check(self) -> None:
        """Raises RuntimeError when a rank has died; waits for nothing. For times in which nobody waits for the ranks.

        The other ranks live on until `shutdown`: another thread may be waiting for them.

        One ping per rank is on its way; a busy rank answers it later, a dead one's answer is an error.
        """
        if not self._pings:
            self._pings = [rank.ping.remote() for rank in self._ranks]
        done, _ = ray.wait(self._pings, num_returns=len(self._pings), timeout=0) if self._pings else ([], [])
        for answer in done:
            try:
                ray.get(answer)
            except ray.exceptions.RayError as error:
                index = self._pings.index(answer)
                raise RuntimeError(self._death(index, "a forest was collected", error)) from error
        if len(done) == len(self._pings):
            self._pings = []

    def begin_save(self, path: Path) -> None:
        """Copies the learner's state in every rank's memory, to be written into `path` while the ranks work on.

        The folder must be reachable from every rank's node. One at a time: `wait_saved` comes before the next.
        """
        self._everywhere("begin_save", "the learner's state to be copied for a checkpoint", path)

    def wait_saved(self, path: Path, limit_s: float) -> dict[str, FileSum]:
        """Waits until every rank's share is on the disk; returns the files. For a thread beside the loop.

        It waits for the receipts in the folder, and asks the ranks for failures, which a busy rank answers later.
        Raises RuntimeError with a clause when a rank failed or died, and after `limit_s` seconds.
        """
        until, asked = time.monotonic() + limit_s, self._ask_failures()
        while len(files := receipts(path)) < self._config.learner.ranks:
            if time.monotonic() > until:
                raise RuntimeError(f"the learner ranks did not write their shares within {limit_s:g} s")
            done, _ = ray.wait(asked, num_returns=len(asked), timeout=_RECEIPT_S)
            if len(done) < len(asked):
                continue
            try:
                failures = [failure for failure in ray.get(asked) if failure]
            except ray.exceptions.RayError as error:
                raise RuntimeError(f"a learner rank died: {cause(error)}") from error
            if failures:
                raise RuntimeError(failures[0])
            time.sleep(_RECEIPT_S)
            asked = self._ask_failures()
        return files

    def _ask_failures(self) -> list[Any]:
        if not self._ranks:
            raise RuntimeError("the learner has ended")
        return [rank.save_failure.remote() for rank in self._ranks]

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint, of any number of ranks and any ZeRO stage. ValueError for another model."""
        self._everywhere("load", "the checkpoint to be read", path)

    def export(self, path: Path) -> None:
        """Writes the policy as a Hugging Face folder that transformers and vLLM load."""
        self._everywhere("export", "the export", path)

    def shutdown(self) -> None:
        """Ends every rank; safe to call twice and after an error."""
        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []

    def _everywhere(self, method: str, what: str, *arguments: Any) -> list[Any]:
        with self.turn:
            calls = [getattr(rank, method).remote(*arguments) for rank in self._ranks]
            return self._wait(calls, what, self._config.learner.step_timeout_s)

    def _wait(self, calls: Sequence[Any], what: str, limit_s: float) -> list[Any]:
        """Results of all calls; on the first error or when time is up all ranks are ended and it is raised."""
        pending, until, when = list(calls), time.monotonic() + limit_s, f"the learner waited for {what}"
        while pending:
            done, pending = ray.wait(pending, num_returns=1, timeout=max(until - time.monotonic(), 0.0))
            if not done:
                self.shutdown()
                raise RuntimeError(
                    f"the learner waited {limit_s:g} s for {what}: {len(pending)} of {len(calls)} ranks did not answer"
                )
            try:
                ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                dead = dead_peer(error.cause, pending)
                self.shutdown()
                if dead is None:
                    raise error.cause from error
                raise RuntimeError(self._death(calls.index(dead[0]), when, dead[1])) from error
            except ray.exceptions.RayError as error:
                self.shutdown()
                raise RuntimeError(self._death(calls.index(done[0]), when, error)) from error
        found: list[Any] = ray.get(list(calls))
        return found

    def _death(self, index: int, when: str, error: ray.exceptions.RayError) -> str:
        where = f" ({self.places[index]})" if index < len(self.places) else ""
        return f"learner rank {index}{where} died while {when}: {cause(error)}"


def _actor(config: RunConfig, index: int, placement_group: PlacementGroup | None) -> Any:
    """One rank's actor: one logical CPU each, since the operating system shares the real ones; one GPU on CUDA."""
    learner = config.learner
    strategy = None
    if placement_group is not None:
        strategy = PlacementGroupSchedulingStrategy(placement_group, placement_group_bundle_index=index)
    return (
        ray.remote(LearnerRank)
        .options(
            num_cpus=0 if learner.device == "cuda" else 1,  # what `learner_bundle` reserves
            num_gpus=1 if learner.device == "cuda" else 0,
            scheduling_strategy=strategy,
            enable_task_events=False,  # see `Fleet`
            runtime_env={"env_vars": _environment(config)},
        )
        .remote()
    )


def _environment(config: RunConfig) -> dict[str, str]:
    """Waiting OpenMP threads sleep: spinning ones slow every other process on the node down."""
    return {
        "DS_ACCELERATOR": config.learner.device,
        "OMP_NUM_THREADS": str(config.learner.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
