"""Reads agent steps: which action a text holds, and whether it keeps to the format.

The format is a thought, then exactly one action: `<think>…</think>` and `<search>…</search>` or `<answer>…</answer>`,
with nothing but white space around them. It knows nothing of chat templates.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, TypeAlias

ActionKind: TypeAlias = Literal["search", "answer"]
TAG = re.compile(r"<(/?)(think|search|answer|information|last)(/?)>")
ACTION = re.compile(r"<(search|answer)>((?:(?!<(?:search|answer)>).)*?)</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What one agent step says."""

    think: str
    """Text of the first thought, stripped; empty without one."""
    kind: ActionKind | None
    """None when the step holds no complete action with content."""
    content: str
    """The query or the answer, stripped, e.g. `"Ulm"`; empty when `kind` is None."""
    well_formed: bool
    """True when the step is exactly one thought and one action."""


class Place(Enum):
    """Where the format check is in the text."""

    START = auto()
    THOUGHT = auto()
    BETWEEN = auto()
    SEARCH = auto()
    ANSWER = auto()
    END = auto()


MOVES: dict[tuple[Place, str], Place] = {
    (Place.START, "<think>"): Place.THOUGHT,
    (Place.THOUGHT, "</think>"): Place.BETWEEN,
    (Place.BETWEEN, "<search>"): Place.SEARCH,
    (Place.BETWEEN, "<answer>"): Place.ANSWER,
    (Place.SEARCH, "</search>"): Place.END,
    (Place.ANSWER, "</answer>"): Place.END,
}
"""The only tags that may follow each place; every other tag of the environment breaks the format."""
FREE_TEXT = frozenset({Place.THOUGHT, Place.SEARCH, Place.ANSWER})
"""Places where text other than white space may stand."""


def parse_action(text: str) -> Action:
    """Reads any text. The action is the last complete one, so that a sloppy step still acts; see `well_formed`.

    `"<think> a </think><search> Ulm </search>"` gives `Action("a", "search", "Ulm", True)`.
    """
    think, closing, _ = text.partition("<think>")[2].partition("</think>")
    think = think.strip() if closing else ""
    for match in reversed(list(ACTION.finditer(text))):
        if content := match[2].strip():
            kind: ActionKind = "search" if match[1] == "search" else "answer"
            return Action(think=think, kind=kind, content=content, well_formed=well_formed(text))
    return Action(think=think, kind=None, content="", well_formed=False)


def well_formed(text: str) -> bool:
    """The format check: a state machine over the tags, in one pass over the text."""
    place, read_to = Place.START, 0
    for tag in TAG.finditer(text):
        if place not in FREE_TEXT and text[read_to : tag.start()].strip():
            return False
        following = MOVES.get((place, tag[0]))
        if following is None:
            return False
        place, read_to = following, tag.end()
    return place is Place.END and not text[read_to:].strip()


def neutralise(text: str) -> str:
    """Replaces "<" by "‹" where it could open a tag or a special token, so that a passage cannot act as markup."""
    return re.sub(r"<(?=\s*[/|a-zA-Z!])", "‹", text)
