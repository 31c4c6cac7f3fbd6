"""Duplicate siblings: who is compared with whom, what is sampled again, and what the ledger says of it."""

import random
from dataclasses import replace
from itertools import permutations

import pytest
from echo_world import CharCodec, CountingEnv, Wanderer, task
from played import accept, answer, branch, growth, step

from rollout_workers import trees
from rollout_workers.branch import BranchRunner
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.growth import TreeGrowth, TreeRules
from rollout_workers.types import ROOT, BranchResult, Ledger, Sampling, Tree, WorkItem

CHAIN = (step(tokens=2, observation=1), answer(tokens=3))


def started(action: str = "go", **rules) -> tuple[TreeGrowth, list[WorkItem]]:
    """A tree whose first chain is one leaf below the root with the text `action`, so that every branch is its sibling;
    and the items of round 1, 3 unless told otherwise."""
    tree = growth(TreeRules(**{"roots": 1, "nodes_per_round": 3, "rounds": 1, **rules}))
    (item,) = tree.first_items()
    assert item.avoid == ()
    assert item.resamples == 0
    return tree, accept(tree, [branch(item, answer(tokens=3), action=action)])


def test_count_keeps_and_counts_them():
    tree, items = started()
    assert [(item.avoid, item.resamples) for item in items] == [((), 0)] * 3
    texts = (" go\n", "stay", "stay")
    assert accept(tree, [branch(item, answer(), action=text) for item, text in zip(items, texts, strict=True)]) == []
    assert tree.is_complete
    assert tree.ledger == Ledger(siblings_equal=2), "one equals the first chain, spaces aside; one its neighbour"
    assert len(trees.leaves(tree.tree)) == 4 == tree.leaves_grown


def test_children_of_different_parents_are_no_siblings():
    tree = growth(TreeRules(roots=1, nodes_per_round=2, rounds=1, picking="entropy"))
    (item,) = tree.first_items()
    items = accept(tree, [branch(item, *CHAIN, action="go")])
    assert sorted(item.parent for item in items) == [0, 1]
    results = [branch(item, answer(), action="go" if item.parent else "stay") for item in items]
    assert accept(tree, results) == []
    assert tree.ledger.siblings_equal == 0, "'go' below the prompt and 'go' one step later"


def test_resample_tells_branches_what_to_avoid():
    tree, items = started(dedup="resample", dedup_attempts=4, rounds=2, nodes_per_round=1)
    assert [(item.avoid, item.resamples) for item in items] == [(("go",), 4)]
    items = accept(tree, [branch(items[0], answer(), action="stay")])
    assert [(item.avoid, item.resamples) for item in items] == [(("go", "stay"), 4)]
    assert tree.ledger == Ledger()


def test_equal_branches_of_a_round_are_sent_out_again():
    tree, items = started(dedup="resample")
    texts = ("stay", "run", "stay")
    results = [branch(item, answer(tokens=5), action=text) for item, text in zip(items, texts, strict=True)]
    assert tree.leaves_grown == 1
    (again,) = accept(tree, results)
    assert tree.leaves_grown == 3
    assert not tree.is_complete
    assert (again.id, again.slot, again.parent) == (f"{items[2].id}+1", 3, ROOT), "the later slot goes again"
    assert again.seed != items[2].seed
    assert (again.avoid, again.resamples) == (("go", "run", "stay"), 1), "all siblings; 1 of 2 attempts is left"
    assert tree.is_waiting_for(again.id)
    assert tree.ledger == Ledger(siblings_equal=1, siblings_resampled=1, discarded_tokens=5)
    assert accept(tree, [branch(again, answer(tokens=4), action="jump")]) == []
    assert tree.is_complete
    assert [len(node.token_ids) for node in tree.tree.nodes] == [0, 3, 5, 5, 4]
    assert [node.slot for node in tree.tree.nodes] == [0, 0, 1, 2, 3]


def test_a_branch_that_stays_equal_is_kept_after_its_attempts():
    tree, items = started(dedup="resample", dedup_attempts=2, nodes_per_round=1)
    ids = [items[0].id]
    while items:
        items = accept(tree, [branch(items[0], answer(), action="go")])
        ids += [item.id for item in items]
    assert ids == ["train-1/q/0/1", "train-1/q/0/1+1", "train-1/q/0/1+2"]
    assert tree.ledger == Ledger(siblings_equal=3, siblings_resampled=2, discarded_tokens=2)
    assert [node.parent for node in tree.tree.nodes] == [-1, 0, 0]


