"""Picking rules: scores that can be computed on paper, and what holds for every tree."""

import random
from collections import Counter
from dataclasses import replace
from math import inf, log, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played import accept, answer, branch, growth, step

from envs.types import EndReason
from rollout_workers.growth import TreeRules
from rollout_workers.picking import RULES, PickSettings, candidates
from rollout_workers.types import Node, Tree

SCORED = sorted(set(RULES) - {"random"})


def drawn() -> Tree:
    """The example of docs/method.md, Picking.

    0 prompt
    ├── 1
    │   ├── 2 answer, score 1
    │   └── 3
    │       ├── 4 answer, score 0
    │       └── 5 environment error
    └── 6 answer, score 0
    """
    nodes = [
        Node(parent=-1, observation_ids=(90,)),
        step(0, entropy=0.9, surprise=1.2),
        answer(1.0, parent=1, entropy=0.2, surprise=0.2),
        step(1, entropy=0.6, surprise=1.6),
        answer(0.0, parent=3, entropy=1.1, surprise=0.5),
        answer(None, parent=3, entropy=0.1, surprise=0.9),
        answer(0.0, parent=0, entropy=0.5, surprise=0.8),
    ]
    return Tree(task_id="q", index=0, nodes=nodes)


def scores(rule: str, tree: Tree, **changes) -> dict[int, float]:
    return dict(RULES[rule](tree, 1, random.Random(0), PickSettings(**changes)).scores)


@pytest.mark.parametrize(
    ("rule", "expected", "order"),
    [
        ("entropy", {0: 0.65, 1: 0.35, 3: 0.55}, (0, 3, 1)),
        ("surprisal", {0: 0.95, 1: 0.85, 3: 0.65}, (0, 1, 3)),
        ("uncertain", {0: -1 / 6 - 0.05, 1: -0.05, 3: -0.55}, (1, 0, 3)),
        (
            "ucb",
            {
                0: 1 / 3 + 1.4 * sqrt(log(3) / 3) - 0.05,
                1: 1 / 2 + 1.4 * sqrt(log(3) / 2) - 0.05,
                3: 1.4 * sqrt(log(3)) - 0.05,
            },
            (1, 3, 0),
        ),
    ],
)
def test_scores_and_order_on_the_drawn_tree(rule, expected, order):
    assert scores(rule, drawn()) == pytest.approx(expected)
    without = {node: score + 0.05 for node, score in expected.items()}
    assert scores(rule, drawn(), sibling_penalty=0.0) == pytest.approx(without), "each of the three has two children"
    for count in (1, 2, 3, 7):
        chosen = RULES[rule](drawn(), count, random.Random(0), PickSettings()).chosen
        assert chosen == (order * 3)[:count], "the best, each once, then round again"


def test_ucb_constant_weighs_the_number_of_leaves():
    assert scores("ucb", drawn(), ucb_constant=0.0, sibling_penalty=0.0) == pytest.approx({0: 1 / 3, 1: 0.5, 3: 0.0})
    assert scores("ucb", drawn(), ucb_constant=1.4)[3] == pytest.approx(1.4674 - 0.05, abs=1e-4)


@pytest.mark.parametrize("rule", ["uncertain", "ucb"])
def test_a_node_with_failed_leaves_alone_comes_last_but_can_be_picked(rule):
    tree = drawn()
    tree.nodes[4] = answer(None, parent=3)
    assert scores(rule, tree)[3] == -inf
    chosen = RULES[rule](tree, 3, random.Random(0), PickSettings(sibling_penalty=5.0)).chosen
    assert chosen[-1] == 3
    assert set(chosen) == {0, 1, 3}


@pytest.mark.parametrize("rule", SCORED)
def test_equal_scores_are_drawn_by_the_generator(rule):
    """Left and right half are mirror images: scores 1/3 and 2/3 are equally far from 0.5."""
    nodes = [Node(parent=-1), step(0, entropy=0.5), step(0, entropy=0.5)]
    for right, kept in ((1, (1.0, 0.0, 0.0)), (2, (1.0, 0.0, 0.0) if rule == "ucb" else (0.0, 1.0, 1.0))):
        nodes += [answer(score, parent=right, entropy=0.7) for score in kept]
    tree = Tree(task_id="q", index=0, nodes=nodes)
    orders = [RULES[rule](tree, 3, random.Random(seed), PickSettings()).chosen for seed in range(200)]
    assert 60 < sum(order.index(1) < order.index(2) for order in orders) < 140  # standard deviation of the count: 7.1


def test_random_picking_draws_root_and_inner_nodes_with_replacement():
    tree = Tree(task_id="q", index=0, nodes=[
        Node(parent=-1), Node(parent=0), Node(parent=1, end=EndReason.ANSWERED), Node(parent=0)])  # fmt: skip
    assert candidates(tree) == [0, 1, 3]
    pick = RULES["random"](tree, 3000, random.Random(1), PickSettings())
    counts = Counter(pick.chosen)
    assert set(counts) == {0, 1, 3}
    assert all(abs(count - 1000) < 3 * 26 for count in counts.values()), counts  # sd of a count: 25.8
    assert pick.scores == ()


