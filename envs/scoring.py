"""Compares answers: normalisation, exact match and token F1, as usual for question answering (SQuAD).

Unlike the original, Unicode letters are kept and Unicode punctuation is removed too.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

ScoreName: TypeAlias = Literal["em", "f1"]
Score: TypeAlias = Callable[[str, Sequence[str]], float]
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces: `"The  Côte d'Ivoire!"` gives `"côte divoire"`."""
    lowered = unicodedata.normalize("NFC", text).lower()
    kept = "".join(mark for mark in lowered if not unicodedata.category(mark).startswith("P"))
    return " ".join(ARTICLES.sub(" ", kept).split())


def exact_match(answer: str, truths: Sequence[str]) -> float:
    """1.0 when the normalised answer equals a normalised truth, else 0.0. An answer with nothing left is wrong."""
    given = normalise(answer)
    return float(bool(given) and any(given == normalise(truth) for truth in truths))


def token_f1(answer: str, truths: Sequence[str]) -> float:
    """Best F1 of shared words over the truths: `"big Berlin"` against `"Berlin"` has P=1/2, R=1, F1=2/3."""
    return max((_f1(normalise(answer).split(), normalise(truth).split()) for truth in truths), default=0.0)


def _f1(given: list[str], wanted: list[str]) -> float:
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


SCORES: dict[ScoreName, Score] = {"em": exact_match, "f1": token_f1}
