"""The weight push: pause the engines, send, resume under the new version, and compare both sides' log-probabilities.

A push that leaves an engine with other weights than the learner's gives no error by itself (stale caches, packed
copies, a missed parameter). So after each push every engine samples a few tokens, the learner scores the same tokens,
and the run stops when the two disagree by more than `guards.max_logprob_diff` on a token, or on average by more than
`guards.max_mean_logprob_diff`.

Of a typed policy a push sends the adapters that changed since an actor got them, and the weights below them only where
these are trained. The comparison is made with each adapter.

Two threads push. The loop does, after each learning phase (`push`). Whoever collects does when a replaced actor is
loaded (`rejoin`); in an overlapped run that is the collecting thread. Both need the learner, whose `turn` each takes
first, and then the fleet's lock for moments; nobody waits for the turn while holding the fleet's lock. `push` waits for
a `rejoin` on its way, which has the time limits of a push; `rejoin` never waits for the turn: while the loop learns it
does nothing, and the fleet asks again at its next look.
"""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from envs.decisions.settings import DecisionSettings
from rollout_workers import trees
from rollout_workers.adapters import adapters_of
from rollout_workers.fleet import Fleet, FleetError
from rollout_workers.seeds import derive_seed
from rollout_workers.types import Completion, Forest
from rollout_workers.weight_names import TRANSFER_BACKENDS
from trainer.config import RunConfig
from trainer.decisions.adapter_push import AdapterHoldings
from trainer.learner import LearnerGroup, PushError, PushLink, Sent

logger = logging.getLogger(__name__)


class MismatchError(RuntimeError):
    """Engine and learner disagree after a push: nobody knows which of them has the weights that were trained."""


