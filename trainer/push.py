"""The weight push: pause the engines, send, resume under the new version, and compare both sides' log-probabilities.

A push that leaves an engine with other weights than the learner's gives no error by itself (stale caches, packed
copies, a missed parameter). So after each push every engine samples a few tokens, the learner scores the same tokens,
and the run stops when the two disagree by more than `guards.max_logprob_diff`.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from rollout_workers import trees
from rollout_workers.fleet import Fleet, FleetError
from rollout_workers.seeds import derive_seed
from rollout_workers.types import Completion, Forest
from rollout_workers.weight_names import TRANSFER_BACKENDS
from trainer.config import RunConfig
from trainer.learner import LearnerGroup, PushError, PushLink

logger = logging.getLogger(__name__)


class WeightPusher:
    """Moves the learner's weights to every loaded rollout actor."""

    def __init__(self, config: RunConfig, learner: LearnerGroup, fleet: Fleet) -> None:
        self._config = config
        self._learner = learner
        self._fleet = fleet
        self._connected: list[Any] = []
        self._probes: list[list[int]] = []

    def use_probes(self, prompts: Sequence[Sequence[int]]) -> None:
        """Sets the contexts after which engines sample for the comparison; at most `push.probe_prompts` are kept."""
        self._probes = [list(prompt) for prompt in prompts][: self._config.push.probe_prompts]

    def push(self, version: int) -> dict[str, float]:
        """Sends the learner's weights as `version`; returns `push/*` metrics.

        Waits for the engines and the learner, each at most `push.timeout_s` seconds. When an engine is lost on the way,
        all rollout actors are replaced and the push is tried once more. Raises RuntimeError when that fails too, and
        when the log-probabilities disagree.
        """
        started = time.perf_counter()
        try:
            actors, sent_bytes = self._send(version)
        except (PushError, FleetError) as error:
            logger.warning("pushing weights version %d failed (%s): replacing the rollout actors", version, error)
            self._connected = []
            self._fleet.restart(f"push of version {version} failed")
            actors, sent_bytes = self._send(version)
        return {
            "push/seconds": time.perf_counter() - started,
            "push/bytes": float(sent_bytes),
            "push/actors": float(len(actors)),
            "push/version": float(version),
            **self._compare(actors, version),
        }

    def _send(self, version: int) -> tuple[list[Any], int]:
        actors = self._fleet.ready()
        self._connect(actors)
        self._all(actors, "pause", "to pause")
        sent_bytes = self._learner.push()
        self._all(actors, "resume", "to resume", version)
        return actors, sent_bytes

    def _connect(self, actors: list[Any]) -> None:
        if actors == self._connected:
            return
        config = self._config
        link = PushLink(backend=TRANSFER_BACKENDS[config.push_backend], timeout_s=config.push.timeout_s)
        self._learner.connect_push(link, actors, config.rollout.tensor_parallel)
        self._connected = actors

    def _all(self, actors: Sequence[Any], method: str, purpose: str, *arguments: Any) -> None:
        calls = [getattr(actor, method).remote(*arguments) for actor in actors]
        self._fleet.get(calls, self._config.push.timeout_s, f"{len(actors)} rollout actors {purpose} (push.timeout_s)")

    def _compare(self, actors: Sequence[Any], version: int) -> dict[str, float]:
        push, rollout = self._config.push, self._config.rollout
        if not self._probes:
            return {}
        seed = derive_seed(self._config.seed, "probe", version)
        calls = [actor.probe.remote(self._probes, push.probe_tokens, seed, rollout.temperature) for actor in actors]
        answers: list[list[Completion]] = self._fleet.get(calls, push.timeout_s, "the engines to sample probe tokens")
        pairs = [pair for answer in answers for pair in zip(self._probes, answer, strict=True)]
        scored = self._learner.logprobs(
            [([*prompt, *sample.token_ids], len(sample.token_ids)) for prompt, sample in pairs]
        )
        differences = [
            abs(ours - theirs)
            for (_, sample), learner in zip(pairs, scored, strict=True)
            for theirs, ours in zip(sample.logprobs, learner, strict=True)
        ]
        worst = max(differences, key=lambda value: math.inf if math.isnan(value) else value)
        bound = self._config.guards.max_logprob_diff
        if math.isnan(worst) or worst > bound:
            raise RuntimeError(
                f"after pushing weights version {version} the rollout engine and the learner disagree by {worst:.4f} "
                f"nats on a token's log-probability, more than guards.max_logprob_diff={bound:g}"
            )
        return {
            "push/max_abs_logprob_diff": worst,
            "push/mean_abs_logprob_diff": sum(differences) / len(differences),
        }


def probe_contexts(forest: Forest, count: int) -> list[list[int]]:
    """Contexts to sample after: per task the path to the deepest node of its first tree that can go on."""
    contexts = []
    for group in forest[:count]:
        tree = group.trees[0]
        depths = trees.depths(tree)
        open_nodes = [index for index, node in enumerate(tree.nodes) if not node.is_leaf]
        contexts.append(trees.path_ids(tree, max(open_nodes, key=lambda index: depths[index])))
    return contexts
