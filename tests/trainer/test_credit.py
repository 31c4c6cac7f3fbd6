"""Loss weights of nodes: from leaf-level and from node-level advantages, whole trees and single paths."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_forests import random_tree

from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, TaskGroup, Tree
from trainer.advantages import KINDS, TreeAdvantages, advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.credit import contributes, path_credit, tree_credit
from trainer.leaf_weights import leaf_weights
from trainer.packing import pack_forest


def step(parent: int, token: int, reward: float | None = None) -> Node:
    end = None if reward is None else EndReason.ANSWERED
    return Node(parent=parent, token_ids=(token,), logprobs=(-1.0,), versions=(0,), end=end, reward=reward)


def drawn() -> TaskGroup:
    """Prompt - 1 - 2 (1.0), 1 - 3 (0.0), prompt - 4 (0.0); V(root) = 1/3, V(1) = 1/2."""
    nodes = [Node(parent=-1, observation_ids=(9,)), step(0, 11), step(1, 12, 1.0), step(1, 13, 0.0), step(0, 14, 0.0)]
    task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
    return TaskGroup(task=task, trees=(Tree(task_id="t", index=0, nodes=nodes),))


WEIGHTS = {2: 0.1, 3: 0.2, 4: 0.4}


def test_leaf_level_credit_sums_over_the_leaves_below() -> None:
    tree = drawn().trees[0]
    found = tree_credit(tree, TreeAdvantages.of_leaves({2: 3.0, 3: -1.0, 4: -2.0}), WEIGHTS)
    assert found.positive == pytest.approx([0.3, 0.3, 0.3, 0, 0])
    assert found.negative == pytest.approx([-1.0, -0.2, 0, -0.2, -0.8])
    assert found.weight == pytest.approx([0.7, 0.3, 0.1, 0.2, 0.4])


def test_node_level_credit_is_the_nodes_own_advantage_times_the_weight_below() -> None:
    """`edge`: 1/2 - 1/3 at node 1, +-1/2 below it, -1/3 at node 4; node 1 has the weights of leaves 2 and 3."""
    group = drawn()
    found = tree_credit(group.trees[0], advantages(group, "edge")[0], WEIGHTS)
    assert found.positive == pytest.approx([0, 0.3 / 6, 0.1 / 2, 0, 0])
    assert found.negative == pytest.approx([0, 0, 0, -0.2 / 2, -0.4 / 3])
    assert found.weight == pytest.approx([0.7, 0.3, 0.1, 0.2, 0.4])


def test_credit_of_one_path() -> None:
    group = drawn()
    tree = group.trees[0]
    of_leaf = path_credit(tree, 3, TreeAdvantages.of_leaves({2: 3.0, 3: -1.0, 4: -2.0}), 0.2)
    assert of_leaf.negative == pytest.approx([-0.2, -0.2, 0, -0.2, 0])
    assert of_leaf.positive == [0.0] * 5
    of_nodes = path_credit(tree, 3, advantages(group, "edge")[0], 0.2)
    assert of_nodes.positive == pytest.approx([0, 0.2 / 6, 0, 0, 0])
    assert of_nodes.negative == pytest.approx([0, 0, 0, -0.1, 0])
    assert of_nodes.weight == pytest.approx([0.2, 0.2, 0, 0.2, 0])


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6), branches=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_paths_add_up_to_the_tree(kind: str, seed: int, branches: int) -> None:
    rng = random.Random(seed)
    trees = tuple(random_tree(rng, "t", index, branches=branches) for index in range(2))
    group = TaskGroup(task=drawn().task, trees=trees)
    for tree, found in zip(trees, advantages(group, kind), strict=True):
        weights = {leaf: rng.random() for leaf in found.leaves}
        whole = tree_credit(tree, found, weights)
        paths = [path_credit(tree, leaf, found, weights[leaf]) for leaf in found.leaves]
        for name in ("positive", "negative", "weight"):
            summed = [sum(column) for column in zip(*(getattr(one, name) for one in paths), strict=True)]
            assert summed == pytest.approx(getattr(whole, name), abs=1e-12)


@given(seed=st.integers(0, 10**6), branches=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_node_value_has_the_gradient_of_inter_at_equal_weights(seed: int, branches: int) -> None:
    """At ratio 1 the slope of a token's objective is P + N: a mean over leaves times their number is their sum."""
    rng = random.Random(seed)
    trees = tuple(random_tree(rng, "t", index, branches=branches) for index in range(2))
    group = TaskGroup(task=drawn().task, trees=trees)
    slopes = []
    for kind in ("inter", "node_value"):
        for tree, found in zip(trees, advantages(group, kind), strict=True):
            credit = tree_credit(tree, found, dict.fromkeys(found.leaves, 0.1))
            slopes.append([p + n for p, n in zip(credit.positive[1:], credit.negative[1:], strict=True)])
    for of_leaves, of_nodes in zip(slopes[:2], slopes[2:], strict=True):
        assert of_nodes == pytest.approx(of_leaves, abs=1e-12)


def test_a_leaf_contributes_through_any_step_of_its_path() -> None:
    group = drawn()
    tree = group.trees[0]
    leaf_level = TreeAdvantages.of_leaves({2: 1.0, 3: 0.0, 4: 0.0})
    assert [contributes(tree, leaf, leaf_level) for leaf in (2, 3, 4)] == [True, False, False]
    node_level = TreeAdvantages(level="node", values={1: 0.5, 2: 0.0, 3: 0.0, 4: 0.0}, leaves=(2, 3, 4))
    assert [contributes(tree, leaf, node_level) for leaf in (2, 3, 4)] == [True, True, False]


def test_node_level_advantages_in_a_pack() -> None:
    """seq_mean with one task and three leaves of 2, 2 and 1 sampled tokens: w = 1/6, 1/6, 1/3."""
    forest = [drawn()]
    credit = [advantages(forest[0], "edge")]
    assert leaf_weights(forest, credit, LossConfig())[0][0] == pytest.approx({2: 1 / 6, 3: 1 / 6, 4: 1 / 3})
    pack = pack_forest(forest, credit, LossConfig(), LearnerConfig(max_tokens_per_pack=64), 64).mini_batches[0][0][0]
    assert pack.ids.tolist() == [9, 11, 12, 13, 14]
    assert pack.positive.tolist() == pytest.approx([0, 1 / 18, 1 / 12, 0, 0])
    assert pack.negative.tolist() == pytest.approx([0, 0, 0, -1 / 12, -1 / 9])
    assert pack.weight.tolist() == pytest.approx([0, 1 / 3, 1 / 6, 1 / 6, 1 / 3])
