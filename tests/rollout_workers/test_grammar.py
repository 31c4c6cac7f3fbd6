"""Schemas become grammars whose every word is compact JSON that the schema accepts; what can't be guided is said."""

import json
import random

import pytest
from jsonschema import Draft202012Validator

from envs.decisions.guided import unguided
from envs.decisions.settings import DecisionSettings
from rollout_workers.grammar import grammar_of, grammar_problems

ALPHABET = [bytes([byte]) for byte in range(256)]
END = 256


def an_object(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties)}


SCHEMAS = [
    an_object(intent={"enum": ["refund", "é"]}, ok={"type": "boolean"}, a={"type": ["string", "null"], "maxLength": 3}),
    an_object(id={"type": "string", "pattern": "^[A-Z][0-9]{1,2}$"}, n={"type": "integer", "minimum": 2, "maximum": 9}),
    an_object(total={"type": "number"}, share={"type": "number", "minimum": 0, "maximum": 1}),
    an_object(x={"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 2}, "minItems": 1}),
    an_object(any={}, inner=an_object(day={"type": "string", "format": "date"})),
    {"type": "object", "properties": {"a": {"const": 'x"\n'}, "b": {"type": "null"}}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"anyOf": [an_object(a={"$ref": "#/$defs/yes"}), an_object(b={"type": "null"})], "$defs": {"yes": {"const": True}}},
]  # fmt: skip


def words(schema: object, seed: int, count: int) -> list[bytes]:
    """Random words of the schema's grammar, byte by byte, ended as soon as they can be after 60 bytes."""
    import torch
    from xgrammar import GrammarCompiler, GrammarMatcher, TokenizerInfo, VocabType, allocate_token_bitmask

    info = TokenizerInfo([*ALPHABET, b"<end>"], VocabType.RAW, stop_token_ids=[END])
    compiled = GrammarCompiler(info, max_threads=1).compile_grammar(grammar_of(json.dumps(schema)))
    rng, mask, found = random.Random(seed), allocate_token_bitmask(1, 257), []
    for _ in range(count):
        matcher, word = GrammarMatcher(compiled), b""
        while not matcher.is_terminated():
            matcher.fill_next_token_bitmask(mask)
            bits = mask.view(torch.uint8)[0]
            allowed = [i for i in range(257) if bits[i // 8] >> (i % 8) & 1]
            closing = [i for i in allowed if i in (END, *b'"}]')] if len(word) > 60 else []
            # Many more bytes than others are the middle of a character: take ASCII as often as the rest.
            plain = [i for i in allowed if i < 128 or i == END]
            choice = rng.choice(closing or (plain if plain and rng.random() < 0.7 else allowed))
            assert matcher.accept_token(choice)
            word += bytes([choice]) if choice != END else b""
        found.append(word)
    return found


@pytest.mark.parametrize("place", range(len(SCHEMAS)))
def test_every_word_of_a_grammar_is_valid(place: int) -> None:
    validator = Draft202012Validator(SCHEMAS[place])
    for word in words(SCHEMAS[place], place, 20):
        value = json.loads(word.decode("utf-8"))
        validator.validate(value)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")


def test_answers_are_compact_and_in_order() -> None:
    schema = an_object(
        b={"enum": [1]}, a={"type": "object", "properties": {"c": {"const": [1, "x"]}}, "required": ["c"]}
    )
    assert set(words(schema, 0, 5)) == {b'{"b":1,"a":{"c":[1,"x"]}}'}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "number", "multipleOf": 2}, "a: multipleOf can't be guided; keywords beside type number:"),
        ({"type": "string", "pattern": "a", "maxLength": 2}, "a: a length can't be guided beside pattern"),
        ({"type": "string", "pattern": r"(?=a)b"}, "a: pattern '(?=a)b' can't be guided because of (?="),
        ({"type": "string", "pattern": r"\bx"}, r"a: pattern '\\bx' can't be guided because of \b"),
        ({"type": "string", "pattern": r"[\S]"}, r"a: pattern '[\\S]' can't be guided because of \S"),
        ({"type": "string", "pattern": "[[:alpha:]]"}, "a: pattern '[[:alpha:]]' can't be guided because of [[:"),
        ({"type": "string", "pattern": "a("}, "a: pattern 'a(' is no regular expression: missing )"),
        ({"type": "string", "format": "colour"}, "a: format 'colour' can't be guided; formats are date"),
        ({"type": "what"}, "a: type must be one of string, integer"),
        ({"properties": {}}, "a: type must be one of"),
        ({"oneOf": [{}]}, "a: type must be one of"),
        ({"enum": ["x"], "maxLength": 1}, "a: maxLength can't be guided beside enum"),
        ({"enum": []}, "a: enum must have at least one value"),
        ({"$ref": "http://other"}, "a: $ref must point into the schema itself"),
        ({"type": "object", "required": ["b"]}, "a: required names 'b', which is not among properties"),
        (an_object(b={"type": "array", "items": {"not": {}}}), "a.properties.b.items: type must be one of"),
        ({"anyOf": [{"type": "null"}, {"type": "string", "format": "x"}]}, "a.anyOf[1]: format 'x' can't be guided"),
        ({"$ref": "#/$defs/b", "$defs": {"b": 3}}, "a.$defs.b must be an object that describes values, not 3"),
    ],
)  # fmt: skip
def test_what_cant_be_guided_is_named(schema: dict[str, object], problem: str) -> None:
    (found,) = unguided(schema, "a")
    assert found.startswith(problem)
    assert "\n" not in found
    with pytest.raises(ValueError, match=r"^schema"):
        grammar_of(json.dumps(schema))


def test_schemas_that_can_be_guided_have_no_problem() -> None:
    assert [problem for schema in SCHEMAS for problem in unguided(schema)] == []


def test_what_only_the_converter_finds_names_the_node() -> None:
    upside_down = an_object(days={"type": "integer", "minimum": 5, "maximum": 1})
    nodes = [{"name": "policy", "instruction": "?", "output_schema": upside_down}]
    typed, flat = (DecisionSettings(world="w", nodes=nodes, policy=policy) for policy in ("typed", "flat"))
    (problem,) = grammar_problems(typed)
    assert problem.startswith("decision.nodes: node 'policy': output_schema can't be guided: Invalid range")
    assert list(grammar_problems(flat)) == []
