"""The learner as Ray sees it: `LearnerRank`, one actor per rank, and `LearnerGroup`, the driver's handle on them.

Concurrency: the driver calls every rank with the same method at the same time and waits for all of them; ranks wait for
each other inside DeepSpeed's collectives. A rank that fails or dies leaves the others waiting in a collective, so the
first error kills all ranks and is raised in the driver. Every wait has a time limit.
"""

import math
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollout_workers.fleet import last_line
from trainer.config import RunConfig
from trainer.types import RankPacks, TreePack

if TYPE_CHECKING:
    from trainer.engine import LearnerEngine
    from trainer.phase import Phase

Sequences = Sequence[tuple[Sequence[int], int]]
"""(ids, how many of the last ids to score) per sequence."""

_HEAVY_IMPORT_S = 120.0
"""Allowance for the first import of vllm in a learner rank."""
_JOIN_S = 60.0
"""Longest wait for engines to join the transfer group: they are loaded already, so a longer one is a dead engine."""
_LINK_ERRORS = (RuntimeError, ray.exceptions.RayError)
"""What a lost engine looks like to a rank: gloo and NCCL raise RuntimeError, calls of a dead actor a RayError."""


class PushError(RuntimeError):
    """The weights did not reach the rollout engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushLink:
    """How weights travel to the rollout engines."""

    backend: str
    """vLLM's name of the weight-transfer backend, `"espalier_gloo"` or `"nccl"`."""
    timeout_s: float
    """Longest wait for the engines in one part of a push."""


class LearnerRank:
    """One rank. Heavy libraries load in `start`, under the environment the actor was given."""

    _engine: "LearnerEngine"
    _phase: "Phase"
    _sender: Any = None
    """Trainer side of vLLM's weight transfer."""

    def meeting_point(self) -> tuple[str, int]:
        """Address of this node and a free port on it, where rank 0 will listen."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
            return address, int(probe.getsockname()[1])

    def start(self, config: RunConfig, index: int, address: str, port: int, total_updates: int) -> None:
        """Loads the model and joins the other ranks."""
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

    def train(self, mini_batches: list[list[TreePack]]) -> dict[str, float]:
        """Runs a learning phase on this rank's packs."""
        return self._phase.run(mini_batches)

    def logprobs(self, sequences: Sequences) -> list[list[float]]:
        """Log-probabilities of the last ids of each sequence."""
        return self._engine.logprobs(sequences)

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
                timeout_s=min(link.timeout_s, _JOIN_S),
                client=client,
                source=source,
            )
        except _LINK_ERRORS as error:
            return last_line(error)
        return None

    def push(self) -> int | str:
        """Sends the current weights; returns their size in bytes, or why it failed."""
        assert self._sender is not None, "connect_push comes first"
        try:
            self._sender.send_weights()
        except _LINK_ERRORS as error:
            return last_line(error)
        return int(sum(meta.dtype.itemsize * math.prod(meta.shape) for meta in self._sender.source.metadata()))

    def save(self, path: Path) -> None:
        """Saves this rank's share."""
        self._engine.save(path)

    def load(self, path: Path) -> None:
        """Restores this rank's share."""
        self._engine.load(path)

    def export(self, path: Path) -> None:
        """Takes part in writing the Hugging Face folder."""
        self._engine.export(path)


class LearnerGroup:
    """All ranks of the learner. Made by `LearnerGroup.start`."""

    def __init__(self, config: RunConfig, ranks: Sequence[Any]) -> None:
        self._config = config
        self._ranks = list(ranks)

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
        self._wait(starts, "the ranks to load the model and meet", limit)

    def train(self, mini_batches: Sequence[RankPacks]) -> dict[str, float]:
        """Runs a learning phase; `mini_batches` as in `PackedForest`. Returns `learner/*` metrics over all ranks."""
        shares = [[packs[index] for packs in mini_batches] for index in range(len(self._ranks))]
        calls = [rank.train.remote(share) for rank, share in zip(self._ranks, shares, strict=True)]
        metrics: dict[str, float] = self._wait(calls, "the learning phase", self._config.learner.step_timeout_s)[0]
        return metrics

    def logprobs(self, sequences: Sequences) -> list[list[float]]:
        """For each (ids, n) the log-probabilities of the last n ids under the current weights.

        They are taken at `rollout.temperature`, like the rollout engine's.
        """
        found: list[list[float]] = self._everywhere("logprobs", "log-probabilities", sequences)[0]
        return found

    def connect_push(self, link: PushLink, actors: Sequence[Any], workers_per_actor: int) -> None:
        """Joins rank 0 and the engines of `actors` into one transfer group; all ranks must take part in a push.

        Raises PushError when an engine does not join; the learner goes on living.
        """
        limit = link.timeout_s + _HEAVY_IMPORT_S
        address, port = self._wait([self._ranks[0].meeting_point.remote()], "a port for the weight push", limit)[0]
        calls = [
            rank.connect_push.remote(link, index, address, port, actors, workers_per_actor)
            for index, rank in enumerate(self._ranks)
        ]
        failures = self._wait(calls, "the rollout engines to join the weight push", limit)
        if failed := next((failure for failure in failures if failure), None):
            raise PushError(f"the rollout engines did not all join the weight push: {failed}")
        self._push_limit_s = 4 * link.timeout_s  # start, update, finish, and the sending itself

    def push(self) -> int:
        """Sends the weights to the engines joined by `connect_push`; returns their size in bytes.

        Raises PushError when the transfer failed; the learner goes on living, the engines may hold a mixture.
        """
        sent = self._wait([rank.push.remote() for rank in self._ranks], "the weight push", self._push_limit_s)
        if failed := next((result for result in sent if isinstance(result, str)), None):
            raise PushError(f"the weight push failed: {failed}")
        return int(sent[0])

    def save(self, path: Path) -> None:
        """Saves weights and optimizer state of all ranks into the folder `path`, reachable from every rank's node."""
        self._everywhere("save", "the checkpoint to be written", path)

    def load(self, path: Path) -> None:
        """Restores what `save` wrote. ValueError if the numbers of ranks or the ZeRO stages differ."""
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
        calls = [getattr(rank, method).remote(*arguments) for rank in self._ranks]
        return self._wait(calls, what, self._config.learner.step_timeout_s)

    def _wait(self, calls: Sequence[Any], what: str, limit_s: float) -> list[Any]:
        """Results of all calls; on the first error or when time is up all ranks are ended and it is raised."""
        pending, until = list(calls), time.monotonic() + limit_s
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
                self.shutdown()
                raise error.cause from error
            except ray.exceptions.RayError as error:
                self.shutdown()
                raise RuntimeError(f"a learner rank died while the learner waited for {what}") from error
        found: list[Any] = ray.get(list(calls))
        return found


def _actor(config: RunConfig, index: int, placement_group: PlacementGroup | None) -> Any:
    """One rank's actor: one logical CPU each, since the operating system shares the real ones; one GPU on CUDA."""
    learner = config.learner
    strategy = None
    if placement_group is not None:
        strategy = PlacementGroupSchedulingStrategy(placement_group, placement_group_bundle_index=index)
    return (
        ray.remote(LearnerRank)
        .options(
            num_cpus=1,
            num_gpus=1 if learner.device == "cuda" else 0,
            scheduling_strategy=strategy,
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
