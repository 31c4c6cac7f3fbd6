"""From a JSON Schema to the grammar that decoding is held to, as text that engine and learner both compile.

Owns what an answer may look like beyond its schema: compact JSON without free white space, properties in the order of
the schema, no property that it does not name (unless it says `additionalProperties`), every character as itself. Made
by xgrammar's converter, with three corrections in its text; imports xgrammar where it is needed, since that takes
seconds.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from envs.decisions.contracts import compact
from envs.decisions.guided import unguided
from envs.decisions.settings import DecisionSettings

LOOSE = r"[^\"\\\r\n]"
"""xgrammar's characters of a string with a length: control characters are among them."""
PLAIN = r"[^\0-\x1f\"\\\r\n"
"""How its characters of all other strings begin."""
NO_SURROGATES = r"\ud800-\udfff"
"""Half a pair of surrogates is no character, and has no UTF-8."""
ESCAPES = r'([\"\\/bfnrt]) | ("u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9])'
EXPONENT = re.compile(r" \| \((?:\"\.\" \w+\{1, -1\} )?\[eE\] \w+ \w+\{1, -1\}\)")


@cache
def grammar_of(schema: str) -> str:
    """The EBNF text of a JSON Schema given as text, e.g. `{"enum": ["a", "b"]}`.

    Raises ValueError with one sentence for a schema that decoding can't be held to.
    """
    if problem := next(unguided(json.loads(schema), "schema"), None):
        raise ValueError(problem)
    from xgrammar import Grammar

    try:
        found = Grammar.from_json_schema(schema, any_whitespace=False, separators=(",", ":"))
    except RuntimeError as error:
        raise ValueError(f"schema can't be guided: {_reason(error)}") from None
    return _corrected(str(found))


def grammar_problems(decision: DecisionSettings) -> Iterator[str]:
    """One sentence per node of a typed policy whose output schema only the converter finds at fault."""
    for node in decision.nodes if decision.policy == "typed" else ():
        try:
            grammar_of(compact(node.output_schema))
        except ValueError as error:
            yield f"decision.nodes: node {node.name!r}: output_{error}."


def token_texts(tokenizer: Any, vocabulary: int) -> list[str]:
    """Text of each id by itself, as the grammar sees it: `bytes.decode("utf-8", "surrogateescape")`, so that half a
    character keeps its bytes.
    """
    from xgrammar import TokenizerInfo

    info = TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
    return [token.decode("utf-8", "surrogateescape") for token in info.decoded_vocab]


def _corrected(grammar: str) -> str:
    r"""The converter's text, held to JSON that every parser takes.

    - A string with a length may not hold control characters.
    - No `\uXXXX`: every character can stand as itself, and half a pair of surrogates is no text.
    - No exponent: 1e999 would be read as infinity, which is not JSON.
    - No space after the comma of values of any type (a fault of xgrammar 0.2.8).
    """
    grammar = grammar.replace(ESCAPES, r"([\"\\/bfnrt])").replace('", " basic_', '"," basic_')
    grammar = grammar.replace(LOOSE, PLAIN + "]").replace(PLAIN, PLAIN + NO_SURROGATES)
    return EXPONENT.sub("", grammar)


def _reason(error: RuntimeError) -> str:
    """`"[23:33:25] /src/x.cc:4944: Unsupported type"` without the clock and the place."""
    return re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error)).strip().rstrip(".")
