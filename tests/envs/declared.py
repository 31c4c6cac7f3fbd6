"""Small declarations of decision nodes, as JSON, for tests."""

from typing import Any

from envs.decisions.settings import DecisionSettings


def schema(*, wants: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these properties, all required, or those of `wants`; a text where None is given."""
    return {
        "type": "object",
        "properties": {name: part or {"type": "string"} for name, part in properties.items()},
        "required": list(wants or properties),
        "additionalProperties": False,
    }


def node(name: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    """A node that says one text under its own name."""
    return {
        "name": name, "parent": parent, "instruction": f"Say {name}.", "output_schema": schema(**{name: None}), **more
    }  # fmt: skip


def declare(*nodes: dict[str, Any], **more: Any) -> DecisionSettings:
    return DecisionSettings.model_validate({"world": "somewhere.made", "nodes": nodes, **more})
