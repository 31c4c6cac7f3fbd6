"""Tasks through typed nodes: what each is asked, what is handed on, how contracts are kept, and what comes out."""

import json
import pickle

import pytest
from decided import EchoWorld, Marks, answers, example, task
from declared import declare, node, schema

from envs.decisions.contracts import ContractError, parse
from envs.decisions.examples import OrdersWorld, TravelWorld
from envs.decisions.rewards import Judge
from envs.decisions.typed_env import TypedDecisionEnv
from envs.decisions.types import Gating, TypedEnv
from envs.registry import opening_of
from envs.types import EndReason

TRAVEL = {
    "intent": {"intent": "book", "wish": "Berlin, Friday morning"},
    "destination": {"city": "Berlin", "wish": "Friday morning"},
    "time": {"city": "Berlin", "day": "friday", "part": "morning"},
    "flight": {"offer": ["E12"]},
}
VAGUE = {
    "intent": {"intent": "advise", "wish": "somewhere, Friday"},
    "destination": {"city": "", "wish": "Friday"},
    "time": {"city": "", "day": "friday", "part": ""},
    "flight": {"offer": ["E12", "E14", "E20"]},
}


def travel(**changes):
    settings = example("travel", **changes)
    return TypedDecisionEnv(settings, TravelWorld(**settings.options), Judge(settings))


def made(*nodes, judge=None, world=None, gate=None, **more):
    settings = declare(*nodes, **more)
    return TypedDecisionEnv(settings, world or EchoWorld(), judge or Marks(), gate)


async def test_four_levels_each_asked_by_a_prompt_of_its_own_and_fed_by_the_one_above():
    env = travel()
    assert isinstance(env, TypedEnv)
    trip = task("To Berlin on Friday morning", expected=TRAVEL)
    asks, results = await answers(env, trip, TRAVEL.values())
    assert [ask.node for ask in asks] == ["intent", "destination", "time", "flight"]
    assert [ask.adapter for ask in asks] == ["intent", "destination", "time", "flight"]
    assert [ask.messages[0].content.partition("\n")[2] for ask in asks] == [
        '{"message":"To Berlin on Friday morning"}',
        '{"intent":"book","wish":"Berlin, Friday morning"}',
        '{"city":"Berlin","wish":"Friday morning"}',
        '{"city":"Berlin","day":"friday","part":"morning","flights":["E12"]}',
    ], "each sees its parent's value, with what an action found, and nothing before"
    assert json.loads(asks[3].schema)["properties"]["offer"]["maxItems"] == 4
    assert asks[0].max_tokens == 48
    assert [result.end for result in results] == [None, None, None, EndReason.ANSWERED]
    assert [result.tool_calls for result in results] == [0, 0, 1, 0]
    assert (results[-1].score, results[-1].reward) == (1.0, 1.0)
    assert [result.record.output for result in results[:2]] == [
        '{"intent":"book","wish":"Berlin, Friday morning"}', '{"city":"Berlin","wish":"Friday morning"}',
    ]  # fmt: skip
    assert (results[2].record.found, results[0].record.found) == ('{"flights":["E12"]}', "")


@pytest.mark.parametrize("expected", [TRAVEL, VAGUE], ids=["fully specified", "vague"])
async def test_a_vague_and_a_full_request_are_rewarded_by_one_set_up(expected):
    trip = task("To Berlin on Friday morning, or somewhere", expected=expected)
    _, right = await answers(travel(), trip, expected.values())
    assert [result.record.reward.automatic for result in right] == [1.0] * 4
    assert right[-1].score == 1.0
    _, wrong = await answers(travel(), trip, [*list(expected.values())[:3], {"offer": []}])
    assert [result.record.reward.automatic for result in wrong[:3]] == [1.0] * 3, "one node's fault is its own"
    assert wrong[-1].record.reward.automatic < 1.0
    assert wrong[-1].score == 7 / 8, "one of eight fields is wrong"


async def test_one_output_is_read_by_two_children():
    settings = example("orders")
    env = TypedDecisionEnv(settings, OrdersWorld(**settings.options), Judge(settings))
    asks, results = await answers(
        env,
        task("A18?", expected={"order": {"order": "A18"}, "after_sales": {"offer": "return"}}),
        [{"order": "A18"}, {"delivery": "done"}, {"offer": "return"}],
    )
    assert asks[1].messages[0].content.splitlines()[1] == '{"order":"A18","status":"delivered","days":9}'
    assert asks[2].messages[0].content.splitlines()[1] == asks[1].messages[0].content.splitlines()[1]
    assert asks[1].messages != asks[2].messages, "each has its own instruction"
    assert results[-1].score == 1.0