def test_attempts_within_the_branch_count_too():
    tree, items = started(dedup="resample", dedup_attempts=3, nodes_per_round=1)
    tried = Ledger(branches=1, siblings_resampled=2, siblings_equal=1, discarded_tokens=2)
    (again,) = accept(tree, [branch(items[0], answer(), action="go", ledger=tried)])
    assert again.resamples == 0, "2 of 3 were used in the branch, the third is this one"
    assert accept(tree, [branch(again, answer(), action="go")]) == []
    assert tree.ledger.siblings_resampled == 1
    assert tree.ledger.siblings_equal == 1, "the first one counted itself"


def test_a_kept_branch_is_not_displaced_by_one_sampled_again():
    tree, items = started(dedup="resample", dedup_attempts=1)
    texts = ("stay", "stay", "run")
    (again,) = accept(tree, [branch(item, answer(), action=text) for item, text in zip(items, texts, strict=True)])
    assert again.slot == 2
    assert accept(tree, [branch(again, answer(), action="run")]) == [], "slot 3 said run first and stays"
    assert tree.ledger == Ledger(siblings_equal=2, siblings_resampled=1, discarded_tokens=1)


def test_the_order_in_which_branches_come_back_changes_nothing():
    texts = ("stay", "go", "stay")
    found = []
    for order in permutations(range(3)):
        tree, items = started(dedup="resample", dedup_attempts=3)
        for attempt in range(4):
            results = [branch(i, answer(surprise=i.slot), action=texts[i.slot - 1] + "!" * attempt) for i in items]
            places = [place for place in order if place < len(results)]
            items = accept(tree, [results[place] for place in places])
        found.append((tree.tree, tree.ledger))
        assert tree.is_complete
    assert all(other == found[0] for other in found)


def first_actions(tree, parent: int) -> list[tuple[int, ...]]:
    """Token ids modulo 1000 are the letters of an action in the echo world."""
    return [tuple(i % 1000 for i in tree.nodes[kid].token_ids) for kid in trees.children(tree)[parent]]


def repeats(tree: Tree) -> int:
    """Children whose action a sibling has, by the letters: ids of the echo world modulo 1000."""
    below = [[tuple(i % 1000 for i in tree.nodes[kid].token_ids) for kid in kids] for kids in trees.children(tree)]
    return sum(len(actions) - len(set(actions)) for actions in below)


async def forest(rules: TreeRules, order: int) -> tuple[list[Tree], Ledger]:
    """The trees of 6 tasks, and what their growth counted; branches come back in an order drawn from `order`."""
    spec = CollectionSpec(
        phase="train-1", tasks=tuple(task(f"q{i}") for i in range(6)), rules=rules, seed=1,
        sampling=Sampling(max_turn_tokens=8, max_context_tokens=400, max_turns=3),
    )  # fmt: skip
    rng = random.Random(order)
    runner = BranchRunner(CountingEnv(), Wanderer(0.3), CharCodec(), env_timeout_s=1.0)
    collection = Collection(spec)
    back: list[BranchResult] = []
    while not collection.is_complete:
        back += [await runner.run(item) for item in collection.assign("a", rng.randint(1, 4), now=0.0)]
        rng.shuffle(back)
        for _ in range(rng.randint(0, len(back))):
            collection.complete(back.pop())
    return [tree for group in collection.forest() for tree in group.trees], collection.ledger


async def test_whole_collections_with_and_without():
    rules = TreeRules(roots=2, nodes_per_round=2, rounds=2, dedup_attempts=8)
    (plain, counted), (resampled, ledger) = [
        await forest(replace(rules, dedup=dedup), 0) for dedup in ("count", "resample")
    ]
    assert all(len(trees.leaves(tree)) == 5 for tree in [*plain, *resampled])
    assert counted.siblings_equal == sum(map(repeats, plain)) > 10
    assert counted.siblings_resampled == counted.discarded_tokens == 0
    assert sum(map(repeats, resampled)) < counted.siblings_equal / 2, "of 3 actions a 4th child repeats one"
    assert ledger.siblings_resampled > 10
    assert ledger.discarded_tokens > 20
    assert counted.leaves == ledger.leaves == 60


@pytest.mark.parametrize("picking", ["random", "surprisal", "uncertain", "ucb"])
async def test_results_in_any_order_give_the_same_forest(picking):
    rules = TreeRules(nodes_per_round=3, rounds=2, picking=picking, dedup="resample", max_tokens=200, max_tool_calls=20)
    first, counted = await forest(rules, 0)
    assert counted.growth_stopped > 0
    for order in range(1, 4):
        other, ledger = await forest(rules, order)
        assert other == first
        assert replace(ledger, env_seconds=0.0) == replace(counted, env_seconds=0.0)
