"""The root's output distribution from the alternatives of one answer, computed on paper."""

from math import log

import pytest

from envs.decisions.odds import feature_names, root_odds, sampled_texts
from envs.decisions.types import Alternatives

INTENT = {"type": "object", "properties": {"intent": {"enum": ["refund", "return", "status"]}}}


def place(sampled: str, chance: float, **others: float) -> Alternatives:
    return ((sampled, log(chance)), *((text, log(value)) for text, value in others.items()))


def odds(schema: dict[str, object], *alternatives: Alternatives) -> dict[str, float]:
    return dict(root_odds(schema, sampled_texts(alternatives), alternatives))


def test_mass_is_shared_out_along_the_value() -> None:
    """The example of the module: 0.1 leaves at the first token, a quarter of the other 0.9 at the second."""
    found = odds(
        INTENT, place('{"intent":"', 1.0), place("re", 0.9, status=0.1), place("turn", 0.75, fund=0.25), place('"}', 1)
    )
    assert found == pytest.approx({"intent=refund": 0.225, "intent=return": 0.675, "intent=status": 0.1})


def test_a_branch_that_was_not_taken_is_split_equally() -> None:
    """`re` was not sampled: its 0.4 are 0.2 for each of the two values that it begins."""
    found = odds(INTENT, place('{"intent":"', 1.0), place("status", 0.6, re=0.4), place('"}', 1.0))
    assert found == pytest.approx({"intent=refund": 0.2, "intent=return": 0.2, "intent=status": 0.6})


def test_what_fits_no_value_is_left_out_and_the_rest_scaled() -> None:
    """Only 0.8 are known: 0.6 of `status` become 0.75, 0.2 of `refund` 0.25."""
    found = odds(INTENT, place('{"intent":"', 1.0), place("status", 0.6, refund=0.2, nothing=0.1), place('"}', 1.0))
    assert found == pytest.approx({"intent=refund": 0.25, "intent=return": 0.0, "intent=status": 0.75})


def test_tokens_that_begin_before_the_value_and_end_behind_it() -> None:
    alternatives = (
        place('{"in', 1.0),
        (('tent":"sta', log(0.5)), ('tent":"', log(0.3)), ('tent":"refund"}', log(0.2))),
        place('tus"}', 1.0),
    )
    found = odds(INTENT, *alternatives)
    assert found == pytest.approx({"intent=refund": 0.3, "intent=return": 0.1, "intent=status": 0.6})


def test_several_properties_are_groups_of_their_own() -> None:
    schema = {
        "type": "object",
        "properties": {"stars": {"enum": [1, 10]}, "note": {"type": "string"}, "late": {"type": "boolean"}},
    }
    found = odds(
        schema,
        place('{"stars":', 1.0),
        place("1", 1.0),
        (("0", log(0.3)), (",", log(0.7))),  # 1 is the beginning of 10, and only the next token tells
        place(',"note":"x, \\"late\\":true', 1.0),
        place('","late":', 1.0),
        (("false", log(0.8)), ("true", log(0.2))),
        place("}<|end|>", 1.0),
    )
    assert tuple(found) == feature_names(schema) == ("stars=1", "stars=10", "late=true", "late=false")
    assert found == pytest.approx({"stars=1": 0.7, "stars=10": 0.3, "late=true": 0.2, "late=false": 0.8})


def test_a_property_that_the_answer_leaves_out_has_no_odds() -> None:
    assert odds(INTENT, place("{}", 1.0)) == {"intent=refund": 0.0, "intent=return": 0.0, "intent=status": 0.0}


def test_half_a_character_is_matched_by_its_bytes() -> None:
    half, other = b"\xc3".decode("utf-8", "surrogateescape"), b"\xa9".decode("utf-8", "surrogateescape")
    schema = {"properties": {"a": {"enum": ["é", "è", "z"]}}}
    third = b"\xa8".decode("utf-8", "surrogateescape")
    found = odds(
        schema, place('{"a":"', 1.0), place(half, 0.8, z=0.2), place(other, 0.75, **{third: 0.25}), place('"}', 1)
    )
    assert found == pytest.approx({"a=é": 0.6, "a=è": 0.2, "a=z": 0.2})


@pytest.mark.parametrize("text", ['{"intent":"sta', "no JSON", '{"intent" :1}', "", '{"intent"'])
def test_an_answer_that_is_no_compact_object_has_no_odds(text: str) -> None:
    assert root_odds(INTENT, (text,), (place(text, 1.0),)) == ()
