"""The driver's hold on the rollout side: the scheduler, the rollout actors, and what happens when one of them dies.

A dead actor's branches go back to the queue at once, a replacement is started in its place, and when it is ready the
caller's `rejoin` pushes the current weights to it before it gets work. The run ends only when actors die faster than
`max_restarts` allows.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollout_workers.actor import ActorSettings, RemoteRolloutActor
from rollout_workers.collection import CollectionSpec
from rollout_workers.scheduler import Harvest, Progress, SchedulerActor

logger = logging.getLogger(__name__)


class FleetError(RuntimeError):
    """An actor or the scheduler died or did not answer in time; the text says what was waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How many actors run where, and how long to wait for what."""

    actor: ActorSettings
    actors: int
    gpus_per_actor: int
    start_timeout_s: float
    collect_timeout_s: float
    watchdog_s: float
    poll_s: float
    max_restarts: int


@dataclass(slots=True, kw_only=True)
class _Member:
    name: str
    bundle: int
    handle: Any
    started: Any
    """Reference that resolves when the engine is loaded."""
    work: Any = None
    """Reference of the work loop, which ends only with an error; None until the actor holds current weights."""


class Fleet:
    """Starts, feeds, watches and replaces rollout actors."""

    def __init__(self, settings: FleetSettings, placement_group: Any, first_bundle: int) -> None:
        """Begins starting everything; `wait_ready` waits for it. Actor i runs in bundle `first_bundle` + i."""
        self._settings = settings
        self._placement_group = placement_group
        self._scheduler: Any = SchedulerActor.options(num_cpus=0, max_concurrency=1000).remote()
        self._generation = 0
        self.restarts = 0
        self._members = [self._launch(first_bundle + index) for index in range(settings.actors)]

    def _launch(self, bundle: int) -> _Member:
        name = f"rollout-{self._generation}"
        self._generation += 1
        strategy = PlacementGroupSchedulingStrategy(self._placement_group, placement_group_bundle_index=bundle)
        handle: Any = RemoteRolloutActor.options(
            num_cpus=0 if self._settings.gpus_per_actor else 1,
            num_gpus=self._settings.gpus_per_actor,
            scheduling_strategy=strategy,
            max_concurrency=1000,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self._settings.actor.engine.threads)}},
        ).remote(name, self._settings.actor)
        return _Member(name=name, bundle=bundle, handle=handle, started=handle.start.remote())

    def wait_ready(self) -> None:
        """Waits until every engine is loaded. Raises FleetError naming the actor that failed or is late."""
        deadline = time.monotonic() + self._settings.start_timeout_s
        for member in self._members:
            self.get(
                member.started,
                max(deadline - time.monotonic(), 0.1),
                f"rollout actor {member.name} to load its vLLM engine (rollout.start_timeout_s)",
            )

    @staticmethod
    def get(reference: Any, timeout_s: float, waits_for: str) -> Any:
        """`ray.get` with a sentence: FleetError saying what was waited for, or what the actor died of."""
        try:
            return ray.get(reference, timeout=timeout_s)
        except GetTimeoutError:
            raise FleetError(f"waited {timeout_s:.0f} s for {waits_for}, in vain") from None
        except RayError as error:
            raise FleetError(f"failed while waiting for {waits_for}: {last_line(error)}") from error

    def ready(self) -> list[Any]:
        """Handles of the actors whose engine is loaded."""
        done = {m.name for m in self._members if ray.wait([m.started], timeout=0)[0] and _succeeded(m.started)}
        return [member.handle for member in self._members if member.name in done]

    def begin_work(self) -> None:
        """Lets every loaded actor that does not work yet pull work. Call it after a push: they hold current weights."""
        ready = self.ready()
        for member in self._members:
            if member.work is None and member.handle in ready:
                member.work = member.handle.work.remote(self._scheduler)

    def collect(
        self, spec: CollectionSpec, on_progress: Callable[[Progress], None], rejoin: Callable[[], object]
    ) -> Harvest:
        """Grows one forest. Waits for the scheduler, which waits for the actors, each checked every `poll_s` seconds.

        `rejoin` must push the current weights to every loaded actor; it is called when a replacement is ready.
        Raises RuntimeError when nothing can finish the collection or `scheduler.collect_timeout_s` is over.
        """
        limits = self._settings
        started = warned = time.monotonic()
        self.get(self._scheduler.begin.remote(spec), 60, "the tree scheduler to begin a collection")
        while True:
            progress = self.get(
                self._scheduler.wait.remote(limits.poll_s), limits.poll_s + 60, "the tree scheduler to report progress"
            )
            on_progress(progress)
            if progress.is_complete:
                return self._take()
            self._tend(rejoin)
            now = time.monotonic()
            if now - started > limits.collect_timeout_s:
                raise RuntimeError(
                    f"collection {spec.phase} was not complete after scheduler.collect_timeout_s="
                    f"{limits.collect_timeout_s:g} s: {progress.waits_for}"
                )
            if min(progress.idle_s, now - warned) > limits.watchdog_s:
                warned = now
                logger.warning("no branch finished for %.0f s: %s", progress.idle_s, progress.waits_for)

    def _take(self) -> Harvest:
        harvest = self.get(self._scheduler.take.remote(), 600, "the tree scheduler to hand over the forest")
        assert isinstance(harvest, Harvest)
        return harvest

    def _tend(self, rejoin: Callable[[], object]) -> None:
        for index, member in enumerate(self._members):
            reference = member.work if member.work is not None else member.started
            if ray.wait([reference], timeout=0)[0] and not _succeeded(reference):
                self._members[index] = self._replace(member, _cause(reference))
        ready = self.ready()
        if any(member.work is None and member.handle in ready for member in self._members):
            rejoin()
            self.begin_work()

    def restart(self, cause: str) -> None:
        """Replaces every actor and waits until the new ones are loaded: after a failed push, which may leave any engine
        with half of the new weights. Raises FleetError like `wait_ready`.
        """
        self._members = [self._replace(member, cause) for member in self._members]
        self.wait_ready()

    def _replace(self, member: _Member, cause: str) -> _Member:
        ray.kill(member.handle, no_restart=True)
        released = ray.get(self._scheduler.actor_lost.remote(member.name), timeout=60)
        self.restarts += 1
        if self.restarts > self._settings.max_restarts:
            raise RuntimeError(
                f"rollout actor {member.name} died ({cause}) after rollout.max_restarts={self._settings.max_restarts} "
                "replacements were used up"
            )
        fresh = self._launch(member.bundle)
        logger.warning(
            "rollout actor %s died (%s): %d branches queued again, %s starts in its place",
            member.name,
            cause,
            released,
            fresh.name,
        )
        return fresh

    def shutdown(self) -> None:
        """Stops engines and actors; safe to call twice."""
        stopping = [member.handle.shutdown.remote() for member in self._members]
        ray.wait(stopping, num_returns=len(stopping), timeout=20)
        for handle in [*(member.handle for member in self._members), self._scheduler]:
            ray.kill(handle, no_restart=True)
        self._members = []


def _succeeded(reference: Any) -> bool:
    try:
        ray.get(reference, timeout=1)
    except RayError:
        return False
    return True


def _cause(reference: Any) -> str:
    try:
        ray.get(reference, timeout=1)
    except RayError as error:
        return last_line(error)
    return "its work loop ended"


def last_line(error: BaseException) -> str:
    """The last non-empty line of an error's text: with Ray's remote tracebacks, the one that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
