"""The driver's hold on the rollout side: the scheduler, the rollout actors, and what happens when one of them dies.

A dead actor's branches go back to the queue at once, a replacement is started in its place, and when it is ready the
caller's `rejoin` pushes the current weights to it before it gets work. The run ends only when actors die faster than
`max_restarts` allows. An actor that was lost with its node before it ran does not count: Ray gives its bundle a place
on another node, and it is started there.

Two threads use a fleet when collection overlaps learning: one collects (`collect`), the other pushes (`ready`,
`begin_work`, `restart`, `drain`). `_members` is read and written under one lock, which nobody holds while waiting for
an engine or the learner; the longest wait under it is the scheduler's answer to `actor_lost`, `answer_timeout_s` per
actor at most.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollout_workers import deaths
from rollout_workers.actor import ActorSettings, RemoteRolloutActor
from rollout_workers.collection import CollectionSpec
from rollout_workers.places import Place
from rollout_workers.scheduler import Harvest, Progress, start_scheduler
from rollout_workers.types import Ledger
from rollout_workers.watch import Watchdog

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
    stop_timeout_s: float
    """For actors that are stopped or were killed."""
    answer_timeout_s: float
    """For an answer of the scheduler; ten times that for a forest, which may be large."""
    collect_timeout_s: float
    watchdog_s: float
    watchdog_abort_s: float
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
        self._scheduler: Any = start_scheduler(settings.actors)
        self._generation = 0
        self.restarts = 0
        """Actors replaced."""
        self._losses = 0
        """Events that cost actors: one death each, and one failed push however many engines it spoilt."""
        self._lock = threading.RLock()
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
            enable_task_events=False,  # Ray's head keeps each call of an actor for its dashboard: 100 KiB per step
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self._settings.actor.engine.threads)}},
        ).remote(name, self._settings.actor)
        return _Member(name=name, bundle=bundle, handle=handle, started=handle.start.remote())

    def wait_ready(self) -> None:
        """Waits until every engine is loaded. Raises FleetError naming the actor that failed or is late."""
        deadline = time.monotonic() + self._settings.start_timeout_s
        waiting = self._snapshot()
        while waiting:
            member = waiting[0]
            try:
                self.get(
                    member.started,
                    max(deadline - time.monotonic(), 0.1),
                    f"rollout actor {member.name} to load its vLLM engine (rollout.start_timeout_s)",
                )
            except FleetError as failure:
                current = self._current(member)
                if current is member:
                    if not (isinstance(failure.__cause__, RayError) and deaths.never_ran(failure.__cause__)):
                        raise
                    current = self._move(member)
                waiting[0] = current
            else:
                waiting = waiting[1:]

    def places(self) -> dict[str, Place]:
        """Per loaded actor its process and node."""
        return {member.name: ray.get(member.started) for member in self._snapshot() if _is_loaded(member)}

    @staticmethod
    def get(reference: Any, timeout_s: float, waits_for: str) -> Any:
        """`ray.get` with a sentence: FleetError saying what was waited for, or what the actor died of."""
        try:
            return ray.get(reference, timeout=timeout_s)
        except GetTimeoutError:
            raise FleetError(f"waited {timeout_s:.0f} s for {waits_for}, in vain") from None
        except RayError as error:
            raise FleetError(f"failed while waiting for {waits_for}: {deaths.cause(error)}") from error

    def _current(self, member: _Member) -> _Member:
        """The actor in the place of `member`: itself, unless the other thread replaced it."""
        return next(m for m in self._snapshot() if m.bundle == member.bundle)

    def _snapshot(self) -> list[_Member]:
        with self._lock:
            return list(self._members)

    def ready(self) -> list[Any]:
        """Handles of the actors whose engine is loaded."""
        return [member.handle for member in self._snapshot() if _is_loaded(member)]

    def begin_work(self, holders: Collection[Any] | None = None) -> None:
        """Lets those of `holders` that do not work yet pull work: actors that hold the current weights.

        None stands for every loaded actor: right only where the weights they loaded are the current ones.
        """
        with self._lock:
            for member in self._members:
                if member.work is None and (member.handle in holders if holders is not None else _is_loaded(member)):
                    member.work = member.handle.work.remote(self._scheduler)

    def drain(self, wait_s: float) -> bool:
        """Closes the scheduler's gate and waits until no branch is out; False if some still are after `wait_s`.

        Unblocked by the actors' branches, or by `collect`, which takes branches away from an actor that died.
        """
        return bool(self._ask(self._scheduler.drain.remote(wait_s), "branches in flight to finish", beside_s=wait_s))

    def open_gate(self) -> None:
        """Work is handed out again."""
        self._ask(self._scheduler.open_gate.remote(), "the tree scheduler to hand out work again")

    def _ask(self, answer: Any, waits_for: str, *, times: float = 1.0, beside_s: float = 0.0) -> Any:
        """An answer of the scheduler, which itself may wait for `beside_s` seconds before it gives it."""
        limit = times * self._settings.answer_timeout_s + beside_s
        return self.get(answer, limit, f"{waits_for} (scheduler.answer_timeout_s)")

    def collect(
        self, spec: CollectionSpec, on_progress: Callable[[Progress], None], rejoin: Callable[[], bool | None]
    ) -> Harvest:
        """Grows one forest. Waits for the scheduler, which waits for the actors, each checked every `poll_s` seconds.

        `rejoin` is called at each check while a loaded replacement does not work yet. It gives every loaded actor the
        current weights and calls `begin_work`, or does neither and returns False while that is not possible; while that
        is so and nobody else works, the watchdog does not count. What `on_progress` raises ends the collection,
        unfinished. Raises RuntimeError when nothing can finish the collection, when no branch finished for
        `scheduler.watchdog_abort_s`, and when `scheduler.collect_timeout_s` is over.
        """
        limits = self._settings
        started = able = time.monotonic()
        watchdog = Watchdog(limits.watchdog_s, limits.watchdog_abort_s, started)
        self._ask(self._scheduler.begin.remote(spec), "the tree scheduler to begin a collection")
        while True:
            answer = self._scheduler.wait.remote(limits.poll_s)
            progress = self._ask(answer, "the tree scheduler to report progress", beside_s=limits.poll_s)
            on_progress(progress)
            if progress.refused:
                raise RuntimeError(progress.refused)
            if progress.is_complete:
                return self._take()
            now = time.monotonic()
            if self._tend(rejoin):
                able = now
            if now - started > limits.collect_timeout_s:
                raise RuntimeError(
                    f"collection {spec.phase} was not complete after scheduler.collect_timeout_s="
                    f"{limits.collect_timeout_s:g} s: {progress.waits_for}"
                )
            watchdog.look(min(progress.idle_s, now - able), now, self._report)

    def _report(self) -> str:
        return str(self._ask(self._scheduler.report.remote(), "the tree scheduler to say what it waits for"))

    def _take(self) -> Harvest:
        harvest = self._ask(self._scheduler.take.remote(), "the tree scheduler to hand over the forest", times=10)
        assert isinstance(harvest, Harvest)
        for found in self._audits():
            harvest.ledger.add(found)
        return harvest

    def _audits(self) -> list[Ledger]:
        """What only the engines know of the collection's cost; an actor that just died has nothing to say."""
        asked = {member.handle.audit.remote(): member.name for member in self._snapshot() if _is_loaded(member)}
        limit = self._settings.answer_timeout_s
        done = ray.wait(list(asked), num_returns=len(asked), timeout=limit)[0] if asked else []
        found = {asked[reference]: ray.get(reference) for reference in done if _error(reference) is None}
        for name, audit in found.items():
            warn_of_mismatch(name, audit)
        return list(found.values())

    def _tend(self, rejoin: Callable[[], bool | None]) -> bool:
        """Replaces dead actors; True while nobody works because the loaded ones can't get the current weights yet."""
        with self._lock:
            for index, member in enumerate(self._members):
                reference = member.work if member.work is not None else member.started
                if not ray.wait([reference], timeout=0)[0] or (error := _error(reference)) is None:
                    continue
                if deaths.never_ran(error):
                    self._move(member)
                else:
                    self._count_loss(f"rollout actor {member.name} died ({deaths.cause(error)})")
                    self._members[index] = self._replace(member, deaths.cause(error))
            is_waiting = any(member.work is None and _is_loaded(member) for member in self._members)
            nobody_works = all(member.work is None for member in self._members)
        return is_waiting and rejoin() is False and nobody_works

    def restart(self, handles: Collection[Any], cause: str) -> None:
        """Replaces those of the actors `handles` that are still there and waits until all actors are loaded: after a
        failed push, which may leave any engine that took part with half of the new weights.

        Raises FleetError like `wait_ready`.
        """
        with self._lock:
            lost = [member for member in self._members if member.handle in handles]
            self._count_loss(cause)
            self._members = [self._replace(m, cause) if m in lost else m for m in self._members]
        _settle(lost, timeout_s=self._settings.stop_timeout_s)
        self.wait_ready()

    def _move(self, member: _Member) -> _Member:
        """Starts an actor again whose node died before it ran."""
        with self._lock:
            if (current := self._current(member)) is not member:  # the other thread was first
                return current
            fresh = self._launch(member.bundle)
            self._members = [fresh if m is member else m for m in self._members]
        logger.warning("%s was lost with its node before it ran: %s starts on another", member.name, fresh.name)
        return fresh

    def _replace(self, member: _Member, cause: str) -> _Member:
        ray.kill(member.handle, no_restart=True)
        answer = self._scheduler.actor_lost.remote(member.name)
        released = self._ask(answer, "the tree scheduler to queue lost branches again")
        self.restarts += 1
        fresh = self._launch(member.bundle)
        logger.warning(
            "rollout actor %s died (%s): %d branches queued again, %s starts in its place",
            member.name,
            cause,
            released,
            fresh.name,
        )
        return fresh

    def _count_loss(self, event: str) -> None:
        self._losses += 1
        if self._losses > self._settings.max_restarts:
            raise RuntimeError(
                f"{event} after rollout.max_restarts={self._settings.max_restarts} replacements were used up"
            )

    def shutdown(self) -> None:
        """Stops engines and actors; safe to call twice.

        The scheduler goes last, and every pending answer is looked at: a work loop that found the scheduler dead, and
        whose error nobody reads, would be reported by Ray as an unhandled ActorDiedError of the scheduler.
        """
        with self._lock:
            members, self._members = self._members, []
        stopping = [member.handle.shutdown.remote() for member in members]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=self._settings.stop_timeout_s)
        for member in members:
            ray.kill(member.handle, no_restart=True)
        _settle(members, stopping, timeout_s=self._settings.stop_timeout_s)
        ray.kill(self._scheduler, no_restart=True)


def warn_of_mismatch(name: str, audit: Ledger) -> None:
    """Says so when an actor's branches and its engine counted differently: nobody else looks at a ledger's defect."""
    if audit.engine_mismatch:
        logger.warning(
            "the branches of rollout actor %s counted %d tokens otherwise than its engine did "
            "(rollout/ledger_mismatch): the ledger of this collection is wrong by as much",
            name,
            audit.engine_mismatch,
        )


def _settle(members: Sequence[_Member], others: Sequence[Any] = (), *, timeout_s: float) -> None:
    """Waits until what killed actors were asked for has ended, and reads the errors, which are expected."""
    until = time.monotonic() + timeout_s
    references = [reference for member in members for reference in (member.started, member.work)]
    for reference in filter(None, [*references, *others]):
        with contextlib.suppress(RayError):
            ray.get(reference, timeout=max(until - time.monotonic(), 0.1))


def _is_loaded(member: _Member) -> bool:
    return bool(ray.wait([member.started], timeout=0)[0]) and _error(member.started) is None


def _error(reference: Any) -> RayError | None:
    """What an answer failed with; None for one that has come well, or not yet."""
    try:
        ray.get(reference, timeout=1)
    except GetTimeoutError:
        return None
    except RayError as error:
        return error
    return None
