"""The same nodes as a flat policy: one context, free text, outcome reward; and the contract of both environments."""

import json

import pytest
from decided import EchoWorld, answers, example, task
from declared import declare, node

from envs.check import check
from envs.check_subject import bare_env
from envs.decisions.flat_env import FlatDecisionEnv
from envs.decisions.making import check_world, make_decision_env
from envs.decisions.settings import DecisionSettings
from envs.decisions.unrolled import with_expected_steps
from envs.settings import DecisionEnvSettings
from envs.types import EndReason

ENV = DecisionEnvSettings(name="decision", train_tasks="t.jsonl", eval_tasks="e.jsonl")
ORDER = {"order": {"order": "A18"}, "shipping": {"delivery": "done"}, "after_sales": {"offer": "return"}}


def said(value):
    return f"<output>{json.dumps(value)}</output>"


async def test_a_flat_policy_is_asked_the_same_in_one_context_and_rewarded_for_the_outcome():
    env = make_decision_env(example("orders", policy="flat"))
    asked = task("A18, back?", expected=ORDER)
    (opening,) = env.opening(asked)
    assert opening.content == '<input> Which order?\n{"message":"A18, back?"} </input>'
    state, result = await env.step(env.reset(asked), said({"order": "A18"}), turns_left=2)
    assert result.observation == (
        '<input> What is said of the delivery?\n{"order":"A18","status":"delivered","days":9} </input>'
    )
    assert (result.record, result.tool_calls) == (None, 1)
    state, _ = await env.step(state, "<think> done </think>" + said({"delivery": "done"}), turns_left=1)
    state, result = await env.step(state, said({"offer": "none"}), turns_left=0)
    assert (result.end, result.reward, result.score) == (EndReason.ANSWERED, 2 / 3, 2 / 3)
    assert json.loads(result.result)["order"]["days"] == 9


@pytest.mark.parametrize("text", ["", "{}", "<output>{}</output>", "<output> refund </output>", said({"a": 3})])
@pytest.mark.parametrize("contracts", ["strict", "penalty"])
async def test_free_text_that_is_not_valid_ends_the_trajectory_with_nothing(text, contracts):
    env = FlatDecisionEnv(declare(node("a"), node("b", "a"), policy="flat", contracts=contracts), EchoWorld())
    _, result = await env.step(env.reset(task("x")), text, turns_left=3)
    assert (result.end, result.reward, result.score) == (EndReason.INVALID_ACTION, 0.0, 0.0)


async def test_the_answer_only_turn_is_for_a_last_node_without_an_action():
    env = FlatDecisionEnv(declare(node("a"), node("b", "a"), policy="flat"), EchoWorld())
    state, result = await env.step(env.reset(task("x")), said({"a": "1"}), turns_left=-1)
    assert (result.end, result.reward) == (EndReason.TURN_LIMIT, 0.0)
    state, _ = await env.step(state, said({"a": "1"}), turns_left=0)
    _, result = await env.step(state, said({"b": "1"}), turns_left=-1)
    assert (result.end, result.reward) == (EndReason.ANSWERED, 1.0)


@pytest.mark.parametrize("policy", ["typed", "flat"])
@pytest.mark.parametrize("contracts", ["strict", "penalty"])
def test_both_keep_the_contract_of_environments(policy, contracts, capsys):
    settings = example("orders", policy=policy, contracts=contracts)
    tasks = [with_expected_steps(task("A18, back?", expected=ORDER), settings)]
    assert check(bare_env(ENV, settings), tasks, max_turns=4) == 0, capsys.readouterr().out
    assert "3 steps, then answered, score 1.0" in capsys.readouterr().out


async def test_typed_and_flat_differ_in_one_key():
    typed, flat = (make_decision_env(example("orders", policy=policy)) for policy in ("typed", "flat"))
    asked = task("A18, back?", expected=ORDER)
    _, results = await answers(typed, asked, ORDER.values())
    state = flat.reset(asked)
    for value in ORDER.values():
        state, result = await flat.step(state, said(value), turns_left=3)
    assert results[-1].result == result.result
    assert results[-1].score == result.score == 1.0


WORLDS = {
    "nowhere.made": "decision.world 'nowhere.made' cannot be imported: No module named 'nowhere'",
    "shop2": "decision.world 'shop2' is not a dotted path such as my_package.world.make_world",
    "builtins.dict": "decision.world 'builtins.dict' made a dict, which has no request and no act and no score",
}


@pytest.mark.parametrize(("world", "sentence"), WORLDS.items())
def test_a_world_that_is_none_is_named(world, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_decision_env(declare(node("a"), world=world))


def test_options_that_a_world_does_not_take_are_told_without_making_it():
    settings = DecisionSettings.model_validate({"world": "travel", "options": {"trains": []}, "nodes": [node("a")]})
    with pytest.raises(ValueError, match=r"decision.world 'envs.decisions.examples.TravelWorld' cannot be called with"):
        check_world(settings)