async def test_the_result_round_trips_to_json():
    _, results = await answers(travel(), task("Berlin", expected=TRAVEL), TRAVEL.values())
    values = json.loads(results[-1].result)
    assert list(values) == ["intent", "destination", "time", "flight"]
    assert values["time"] == {**TRAVEL["time"], "flights": ["E12"]}
    assert json.dumps(values, separators=(",", ":")) == results[-1].result
    assert [result.result for result in results[:-1]] == ["", "", ""]


async def test_an_answer_is_parsed_once_and_the_object_itself_is_handed_on():
    judge = Marks()
    env = made(node("a"), node("b", "a"), judge=judge)
    await answers(env, task("x"), ['{"a": "1"}', '{"b": "2"}'])
    assert judge.shown[1]["input"] is judge.shown[1]["values"]["a"]
    assert judge.shown[0]["output"] == {"a": "1"}


async def test_a_node_sees_what_it_reads_beside_its_parents_value():
    env = made(node("a"), node("b", "a", act="look"), node("c", "a", reads=["b"]))
    asks, _ = await answers(env, task("x"), [{"a": "1"}, {"b": "2"}, {"c": "3"}])
    assert asks[2].messages[0].content == 'Say c.\n{"a":"1","b":{"b":"2","length":10}}'


BROKEN = {
    '{"a": 5}': "a: 5 is not of type 'string'",
    "{}": "a: 'a' is a required property",
    '{"a": "1", "z": 2}': "z: Additional properties are not allowed ('z' was unexpected)",
    "[1]": "output: [1] is not of type 'object'",
    '{"a": "1"': "output: not JSON (Expecting ',' delimiter: line 1 column 10 (char 9)): '{\"a\": \"1\"'",
    "": "output: not JSON (Expecting value: line 1 column 1 (char 0)): ''",
    '{"a": "1"} and so on': "output: more follows the JSON: ' and so on'",
    '{"a": NaN}': "output: not JSON (NaN is no number): '{\"a\": NaN}'",
    '{"a": "\\ud800"}': "output: holds half a surrogate pair, which is no text",
    "[" * 100_000: "output: nested too deeply",
}


@pytest.mark.parametrize(("text", "fault"), BROKEN.items())
async def test_under_penalty_an_answer_that_is_not_valid_ends_its_trajectory_only(text, fault):
    judge = Marks()
    env = made(node("a"), node("b", "a"), judge=judge)
    _, (result,) = await answers(env, task("x"), [text])
    assert (result.end, result.reward, result.score) == (EndReason.INVALID_ACTION, 0.0, 0.0)
    record = result.record
    assert (record.node, record.fault, record.output, record.reward.automatic) == ("a", fault, "", -1.0)
    assert (judge.shown[0]["output"], judge.shown[0]["values"]) == (None, {})
    assert result.result == "{}"


@pytest.mark.parametrize(("text", "fault"), BROKEN.items())
async def test_under_strict_it_ends_the_run_and_the_sentence_names_node_field_and_sample(text, fault):
    env = made(node("a"), node("b", "a"), contracts="strict")
    with pytest.raises(ContractError) as raised:
        await answers(env, task("x", "ticket-17"), [text])
    assert str(raised.value) == f"node 'a' broke its contract in sample 'ticket-17': {fault} (contracts=strict)"


def test_a_field_inside_is_named_with_its_path():
    places = schema(places={"type": "array", "items": schema(city=None)})
    contract = made(node("a", output_schema=places))._course.contracts["a"]
    assert contract.read('{"places": [{"city": "Ulm"}, {"city": 3}]}') == (
        {},
        "places[1].city: 3 is not of type 'string'",
    )


def test_the_mark_of_an_end_of_sequence_token_is_no_part_of_an_answer():
    assert parse(' {"a": 1}<|im_end|>') == ({"a": 1}, "")
    assert parse('{"a": 1}\n</s>\n') == ({"a": 1}, "")
    assert parse('{"a": 1}<|im_end|>{}')[1].startswith("output: more follows")


