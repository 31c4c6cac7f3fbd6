"""Who runs which branch, and until when. Nothing here looks at more than the leases it returns.

A lease is a bound on silence, not on a branch: it begins anew with each step that the branch makes.
"""

from collections import OrderedDict
from itertools import islice

from rollout_workers.queues import Branch


class Leases:
    """The branches that are out. All leases last equally long, so they end in the order they were given or renewed."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._all: OrderedDict[str, Branch] = OrderedDict()
        self._of: dict[str, dict[str, Branch]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, branch: Branch) -> bool:
        return branch.item.id in self._all

    def give(self, branch: Branch, actor: str, now: float) -> None:
        """`actor` runs the branch from now on. `now` never goes back."""
        branch.actor = actor
        branch.deadline = now + self._timeout_s
        self._all[branch.item.id] = branch
        self._of.setdefault(actor, {})[branch.item.id] = branch

    def renew(self, branch: Branch, now: float) -> None:
        """The branch, which is out, made a step. `now` never goes back."""
        branch.deadline = now + self._timeout_s
        self._all.move_to_end(branch.item.id)

    def end(self, branch: Branch) -> None:
        """The branch is back, or no longer waited for."""
        assert branch.actor is not None, f"{branch.item.id} is not out"
        del self._all[branch.item.id]
        del self._of[branch.actor][branch.item.id]
        if not self._of[branch.actor]:
            del self._of[branch.actor]

    def count(self, actor: str) -> int:
        """How many branches `actor` runs."""
        return len(self._of.get(actor, ()))

    def of(self, actor: str) -> list[Branch]:
        """What `actor` runs, oldest first."""
        return list(self._of.get(actor, {}).values())

    def holders(self) -> list[str]:
        """The actors that run something, by name."""
        return sorted(self._of)

    def oldest(self, count: int, now: float) -> list[tuple[Branch, float]]:
        """The at most `count` branches of the longest silence, each with the seconds since it began or made a step."""
        return [(branch, now - (branch.deadline - self._timeout_s)) for branch in islice(self._all.values(), count)]

    def overdue(self, now: float) -> list[Branch]:
        """The branches that should be back by `now`, oldest first."""
        late: list[Branch] = []
        for branch in self._all.values():
            if branch.deadline > now:
                break
            late.append(branch)
        return late
