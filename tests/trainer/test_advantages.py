"""Every kind of advantage: the method's vectors, numbers on paper for a drawn task, properties of random trees."""

import math
import random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_forests import random_tree

from envs.types import EndReason, Message, Task
from rollout_workers.trees import leaves, path
from rollout_workers.types import Node, TaskGroup, Tree
from trainer.advantages import KINDS, TreeAdvantages, advantages, is_dead
from trainer.config import AdvantageConfig
from trainer.leaf_advantages import EPS, LEAF_KINDS, mean, normalise
from trainer.metrics import reward_stats
from trainer.node_advantages import NODE_KINDS


def step(parent: int, reward: float | None = None, end: EndReason | None = None) -> Node:
    end = end or (None if reward is None else EndReason.ANSWERED)
    return Node(parent=parent, token_ids=(2,), logprobs=(-1.0,), versions=(0,), end=end, reward=reward, score=reward)


def tree_of(index: int, *steps: Node) -> Tree:
    return Tree(task_id="t", index=index, nodes=[Node(parent=-1, observation_ids=(1,)), *steps])


def star(index: int, rewards: list[float | None]) -> Tree:
    """A root with one leaf per reward; None is a branch lost to an environment error."""
    return tree_of(index, *(step(0, r, EndReason.ENV_ERROR if r is None else None) for r in rewards))


