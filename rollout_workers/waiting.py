"""Pulls that found no work: who of them is served first.

Actors that run nothing come before actors that only have room left; within both, first come, first served.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from rollout_workers.types import WorkItem

PULL_WAIT_S = 10.0
"""A pull waits so long for work; then its actor asks again."""


@dataclass(slots=True, eq=False)
class WaitingPull:
    """One `pull` whose answer is still to come."""

    actor: str
    capacity: int
    """Branches that the actor has room for, without those that it was given since by other ways."""
    answer: "asyncio.Future[list[WorkItem]]"


class WaitingPulls:
    """At most one pull per actor waits; every operation costs the same however many there are."""

    def __init__(self) -> None:
        self._idle: OrderedDict[str, WaitingPull] = OrderedDict()
        self._roomy: OrderedDict[str, WaitingPull] = OrderedDict()

    def __len__(self) -> int:
        return len(self._idle) + len(self._roomy)

    def enter(self, pull: WaitingPull, *, is_idle: bool) -> None:
        """Goes to the end of its line. An older pull of the same actor is answered with nothing."""
        self.answer(pull.actor, [])
        (self._idle if is_idle else self._roomy)[pull.actor] = pull

    def of(self, actor: str) -> WaitingPull | None:
        """The pull of `actor` that waits."""
        return self._idle.get(actor) or self._roomy.get(actor)

    def take_out(self, actor: str) -> WaitingPull | None:
        """The pull of `actor`, which leaves its line without an answer."""
        return self._idle.pop(actor, None) or self._roomy.pop(actor, None)

    def next(self) -> WaitingPull | None:
        """The pull to serve first."""
        line = self._idle or self._roomy
        return next(iter(line.values())) if line else None

    def next_idle(self) -> WaitingPull | None:
        """The pull to serve first, of actors that run nothing."""
        return next(iter(self._idle.values())) if self._idle else None

    def to_the_end(self, actor: str) -> None:
        """There was nothing for this one: others first."""
        (self._idle if actor in self._idle else self._roomy).move_to_end(actor)

    def now_idle(self, actor: str) -> None:
        """The actor's last branch is back."""
        if pull := self._roomy.pop(actor, None):
            self._idle[actor] = pull

    def answer(self, actor: str, items: list[WorkItem]) -> None:
        """Ends the wait of this actor's pull, if it has one."""
        pull = self.take_out(actor)
        if pull is not None and not pull.answer.done():
            pull.answer.set_result(items)

    def give_up(self, pull: WaitingPull) -> None:
        """The pull has waited long enough; without effect when it is not the one that waits."""
        if self.of(pull.actor) is pull:
            self.answer(pull.actor, [])
