"""The node at fault on a failed path: an invalid output, else one unlike the reference, else the lowest reward."""

import pytest
from typed_by_hand import chain, group, record

from envs.decisions.types import NodeReward
from trainer.decisions.fault import Blame, difference, node_at_fault, raw_reward, relative_reward, scales


def blame(tree, known=None, **expected):
    task = group("t", tree, expected=expected).task if expected else group("t", tree).task
    return node_at_fault(tree, len(tree.nodes) - 1, task, known if known is not None else scales([tree]))


def test_a_path_that_reached_its_goal_has_none():
    assert blame(chain("t", record("intent", 0.0), record("reply", 1.0))) is None


def test_an_invalid_output_comes_before_everything():
    tree = chain("t", record("intent", -5.0), record("reply", fault="text: 3 is not of type 'string'"), reward=0.0)
    found = blame(tree, intent={"of": "other"})
    assert (found.index, found.rule) == (2, "invalid")
    assert found.why == "The output of reply is not valid: text: 3 is not of type 'string'"


def test_the_first_difference_from_the_reference():
    tree = chain("t", record("intent", 0.0), record("retrieval"), record("reply"), reward=0.0)
    found = blame(tree, intent={"of": "intent"}, retrieval={"of": "shipments"}, reply={"of": "x"})
    assert (found.index, found.rule) == (2, "differs")
    expected = "retrieval is the first whose output is not the expected one: of: 'retrieval' instead of 'shipments'."
    assert found.why == expected


@pytest.mark.parametrize(
    ("output", "reference", "told"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, {"a": 1, "b": {"c": [1, 3]}}, "b.c.2: 2 instead of 3"),
        ({}, {"a": "x"}, "a: None instead of 'x'"),
        ([1], [1, 2], "[1] instead of [1, 2]"),
        ("a" * 80, "b", f"'{'a' * 56}... instead of 'b'"),
    ],
)
def test_the_first_difference_in_words(output, reference, told):
    assert difference(output, reference) == told


def test_references_that_are_met_leave_it_to_the_rewards():
    tree = chain("t", record("intent", 0.4), record("reply", 0.6), reward=0.5)
    others = [chain("u", record("intent", value), record("reply", value)) for value in (0.4, 0.6)]
    found = blame(tree, scales(others), intent={"of": "intent"})
    assert (found.index, found.rule) == (1, "lowest")


def test_the_lowest_reward_counts_by_what_is_usual_for_the_node():
    """Intent is at 0.8 where 0.9 is usual (mean 0.9, std 0.1); reply at 0.4 where 0.3 is (mean 0.3, std 0.1)."""
    others = [chain("u", record("intent", 0.9 + d), record("reply", 0.3 + d)) for d in (-0.1, 0.1)]
    known = scales(others)
    assert known == {"intent": pytest.approx((0.9, 0.1)), "reply": pytest.approx((0.3, 0.1))}
    tree = chain("t", record("intent", 0.8), record("reply", 0.4), reward=0.0)
    found = blame(tree, known)
    assert (found.index, found.rule) == (1, "lowest")
    assert found.why.endswith("-1.00.")
    broken = chain("t", record("intent", 0.8), record("reply", 0.4, penalty=-10.0), reward=0.0)
    assert blame(broken, known).index == 2


def test_equal_rewards_and_no_rewards_blame_nobody():
    assert blame(chain("t", record("intent", 0.5), record("reply", 0.5), reward=0.0)) is None
    assert blame(chain("t", record("intent", None), record("reply", None), reward=0.0)) is None


def test_levels_of_a_step():
    assert raw_reward(NodeReward(automatic=0.5, human=1.0, expert=0.1)) == 0.1
    assert raw_reward(NodeReward(automatic=0.5, human=1.0)) == 0.75
    assert raw_reward(NodeReward(penalty=-1.0)) is None
    assert relative_reward(record("intent", None, penalty=-10.0), {}) == -10.0
    assert isinstance(blame(chain("t", record("intent", fault="x"), reward=0.0)), Blame)
