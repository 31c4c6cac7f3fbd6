"""JSON Schema (Draft 2020-12) through the library `jsonschema`, which is imported when the first schema is used.

References stay inside a schema: nothing is fetched.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from envs.types import Json

_COMPOSED = ("$ref", "allOf", "anyOf", "oneOf")

Check: TypeAlias = Callable[[Json], str]
"""Says what is wrong with a value, naming the field, e.g. `"intent: 'x' is not one of ['refund']"`; empty: nothing."""


def checker(schema: dict[str, Any], what: str) -> Check:
    """A check against one schema; `what` stands for the value as a whole, e.g. `"output"`. The schema must be valid."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.exceptions import best_match  # type: ignore[import-untyped]
    from referencing import Registry

    validator = Draft202012Validator(schema, registry=Registry())

    def check(value: Json) -> str:
        error = best_match(validator.iter_errors(value))
        return "" if error is None else f"{_field(error, what)}: {_short(error.message)}"

    return check


def schema_fault(schema: dict[str, Any]) -> str:
    """Why something is no valid schema, with the place; empty for a valid one, whose references all lead somewhere."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        json.dumps(schema, allow_nan=False)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path)) or "the schema"
        return f"at {place}: {_short(error.message)}"
    except (TypeError, ValueError) as error:
        return f"it is no JSON ({error})"
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):
            return f"$ref {reference!r} leads nowhere; it must stay inside the schema, e.g. #/$defs/address"
    return ""


def property_accepts(schema: dict[str, Any], name: str, value: Json) -> bool:
    """Whether a valid schema allows an object to have this value under this name."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    part = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
    return bool(Draft202012Validator(schema, registry=Registry()).evolve(schema=part).is_valid(value))


def properties(schema: dict[str, Any]) -> frozenset[str] | None:
    """Names that an object of this schema can have; None where the schema leaves that open."""
    found = schema.get("properties")
    is_open = schema.get("additionalProperties", False) is not False or {"$ref", "allOf", "anyOf", "oneOf"} & set(
        schema
    )
    return None if is_open or not isinstance(found, dict) else frozenset(found)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            elif key not in ("const", "enum", "default", "examples"):
                yield from _references(value)
    elif isinstance(part, list):
        for item in part:
            yield from _references(item)


def _field(error: Any, what: str) -> str:
    """E.g. `items[0].price`; a property that is missing or too much is named itself."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    if error.validator == "required":
        missing = next(name for name in error.validator_value if error.message.startswith(repr(name)))
        return f"{path}.{missing}".lstrip(".")
    if error.validator in ("additionalProperties", "unevaluatedProperties") and "properties" in error.schema:
        extra = next((name for name in error.instance if name not in error.schema["properties"]), "")
        return f"{path}.{extra}".strip(".") or what
    return path or what


def _short(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= 200 else f"{text[:197]}..."