CHAIN = (step(entropy=0.4, surprise=0.5), answer(0.0, entropy=0.8, surprise=0.3))
BRANCH = answer(1.0, entropy=0.6, surprise=2.0)
"""Tree after round 1: 0 ── 1 ── 2 (score 0), a right answer below 0 and one below 1."""


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        ("entropy", {0: 0.4, 1: 0.8}, {0: 0.5 - 0.05, 1: 0.7 - 0.05}),
        ("surprisal", {0: 0.5, 1: 0.3}, {0: 1.25 - 0.05, 1: 1.15 - 0.05}),
        ("uncertain", {0: -0.5, 1: -0.5}, {0: -1 / 6 - 0.05, 1: -0.05}),
        (
            "ucb",
            {0: 0.0, 1: 0.0},
            {0: 2 / 3 + 1.4 * sqrt(log(3) / 3) - 0.05, 1: 1 / 2 + 1.4 * sqrt(log(3) / 2) - 0.05},
        ),
    ],
)
def test_two_rounds_of_each_rule(rule, first, second):
    tree = growth(TreeRules(roots=1, nodes_per_round=2, rounds=2, picking=rule))
    items = accept(tree, [branch(item, *CHAIN) for item in tree.first_items()])
    assert {item.parent for item in items} == {0, 1}
    items = accept(tree, [branch(item, BRANCH) for item in items])
    for pick, expected in zip(tree.tree.picks, (first, second), strict=True):
        assert dict(pick.scores) == pytest.approx(expected)
    assert [item.parent for item in items] == list(tree.tree.picks[1].chosen)
    assert tree.tree.picks[1].chosen == ((0, 1) if rule == "surprisal" else (1, 0))
    assert accept(tree, [branch(item, BRANCH) for item in items]) == []
    assert tree.is_complete
    assert len(tree.tree.nodes) == 7


def test_entropies_must_be_recorded_to_pick_by_them():
    with pytest.raises(AssertionError, match="without recorded entropies"):
        growth(TreeRules(picking="entropy"), topk=0)


FLOATS = st.floats(min_value=0.0, max_value=9.0)
SOME_SCORE = st.one_of(st.none(), st.sampled_from([0.0, 1 / 3, 0.7, 1.0]))
STEPS = st.lists(st.tuples(st.integers(0, 99), st.booleans(), SOME_SCORE, FLOATS, FLOATS), min_size=1, max_size=25)


def built(steps: list[tuple[int, bool, float | None, float, float]]) -> Tree:
    """Each step continues from one of the nodes so far that are no leaves."""
    nodes = [Node(parent=-1)]
    for place, ends, score, surprise, entropy in steps:
        inner = [index for index, node in enumerate(nodes) if not node.is_leaf]
        parent = inner[place % len(inner)]
        values = {"surprise": surprise, "entropy": entropy, "parent": parent}
        nodes.append(answer(score, **values) if ends else step(**values))
    return Tree(task_id="q", index=0, nodes=nodes)


def reordered(tree: Tree, seed: int) -> tuple[Tree, dict[int, int]]:
    """The same tree with its nodes in another order, parents still first; and new place by old one."""
    rng, place = random.Random(seed), {0: 0}
    while len(place) < len(tree.nodes):
        ready = [i for i, node in enumerate(tree.nodes) if i not in place and node.parent in place]
        place[rng.choice(ready)] = len(place)
    order = sorted(place, key=place.__getitem__)
    nodes = [replace(node, parent=place.get(node.parent, -1)) for node in map(tree.nodes.__getitem__, order)]
    return Tree(task_id="q", index=0, nodes=nodes), place


@pytest.mark.parametrize("rule", sorted(RULES))
@settings(deadline=None)
@given(steps=STEPS, count=st.integers(1, 12), seed=st.integers(0, 1000))
def test_what_every_rule_keeps_to(rule, steps, count, seed):
    tree = built(steps)
    pick = RULES[rule](tree, count, random.Random(seed), PickSettings())
    assert len(pick.chosen) == count
    assert all(not tree.nodes[node].is_leaf for node in pick.chosen)
    assert pick == RULES[rule](tree, count, random.Random(seed), PickSettings()), "one seed, one pick"
    if rule == "random":
        return
    assert [node for node, _ in pick.scores] == candidates(tree)
    assert len(set(pick.chosen)) == min(count, len(candidates(tree))), "nobody twice before everybody once"
    known = dict(pick.scores)
    cut = known[pick.chosen[min(count, len(known)) - 1]]
    assert all(known[node] <= cut + 1e-9 for node in known if node not in pick.chosen), "nobody better was left out"


@pytest.mark.parametrize("rule", SCORED)
@settings(deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_the_order_of_children_does_not_change_scores(rule, steps, seed):
    tree = built(steps)
    other, place = reordered(tree, seed)
    expected = {place[node]: score for node, score in scores(rule, tree).items()}
    assert scores(rule, other) == expected
