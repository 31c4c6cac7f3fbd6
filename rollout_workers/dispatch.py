"""Who works on what: branches go to actors, and back into the queue when an actor dies or a lease runs out.

What one assignment costs does not depend on how many tasks, branches and actors there are.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from rollout_workers.leases import Leases
from rollout_workers.queues import Branch, Queues, TaskState
from rollout_workers.types import WorkItem
from rollout_workers.waiting import PULL_WAIT_S

SILENCE_S = 1.5 * PULL_WAIT_S
"""After so long without a word, nothing is kept for an actor any more on account of the room it had."""


class Dispatch:
    """Branches that wait and branches that are out. Times are in seconds and never go back."""

    def __init__(self, *, steal_after: float, lease_timeout_s: float, max_attempts: int) -> None:
        """See `CollectionSpec` for the settings."""
        self._steal_after = steal_after
        self._max_attempts = max_attempts
        self._queues = Queues()
        self._leases = Leases(lease_timeout_s)
        self._known: set[str] = set()
        """Actors that have asked for work."""
        self._heard: OrderedDict[str, float] = OrderedDict()
        """When actors last said how much room they have, the longest silence first."""

    @property
    def queued(self) -> int:
        """How many branches wait for an actor."""
        return self._queues.size

    @property
    def leases(self) -> int:
        """How many branches are out."""
        return len(self._leases)

    def held(self, actor: str) -> int:
        """How many branches `actor` runs."""
        return self._leases.count(actor)

    def has_own(self, actor: str) -> bool:
        """Whether a branch of a task that `actor` holds waits."""
        return self._queues.next_of(actor) is not None

    def hear(self, actor: str, capacity: int, now: float) -> None:
        """`actor` has room for `capacity` branches; it is about to be assigned some, or waits until there are any.

        Its own branches are kept for it as far as it has room, also for what it finishes from now on.
        """
        self._heard[actor] = now
        self._heard.move_to_end(actor)
        self._queues.set_room(actor, capacity)

    def _forget_silent(self, now: float) -> None:
        while self._heard and (actor := next(iter(self._heard))) and self._heard[actor] < now - SILENCE_S:
            del self._heard[actor]
            self._queues.set_room(actor, 0)

    def assign(self, actor: str, capacity: int, now: float, actors: int = 1) -> list[WorkItem]:
        """Up to `capacity` items for `actor`: of tasks it holds, then of tasks nobody holds, then stolen ones.

        Of tasks that nobody holds it gets at most its share among `actors` live actors, or the first to ask would take
        them all. `now` is in seconds and never goes back.
        """
        self._known.add(actor)
        self._forget_silent(now)
        items: list[WorkItem] = []
        share = math.ceil((self.leases + self.queued) / actors)
        while len(items) < capacity:
            state = self._own_or_free(actor, share) or self._victim(actor, actors)
            if state is None:
                break
            if state.owner is None:
                self._queues.give(state, actor)
            items.append(self._hand_out(state, actor, now))
        return items

    def _own_or_free(self, actor: str, share: int) -> TaskState | None:
        if own := self._queues.next_of(actor):
            return own
        return self._queues.next_of(None) if self.held(actor) < share else None

    def _victim(self, thief: str, actors: int) -> TaskState | None:
        """The task to steal from: the last of the actor with the most branches beyond its room."""
        excess, steal_after = self._queues.excess, self._steal_after
        longest = excess.longest()
        if longest is None or self._queues.next_of(None) is not None:
            return None
        owner, length = longest
        among = max(actors, len(self._known))
        is_uneven = length > steal_after * excess.total / among
        is_idle = steal_after < among and not self.held(thief)
        return self._queues.last_of(owner) if is_uneven or is_idle else None

    def relieve(self, owner: str, thief: str, capacity: int, now: float, actors: int) -> list[WorkItem]:
        """For an actor that runs nothing: branches that wait for `owner`, while that has much more than the mean.

        At most `capacity`, and no more than the mean.
        """
        if owner == thief:
            return []
        mean = (self.leases + self._queues.owned) / max(actors, len(self._known))
        items: list[WorkItem] = []
        while len(items) < min(capacity, max(int(mean), 1)) and self.has_own(owner):
            if self.held(owner) + self._queues.count(owner) <= self._steal_after * mean:
                break
            items.append(self._hand_out(self._queues.last_of(owner), thief, now))
        return items

    def _hand_out(self, state: TaskState, actor: str, now: float) -> WorkItem:
        branch = self._queues.pop(state)
        branch.attempts += 1
        self._leases.give(branch, actor, now)
        self._queues.set_room(actor, max(self._queues.room(actor) - 1, 0))
        if state.owner == actor:
            return branch.item
        state.ledger.branches_stolen += 1
        return replace(branch.item, stolen=True)

    def _end_lease(self, branch: Branch) -> None:
        self._leases.end(branch)
        actor = branch.actor
        if actor is not None and actor in self._heard:
            self._queues.set_room(actor, self._queues.room(actor) + 1)

    def release(self, actor: str) -> int:
        """Queues again what a dead actor held and forgets what it had cached; returns how many branches.

        Raises RuntimeError when one of them was started `max_attempts` times.
        """
        lost = self._leases.of(actor)
        self._queues.disown(actor)
        self._known.discard(actor)
        self._heard.pop(actor, None)
        self._requeue(lost)
        return len(lost)

    def expire(self, now: float) -> int:
        """Queues again, for whoever asks first, the branches whose lease ran out; returns how many.

        Raises RuntimeError when one of them was started `max_attempts` times.
        """
        late = self._leases.overdue(now)
        for branch in late:
            self._queues.give(branch.state, None)
        self._requeue(late)
        return len(late)

    def _requeue(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            self._leases.end(branch)
            if branch.attempts >= self._max_attempts:
                raise RuntimeError(
                    f"branch {branch.item.id} was started {self._max_attempts} times and never came back "
                    f"(last on {branch.actor}); scheduler.max_attempts is {self._max_attempts}"
                )
            self._queues.put(branch.state, [branch], first=True)
            branch.state.ledger.branches_requeued += 1
