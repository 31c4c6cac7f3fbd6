"""Rewards of typed nodes: similarity and forbidden words on paper, hard rules, the expert, and bad functions."""

import pytest

from envs.decisions.rewards import Judge
from envs.decisions.settings import DecisionSettings
from envs.decisions.similarity import forbidden_in, similarity, words
from envs.decisions.types import NodeReward
from envs.rewards import RewardError
from envs.types import Message, Task


def task(**expected) -> Task:
    meta = {"expected": expected} if expected else {}
    return Task(id="t/1", prompt=(Message(role="user", content="hi"),), truth=("x",), meta=meta)


def judge(invalid_reward=-1.0, **rewards) -> Judge:
    node = {"name": "draft", "instruction": "Answer.", "output_schema": {"type": "object"}, "rewards": rewards}
    return Judge(DecisionSettings(world="my.world", nodes=[node], invalid_reward=invalid_reward))


def judged(judge: Judge, text="We sent it.", expected=None, fault=""):
    output = None if fault else {"text": text}
    known = task(draft=expected) if expected is not None else task()
    return judge.judge(
        "draft", input={"message": "hi"}, output=output, fault=fault, task=known, values={"draft": output}
    )


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ({"order": "A17", "note": "sent on May 3"}, {"order": "A17", "note": "Sent on May 4."}, (1 + 0.75) / 2),
        ({"order": "A18"}, {"order": "A17"}, 0.0),  # one letter off is another order
        ("a b c", "a c", 2 * 2 / 5),
        ("c a", "a c", 2 * 1 / 4),  # order counts
        ("", "", 1.0),
        ("a", "", 0.0),
        (["a", "b"], ["a", "c", "b"], 1 / 3),
        ([], [], 1.0),
        ([], ["a"], 0.0),
        ({}, {}, 1.0),
        ({"more": 1, "n": 2}, {"n": 2}, 1.0),  # the reference says what counts
        ({}, {"n": 2}, 0.0),
        (3, 3.0, 1.0),
        (3, 4, 0.0),
        (True, 1, 0.0),
        (1, True, 0.0),
        (None, None, 1.0),
        ("a", {"a": 1}, 0.0),
        ({"a": 1}, "a", 0.0),
        (3, ["a"], 0.0),
    ],
)
def test_similarity_on_paper(output, reference, expected):
    assert similarity(output, reference) == pytest.approx(expected)


def test_texts_may_be_compared_in_another_way():
    by_first_letter = lambda text, reference: float(text[:1] == reference[:1])  # noqa: E731
    output, reference = {"note": "yes", "n": 3, "all": ["ab", "c"]}, {"note": "yellow", "n": 3, "all": ["a", "b"]}
    assert similarity(output, reference, by_first_letter) == pytest.approx((1 + 1 + 0.5) / 3)


def test_a_model_compares_texts_where_a_node_asks_for_it():
    node = {"name": "draft", "instruction": "Answer.", "output_schema": {"type": "object"}}
    node["rewards"] = {"automatic": ["schema", "similarity_model"], "similarity_model": "models/encoder"}
    settings = DecisionSettings(world="my.world", nodes=[node])
    made = Judge(settings, lambda folder: lambda text, reference: 0.5 if str(folder) == "models/encoder" else 0.0)
    reward, parts = judged(made, "We sent it.", {"text": "It was sent."})
    assert (reward, parts) == (NodeReward(automatic=0.75), (("schema", 1.0), ("similarity_model", 0.5)))
    assert judged(made)[1] == (("schema", 1.0),), "without a reference there is no such reward"
    with pytest.raises(ValueError, match=r"rewards.similarity_model of decision node 'draft' needs a model"):
        Judge(settings)

    def broken(folder):
        raise ValueError(f"{folder} is not a folder")

    with pytest.raises(ValueError, match=r"rewards.similarity_model of decision node 'draft': models/encoder is not"):
        Judge(settings, broken)


def test_forbidden_words_are_whole_words_in_any_case():
    assert words("Order A17, GROẞ!") == ("order", "a17", "gross")
    output = {"a": ["We GUARANTEE it.", {"b": "It is free, of charge"}], "free": 3}
    assert forbidden_in(output, ("guarantee", "free of charge", "guaranteed", "a")) == ("guarantee", "free of charge")
    assert forbidden_in({"a": "guaranteed of free charge"}, ("guarantee", "free of charge")) == ()


