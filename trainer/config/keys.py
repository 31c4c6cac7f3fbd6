"""The list of every configuration key, read from the typed sections: accepted values, default, meaning.

Error sentences and docs/configuration.md are both made from it, so they cannot disagree with what is enforced.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from trainer.config.run import RunConfig

PATH = "the path of a file"
"""What keys accept that are a `Path`."""
FOLDER = "the path of a folder"
"""What those accept that must be a folder."""

Schema: TypeAlias = dict[str, Any]
"""A JSON schema, or a part of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key that holds a value."""

    name: str
    """With its sections, e.g. `"env.retriever.corpus"`."""
    accepted: str
    """What may stand there, e.g. `"an integer of at least 1"`."""
    required: bool
    default: object
    """None when required."""
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """All keys and sections, by name."""

    values: dict[str, Key]
    sections: dict[str, tuple[str, ...]]
    """Last names of each section's keys, e.g. `{"guards": ("max_logprob_diff",)}`; `""` is the top."""
    tags: dict[str, str]
    """For sections that come in kinds, the key that names the kind, e.g. `{"env.retriever": "kind"}`."""
    free: set[str]
    """Keys that hold keys of the user's own, e.g. `{"env.options"}`."""
    wholes: dict[str, Key]
    """Sections that may be null, and lists of sections, e.g. `decision` and `decision.nodes`."""
    lists: set[str]
    """Of these the lists; the keys of their sections have names such as `decision.nodes.name`."""

    def is_known(self, name: str) -> bool:
        """Whether `name` is a key or a section, or lies in a key that is free, e.g. `env.options.anything`."""
        name = without_places(name)
        return name in self.values or name in self.sections or any(name.startswith(f"{key}.") for key in self.free)

    def written(self, name: str) -> str:
        """A key as people read it: `decision.nodes[].name` for `decision.nodes.name`."""
        for section in self.lists:
            name = name.replace(f"{section}.", f"{section}[].", 1)
        return name

    def rows(self) -> list[Key]:
        """All values, and before the first one of each whole the whole itself."""
        found: dict[str, Key] = {}
        for key in self.values.values():
            found |= {name: whole for name, whole in self.wholes.items() if key.name.startswith(f"{name}.")}
            found[key.name] = key
        return list(found.values())


def without_places(name: str) -> str:
    """`decision.nodes.name` for `decision.nodes[3].name` and for `decision.nodes.3.name`."""
    return re.sub(r"\[\d+\]|\.\d+(?=\.|$)", "", name)


@cache
def all_keys() -> Keys:
    """Every key of `RunConfig`."""
    schema = RunConfig.model_json_schema()
    keys = Keys(values={}, sections={}, tags={}, free=set(), wholes={}, lists=set())
    _add_section(keys, "", schema, schema.get("$defs", {}))
    return keys


def _add_section(keys: Keys, name: str, section: Schema, definitions: Schema) -> None:
    names = (*keys.sections.get(name, ()), *section["properties"])
    keys.sections[name] = tuple(dict.fromkeys(names))
    for last, schema in section["properties"].items():
        full = f"{name}.{last}" if name else last
        variants = _sections_in(schema, definitions)
        if "discriminator" in schema:
            keys.tags[full] = schema["discriminator"]["propertyName"]
        required = last in section.get("required", ())
        if variants and (schema.get("type") == "array" or "anyOf" in schema):
            _add_whole(keys, full, schema, required=required)
        for variant in variants:
            _add_section(keys, full, variant, definitions)
        if not variants:
            _add_value(keys, full, schema, required=required)


def _sections_in(schema: Schema, definitions: Schema) -> list[Schema]:
    """The section, or the kinds of section, that a key or each item of its list holds; empty when it holds a value."""
    parts = [schema, schema.get("items", {}), *schema.get("oneOf", ()), *schema.get("anyOf", ())]
    references = [part["$ref"] for part in parts if "$ref" in part]
    return [definitions[reference.rsplit("/", 1)[1]] for reference in references]


def _add_whole(keys: Keys, full: str, schema: Schema, *, required: bool) -> None:
    is_list = schema.get("type") == "array"
    if is_list:
        keys.lists.add(full)
    keys.wholes[full] = Key(
        name=full,
        accepted="a list of sections" if is_list else "a section or null",
        required=required,
        default=schema.get("default"),
        meaning=schema.get("description", ""),
    )


def _add_value(keys: Keys, full: str, schema: Schema, *, required: bool) -> None:
    accepted, earlier = describe(schema), keys.values.get(full)
    if earlier and earlier.accepted != accepted:  # the tag of a section that comes in kinds
        accepted = listed([*re.split(", | or ", earlier.accepted), accepted], "or")
    if schema.get("type") == "object":
        keys.free.add(full)
    keys.values[full] = Key(
        name=full,
        accepted=accepted,
        required=required,
        default=schema.get("default"),
        meaning=schema.get("description", ""),
    )


def describe(schema: Schema) -> str:
    """Says in words what a schema accepts, e.g. `"a number from 0 to 1"`."""
    if "accepted" in schema:
        return str(schema["accepted"])
    if "anyOf" in schema:
        return " or ".join(describe(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return listed([str(choice) for choice in schema.get("enum", [schema.get("const")])], "or")
    if schema["type"] == "array":
        return _list_in_words(schema)
    if schema.get("format") == "path":
        return PATH
    return {"boolean": "true or false", "null": "null", "string": "text"}.get(schema["type"]) or _number(schema)


def _list_in_words(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])} items, each {describe(schema['prefixItems'][0])}"
    return f"a list of items, each {describe(schema['items'])}"


def _number(schema: Schema) -> str:
    words = "an integer" if schema["type"] == "integer" else "a number"
    if "minimum" in schema and "maximum" in schema:
        return f"{words} from {schema['minimum']:g} to {schema['maximum']:g}"
    bounds = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "of at most",
        "exclusiveMaximum": "below",
    }
    said = [f"{bound} {schema[name]:g}" for name, bound in bounds.items() if name in schema]
    return " ".join([words, " and ".join(said)]) if said else words


def listed(names: list[str], last: str) -> str:
    """A list in words, e.g. `listed(["a", "b", "c"], "or")` is `"a, b or c"`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"