async def test_an_answer_that_makes_a_later_input_invalid_is_at_fault_itself():
    takes = {"properties": {"a": {"enum": ["yes"]}}}
    nodes = node("a"), node("b", "a"), node("c", "a", input_schema=takes)
    _, (result,) = await answers(made(*nodes), task("x"), [{"a": "no"}])
    assert result.record.fault == "input of node 'c': a: 'no' is not one of ['yes']"
    assert (result.end, result.result) == (EndReason.INVALID_ACTION, "{}")
    takes = {"properties": {"b": {"properties": {"b": {"enum": ["yes"]}}}}}
    nodes = node("a"), node("b", "a"), node("c", "a", reads=["b"], input_schema=takes)
    _, results = await answers(made(*nodes), task("x"), [{"a": "no"}, {"b": "no"}])
    assert [result.record.fault for result in results] == ["", "input of node 'c': b.b: 'no' is not one of ['yes']"]


def test_a_request_that_the_root_does_not_take_is_told_before_anything_is_sampled_under_strict():
    nodes = [node("a", input_schema={"required": ["order"]})]
    with pytest.raises(ContractError, match=r"node 'a' .* sample 't1': input of node 'a': order: 'order' is a"):
        opening_of(made(*nodes, contracts="strict"))(task("x"))
    assert opening_of(made(*nodes))(task("x"))[0].content == 'Say a.\n{"message":"x"}', (
        "under penalty it is asked anyhow"
    )


class Closed:
    """A gate that lets only some children run."""

    def __init__(self, *names):
        self.names = names

    def decide(self, odds):
        return tuple(Gating(node=name, probability=0.9, runs=name in self.names) for name in "bd")


async def walk_through(gate, *texts):
    env = made(
        node("a"), node("b", "a"), node("c", "b"), node("d", "a", reads=["b"]), gate=gate, judge=(judge := Marks())
    )
    env._odds = lambda _: (("a=1", 1.0),)
    asks, results = await answers(env, task("x"), texts)
    return [ask.node for ask in asks], asks, results, judge


async def test_what_the_gate_skips_does_not_run_nor_what_lies_below_and_reads_as_null():
    names, asks, results, _ = await walk_through(Closed("d"), {"a": "1"}, {"d": "2"})
    assert names == ["a", "d"]
    assert asks[1].messages[0].content == 'Say d.\n{"a":"1","b":null}'
    assert json.loads(results[-1].result) == {"a": {"a": "1"}, "d": {"d": "2"}}
    assert [gating.runs for gating in results[0].record.gating] == [False, True]
    assert results[1].record.gating == (), "the decision is recorded once, with the root"
    assert (asks[0].alternatives > 0, asks[1].alternatives) == (True, 0)


async def test_where_the_gate_skips_every_child_the_task_ends_with_the_root():
    names, _, results, _ = await walk_through(Closed(), {"a": "1"})
    assert names == ["a"]
    assert (results[0].end, results[0].score) == (EndReason.ANSWERED, 1.0)
    names, _, results, _ = await walk_through(Closed("b", "d"), {"a": "1"}, {"b": "2"}, {"c": "3"}, {"d": "4"})
    assert names == ["a", "b", "c", "d"]


async def test_a_state_is_a_small_value_from_which_every_branch_goes_on_alike():
    env = travel()
    state = env.reset(task("Berlin", expected=TRAVEL))
    for name in ("intent", "destination"):
        state, _ = await env.answer(state, json.dumps(TRAVEL[name]), ())
    stored = pickle.dumps(state)
    assert len(stored) < 2000
    one, _ = await env.answer(state, json.dumps(TRAVEL["time"]), ())
    other, _ = await env.answer(pickle.loads(stored), json.dumps({**TRAVEL["time"], "part": ""}), ())
    assert pickle.dumps(state) == stored, "stepping changes nothing"
    assert env.ask(one).messages[0].content.endswith('"flights":["E12"]}')
    assert env.ask(other).messages[0].content.endswith('"flights":["E12","E14"]}')
    assert env.ask(pickle.loads(stored)) == env.ask(state)


async def test_a_world_that_finds_no_json_or_scores_no_number_fails_its_branch():
    class Odd(EchoWorld):
        async def act(self, action, output, task):
            return {"when": object()}

        def score(self, values, task):
            return 2.0

    with pytest.raises(RuntimeError, match=r"action 'look' found what is no JSON"):
        await answers(made(node("a", act="look"), world=Odd()), task("x"), [{"a": "1"}])
    with pytest.raises(RuntimeError, match=r"score must be a number from 0 to 1, not 2.0"):
        await answers(made(node("a"), world=Odd()), task("x"), [{"a": "1"}])


def test_tags_in_a_request_do_not_act_as_tokens_of_the_template():
    (message,) = opening_of(made(node("a")))(task("<|im_end|>ha"))
    assert "<|im_end|>" not in message.content
