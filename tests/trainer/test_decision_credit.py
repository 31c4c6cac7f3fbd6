"""Credit of typed steps, each number computed on paper: levels, normalisation, rules, experts, and who reaches whom."""

import math

import pytest
from typed_forests import DONE, FAN, LINE, decision, group, step, tree

from envs.decisions.settings import DecisionSettings, LevelSettings
from envs.decisions.types import NodeReward
from envs.types import EndReason
from rollout_workers.types import Tree
from trainer.advantages import is_dead
from trainer.decisions.credit import TypedCredit, mix, typed_credit
from trainer.decisions.statistics import Running

LEVELS = LevelSettings()
RAW = {"normalise": False, "baseline": "none"}


def credited(trees: list[Tree], **keys: object) -> TypedCredit:
    return typed_credit([group(*trees)], decision(**keys), {})


def values(trees: list[Tree], **keys: object) -> dict[int, float]:
    """Of the first tree."""
    return credited(trees, **keys).advantages[0][0].values


def test_levels_are_mixed_60_30_10() -> None:
    """raw = (0.6*1 + 0.3*0.5)/0.9 = 0.8333; total = 0.9*normal + 0.1*penalty."""
    found = mix(NodeReward(automatic=1.0, human=0.5, penalty=-10.0), LEVELS)
    assert found is not None
    assert found.raw == pytest.approx(0.75 / 0.9)
    assert found.soft_share == pytest.approx(0.9)
    assert found.total(2.0) == pytest.approx(0.9 * 2 - 0.1 * 10)


@pytest.mark.parametrize(
    ("reward", "raw", "soft", "total"),
    [
        (NodeReward(automatic=1.0), 1.0, 1.0, 2.0),
        (NodeReward(automatic=1.0, human=0.0), 0.6 / 0.9, 1.0, 2.0),
        (NodeReward(automatic=1.0, penalty=0.0), 1.0, 6 / 7, 12 / 7),
        (NodeReward(automatic=1.0, penalty=-10.0), 1.0, 6 / 7, 12 / 7 - 10 / 7),
        (NodeReward(human=1.0, penalty=-10.0), 1.0, 3 / 4, 3 / 2 - 10 / 4),
        (NodeReward(penalty=-10.0), None, 0.0, -10.0),
        (NodeReward(automatic=0.0, human=1.0, expert=0.5, penalty=-10.0), 0.5, 0.9, 1.8 - 1.0),
        (NodeReward(automatic=0.0, expert=0.5), 0.5, 1.0, 2.0),
    ],
)  # fmt: skip
def test_weights_of_missing_levels_go_to_the_others(
    reward: NodeReward, raw: float | None, soft: float, total: float
) -> None:
    """`total` at a normal reward of 2. An expert stands for both soft levels and leaves the rules in force."""
    found = mix(reward, LEVELS)
    assert found is not None
    assert found.raw == (None if raw is None else pytest.approx(raw))
    assert found.soft_share == pytest.approx(soft)
    assert found.total(2.0 if raw is not None else 0.0) == pytest.approx(total)


def test_a_step_without_any_level_has_no_reward() -> None:
    assert mix(NodeReward(), LEVELS) is None
    assert mix(NodeReward(automatic=1.0), LevelSettings(automatic=0.0)) is None


def test_rewards_are_normalised_by_what_the_node_has_seen_this_forest_included() -> None:
    """Raw 1, 0 after 2, 1 before: mean 1, variance (1+0+0+1)/4, so the normals are 0 and -1.414."""
    trees = [tree(step(0, "intent", 1.0, end=DONE)), tree(step(0, "intent", 0.0, end=DONE), index=1)]
    known = {"intent": Running().with_batch([2.0, 1.0])}
    found = typed_credit([group(*trees)], decision(baseline="none"), known)
    assert found.statistics["intent"] == known["intent"].with_batch([1.0, 0.0])
    assert [one.values[1] for one in found.advantages[0]] == pytest.approx([0.0, -math.sqrt(2)])
    assert found.metrics["decision/intent/normal_mean"] == pytest.approx(-math.sqrt(0.5))
    assert found.metrics["decision/intent/reward"] == 0.5
    assert found.metrics["decision/intent/reward_std"] == pytest.approx(math.sqrt(0.5))


def test_a_penalty_never_enters_the_statistics() -> None:
    """Two of 1 and 0 each, one of them with -10: mean 0.5, std 0.5 as without it; totals 6/7*(+-1) - 10/7."""
    ruled = [NodeReward(automatic=value, penalty=0.0) for value in (1.0, 0.0, 1.0)]
    rewards = [*ruled, NodeReward(automatic=0.0, penalty=-10.0)]
    trees = [tree(step(0, "intent", reward, end=DONE), index=i) for i, reward in enumerate(rewards)]
    found = credited(trees, baseline="none")
    assert (found.statistics["intent"].mean, found.statistics["intent"].std) == (0.5, 0.5)
    assert [one.values[1] for one in found.advantages[0]] == pytest.approx([6 / 7, -6 / 7, 6 / 7, -16 / 7])
    assert found.metrics["decision/intent/penalised_share"] == 0.25


def line(*rewards: float | None) -> Tree:
    """One path through all four nodes."""
    ends = [None] * (len(rewards) - 1) + [DONE]
    return tree(*(step(i, name, rewards[i], end=ends[i]) for i, name in enumerate(LINE)))


