"""Practice for models that start from random weights: copying names and looking up values, with made-up names.

A tiny model learns to copy a name from the question only when it cannot know the name by heart. So demonstrations are
renamed (the names in queries and answers become made-up ones, everywhere in the trajectory; the decisions stay), and
mixed with short lists of made-up facts to look up.
"""

import random
import re
from collections.abc import Sequence

from envs.actions import parse_action
from envs.types import Message
from trainer.demonstrations import Demonstration, Segment

DIGITS = re.compile(r"\d")
FACTS = 5
"""Facts in one list to look up."""


class NameMaker:
    """Makes names up by joining the front of one known name to the back of another: Ulm, Verona -> Urona."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = sorted({name for name in names if not DIGITS.search(name)})
        if not self._names:
            raise ValueError("the demonstrations hold no query or answer to make names from")

    @classmethod
    def from_demonstrations(cls, demonstrations: Sequence[Demonstration]) -> "NameMaker":
        """Knows the queries and answers of the demonstrations. Raises ValueError when there are none."""
        return cls([name for item in demonstrations for name in acted_on(item)])

    def name(self, rng: random.Random) -> str:
        """A made-up name, e.g. `"Skvapirhua"`."""
        front, back = rng.choice(self._names), rng.choice(self._names)
        made = front[: rng.randint(1, len(front))] + back[rng.randrange(len(back)) :]
        return " ".join(made.split())

    def like(self, name: str, rng: random.Random) -> str:
        """A made-up name; where `name` has digits, the same text with random digits instead."""
        if DIGITS.search(name):
            return DIGITS.sub(lambda _: str(rng.randrange(10)), name)
        return self.name(rng)


def acted_on(demonstration: Demonstration) -> list[str]:
    """Queries and answers of the trained segments, in order, each once."""
    actions = [parse_action(segment.text) for segment in demonstration.segments if segment.train]
    return list(dict.fromkeys(action.content for action in actions if action.content))


def renamed(demonstration: Demonstration, names: NameMaker, rng: random.Random) -> Demonstration:
    """The same trajectory about made-up places: every query and answer replaced wherever it stands as whole words."""
    known = sorted(acted_on(demonstration), key=len, reverse=True)
    made = {name: names.like(name, rng) for name in known}
    if not made:
        return demonstration
    pattern = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, known)) + r")(?!\w)")

    def change(text: str) -> str:
        return pattern.sub(lambda match: made[match[0]], text)

    return Demonstration(
        task_id=demonstration.task_id,
        messages=tuple(Message(role=item.role, content=change(item.content)) for item in demonstration.messages),
        segments=tuple(Segment(text=change(item.text), train=item.train) for item in demonstration.segments),
    )


def lookup(names: NameMaker, rng: random.Random) -> Demonstration:
    """A list of made-up facts, then for each, in another order, its name (given) and its value (to be written).

    Prompt "Ulo is Berin ; Paro is Skane", then "<search> Paro </search>" given, "<answer> Skane </answer>" trained.
    """
    facts = [(names.name(rng), names.name(rng)) for _ in range(FACTS)]
    prompt = " ; ".join(f"{key} is {value}" for key, value in facts)
    segments = []
    for key, value in rng.sample(facts, FACTS):
        segments.append(Segment(text=f"<search> {key} </search>", train=False))
        segments.append(Segment(text=f"<answer> {value} </answer>", train=True))
    return Demonstration(task_id="practice", messages=(Message(role="user", content=prompt),), segments=tuple(segments))
