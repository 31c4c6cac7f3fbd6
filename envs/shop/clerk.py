"""An imperfect clerk: writes what each decision node should, except for habits that are worth unlearning.

The habits are wrong more often than right where they apply, so a policy that imitates the clerk takes them over even
when it takes its likeliest step: guessing instead of asking, taking damage for a return, being too generous, promising
that a parcel has arrived. Everything else goes wrong now and then, by chance.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from envs.shop.database import TODAY
from envs.shop.rules import INTENTS, Value, answer, query, ruling, sentence
from envs.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Probabilities; all 0 make an expert."""

    guess: float = 0.7
    """Takes an unclear request for a question where an order is, and makes an answer up for an unknown order."""
    confuse: float = 0.65
    """Takes a damaged article for a return."""
    generous: float = 0.7
    """Grants what the rules deny."""
    hopeful: float = 0.65
    """Says "delivered" of a parcel that is on its way."""
    slip: float = 0.07
    """Anything else goes wrong, at each node."""


EXPERT = Habits(guess=0, confuse=0, generous=0, hopeful=0, slip=0)


class Clerk:
    """Writes the values of one ticket's nodes."""

    def __init__(self, habits: Habits, rng: random.Random) -> None:
        self._habits = habits
        self._rng = rng

    def write(self, node: str, given: Mapping[str, Json], intent: Value) -> Value:
        """The value of `node` for its input `given`; `intent` is the right value of the root."""
        if node == "intent":
            return self._intent(intent)
        by_node: dict[str, Callable[[Mapping[str, Json]], Value]] = {
            "retrieval": self._retrieval,
            "policy": self._policy,
            "response": self._response,
        }
        return by_node[node](given)

    def _intent(self, right: Value) -> Value:
        wanted = right["intent"]
        if wanted == "unclear" and self._does(self._habits.guess):
            wanted = "where"
        elif wanted == "damaged" and self._does(self._habits.confuse):
            wanted = "refund"
        elif self._does(self._habits.slip):
            wanted = self._rng.choice(INTENTS)
        return {**right, "intent": wanted}

    def _retrieval(self, given: Mapping[str, Json]) -> Value:
        asked = query(given)
        if self._does(self._habits.slip):
            asked |= {"rule": "none"}
        if self._does(self._habits.slip):
            asked |= {"find": self._rng.choice(("tracking", "purchase"))}
        return asked

    def _policy(self, given: Mapping[str, Json]) -> Value:
        ruled = ruling(given)
        granted = "replace" if given["intent"] == "damaged" else "approve"
        if ruled["decision"] == "deny" and self._does(self._habits.generous):
            return {"decision": granted, "reason": "not_shipped" if ruled["reason"] == "shipped" else "in_time"}
        if ruled["decision"] == granted and self._does(self._habits.slip):
            return {"decision": "deny", "reason": "shipped" if ruled["reason"] == "not_shipped" else "too_late"}
        return ruled

    def _response(self, given: Mapping[str, Json]) -> Value:
        said = answer(given)
        found = given.get("retrieval")
        unknown = isinstance(found, dict) and found.get("status") == "unknown"
        if unknown and self._does(self._habits.guess):
            return self._made_up()
        if (said["decision"], said["status"]) == ("inform", "shipped") and self._does(self._habits.hopeful):
            said |= {"status": "delivered", "text": sentence("where", "inform", "delivered")}
        if said["date"] and self._does(self._habits.slip):
            said |= {"date": self._day_near(str(said["date"]))}
        return said

    def _made_up(self) -> Value:
        """An answer about an order that nobody found."""
        told = sentence("where", "inform", "shipped")
        return {
            "decision": "inform",
            "status": "shipped",
            "date": self._day_near(TODAY.isoformat()),
            "amount": "",
            "text": told,
        }

    def _day_near(self, day: str) -> str:
        """Another day, at most nine days away."""
        away = self._rng.choice([days for days in range(-9, 10) if days])
        return (date.fromisoformat(day) + timedelta(days=away)).isoformat()

    def _does(self, probability: float) -> bool:
        return self._rng.random() < probability
