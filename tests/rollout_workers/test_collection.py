"""The forest of a collection, played by hand: growth in rounds, leases, affinity, stealing, duplicates."""

import random
from dataclasses import asdict

import pytest
from by_hand import PROMPT, play, run_to_end, spec
from echo_world import task

from rollout_workers import trees
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.dispatch import SILENCE_S
from rollout_workers.growth import TreeRules
from rollout_workers.types import Ledger, Sampling

CHAINS = TreeRules(roots=8, rounds=0)


def test_a_tree_is_a_chain_and_then_expansions_of_its_nodes():
    collection = Collection(spec())
    run_to_end(collection)
    group = collection.forest()[0]
    assert len(group.trees) == 2
    for tree in group.trees:
        trees.check(tree)
        assert len(trees.leaves(tree)) == 3
        assert tree.nodes[0].observation_ids == PROMPT
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


def test_a_slow_branch_keeps_its_lease_while_it_makes_steps():
    collection = Collection(spec(lease_timeout_s=10.0))
    slow, silent = collection.assign("a", 2, now=0.0)
    collection.renew("a", [slow.id, "train-0/gone/0/0"], 6.0)
    collection.renew("b", [silent.id], 9.0)
    assert collection.expire(now=10.0) == 1, "who does not hold it cannot renew it"
    assert [item.id for item in collection.assign("b", 1, now=12.0)] == [silent.id]
    collection.renew("a", [slow.id], 15.0)
    assert collection.expire(now=21.0) == 0
    assert collection.expire(now=24.0) == 1
    assert collection.expire(now=25.0) == 1, "ten seconds after its last step"
    assert collection.complete(play(slow))


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
    collection = Collection(spec(1, rules=CHAINS, steal_after=1.5))
    collection.assign("a", 1, now=0.0)
    stolen = collection.assign("b", 2, now=0.0)
    assert [item.stolen for item in stolen] == [True, True]
    assert collection.ledger.branches_stolen == 2
    patient = Collection(spec(1, rules=CHAINS, steal_after=3.0))
    patient.assign("a", 1, now=0.0)
    assert patient.assign("b", 2, now=0.0) == []


def test_two_tasks_with_one_id_are_refused():
    with pytest.raises(ValueError, match="task id 'q0' appears twice"):
        Collection(
            CollectionSpec(phase="p", tasks=(task("q0"), task("q0")), rules=TreeRules(), sampling=Sampling(), seed=1)
        )


def test_an_actor_that_runs_nothing_steals_though_all_queues_are_equal():
    collection = Collection(spec(2, rules=CHAINS, steal_after=1.5))
    for actor in "ab":
        assert (
            len(collection.assign(actor, 1, now=0.0, actors=3)) == 1
        )  # 7 wait for each, the mean of 3 is 14/3 < 7/1.5
    assert len(collection.assign("c", 1, now=0.0, actors=3)) == 1
    collection.assign("b", 1, now=0.0, actors=3)
    assert collection.assign("c", 1, now=0.0, actors=3) == [], "it runs something, and 6 is not above 1.5 times 12/3"


def test_what_the_holder_has_room_for_is_kept_for_it_until_it_falls_silent():
    collection = Collection(spec(1, rules=CHAINS, steal_after=1.5))
    collection.hear("a", 6, now=0.0)
    collection.assign("a", 1, now=0.0, actors=2)  # room for 5 of the 7 that wait
    assert len(collection.assign("b", 10, now=0.0, actors=2)) == 2
    assert collection.assign("b", 10, now=1.0, actors=2) == []
    collection.hear("b", 10, now=SILENCE_S + 0.1)
    assert len(collection.assign("b", 10, now=SILENCE_S + 0.1, actors=2)) == 5


def test_a_finished_branch_makes_room_for_one_more():
    collection = Collection(spec(1, rules=CHAINS, steal_after=1.5))
    collection.hear("a", 1, now=0.0)
    (mine,) = collection.assign("a", 1, now=0.0, actors=2)
    collection.complete(play(mine))
    assert len(collection.assign("b", 10, now=0.0, actors=2)) == 6, "one of the 7 that wait is kept"


