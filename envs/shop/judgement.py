"""Rewards and hard rules of the shop's nodes, as functions that a declaration names by their dotted paths."""

from collections.abc import Iterator, Mapping

from envs.decisions.rewards import StepView
from envs.shop.world import AMOUNT, DATE
from envs.types import Json

PENALTY = -10.0
GRANTED = ("approve", "replace")


def right_fields(view: StepView) -> float:
    """Share of the reference's fields that the output has right, its `text` left out; 0 without a reference.

    Example: `{"find": "tracking", "rule": "none", "order": "5821"}` against a reference with another rule: 2/3.
    """
    expected = {name: value for name, value in _object(view.reference).items() if name != "text"}
    given = _object(view.output)
    right = sum(given.get(name) == value for name, value in expected.items())
    return right / len(expected) if expected else 0.0


def no_invention(view: StepView) -> float:
    """Hard rule: −10 for a date or an amount that stands nowhere in the node's input."""
    seen = set(_texts(view.input))
    given = _object(view.output)
    stated = [str(given.get(name) or "") for name in ("date", "amount")]
    text = str(given.get("text", ""))
    stated += [*DATE.findall(text), *AMOUNT.findall(text)]
    return PENALTY if any(fact and fact not in seen for fact in stated) else 0.0


def no_promise(view: StepView) -> float:
    """Hard rule: −10 for an answer that grants what the policy node did not."""
    ruled = _object(_object(view.input).get("policy")).get("decision")
    decision = _object(view.output).get("decision")
    return PENALTY if decision in GRANTED and decision != ruled else 0.0


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _texts(value: Json) -> Iterator[str]:
    """Every text within a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
