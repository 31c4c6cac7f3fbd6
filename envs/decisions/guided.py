"""Which JSON Schemas decoding can be held to. Owns the list of keywords; the grammar is made where the engine is.

A keyword that the grammar would silently ignore is a fault here: an answer would be "valid by construction" and not be.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment", "$defs", "definitions"}
)
"""Keywords that say nothing about which values are valid."""
KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
"""What may stand beside each `type`."""
FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
ALONE = ("$ref", "const", "enum", "anyOf")
"""Each stands without other keywords, `type` beside `const` and `enum` excepted."""
UNKNOWN_REGEX = re.compile(r"\(\?[^:]|\\[^\Wdwsnrtfv]|\[\[:")
"""Look-around, flags and named groups; escapes other than `\\d`, `\\w`, `\\s` and of signs (word boundaries,
back-references, Unicode and negated classes, whose meaning differs between grammar and validator); POSIX classes."""


def unguided(schema: Any, at: str = "") -> Iterator[str]:
    """One sentence without a full stop per part of a JSON Schema that decoding can't be held to.

    E.g. `"output_schema.properties.total: multipleOf can't be guided; beside type number stand …"`; `at` is the path of
    `schema` itself, e.g. `"output_schema"`.
    """
    if schema is True or schema == {}:
        return
    if not isinstance(schema, Mapping):
        yield f"{at or 'the schema'} must be an object that describes values, not {schema!r}"
        return
    found = [name for name in ALONE if name in schema]
    if found:
        yield from _alone(schema, found[0], at)
    else:
        yield from _typed(schema, at)
    for group in ("$defs", "definitions"):
        for name, child in schema.get(group, {}).items():
            yield from unguided(child, f"{at}.{group}.{name}")


def _alone(schema: Mapping[str, Any], name: str, at: str) -> Iterator[str]:
    allowed = NOTES | {name} | ({"type"} if name in ("const", "enum") else set())
    for other in sorted(schema.keys() - allowed):
        yield f"{at}: {other} can't be guided beside {name}"
    if name == "enum" and not schema["enum"]:
        yield f"{at}: enum must have at least one value"
    if name == "$ref" and not str(schema["$ref"]).startswith(("#/$defs/", "#/definitions/")):
        yield f"{at}: $ref must point into the schema itself, such as #/$defs/name, not {schema['$ref']!r}"
    if name == "anyOf":
        for place, child in enumerate(schema["anyOf"]):
            yield from unguided(child, f"{at}.anyOf[{place}]")


def _typed(schema: Mapping[str, Any], at: str) -> Iterator[str]:
    named = schema.get("type")
    kinds = [named] if isinstance(named, str) else list(named or ())
    if not kinds or not set(kinds) <= KEYWORDS.keys():
        yield f"{at}: type must be one of {', '.join(KEYWORDS)} or a list of them, not {named!r}"
        return
    allowed = frozenset().union(*(KEYWORDS[kind] for kind in kinds))
    for name in sorted(schema.keys() - allowed - NOTES - {"type"}):
        beside = ", ".join(sorted(allowed)) or "none"
        yield f"{at}: {name} can't be guided; keywords beside type {'/'.join(kinds)}: {beside}"
    yield from _of_string(schema, at)
    yield from _of_object(schema, at)
    if isinstance(schema.get("items"), Mapping):
        yield from unguided(schema["items"], f"{at}.items")
    for place, child in enumerate(schema.get("prefixItems", ())):
        yield from unguided(child, f"{at}.prefixItems[{place}]")


def _of_string(schema: Mapping[str, Any], at: str) -> Iterator[str]:
    pattern, form = schema.get("pattern"), schema.get("format")
    if (pattern is not None or form is not None) and schema.keys() & {"minLength", "maxLength"}:
        yield f"{at}: a length can't be guided beside pattern or format; put it into the pattern, e.g. [a-z]{{1,8}}"
    if pattern is not None and (unknown := UNKNOWN_REGEX.search(pattern)):
        yield f"{at}: pattern {pattern!r} can't be guided because of {unknown[0]}"
    elif pattern is not None and (fault := _regex_fault(pattern)):
        yield f"{at}: pattern {pattern!r} is no regular expression: {fault}"
    if form is not None and form not in FORMATS:
        yield f"{at}: format {form!r} can't be guided; formats are {', '.join(FORMATS)}"


def _regex_fault(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    return ""


def _of_object(schema: Mapping[str, Any], at: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in properties:
            yield f"{at}: required names {name!r}, which is not among properties"
    for name, child in properties.items():
        yield from unguided(child, f"{at}.properties.{name}")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from unguided(schema["additionalProperties"], f"{at}.additionalProperties")
