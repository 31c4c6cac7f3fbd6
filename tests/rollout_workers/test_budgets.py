"""Budgets of tokens and tool calls: where a tree stops growing, computed by hand."""

from itertools import permutations

import pytest
from echo_world import Wanderer, grow, task
from played import accept, answer, branch, growth, step

from rollout_workers import trees
from rollout_workers.collection import CollectionSpec
from rollout_workers.growth import TreeGrowth, TreeRules
from rollout_workers.types import Ledger, Sampling, Tree

CHAIN = (step(tokens=6, observation=4, calls=1), answer(tokens=10))
"""20 tokens and 1 tool call; the prompt has 10 tokens."""
LEAF = answer(tokens=10)


def grown(**rules) -> TreeGrowth:
    """A tree with the first chain `CHAIN` and branches `LEAF`; 3 rounds of 2 unless told otherwise."""
    tree = growth(TreeRules(**{"roots": 1, "nodes_per_round": 2, "rounds": 3, **rules}))
    items = tree.first_items()
    while items:
        items = accept(tree, [branch(item, *(LEAF,) if item.slot else CHAIN) for item in items])
    return tree


@pytest.mark.parametrize(
    ("limit", "leaves", "rounds"),
    [
        (None, 7, 3),
        (30, 1, 0),  # prompt 10 + chain 20: nothing is left
        (49, 1, 0),  # 19 left, a branch costs 20 so far
        (50, 2, 1),  # 20 left: 1 branch. Then 10 left at (20 + 10) / 2 a branch: none
        (70, 4, 2),  # 40 left: 2 branches. Then 20 left at 40 / 3: 1 branch. Then 10 left at 50 / 4: none
        (80, 5, 2),  # 2 branches, 30 left at 40 / 3: 2 branches. Then 10 left at 60 / 5: none
        (100, 7, 3),  # 2, 2, and 30 left at 60 / 5: 2 branches
    ],
)
def test_tokens_by_hand(limit, leaves, rounds):
    tree = grown(max_tokens=limit)
    assert len(trees.leaves(tree.tree)) == leaves == tree.planned_leaves == tree.leaves_grown
    assert tree.leaves_cancelled == 7 - leaves
    assert tree.ledger.growth_stopped == (leaves < 7)
    assert len(tree.tree.picks) == rounds
    assert tree.is_complete
    trees.check(tree.tree)


@pytest.mark.parametrize(
    ("limit", "leaves"),
    [
        (0, 1),
        (1, 1),  # used up by the chain
        (2, 6),  # 1 call left: 1 branch. It makes none, so 1 call left at 1 / 2 a branch: 2 branches, and 2 more
        (3, 7),
        (None, 7),
    ],
)
def test_tool_calls_by_hand(limit, leaves):
    tree = grown(max_tool_calls=limit)
    assert len(trees.leaves(tree.tree)) == leaves
    assert tree.leaves_cancelled == 7 - leaves


def test_the_tighter_budget_counts_and_trees_share_it_equally():
    assert len(trees.leaves(grown(max_tokens=80, max_tool_calls=1).tree)) == 1
    assert len(trees.leaves(grown(roots=2, max_tokens=161).tree)) == 5, "80 tokens for each of the 2 trees"


def test_a_cut_round_takes_the_first_picks_and_may_end_within_a_node():
    whole, cut = (grown(nodes_per_round=2, branches_per_node=2, rounds=1, max_tokens=limit) for limit in (None, 90))
    assert [len(trees.leaves(tree.tree)) for tree in (whole, cut)] == [5, 4]
    assert cut.tree.nodes == whole.tree.nodes[: len(cut.tree.nodes)], "same picks, seeds and branches, but fewer"
    assert cut.tree.picks == whole.tree.picks, "3 branches still begin at 2 nodes"


def test_what_was_sampled_again_is_paid_for_too():
    tree = growth(TreeRules(roots=1, nodes_per_round=1, rounds=1, max_tokens=50))
    (item,) = tree.first_items()
    assert accept(tree, [branch(item, *CHAIN, ledger=Ledger(discarded_tokens=1))]) == [], "19 left at 21 a branch"
    assert tree.ledger.growth_stopped == 1


def test_the_order_in_which_branches_come_back_changes_nothing():
    found = []
    for order in permutations(range(3)):
        tree = growth(TreeRules(roots=1, nodes_per_round=3, rounds=2, max_tokens=90))
        items = accept(tree, [branch(item, *CHAIN) for item in tree.first_items()])
        results = [branch(item, answer(tokens=5 * item.slot)) for item in items]
        items = accept(tree, [results[place] for place in order])
        found.append((tree.tree, items, tree.leaves_cancelled))
    assert len(found[0][1]) == 2, "90 - 10 - 20 - 5 - 10 - 15 = 30 left at 50 / 4 a branch"
    assert all(other == found[0] for other in found)


async def test_whole_collections_stay_near_their_budget_and_repeat():
    def cost(tree: Tree) -> int:
        return sum(len(node.token_ids) + len(node.observation_ids) for node in tree.nodes)

    rules = TreeRules(roots=2, nodes_per_round=4, rounds=5, max_tokens=120)
    spec = CollectionSpec(
        phase="train-1", tasks=tuple(task(f"q{i}") for i in range(20)), rules=rules, seed=3,
        sampling=Sampling(max_turn_tokens=8, max_context_tokens=400, max_turns=3),
    )  # fmt: skip
    grown_trees, again = [
        [tree for group in (await grow(spec, Wanderer(0.3))).forest() for tree in group.trees] for _ in range(2)
    ]
    assert grown_trees == again
    costs = [cost(tree) for tree in grown_trees]
    assert all(len(trees.leaves(tree)) < rules.leaves_per_tree for tree in grown_trees)
    assert 54 < sum(costs) / len(costs) < 66, "60 tokens each, within a tenth on average"
    assert max(costs) <= 60 + 4 * 18, "at most one round of whole paths (18 tokens) above"
