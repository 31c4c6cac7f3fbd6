"""A hand-drawn tree; every expected value can be read off the drawing.

0 prompt
├── 1 ── 2 (leaf)
│   └── 4 ── 5 (leaf)
└── 3 (leaf)
"""

import pytest

from envs.types import EndReason
from rollout_workers import trees
from rollout_workers.types import Node, Tree


def step(parent: int, ids: tuple[int, ...], obs: tuple[int, ...] = (), end: EndReason | None = None) -> Node:
    return Node(
        parent=parent,
        token_ids=ids,
        logprobs=(0.0,) * len(ids),
        versions=(0,) * len(ids),
        observation_ids=obs,
        end=end,
        reward=1.0 if end else None,
    )


@pytest.fixture
def tree() -> Tree:
    done = EndReason.ANSWERED
    nodes = [
        Node(parent=-1, observation_ids=(90, 91)),
        step(0, (10, 11), (20,)),
        step(1, (12,), end=done),
        step(0, (13, 14), end=done),
        step(1, (15,), (21, 22)),
        step(4, (16,), end=done),
    ]
    return Tree(task_id="t", index=0, nodes=nodes)


def test_shape_questions(tree: Tree) -> None:
    assert trees.children(tree) == [[1, 3], [2, 4], [], [], [5], []]
    assert trees.leaves(tree) == [2, 3, 5]
    assert trees.path(tree, 5) == [0, 1, 4, 5]
    assert trees.path(tree, 0) == [0]
    assert trees.depths(tree) == [0, 1, 2, 1, 2, 3]
    assert trees.preorder(tree) == [0, 1, 2, 4, 5, 3]


def test_path_ids_interleaves_samples_and_observations(tree: Tree) -> None:
    assert trees.path_ids(tree, 5) == [90, 91, 10, 11, 20, 15, 21, 22, 16]
    assert trees.path_ids(tree, 0) == [90, 91]


def test_backup_sum(tree: Tree) -> None:
    assert trees.backup_sum(tree, {2: 1.0, 3: 2.0, 5: 4.0}) == [7.0, 5.0, 1.0, 2.0, 4.0, 4.0]
    assert trees.backup_sum(tree, {5: 4.0})[0] == 4.0


def test_check_accepts_and_refuses(tree: Tree) -> None:
    trees.check(tree)
    with pytest.raises(ValueError, match="is a leaf"):
        trees.check(Tree(task_id="t", index=0, nodes=[*tree.nodes, step(2, (1,))]))
    with pytest.raises(ValueError, match="parents must come before"):
        trees.check(Tree(task_id="t", index=0, nodes=[*tree.nodes, step(6, (1,))]))
    with pytest.raises(ValueError, match="differ in length"):
        trees.check(Tree(task_id="t", index=0, nodes=[tree.nodes[0], Node(parent=0, token_ids=(1,))]))
    with pytest.raises(ValueError, match="must start with a root node"):
        trees.check(Tree(task_id="t", index=0, nodes=[step(-1, (1,))]))
    with pytest.raises(ValueError, match=r"^tree 1 of task 't' is empty; a tree has at least its prompt$"):
        trees.check(Tree(task_id="t", index=1))
