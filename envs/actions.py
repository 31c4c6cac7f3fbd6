"""Reads agent steps: which action a text holds, and whether it keeps to the format.

A format is a thought, then exactly one action: `<think>…</think>` and one of the environment's own tags, with nothing
but white space around them. It knows nothing of chat templates.
"""

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What one agent step says."""

    think: str
    """Text of the first thought, stripped; empty without one."""
    kind: str | None
    """Tag of the action, e.g. `"search"`; None when the step holds no complete action with content."""
    content: str
    """The query, the answer or the command, stripped, e.g. `"Ulm"`; empty when `kind` is None."""
    well_formed: bool
    """True when the step is one thought (where the format asks for it) and one action."""


@dataclass(frozen=True, kw_only=True)
class StepFormat:
    """The tags of one environment's steps, and the checks made from them."""

    kinds: tuple[str, ...]
    """Tags of actions, e.g. `("search", "answer")`."""
    marks: tuple[str, ...] = ()
    """Tags that only the environment writes, e.g. `("information", "last")`."""
    thought_required: bool = True
    """Whether a step without a thought breaks the format."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that close a step, e.g. `("</search>", "</answer>")`."""
        return tuple(f"</{kind}>" for kind in self.kinds)

    @cached_property
    def tag(self) -> re.Pattern[str]:
        """Finds every tag of the environment."""
        return re.compile(rf"<(/?)({'|'.join(('think', *self.kinds, *self.marks))})(/?)>")

    @cached_property
    def action(self) -> re.Pattern[str]:
        """Finds complete actions."""
        kinds = "|".join(self.kinds)
        return re.compile(rf"<({kinds})>((?:(?!<(?:{kinds})>).)*?)</\1>", re.DOTALL)

    @cached_property
    def moves(self) -> dict[tuple[str, str], str]:
        """(place, tag) → next place. These tags may follow; every other tag of the environment breaks the format."""
        made = {("start", "<think>"): "thought", ("thought", "</think>"): "between"}
        for kind in self.kinds:
            made |= {("between", f"<{kind}>"): kind, (kind, f"</{kind}>"): "end"}
            if not self.thought_required:
                made["start", f"<{kind}>"] = kind
        return made


SEARCH = StepFormat(kinds=("search", "answer"), marks=("information", "last"))
"""`<think>…</think><search>…</search>` or `<think>…</think><answer>…</answer>`."""
COMMAND = StepFormat(kinds=("act",), marks=("obs",), thought_required=False)
"""`<think>…</think><act>…</act>`; the thought may be left out."""


def parse_action(text: str, form: StepFormat = SEARCH) -> Action:
    """Reads any text. The action is the last complete one, so that a sloppy step still acts; see `well_formed`.

    `"<think> a </think><search> Ulm </search>"` gives `Action("a", "search", "Ulm", True)`.
    """
    think, closing, _ = text.partition("<think>")[2].partition("</think>")
    think = think.strip() if closing else ""
    for match in reversed(list(form.action.finditer(text))):
        if content := match[2].strip():
            return Action(think=think, kind=match[1], content=content, well_formed=well_formed(text, form))
    return Action(think=think, kind=None, content="", well_formed=False)


def well_formed(text: str, form: StepFormat = SEARCH) -> bool:
    """The format check: a state machine over the tags, in one pass over the text."""
    place, read_to = "start", 0
    for tag in form.tag.finditer(text):
        if place not in ("thought", *form.kinds) and text[read_to : tag.start()].strip():
            return False  # only a thought and an action may hold text
        following = form.moves.get((place, tag[0]))
        if following is None:
            return False
        place, read_to = following, tag.end()
    return place == "end" and not text[read_to:].strip()


def neutralise(text: str) -> str:
    """Replaces "<" by "‹" where it could open a tag or a special token, so that a passage cannot act as markup."""
    return re.sub(r"<(?=\s*[/|a-zA-Z!])", "‹", text)