def test_a_reward_reaches_its_node_and_the_one_above_and_no_further() -> None:
    """Rewards 1, 2, 4, 8 on the path: own; own + next below; own + all below."""
    path = line(1.0, 2.0, 4.0, 8.0)
    assert values([path], credit="own", **RAW) == {1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0}
    assert values([path], credit="adjacent", **RAW) == {1: 3.0, 2: 6.0, 3: 12.0, 4: 8.0}
    assert values([path], credit="all", **RAW) == {1: 15.0, 2: 14.0, 3: 12.0, 4: 8.0}


@pytest.mark.parametrize(("credit", "reached"), [("adjacent", False), ("all", True)])
def test_the_reward_of_level_4_gives_exactly_nothing_to_the_root(credit: str, reached: bool) -> None:
    """Two paths that differ in the last node's reward only."""
    trees = [line(None, None, None, value) for value in (1.0, 0.0)]
    found = credited(trees, credit=credit).advantages[0]
    assert (found[0].values[1] != 0) == (found[1].values[1] != 0) == reached
    assert (found[0].values[2] != 0) == reached
    assert found[0].values[3] == found[0].values[4] == 1.0
    assert found[1].values[3] == found[1].values[4] == -1.0


def test_what_branches_below_a_step_counts_with_its_mean_and_each_node_once() -> None:
    """intent -> lookup (2) -> shipping 1, 5; intent -> lookup (4) -> shipping 3; aftersales (10) reaches lookup only.

    The root: 0 + mean(2, 4) + mean(1, 5, 3).
    """
    grown = tree(
        step(0, "intent", 0.0),
        step(1, "lookup", 2.0),
        step(2, "shipping", 1.0),
        step(3, "aftersales", 10.0, end=DONE),
        step(2, "shipping", 5.0, end=DONE),
        step(1, "lookup", 4.0),
        step(6, "shipping", 3.0, end=DONE),
    )
    found = values([grown], parents=FAN, **RAW)
    assert found == {1: 6.0, 2: 12.0, 3: 1.0, 4: 10.0, 5: 5.0, 6: 4.0, 7: 3.0}
    assert values([grown], parents=FAN, credit="all", **RAW)[1] == 16.0


def test_the_baseline_is_the_mean_of_the_tasks_steps_of_the_same_node() -> None:
    """intent 1 and 3 in two trees: 2 is taken off; lookup has one step, of which nothing is taken off."""
    trees = [tree(step(0, "intent", 1.0), step(1, "lookup", 5.0, end=DONE)), tree(step(0, "intent", 3.0, end=DONE))]
    found = credited(trees, parents=FAN, normalise=False, credit="own").advantages[0]
    assert [one.values for one in found] == [{1: -1.0, 2: 5.0}, {1: 1.0}]


def test_equal_rewards_are_a_dead_group_to_the_last_digit() -> None:
    """0.8 in seven trees, with labels that make the same raw reward on another way."""
    rewards = [NodeReward(automatic=0.8, human=0.8 if i % 2 else None) for i in range(7)]
    found = credited([tree(step(0, "intent", reward, end=DONE), index=i) for i, reward in enumerate(rewards)])
    assert is_dead(found.advantages[0])


def test_steps_before_nothing_but_failures_carry_nothing() -> None:
    """The first path fails, so its own step has no statistics; what it shares with the second one counts."""
    grown = tree(
        step(0, "intent", 1.0),
        step(1, "lookup", 100.0),
        step(2, "shipping", None, end=EndReason.ENV_ERROR),
        step(1, "lookup", 2.0, end=DONE),
    )
    found = credited([grown], parents=FAN, **RAW)
    assert found.advantages[0][0].values == {1: 3.0, 4: 2.0}
    assert found.advantages[0][0].leaves == (4,)
    assert found.statistics["lookup"].mean == 2.0
    assert "shipping" not in found.statistics


def test_a_reward_that_is_no_number_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"step 1 of tree 0 of task 't' \(node intent\) has a reward of nan"):
        credited([tree(step(0, "intent", math.nan, end=DONE))])


def test_metrics_of_a_node() -> None:
    rewards = (NodeReward(automatic=1.0, human=1.0), NodeReward(automatic=-1.0))
    trees = [
        tree(step(0, "intent", rewards[0], end=DONE)),
        tree(step(0, "intent", rewards[1], end=DONE, fault="x: no"), index=1),
    ]
    found = credited(trees, **RAW).metrics
    shares = {name: found[f"decision/intent/{name}"] for name in ("steps", "valid_share", "label_share", "reward")}
    assert shares == {"steps": 2.0, "valid_share": 0.5, "label_share": 0.5, "reward": 0.0}
    assert found["decision/intent/advantage_abs"] == pytest.approx(1.0)
    assert found["decision/response/steps"] == 0
    assert "decision/response/reward" not in found


def test_live_levels_change_what_a_step_is_worth() -> None:
    raised = DecisionSettings.model_validate(decision(**RAW).model_dump() | {"levels": {"human": 0.6}})
    one = group(tree(step(0, "intent", NodeReward(automatic=1.0, human=0.0), end=DONE)))
    assert typed_credit([one], raised, {}).advantages[0][0].values == {1: 0.5}
