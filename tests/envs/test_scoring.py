import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import AuthorsReward, CheckedReward, Outcome, PaperReward, RewardError, custom_reward
from envs.scoring import exact_match, normalise, token_f1
from envs.types import EndReason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Côte d'Ivoire!", "côte divoire"),
        ("An apple, a day", "apple day"),
        ("Europe/Berlin", "europeberlin"),
        ("theatre", "theatre"),
        ("«Москва»", "москва"),
        ("e\u0301", "é"),
        ("the", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


def test_exact_match():
    assert exact_match(" the netherlands.", ("Netherlands",)) == 1.0
    assert exact_match("+49", ("33", "49")) == 0.0
    assert exact_match("Bogota", ("Bogotá", "Bogota")) == 1.0
    assert exact_match("the", ("a",)) == 0.0


def test_token_f1():
    assert token_f1("big Berlin", ("Berlin",)) == pytest.approx(2 / 3)  # P=1/2, R=1
    assert token_f1("New New York", ("New York City",)) == pytest.approx(2 / 3)  # 2 shared of 3 and 3
    assert token_f1("Berlin", ("Paris", "Berlin")) == 1.0
    assert token_f1("", ("Paris",)) == 0.0


@given(st.text(), st.lists(st.text(), min_size=1))
def test_scores_stay_in_range_and_agree(answer, truths):
    assert 0.0 <= exact_match(answer, truths) <= token_f1(answer, truths) <= 1.0


def outcome(score, *, ok, answer="x"):
    return Outcome(
        task_id="ulm", truths=("y",), answer=answer, score=score, format_ok=ok, end=EndReason.ANSWERED, tool_calls=1
    )


def test_paper_reward():
    reward = PaperReward()
    cases = [outcome(1, ok=True), outcome(1, ok=False), outcome(0, ok=True), outcome(0, ok=False)]
    assert [reward(case) for case in cases] == pytest.approx([1.0, 0.8, 0.0, -0.2])
    assert reward(outcome(0.5, ok=False)) == pytest.approx(0.3)


def test_authors_reward_is_the_table():
    reward = AuthorsReward()
    cases = [outcome(1, ok=True), outcome(1, ok=False), outcome(0, ok=True), outcome(0, ok=False)]
    assert [reward(case) for case in cases] == pytest.approx([1.0, 0.8, 0.2, 0.1])
    assert reward(outcome(0, ok=False, answer=None)) == 0.0
    assert reward(outcome(0.5, ok=True)) == 0.5
    assert [reward(outcome(score, ok=False)) for score in (0.5, 0.25)] == pytest.approx([0.3, 0.1])


@given(st.floats(0, 1), st.booleans(), st.floats(0, 2), st.booleans())
def test_built_in_rewards_stay_in_the_range_they_declare(score, ok, penalty, answered):
    case = outcome(score if answered else 0.0, ok=ok and answered, answer="x" if answered else None)
    for reward in (PaperReward(penalty=penalty), AuthorsReward(penalty=penalty)):
        low, high = reward.range
        assert low <= reward(case) <= high


def checked(value, limits=None):
    return CheckedReward(name="mine.reward", function=lambda outcome: value, range=limits)(outcome(1, ok=True))


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (1, None),
        (-1e9, None),
        (True, (0, 1)),
        (0.2 + 0.4 + 0.3 + 0.1, (0, 1)),  # a little more than 1
        (np.float32(0.5), (0, 1)),
        (Fraction(1, 2), (0, 1)),
    ],
)
def test_numbers_in_the_range_pass_as_floats(value, limits):
    assert checked(value, limits) == float(value)
    assert type(checked(value, limits)) is float


@pytest.mark.parametrize(
    ("value", "limits", "problem", "accepted"),
    [
        (math.nan, None, "gave nan", "any finite number"),
        (np.float32("nan"), None, "gave nan", "any finite number"),
        (math.inf, (0, 1), "gave inf", "numbers from 0 to 1"),
        (None, None, "gave None", "any finite number"),
        ("high", None, "gave 'high'", "any finite number"),
        (1.5, (-0.2, 1), "gave 1.5", "numbers from -0.2 to 1"),
        (-0.3, (-0.2, 1), "gave -0.3", "numbers from -0.2 to 1"),
        ([1.0, 2.0], None, "gave [1.0, 2.0]", "any finite number"),
        (1 + 0j, None, "gave (1+0j)", "any finite number"),
        (10**400, None, "raised OverflowError (int too large to convert to float)", "any finite number"),
    ],
)
def test_a_reward_that_cannot_be_used_is_one_sentence(value, limits, problem, accepted):
    with pytest.raises(RewardError) as raised:
        checked(value, limits)
    expected = f"the reward function mine.reward {problem} for task 'ulm'; env.reward.range accepts {accepted}"
    assert str(raised.value) == expected


def test_a_reward_function_that_raises_is_one_sentence():
    def broken(outcome):
        raise KeyError("two\nlines")

    with pytest.raises(RewardError, match=r"^the reward function f raised KeyError \('two\\nlines'\) for task 'ulm'; "):
        CheckedReward(name="f", function=broken, range=None)(outcome(1, ok=True))


def few_searches(result):
    return result.score - 0.1 * result.tool_calls


def test_custom_reward_comes_from_the_import_path(monkeypatch):
    monkeypatch.syspath_prepend(str(__import__("pathlib").Path(__file__).parent))
    assert custom_reward("test_scoring.few_searches")(outcome(1, ok=True)) == pytest.approx(0.9)


@pytest.mark.parametrize(
    "path", ["", "few", "../evil.py", "os.nothing", "no_such_module.f", "a..b", "math.pi", "a b.c"]
)
def test_custom_reward_names_the_path(path):
    with pytest.raises(ValueError, match=r"env.reward.path"):
        custom_reward(path)
