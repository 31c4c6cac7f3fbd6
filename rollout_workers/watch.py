"""Watches a collection for standstill: what each rollout actor did last, and when to warn and to give up."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

MAX_SHOWN = 8
"""So many actors are described in one report: those that hold branches first, the longest silence first."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """Last signs of life of one actor, by a monotonic clock in seconds."""

    asked: float
    result: float | None = None
    """None before its first result."""


class ActorWatch:
    """When each actor last asked for work and last gave a result. Every operation but `describe` costs the same."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def asked(self, actor: str, now: float) -> None:
        """`actor` asked for work."""
        self._seen.setdefault(actor, _Seen(asked=now)).asked = now

    def gave(self, actor: str, now: float) -> None:
        """Results of `actor` came."""
        self._seen.setdefault(actor, _Seen(asked=now)).result = now

    def lost(self, actor: str) -> None:
        """`actor` is dead."""
        self._seen.pop(actor, None)

    def describe(self, held: Callable[[str], int], begun: float, now: float) -> str:
        """Clauses on who holds how many branches and for how long nothing came from it, e.g.
        `"rollout-0 holds 5 branches, no result for 130 s, asked for work 2 s ago"`.

        `begun` is when the collection began: the silence of an actor is counted from then on at the earliest.
        """
        if not self._seen:
            return "no actor has asked for work"
        silent = {name: now - max(begun, seen.result or begun) for name, seen in self._seen.items()}
        order = sorted(silent, key=lambda name: (held(name) == 0, -silent[name], name))
        clauses = [
            f"{name} holds {held(name)} branches, no result for {silent[name]:.0f} s, "
            f"asked for work {now - self._seen[name].asked:.0f} s ago"
            for name in order[:MAX_SHOWN]
        ]
        more = len(order) - MAX_SHOWN
        return "; ".join(clauses) + (f"; and {more} more actors" if more > 0 else "")


class Watchdog:
    """Warns when no branch has finished for `warn_s` seconds, and again after as long; gives up after `abort_s`."""

    def __init__(self, warn_s: float, abort_s: float, now: float) -> None:
        self._warn_s = warn_s
        self._abort_s = abort_s
        self._warned = now

    def look(self, idle_s: float, now: float, report: Callable[[], str]) -> None:
        """Judges a standstill of `idle_s` seconds; `report` is asked for the state of the collection when it matters.

        Raises RuntimeError when it lasts longer than `abort_s`.
        """
        if idle_s > self._abort_s:
            raise RuntimeError(
                f"no branch finished for {idle_s:.0f} s, more than scheduler.watchdog_abort_s={self._abort_s:g}: "
                f"{report()}"
            )
        if min(idle_s, now - self._warned) > self._warn_s:
            self._warned = now
            logger.warning("no branch finished for %.0f s: %s", idle_s, report())
