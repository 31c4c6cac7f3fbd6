"""How names are compared: one folding for the whole package, so that facts, index and queries agree."""

import re
import unicodedata

WORD = re.compile(r"[^\W_]+")


def name_key(text: str) -> str:
    """Words without accents, case and punctuation, e.g. `"Saint-Étienne" -> "saint etienne"`; may be empty."""
    decomposed = unicodedata.normalize("NFKD", text)
    plain = "".join(mark for mark in decomposed if not unicodedata.combining(mark))
    return " ".join(WORD.findall(plain.casefold()))
