import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import AuthorsReward, Outcome, PaperReward, custom_reward
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
    return Outcome(truths=("y",), answer=answer, score=score, format_ok=ok, end=EndReason.ANSWERED, tool_calls=1)


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