def task_of(*trees: Tree) -> TaskGroup:
    return TaskGroup(task=Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",)), trees=trees)


def group(*rewards: list[float | None]) -> TaskGroup:
    return task_of(*(star(i, values) for i, values in enumerate(rewards)))


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


def drawn() -> TaskGroup:
    """Two trees with the rewards of their leaves:

    tree 0: prompt - 1 - 2 (1.0)         tree 1: prompt - 1 (1.0)
                   |   ` 3 - 4 (0.0)                    ` 2 (lost to an environment error)
                   ` 5 (0.0)
    V: root (1 + 0 + 0 + 1) / 4 = 0.5; tree 0: 1: 0.5, 2: 1, 3: 0, 4: 0, 5: 0; tree 1: 1: 1.
    """
    first = tree_of(0, step(0), step(1, 1.0), step(1), step(3, 0.0), step(0, 0.0))
    return task_of(first, star(1, [1.0, None]))


S2, S3, S4 = math.sqrt(1 / 2), math.sqrt(1 / 3), math.sqrt(1 / 4)
"""Unbiased standard deviations: of (1, 0); of (1, 0, 0) and of (1, 0, 0, 1); of (0.5, 0, 1)."""
ON_PAPER = {
    "inter": [{2: 0.5 / S3, 4: -0.5 / S3, 5: -0.5 / S3}, {1: 0.5 / S3}],
    "intra": [{2: 2 / 3 / S3, 4: -1 / 3 / S3, 5: -1 / 3 / S3}, {1: 0.0}],
    "tree": [{2: 7 / 6 / S3, 4: -5 / 6 / S3, 5: -5 / 6 / S3}, {1: 0.5 / S3}],
    # The task's normalisation is (R - 0.5) / S3; the tree's second one brings its three leaves back to `intra`.
    "tree_2norm": [{2: 2 / 3 / S3, 4: -1 / 3 / S3, 5: -1 / 3 / S3}, {1: 0.0}],
    "loo": [{2: 1 - 1 / 3, 4: -2 / 3, 5: -2 / 3}, {1: 1 - 1 / 3}],
    # First steps of both trees: V = 0.5, 0 and 1. Then 2 and 3, children of 1: V = 1 and 0. 4 is an only child.
    "sibling": [{1: 0.0, 2: 0.5 / S2, 3: -0.5 / S2, 4: 0.0, 5: -0.5 / S4}, {1: 0.5 / S4}],
    "edge": [{1: 0.0, 2: 0.5, 3: -0.5, 4: 0.0, 5: -0.5}, {1: 0.5}],
    # Node 1 has two leaves; 2: (1 - 0.5) + (1 - 0.5); 3: both -0.5; 4: -0.5 + 0; 5 and the other tree's 1: twice 0.5.
    "global_local": [{1: 0.0, 2: 1.0, 3: -1.0, 4: -0.5, 5: -1.0}, {1: 1.0}],
    "node_value": [{1: 0.0, 2: 0.5 / S3, 3: -0.5 / S3, 4: -0.5 / S3, 5: -0.5 / S3}, {1: 0.5 / S3}],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_drawn_task_on_paper(kind: str) -> None:
    found = advantages(drawn(), kind)
    assert [tree.level for tree in found] == ["leaf" if kind in LEAF_KINDS else "node"] * 2
    assert [tree.leaves for tree in found] == [(2, 4, 5), (1,)]
    for tree, expected in zip(found, ON_PAPER[kind], strict=True):
        assert tree.values == pytest.approx(expected, abs=1e-5)


def test_global_local_is_divided_by_the_root_of_the_leaves_below() -> None:
    """V(root) = 1/3; node 1 has leaves 1 and 0: (0.5 - 1/3) twice, over the square root of 2."""
    found = advantages(task_of(tree_of(0, step(0), step(1, 1.0), step(1, 0.0), step(0, 0.0))), "global_local")
    assert found[0].values[1] == pytest.approx(1 / 3 / math.sqrt(2))


def test_kinds_are_those_of_the_configuration() -> None:
    annotation = AdvantageConfig.model_fields["kind"].annotation
    assert set(KINDS) == set(get_args(annotation))
    for kind in KINDS:
        assert AdvantageConfig(kind=kind).is_of_nodes == (kind in NODE_KINDS)


@pytest.mark.parametrize("count", [2, 7, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_rewards_give_exactly_zero(kind: str, count: int) -> None:
    found = advantages(group([0.8] * count, [0.8] * count), kind)
    assert flat(found) == [0.0] * (2 * count)
    assert is_dead(found)


@pytest.mark.parametrize("count", [7, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_rewards_give_exactly_zero_where_branches_differ_in_size(kind: str, count: int) -> None:
    deep = tree_of(0, step(0), *(step(1, 0.8) for _ in range(count)), step(0, 0.8))
    assert set(flat(advantages(task_of(deep, star(1, [0.8])), kind))) == {0.0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rewards", [[[0.7]], [[0.7], [None]], [[None], [None]]])
def test_fewer_than_two_leaves_give_exactly_zero(kind: str, rewards: list[list[float | None]]) -> None:
    found = advantages(group(*rewards), kind)
    assert set(flat(found)) <= {0.0}
    assert is_dead(found)


def test_mean_of_equal_values_is_that_value() -> None:
    assert all(mean([value] * count) == value for value in (0.1, 0.8, 1 / 3) for count in range(1, 60))
    assert mean([1.0, 0.0, 0.5]) == 0.5


def branching(seed: int, roots: int, branches: int) -> TaskGroup:
    """Random trees, a few leaves lost to environment errors."""
    rng = random.Random(seed)
    grown = [random_tree(rng, "t", index, branches=branches) for index in range(roots)]
    for tree in grown:
        for leaf in leaves(tree):
            if rng.random() < 0.1:
                tree.nodes[leaf] = step(tree.nodes[leaf].parent, None, EndReason.ENV_ERROR)
    return task_of(*grown)


random_tasks = st.builds(branching, st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 6))


@given(random_tasks)
@settings(max_examples=60, deadline=None)
def test_intra_sums_to_zero(task: TaskGroup) -> None:
    for kind in ("intra", "tree_2norm"):
        for found in advantages(task, kind):
            assert sum(found.values.values()) == pytest.approx(0, abs=1e-9)
    assert sum(flat(advantages(task, "inter"))) == pytest.approx(0, abs=1e-9)
    assert sum(flat(advantages(task, "loo"))) == pytest.approx(0, abs=1e-9)


@given(random_tasks)
@settings(max_examples=60, deadline=None)
def test_edge_telescopes(task: TaskGroup) -> None:
    """Over a path it adds up to R(leaf) - V(root), V(root) being the mean over all rewarded leaves of the task."""
    rewards = [t.nodes[leaf].reward for t in task.trees for leaf in leaves(t) if t.nodes[leaf].reward is not None]
    for tree, found in zip(task.trees, advantages(task, "edge"), strict=True):
        for leaf in found.leaves:
            total = sum(found.values[index] for index in path(tree, leaf)[1:])
            assert total == pytest.approx(tree.nodes[leaf].reward - sum(rewards) / len(rewards), abs=1e-12)


@given(random_tasks)
@settings(max_examples=60, deadline=None)
def test_nodes_with_a_rewarded_leaf_have_a_value(task: TaskGroup) -> None:
    for kind in KINDS:
        for tree, found in zip(task.trees, advantages(task, kind), strict=True):
            on_paths = {index for leaf in found.leaves for index in path(tree, leaf)[1:]}
            assert set(found.values) == (set(found.leaves) if kind in LEAF_KINDS else on_paths)
            assert all(math.isfinite(value) for value in found.values.values())


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.8, 1.0]), min_size=3, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_permuting_leaves_permutes_advantages(rewards: list[float], rng: random.Random) -> None:
    """Exactly, since sums are correctly rounded; leaves are permuted inside their tree, and the trees swapped."""
    order = list(range(len(rewards)))
    rng.shuffle(order)
    for kind in KINDS:
        before = advantages(group(rewards, [0.5, 0.1]), kind)
        after = advantages(group([0.1, 0.5], [rewards[i] for i in order]), kind)
        assert flat(after[1:]) == [flat(before[:1])[i] for i in order]
        assert flat(after[:1]) == flat(before[1:])[::-1]


@given(random_tasks)
@settings(max_examples=40, deadline=None)
def test_a_branch_without_reward_changes_nothing(task: TaskGroup) -> None:
    """Leaves that ended in an environment error leave the statistics first."""
    more = task_of(*(Tree(task_id="t", index=t.index, nodes=list(t.nodes)) for t in task.trees))
    for tree in more.trees:
        tree.nodes.append(step(0))
        tree.nodes.append(step(len(tree.nodes) - 1, None, EndReason.ENV_ERROR))
    for kind in KINDS:
        assert advantages(more, kind) == advantages(task, kind)


def test_environment_errors_leave_the_statistics_first() -> None:
    found = advantages(group([1.0, None, 0.0, 0.2], B), "tree")
    assert list(found[0].values) == [1, 3, 4]
    assert flat(found) == flat(advantages(group(A, B), "tree"))


def test_one_tree_doubles() -> None:
    assert flat(advantages(group(A), "tree")) == pytest.approx([2 * x for x in normalise(A, "zero")])


def test_tree_2norm_is_intra_up_to_eps() -> None:
    task = group(C, D)
    assert flat(advantages(task, "tree_2norm")) == pytest.approx(flat(advantages(task, "intra")), rel=10 * EPS)


def test_singleton() -> None:
    assert normalise([0.7], "zero") == [0.0]
    assert normalise([0.7], "raw") == [0.7]
    assert normalise([], "raw") == []
    alone = group([0.7], [0.2])
    assert flat(advantages(alone, "intra", "zero")) == [0.0, 0.0]
    assert flat(advantages(alone, "intra", "raw")) == [0.7, 0.2]
    assert flat(advantages(alone, "tree_2norm", "raw")) == flat(advantages(alone, "inter"))
    for kind in LEAF_KINDS:
        assert flat(advantages(group([0.7]), kind, "raw")) == [1.4 if kind == "tree" else 0.7]
    for kind in NODE_KINDS:
        assert advantages(alone, kind, "raw") == advantages(alone, kind, "zero")


@pytest.mark.parametrize("reward", [math.nan, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_rewards_must_be_finite(kind: str, reward: float) -> None:
    with pytest.raises(ValueError, match=r"leaf 2 of tree 1 of task 't' has reward (nan|inf); rewards must be finite"):
        advantages(group(A, [0.0, reward]), kind)


def test_an_answer_without_a_reward_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"leaf 1 of tree 0 of task 't' has reward None"):
        advantages(task_of(tree_of(0, step(0, None, EndReason.ANSWERED))))


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match=r"advantage.kind=magic is unknown; accepted: tree, inter, .*, node_value"):
        advantages(group(A), "magic")


@pytest.mark.parametrize("nodes", [[], [Node(parent=-1, observation_ids=(1,))]])
def test_an_empty_tree_is_one_sentence(nodes: list[Node]) -> None:
    with pytest.raises(ValueError, match=r"tree 1 of task 't' is empty; a tree has a prompt and at least a step"):
        advantages(task_of(star(0, [1.0]), Tree(task_id="t", index=1, nodes=nodes)))


def test_a_task_without_trees_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"task 't' has no trees; advantages need at least one"):
        advantages(task_of())


def test_dead_is_a_matter_of_the_kind() -> None:
    """Trees that agree inside but not with each other: nothing within a tree, something between them."""
    task = group([1.0, 1.0], [0.0, 0.0])
    assert is_dead(advantages(task, "intra"))
    assert not is_dead(advantages(task, "tree"))
    assert not is_dead(advantages(task, "edge"))


def test_stats() -> None:
    forest = [group([1.0, None], [0.0]), group([0.5], [0.5])]
    stats = reward_stats(forest, [advantages(one) for one in forest])
    assert stats["reward/mean"] == 0.5
    assert stats["reward/std"] == pytest.approx(math.sqrt(0.125))
    assert stats["reward/score"] == 0.5
    assert stats["reward/dead_trees"] == 1.0
    assert stats["reward/dead_leaves"] == 0.5
    assert stats["reward/leaves_without_reward"] == 1.0
    assert reward_stats([], [])["reward/dead_trees"] == 0.0
