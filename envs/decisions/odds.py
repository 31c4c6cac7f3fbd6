"""The root's output distribution, read from one sampled answer: a probability per value of its enumerated outputs.

What is sampled is one value; what the gate wants is how sure the root was. The engine reports, for each sampled token,
the likeliest others at its place (`Completion.alternatives`). Along the tokens of a value the probability mass is
shared out: at each place, a token that was not sampled gives its share to the values that the text so far with it
begins; the sampled one carries the rest on to the next place, until one value is left. A share that fits several values
is split equally between them, since nobody knows how the engine would have gone on; what fits none is left out, and
the rest is scaled to sum to 1.

E.g. `{"intent":"return"}` with values refund, return, status and the tokens `{"intent":"`, `re` (0.9; `status` 0.1),
`turn` (0.75; `fund` 0.25): status 0.1, refund 0.9 * 0.25 = 0.225, return 0.675.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from envs.decisions.types import Alternatives
from envs.types import Json

_DECODER = json.JSONDecoder()
_BEHIND = (b",", b"}")
"""What may follow a value in compact JSON."""


def root_odds(
    schema: Mapping[str, Any], tokens: Sequence[str], alternatives: Sequence[Alternatives]
) -> tuple[tuple[str, float], ...]:
    """(`"field=value"`, probability) of each value of each property with `enum`, or of type boolean, of an object.

    `tokens` are the texts of the answer (`sampled_texts`), `alternatives` what the engine said at each place. In the
    order of the schema, always the same names: a property that the answer leaves out has 0 for all its values, each
    other property's probabilities sum to 1. Empty for an answer that is no object in compact JSON.
    """
    text = b"".join(map(_bytes, tokens))
    ends = list(accumulate(len(_bytes(token)) for token in tokens))
    try:
        starts = dict(_value_starts(text.decode("utf-8")))
    except (ValueError, IndexError):  # free text, or an answer that was cut
        return ()
    found: list[tuple[str, float]] = []
    for field, values in enumerated(schema):
        shares = [0.0] * len(values)
        if field in starts:
            literals = [_literal(value) for value in values]
            shares = _shares(text, [0, *ends], starts[field], literals, alternatives)
        found.extend((feature_name(field, value), share) for value, share in zip(values, shares, strict=True))
    return tuple(found)


def sampled_texts(alternatives: Sequence[Alternatives]) -> tuple[str, ...]:
    """The text of each sampled token, which is the first at its place."""
    return tuple(sampled for (sampled, _), *_ in alternatives)


def feature_names(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that `root_odds` gives, e.g. `("intent=refund", "intent=status", "urgent=true", "urgent=false")`."""
    return tuple(feature_name(field, value) for field, values in enumerated(schema) for value in values)


def feature_name(field: str, value: Json) -> str:
    """E.g. `"intent=refund"`, `"urgent=true"`, `"stars=5"`."""
    return f"{field}={value if isinstance(value, str) else _literal(value).decode()}"


def enumerated(schema: Mapping[str, Any]) -> Iterator[tuple[str, list[Json]]]:
    """(property, its values) of an object's properties that have few values; of those inside other objects none."""
    for name, part in schema.get("properties", {}).items():
        if isinstance(part, Mapping) and "enum" in part:
            yield name, list(part["enum"])
        elif isinstance(part, Mapping) and part.get("type") == "boolean":
            yield name, [True, False]


def _shares(
    text: bytes, bounds: Sequence[int], start: int, literals: Sequence[bytes], alternatives: Sequence[Alternatives]
) -> list[float]:
    """Probability of each literal, of which one stands at `text[start:]`."""
    shares = [0.0] * len(literals)
    carried = 1.0
    for (begin, end), (sampled, *others) in zip(pairwise(bounds), alternatives, strict=True):
        if end <= start:  # the place is before the value
            continue
        for token, logprob in others:
            branch = text[:begin] + _bytes(token)
            _share(shares, carried * math.exp(logprob), _fitting(branch, text, start, literals))
        fitting = _fitting(text[:end], text, start, literals)
        carried *= math.exp(sampled[1])
        if len(fitting) <= 1:
            _share(shares, carried, fitting)
            break
    whole = math.fsum(shares)
    return [share / whole for share in shares] if whole else shares


def _share(shares: list[float], mass: float, fitting: Sequence[int]) -> None:
    for index in fitting:
        shares[index] += mass / len(fitting)


def _fitting(branch: bytes, text: bytes, start: int, literals: Sequence[bytes]) -> list[int]:
    """Indices of the literals that `branch`, which shares its beginning with `text`, can still become."""
    if branch[:start] != text[: min(start, len(branch))]:
        return []
    begun = branch[start:]
    return [
        index
        for index, literal in enumerate(literals)
        if literal.startswith(begun) or (begun.startswith(literal) and begun[len(literal) :].startswith(_BEHIND))
    ]


def _value_starts(text: str) -> Iterator[tuple[str, int]]:
    """(property, place in bytes where its value begins) of a compact JSON object at the start of `text`."""
    if text[0] != "{":
        raise ValueError("not an object")
    place = 1
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, place + (text[place] == ","))
        if text[place] != ":":
            raise ValueError("compact JSON has no white space")
        yield name, len(text[: place + 1].encode("utf-8"))
        _, place = _DECODER.raw_decode(text, place + 1)


def _literal(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _bytes(text: str) -> bytes:
    """A token that ends inside a character has its bytes as lone surrogates (see `Alternatives`)."""
    return text.encode("utf-8", "surrogateescape")
