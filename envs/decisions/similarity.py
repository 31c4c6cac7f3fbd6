"""How like a reference an output is, and which forbidden words it holds: pure functions over JSON values."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from envs.types import Json

Likeness: TypeAlias = Callable[[str, str], float]
"""How like a text (first) is to a reference, from 0 to 1."""

_WORD = re.compile(r"\w+")


def words(text: str) -> tuple[str, ...]:
    """The words of a text, case folded and without punctuation: `"Order A17."` → `("order", "a17")`."""
    return tuple(_WORD.findall(text.casefold()))


def similarity(output: Json, reference: Json, likeness: Likeness | None = None) -> float:
    """How much of `reference` is in `output`, from 0 to 1.

    An object: the mean over the keys of the reference, 0 for a missing one; keys that the reference lacks don't count.
    A list: item by item in order, over the length of the longer list. Text: by `likeness`, `text_similarity` unless
    told. A number, a truth value or null: 1 if equal, else 0. Empty against empty is 1.
    Example: `{"order": "A17", "note": "sent on May 3"}` against `{"order": "A17", "note": "sent on May 4"}` is
    (1 + 0.75) / 2 = 0.875.
    """
    if isinstance(reference, dict):
        known = output if isinstance(output, dict) else None
        if not reference or known is None:
            return float(output == reference)
        found = (similarity(known[key], reference[key], likeness) if key in known else 0.0 for key in reference)
        return sum(found) / len(reference)
    if isinstance(reference, list):
        if not isinstance(output, list):
            return 0.0
        pairs = zip(output, reference, strict=False)
        return (
            sum(similarity(*pair, likeness) for pair in pairs) / max(len(output), len(reference))
            if output or reference
            else 1.0
        )
    if isinstance(reference, str):
        return (likeness or text_similarity)(output, reference) if isinstance(output, str) else 0.0
    same_kind = isinstance(output, bool) == isinstance(reference, bool)
    return float(same_kind and output == reference)


def text_similarity(text: str, reference: str) -> float:
    """2·LCS / (m + n) over words, LCS the longest common subsequence: ROUGE-L as an F1 score (Lin, 2004).

    Whole words: a wrong order number is wrong, however like the right one. `"sent on May 3"` against
    `"Sent on May 4."` is 2·3 / (4 + 4) = 0.75.
    """
    from rapidfuzz.distance import Indel  # a compiled library, needed by this reward only

    return float(Indel.normalized_similarity(words(text), words(reference)))


def texts(value: Json) -> Iterator[str]:
    """Every text in a JSON value; keys of objects are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def forbidden_in(value: Json, forbidden: Sequence[str]) -> tuple[str, ...]:
    """Those of `forbidden`, words or phrases, that a text of `value` holds as whole words, in whatever case.

    `"guarantee"` is in `"We GUARANTEE it"`, and not in `"guaranteed"`; `"free of charge"` must stand in this order.
    """
    spoken = [words(text) for text in texts(value)]
    return tuple(phrase for phrase in forbidden if any(_holds(said, words(phrase)) for said in spoken))


def _holds(said: Sequence[str], phrase: Sequence[str]) -> bool:
    return any(said[start : start + len(phrase)] == phrase for start in range(len(said) - len(phrase) + 1))
