"""The forest of a collection, played by hand: growth in rounds, leases, affinity, stealing, duplicates."""

import random
from collections import Counter

import pytest
from echo_world import task

from envs.types import EndReason
from rollout_workers import trees
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.growth import TreeRules
from rollout_workers.picking import candidates, pick_random
from rollout_workers.types import BranchResult, Ledger, NewNode, Node, Sampling, Tree, WorkItem


def spec(tasks: int = 1, **changes) -> CollectionSpec:
    rules = changes.pop("rules", TreeRules(roots=2, nodes_per_round=2, rounds=1))
    return CollectionSpec(
        phase="train-1", tasks=tuple(task(f"q{i}") for i in range(tasks)), rules=rules, sampling=Sampling(), seed=5,
        **changes,
    )  # fmt: skip


def play(item: WorkItem, steps: int = 2) -> BranchResult:
    """A branch of `steps` nodes; every token id is the item's slot."""
    nodes = [
        NewNode(node=Node(parent=i - 1, token_ids=(item.slot,), logprobs=(-1.0,), versions=(0,),
                          observation_ids=(9,), slot=item.slot), state=b"s")
        for i in range(steps - 1)
    ]  # fmt: skip
    leaf = Node(parent=steps - 2, token_ids=(item.slot,), logprobs=(-1.0,), versions=(0,), end=EndReason.ANSWERED,
                reward=1.0, score=1.0, slot=item.slot)  # fmt: skip
    return BranchResult(
        item_id=item.id, prompt_ids=(1, 2), nodes=(*nodes, NewNode(node=leaf, state=None)),
        ledger=Ledger(branches=1, sampled_tokens=steps),
    )  # fmt: skip


def run_to_end(collection: Collection, shuffle: random.Random | None = None) -> None:
    while not collection.is_complete:
        items = collection.assign("a", 100, now=0.0)
        assert items, collection.describe()
        if shuffle:
            shuffle.shuffle(items)
        for item in items:
            assert collection.complete(play(item))


def test_a_tree_is_a_chain_and_then_expansions_of_its_nodes():
    collection = Collection(spec())
    run_to_end(collection)
    group = collection.forest()[0]
    assert len(group.trees) == 2
    for tree in group.trees:
        trees.check(tree)
        assert len(trees.leaves(tree)) == 3
        assert tree.nodes[0].observation_ids == (1, 2)
        assert [node.slot for node in tree.nodes] == sorted(node.slot for node in tree.nodes)
    assert (collection.ledger.leaves, collection.ledger.trees, collection.ledger.sampled_tokens) == (6, 2, 12)
    assert collection.progress == (6, 6)


def test_the_forest_does_not_depend_on_the_order_of_results():
    rules = TreeRules(roots=3, nodes_per_round=2, branches_per_node=2, rounds=2)
    plain, mixed = Collection(spec(3, rules=rules)), Collection(spec(3, rules=rules))
    run_to_end(plain)
    run_to_end(mixed, random.Random(0))
    assert plain.forest() == mixed.forest()
    assert all(len(trees.leaves(tree)) == 9 for group in plain.forest() for tree in group.trees)


def test_an_expansion_waits_only_for_its_own_tree():
    collection = Collection(spec())
    first, _second = collection.assign("a", 10, now=0.0)
    collection.complete(play(first))
    expansions = collection.assign("a", 10, now=0.0)
    assert [(item.tree, item.slot) for item in expansions] == [(first.tree, 1), (first.tree, 2)]
    assert all(item.turns_used == (0 if item.parent == 0 else 1) for item in expansions)
    assert all(item.state == (None if item.parent == 0 else b"s") for item in expansions)
    assert all(item.context_ids == ((1, 2) if item.parent == 0 else (1, 2, 0, 9)) for item in expansions)


def test_a_dead_actors_branches_are_done_once_by_another():
    collection = Collection(spec())
    lost = collection.assign("dead", 10, now=0.0)
    assert collection.release("dead") == 2
    run_to_end(collection)
    assert not collection.complete(play(lost[0])), "a late duplicate is dropped"
    assert (collection.ledger.leaves, collection.ledger.branches_requeued) == (6, 2)


def test_an_expired_lease_is_handed_out_again_and_a_late_result_still_counts():
    collection = Collection(spec(lease_timeout_s=10.0))
    late = collection.assign("slow", 10, now=0.0)
    assert collection.expire(now=9.0) == 0
    assert collection.expire(now=10.0) == 2
    assert collection.complete(play(late[0]))
    again = collection.assign("fast", 10, now=11.0)
    assert late[0].id not in [item.id for item in again]
    assert late[1].id in [item.id for item in again]


def test_a_branch_that_never_comes_back_fails_the_collection():
    collection = Collection(spec(max_attempts=2))
    collection.assign("a", 1, now=0.0)
    collection.release("a")
    collection.assign("b", 1, now=0.0)
    with pytest.raises(RuntimeError, match=r"train-1/q0/0/0 was started 2 times .* scheduler.max_attempts is 2"):
        collection.release("b")


def test_trees_of_a_task_stay_with_the_actor_that_holds_them():
    collection = Collection(spec(2))
    mine = collection.assign("a", 1, now=0.0)
    theirs = collection.assign("b", 1, now=0.0)
    assert (mine[0].task.id, theirs[0].task.id) == ("q0", "q1")
    assert collection.assign("a", 1, now=0.0)[0].task.id == "q0"
    assert collection.ledger.branches_stolen == 0


def test_the_first_actor_to_ask_leaves_the_others_their_share():
    collection = Collection(spec(4))
    first = collection.assign("a", 100, now=0.0, actors=2)
    second = collection.assign("b", 100, now=0.0, actors=2)
    assert [item.task.id for item in first] == ["q0", "q0", "q1", "q1"]
    assert [item.task.id for item in second] == ["q2", "q2", "q3", "q3"]
    for item in first:
        collection.complete(play(item))
    assert len(collection.assign("a", 100, now=0.0, actors=2)) == 8, "expansions of its own trees are not limited"


def test_an_idle_actor_steals_from_a_queue_longer_than_steal_after_times_the_mean():
    collection = Collection(spec(1, rules=TreeRules(roots=8, rounds=0), steal_after=1.5))
    collection.assign("a", 1, now=0.0)
    stolen = collection.assign("b", 2, now=0.0)
    assert len(stolen) == 2
    assert collection.ledger.branches_stolen == 2
    patient = Collection(spec(1, rules=TreeRules(roots=8, rounds=0), steal_after=3.0))
    patient.assign("a", 1, now=0.0)
    assert patient.assign("b", 2, now=0.0) == []


def test_random_picking_draws_root_and_inner_nodes_with_replacement():
    tree = Tree(task_id="q", index=0, nodes=[
        Node(parent=-1), Node(parent=0), Node(parent=1, end=EndReason.ANSWERED), Node(parent=0)])  # fmt: skip
    assert candidates(tree) == [0, 1, 3]
    counts = Counter(pick_random(tree, 3000, random.Random(1)))
    assert set(counts) == {0, 1, 3}
    assert all(abs(count - 1000) < 3 * 26 for count in counts.values()), counts  # sd of a count: 25.8
    assert pick_random(tree, 5, random.Random(2)) == pick_random(tree, 5, random.Random(2))


def test_two_tasks_with_one_id_are_refused():
    with pytest.raises(ValueError, match="task id 'q0' appears twice"):
        Collection(
            CollectionSpec(phase="p", tasks=(task("q0"), task("q0")), rules=TreeRules(), sampling=Sampling(), seed=1)
        )
