import math
import random

import pytest

from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, TaskGroup, Tree
from trainer.advantages import KINDS, TreeAdvantages, advantages, normalise, reward_stats


def star(index: int, rewards: list[float | None]) -> Tree:
    """A root with one leaf per reward; None is a branch lost to an environment error."""
    nodes = [Node(parent=-1, observation_ids=(1,))]
    for reward in rewards:
        end = EndReason.ENV_ERROR if reward is None else EndReason.ANSWERED
        nodes.append(
            Node(parent=0, token_ids=(2,), logprobs=(-1.0,), versions=(0,), end=end, reward=reward, score=reward)
        )
    return Tree(task_id="t", index=index, nodes=nodes)


def group(*rewards: list[float | None]) -> TaskGroup:
    task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
    return TaskGroup(task=task, trees=tuple(star(i, values) for i, values in enumerate(rewards)))


def flat(found: list[TreeAdvantages]) -> list[float]:
    return [value for tree in found for value in tree.values.values()]


A, B = [1.0, 0.0, 0.2], [0.2, 0.2, 0.2]
C, D = [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "rewards", "expected"),
    [
        ("inter", (A, B), [1.9879, -0.8519, -0.2840, -0.2840, -0.2840, -0.2840]),
        ("intra", (A, B), [1.1339, -0.7559, -0.3780, 0, 0, 0]),
        ("tree", (A, B), [3.1218, -1.6079, -0.6619, -0.2840, -0.2840, -0.2840]),
        ("inter", (C, D), [0.9129, -0.9129, -0.9129, 0.9129, 0.9129, -0.9129]),
        ("intra", (C, D), [1.1547, -0.5773, -0.5773, 0.5773, 0.5773, -1.1547]),
        ("tree", (C, D), [2.0676, -1.4902, -1.4902, 1.4902, 1.4902, -2.0676]),
    ],
)
def test_vectors(kind: str, rewards: tuple[list[float], ...], expected: list[float]) -> None:
    assert flat(advantages(group(*rewards), kind)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("count", [2, 7, 13])
@pytest.mark.parametrize("kind", list(KINDS))
def test_equal_rewards_give_exactly_zero(kind: str, count: int) -> None:
    assert flat(advantages(group([0.8] * count, [0.8] * count), kind)) == [0.0] * (2 * count)


def test_intra_sums_to_zero_and_permuting_permutes() -> None:
    rng = random.Random(0)
    rewards = [rng.random() for _ in range(9)]
    found = flat(advantages(group(rewards, [0.5, 0.1]), "intra"))
    assert sum(found[:9]) == pytest.approx(0, abs=1e-9)
    assert flat(advantages(group(rewards[::-1], [0.5, 0.1]), "tree"))[:9] == pytest.approx(
        flat(advantages(group(rewards, [0.5, 0.1]), "tree"))[:9][::-1]
    )


def test_one_tree_doubles() -> None:
    assert flat(advantages(group(A), "tree")) == pytest.approx([2 * x for x in normalise(A, "zero")])


def test_singleton() -> None:
    assert normalise([0.7], "zero") == [0.0]
    assert normalise([0.7], "raw") == [0.7]
    assert normalise([], "raw") == []
    assert flat(advantages(group([0.7], [0.2]), "intra", "zero")) == [0.0, 0.0]


def test_environment_errors_leave_the_statistics_first() -> None:
    found = advantages(group([1.0, None, 0.0, 0.2], B), "tree")
    assert list(found[0].values) == [1, 3, 4]
    assert flat(found) == pytest.approx(flat(advantages(group(A, B), "tree")))


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_rewards_must_be_finite(reward: float) -> None:
    with pytest.raises(ValueError, match=r"leaf 2 of tree 1 of task 't'"):
        advantages(group(A, [0.0, reward]), "tree")


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="accepted: tree, inter, intra"):
        advantages(group(A), "magic")


def test_stats() -> None:
    stats = reward_stats([group([1.0, None], [0.0]), group([0.5], [0.5])])
    assert stats["reward/mean"] == 0.5
    assert stats["reward/score"] == 0.5
    assert stats["reward/dead_groups"] == 0.5
    assert stats["reward/dead_trees"] == 1.0
    assert stats["reward/leaves_without_reward"] == 1.0