def test_automatic_level_is_the_mean_of_what_is_there():
    both = judge(automatic=["schema", "similarity"])
    assert judged(both, "a c", {"text": "a b"}) == (
        NodeReward(automatic=0.75),
        (("schema", 1.0), ("similarity", 0.5)),
    )
    assert judged(both) == (NodeReward(automatic=1.0), (("schema", 1.0),))  # no reference: that reward is missing
    assert judged(judge(automatic=["similarity"])) == (NodeReward(), ())
    listed = judge(automatic=["schema", "forbidden_words", "own_judges.half"], forbidden_words=["sent it"])
    assert judged(listed)[0].automatic == pytest.approx((1 + 0 + 0.5) / 3)
    assert judged(listed, "Sent.")[0].automatic == pytest.approx((1 + 1 + 0.5) / 3)


def test_rules_sum_up_and_a_broken_one_costs_ten():
    strict = judge(rules=["own_judges.no_promise"])
    assert judged(strict)[0] == NodeReward(automatic=1.0, penalty=0.0)
    reward, parts = judged(strict, "We promise it.")
    assert (reward.automatic, reward.penalty) == (1.0, -10.0)
    assert dict(parts) == {"schema": 1.0, "own_judges.no_promise": -10.0}
    assert judged(judge())[0].penalty is None  # no rule is declared: the level is missing


def test_expert_is_a_reward_of_its_own_beside_the_others():
    reward, parts = judged(judge(expert="own_judges.likes_request", rules=["own_judges.no_promise"]), "We promise it.")
    assert reward == NodeReward(automatic=1.0, penalty=-10.0, expert=0.25)
    assert parts[-1] == ("expert", 0.25)


def test_an_invalid_output_has_the_invalid_reward_and_is_shown_to_no_function():
    everything = judge(
        invalid_reward=-0.5, automatic=["own_judges.breaks"], rules=["own_judges.breaks"], expert="own_judges.breaks"
    )
    reward, parts = judged(everything, fault="text: 3 is not of type 'string'")
    assert reward == NodeReward(automatic=-0.5, penalty=0.0)
    assert parts == (("schema", 0.0),)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"rules": ["own_judges.bonus"]}, r"own_judges.bonus, in rewards.rules .*'draft', gave 1\.0 .*'t/1'.*most 0"),
        ({"rules": ["own_judges.not_a_number"]}, r"gave nan .*finite number of at most 0"),
        ({"automatic": ["own_judges.not_a_number"]}, r"gave nan .*a finite number$"),
        ({"automatic": ["own_judges.words"]}, r"gave 'many'"),
        ({"expert": "own_judges.breaks"}, r"in rewards.expert .* raised KeyError \('text'\)"),
    ],
)
def test_what_no_training_can_use_is_refused_in_one_sentence(rewards, message):
    with pytest.raises(RewardError, match=message) as error:
        judged(judge(**rewards))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"automatic": ["own_judges.missing"]}, r"rewards.automatic of decision node 'draft': .*cannot be imported"),
        ({"rules": ["nowhere.at_all"]}, r"rewards.rules .*'nowhere.at_all' cannot be imported"),
        ({"rules": ["../evil.run"]}, r"is not a dotted path such as"),
        ({"rules": ["plain"]}, r"is not a dotted path such as"),
        ({"expert": "own_judges.later"}, r"is a coroutine function"),
        ({"expert": "own_judges.takes_two"}, r"cannot be called with an StepView"),
        ({"expert": "own_judges.number"}, r"is not a function"),
        ({"automatic": ["simlarity"]}, r"nodes\[0\].rewards.automatic .* 'simlarity'; accepted: schema, similarity"),
        ({"automatic": ["schema", "schema"]}, r"names 'schema' twice"),
        ({"automatic": ["forbidden_words"]}, r"forbidden_words of node 'draft' goes with"),
        ({"forbidden_words": ["never"]}, r"forbidden_words of node 'draft' goes with"),
        ({"automatic": ["similarity_model"]}, r"similarity_model of node 'draft' goes with"),
        ({"similarity_model": "models/encoder"}, r"similarity_model of node 'draft' goes with"),
        ({"automatic": ["forbidden_words"], "forbidden_words": ["!?"]}, r"'!\?', which has no letter or digit"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(rewards, message):
    with pytest.raises(ValueError, match=message):
        judge(**rewards)
