"""How names are compared: one folding for the whole package, so that facts, index and queries agree."""

import re
import unicodedata

WORD = re.compile(r"[^\W_]+")


def name_key(text: str) -> str:
    """Words without accents, case and punctuation, e.g. `"Saint-Étienne" -> "saint etienne"`; may be empty."""
    if not text.isascii():
        text = "".join(mark for mark in unicodedata.normalize("NFKD", text) if not unicodedata.combining(mark))
    return " ".join(WORD.findall(text.casefold()))