def test_a_busy_holder_is_relieved_of_what_it_has_room_for():
    collection = Collection(spec(1, rules=CHAINS, steal_after=1.5))
    collection.hear("a", 8, now=0.0)
    collection.assign("a", 1, now=0.0, actors=2)
    # loads (a, b), mean 4: (8, 0), then (7, 1), then (6, 2), which is not above 1.5 times 4
    assert [len(collection.relieve("a", "b", capacity, 0.0, 2)) for capacity in (1, 9, 9)] == [1, 1, 0]
    assert collection.relieve("a", "a", 9, 0.0, 2) == []
    assert len(collection.relieve("a", "c", 9, 0.0, 8)) == 1, "the mean of 8 is 1"


def test_the_ledger_of_a_task_on_paper():
    """Two trees of 3 branches; 1 is stolen, 2 come twice, the stolen one too, and 1 is of another collection."""
    collection = Collection(spec(1, steal_after=1.5))
    first = collection.assign("a", 1, now=0.0, actors=2) + collection.assign("b", 1, now=0.0, actors=2)
    for item in first:
        assert collection.complete(play(item))
    assert not collection.complete(play(first[0]))
    assert not collection.complete(play(first[1], steps=3))
    while items := collection.assign("a", 10, now=0.0, actors=2):
        for item in items:
            collection.complete(play(item, steps=1))
    foreign = Collection(spec(1, rules=CHAINS)).assign("a", 3, now=0.0)[2]
    assert not collection.complete(play(foreign))
    (group,) = collection.forest()
    cost = group.ledger
    assert (cost.branches, cost.leaves, cost.trees, cost.branches_stolen) == (8, 6, 2, 1)
    assert cost.prefill_tokens_stolen == 2 * 5
    assert cost.prefill_tokens_computed == 8 * 7
    assert cost.discarded_tokens == 2 + 3
    assert cost.sampled_tokens == 2 * 2 + 4 * 1 + 2 + 3
    assert cost.prefill_tokens_unique == len(PROMPT) + 2  # one observation in each first chain
    assert collection.overhead == Ledger(branches=1, sampled_tokens=2, prefill_tokens_computed=7, discarded_tokens=2)


def test_the_collections_ledger_is_the_sum_over_tasks_and_what_belongs_to_none():
    collection = Collection(spec(3, rules=TreeRules(roots=2, nodes_per_round=2, rounds=2)))
    collection.overhead.surplus_tokens += 7
    collection.assign("dead", 4, now=0.0)
    collection.release("dead")
    run_to_end(collection, random.Random(1))
    total = Ledger(surplus_tokens=7)
    for group in collection.forest():
        total.add(group.ledger)
    assert asdict(total) == asdict(collection.ledger)
    assert (total.leaves, total.trees, total.branches_requeued) == (30, 6, 4)


def test_progress_and_completion_follow_a_budget_and_repeated_branches():
    rules = TreeRules(roots=1, nodes_per_round=2, rounds=3, max_tool_calls=None, max_tokens=12)
    collection = Collection(spec(2, rules=rules))
    assert collection.progress == (0, 14)
    run_to_end(collection)
    grown = [len(trees.leaves(tree)) for group in collection.forest() for tree in group.trees]
    assert all(leaves < 7 for leaves in grown)
    assert collection.progress == (sum(grown), sum(grown))
    assert collection.ledger.leaves == sum(grown)
    assert collection.ledger.growth_stopped == 2, "what growth counts is part of the ledger"


def test_describe_names_who_holds_what():
    collection = Collection(spec(2))
    collection.assign("b", 1, now=0.0)
    collection.assign("a", 1, now=0.0)
    assert collection.describe() == "0 of 12 leaves grown, 2 branches queued, 2 branches held by a, b"
    assert collection.parties("train-1/q0/0/0") == ("b", "b")
    assert collection.parties("train-1/q0/1/0") == (None, "b")
    assert collection.parties("other") == (None, None)
    many = Collection(spec(10, rules=CHAINS))
    for number in range(10):
        many.assign(f"r{number}", 8, now=0.0, actors=10)
    assert many.describe().endswith("80 branches held by r0, r1, r2, r3, r4, r5, r6, r7 and 2 more")