class WeightPusher:
    """Moves the learner's weights to every loaded rollout actor."""

    def __init__(self, config: RunConfig, learner: LearnerGroup, fleet: Fleet) -> None:
        self._config = config
        self._learner = learner
        self._fleet = fleet
        self._connected: list[Any] = []
        self._probes: list[list[int]] = []
        self._version: int | None = None
        self._adapters = AdapterHoldings()
        self._voices = voices_of(config.typed)
        """Adapters that answer, None for the weights below them."""
        self._sends_weights = config.typed is None or config.typed.backbone == "trained"

    def use_probes(self, prompts: Sequence[Sequence[int]]) -> None:
        """Sets the contexts after which engines sample for the comparison; at most `push.probe_prompts` are kept.

        Without any, the ones before stay.
        """
        self._probes = [list(prompt) for prompt in prompts][: self._config.push.probe_prompts] or self._probes

    @property
    def probes(self) -> list[list[int]]:
        """The contexts of the comparison."""
        return self._probes

    def push(self, version: int) -> dict[str, float]:
        """Sends the learner's weights as `version`, and lets every actor that holds them work; gives `push/*` metrics.

        Branches in flight: under `push.mode` `keep` they are frozen where they are and go on with the new weights;
        under `drain` they are finished before, at most for `push.timeout_s` seconds, after which they are treated as
        under `keep` (with a warning). Waits for the engines and the learner, each at most `push.timeout_s` seconds.
        When an engine is lost on the way, the actors are replaced and the push is tried once more. Raises RuntimeError
        when that fails too, and MismatchError when the log-probabilities disagree.
        """
        begun = time.perf_counter()
        with self._learner.turn:
            with self._drained() as drained:
                started = time.perf_counter()
                actors, parts = self._deliver(version)
                sent = time.perf_counter()
            actors, compared = self._agreed(actors, version)
            metrics = {
                "push/seconds": sent - started,
                **parts,
                "push/actors": float(len(actors)),
                "push/version": float(version),
                **compared,
            }
            self._fleet.begin_work(actors)
        if self._config.push.mode == "drain":
            metrics |= {"push/drain_s": started - begun, "push/drained": float(drained)}
        return metrics

    def rejoin(self) -> bool:
        """Gives every loaded actor the weights of the last push and lets it work; False, and nothing, while the
        learner is busy. Waits and raises like `push`.
        """
        assert self._version is not None, "nothing is collected before the first push"
        if not self._learner.turn.acquire(blocking=False):
            return False
        try:
            actors, _ = self._deliver(self._version)
            actors, _ = self._agreed(actors, self._version)
            self._fleet.begin_work(actors)
        finally:
            self._learner.turn.release()
        return True

    @contextlib.contextmanager
    def _drained(self) -> Iterator[bool]:
        """Under `push.mode: drain` no branch is out inside the block, and no work is handed out."""
        if self._config.push.mode != "drain":
            yield False
            return
        limit = self._config.push.timeout_s
        try:
            drained = self._fleet.drain(limit)
            if not drained:
                logger.warning(
                    "some branches in flight did not end within push.timeout_s=%g s: they go on with new weights", limit
                )
            yield drained
        finally:
            self._fleet.open_gate()

    def _deliver(self, version: int) -> tuple[list[Any], dict[str, float]]:
        """The actors that hold the weights now, and what it took to get them there, as `push/*` metrics."""
        actors = self._fleet.ready()
        if not actors:  # the last one died while the learner trained, and its replacement still loads
            self._fleet.wait_ready()
            actors = self._fleet.ready()
        try:
            parts = self._send(actors, version)
        except (PushError, FleetError) as error:
            self._replace(actors, version, error)
            actors = self._fleet.ready()
            parts = self._send(actors, version)
        self._version = version
        return actors, parts

    def _agreed(self, actors: list[Any], version: int) -> tuple[list[Any], dict[str, float]]:
        """The actors whose log-probabilities are the learner's; others than before if one was lost while it was asked,
        which begins the push again once.
        """
        try:
            return actors, self._compare(actors, version)
        except FleetError as error:
            self._replace(actors, version, error)
        actors, _ = self._deliver(version)
        return actors, self._compare(actors, version)

    def _replace(self, actors: list[Any], version: int, error: Exception) -> None:
        logger.warning("pushing weights version %d failed (%s): replacing the rollout actors", version, error)
        self._connected = []
        self._adapters.forget()
        self._fleet.restart(actors, f"push of version {version} failed")

    def _send(self, actors: list[Any], version: int) -> dict[str, float]:
        if self._sends_weights:
            self._connect(actors)
        lacking, files = self._adapters.due(actors, self._learner.adapters) if self._voices != (None,) else ([], {})
        clock = [time.perf_counter()]
        self._all(actors, "pause", "to pause")
        clock.append(time.perf_counter())
        sent = self._learner.push() if self._sends_weights else Sent(bytes=0, seconds={})
        loaded = self._load_adapters(actors, lacking) if files else {}
        clock.append(time.perf_counter())
        self._all(actors, "resume", "to resume", version)
        self._adapters.took(actors, files)
        return {
            **loaded,
            "push/bytes": sent.bytes + loaded.get("push/bytes", 0.0),
            "push/pause_s": clock[1] - clock[0],
            **{f"push/{part}_s": seconds for part, seconds in sent.seconds.items()},
            "push/resume_s": time.perf_counter() - clock[2],
        }

    def _load_adapters(self, actors: Sequence[Any], lacking: Sequence[dict[str, bytes]]) -> dict[str, float]:
        """Gives each actor the adapters it lacks. After new weights below them every engine has forgotten its own."""
        started = time.perf_counter()
        calls = [
            actor.load_adapters.remote(contents)
            for actor, contents in zip(actors, lacking, strict=True)
            if contents or self._sends_weights
        ]
        limit = self._config.push.timeout_s
        self._fleet.get(calls, limit, f"{len(calls)} rollout actors to load adapters (push.timeout_s)")
        sent = {name: len(content) for contents in lacking for name, content in contents.items()}
        return {
            "push/adapters_sent": float(len(sent)),
            "push/bytes": float(sum(sent.values())),
            "push/adapters_s": time.perf_counter() - started,
        }

    def _connect(self, actors: list[Any]) -> None:
        if actors == self._connected:
            return
        config = self._config
        link = PushLink(
            backend=TRANSFER_BACKENDS[config.push_backend],
            timeout_s=config.push.timeout_s,
            join_timeout_s=config.push.join_timeout_s,
        )
        self._learner.connect_push(link, actors, config.rollout.tensor_parallel)
        self._connected = actors

    def _all(self, actors: Sequence[Any], method: str, purpose: str, *arguments: Any) -> None:
        calls = [getattr(actor, method).remote(*arguments) for actor in actors]
        self._fleet.get(calls, self._config.push.timeout_s, f"{len(actors)} rollout actors {purpose} (push.timeout_s)")

    def _compare(self, actors: Sequence[Any], version: int) -> dict[str, float]:
        """Samples with all adapters side by side; gives the metrics. Raises MismatchError where the sides disagree."""
        if not self._probes:
            return {}
        started = time.perf_counter()
        found = dict(zip(self._voices, self._differences(actors, version), strict=True))
        for voice, differences in found.items():
            self._check(differences, version, f" of node {voice!r}" if voice is not None else "")
        every = [value for differences in found.values() for value in differences]
        of_nodes = {
            f"decision/{voice}/max_abs_logprob_diff": max(differences)
            for voice, differences in found.items()
            if voice is not None
        }
        return of_nodes | {
            "push/max_abs_logprob_diff": max(every),
            "push/mean_abs_logprob_diff": sum(every) / len(every),
            "push/probe_s": time.perf_counter() - started,
        }

    def _differences(self, actors: Sequence[Any], version: int) -> list[list[float]]:
        """Per voice the differences of all tokens that all engines sample with it."""
        push, temperature = self._config.push, self._config.rollout.temperature
        calls = []
        for voice in self._voices:
            named = () if voice is None else (voice,)
            seed = derive_seed(self._config.seed, "probe", version, *named)
            calls += [
                actor.probe.remote(self._probes, push.probe_tokens, seed, temperature, *named) for actor in actors
            ]
        answers: list[list[Completion]] = self._fleet.get(calls, push.timeout_s, "the engines to sample probe tokens")
        count = len(actors)
        return [
            self._compared(answers[place * count : (place + 1) * count], voice)
            for place, voice in enumerate(self._voices)
        ]

    def _compared(self, answers: Sequence[Sequence[Completion]], voice: str | None) -> list[float]:
        pairs = [pair for answer in answers for pair in zip(self._probes, answer, strict=True)]
        sequences = [([*prompt, *sample.token_ids], len(sample.token_ids)) for prompt, sample in pairs]
        scored = self._learner.logprobs(sequences, *(() if voice is None else (voice,)))
        return [
            abs(ours - theirs)
            for (_, sample), learner in zip(pairs, scored, strict=True)
            for theirs, ours in zip(sample.logprobs, learner, strict=True)
        ]

    def _check(self, differences: Sequence[float], version: int, whose: str) -> None:
        worst = max(differences, key=lambda value: math.inf if math.isnan(value) else value)
        mean, guards = sum(differences) / len(differences), self._config.guards
        said = f"after pushing weights version {version} the rollout engine and the learner disagree by"
        if not worst <= guards.max_logprob_diff:
            raise MismatchError(
                f"{said} {worst:.4f} nats on a token's log-probability{whose}, more than "
                f"guards.max_logprob_diff={guards.max_logprob_diff:g}"
            )
        if guards.max_mean_logprob_diff is not None and mean > guards.max_mean_logprob_diff:
            raise MismatchError(
                f"{said} {mean:.4f} nats in the mean over {len(differences)} tokens' log-probabilities{whose}, more "
                f"than guards.max_mean_logprob_diff={guards.max_mean_logprob_diff:g}"
            )


def voices_of(typed: DecisionSettings | None) -> tuple[str | None, ...]:
    """The adapters that steps are answered with; None, for the weights below them, where some node has no adapter."""
    if typed is None:
        return (None,)
    names = [spec.name for spec in adapters_of(typed)]
    return (*names, None) if len(names) < len(typed.nodes) else tuple(names)


def probe_contexts(forest: Forest, count: int) -> list[list[int]]:
    """Contexts to sample after: per task that of the deepest node of its first tree that can go on."""
    contexts = []
    for group in forest[:count]:
        tree = group.trees[0]
        depths = trees.depths(tree)
        open_nodes = [index for index, node in enumerate(tree.nodes) if not node.is_leaf]
        contexts.append(trees.context_ids(tree, max(open_nodes, key=lambda index: depths[index])))
    return contexts
