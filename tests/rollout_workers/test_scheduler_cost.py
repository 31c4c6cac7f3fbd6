"""What scheduling costs, in executed lines: the same for few and many tasks, branches and actors."""

import pickle
from dataclasses import fields, replace

import pytest
from by_hand import play, spec
from lines import lines_in

from envs.decisions.types import StepRecord
from envs.pickling import Parcel
from envs.types import EndReason
from rollout_workers.collection import Collection
from rollout_workers.growth import TreeRules
from rollout_workers.queues import Lengths
from rollout_workers.types import Ledger, NewNode, Node, WorkItem

PAIRS = TreeRules(roots=1, nodes_per_round=1, rounds=1)


def lines_per_branch(tasks: int, actors: int, at_once: int = 8) -> float:
    """Of a whole collection in which actors ask in turn, are given what there is and bring all of it back."""
    collection = Collection(spec(tasks, rules=PAIRS, steal_after=1.5))
    names = [f"rollout-{i}" for i in range(actors)]
    lines, now = 0, 0.0
    while not collection.is_complete:
        out: list[WorkItem] = []
        for name in names:
            now += 0.001
            lines += lines_in(lambda name=name, now=now, out=out: pull(collection, name, at_once, now, actors, out))
        for result in [play(item, steps=1) for item in out]:
            lines += lines_in(lambda result=result: collection.complete(result))
    return lines / (2 * tasks)


def pull(collection: Collection, name: str, at_once: int, now: float, actors: int, out: list[WorkItem]) -> None:
    """What the scheduler does for one pull."""
    collection.expire(now)
    collection.hear(name, at_once, now)
    out.extend(collection.assign(name, at_once, now, actors))


def test_the_cost_of_a_branch_does_not_grow_with_tasks():
    few, many = lines_per_branch(100, 4), lines_per_branch(4000, 4)
    assert many < 1.1 * few, (few, many)


def test_the_cost_of_a_branch_does_not_grow_with_actors():
    few, many = lines_per_branch(8 * 4, 8), lines_per_branch(1024 * 4, 1024)
    assert many < 1.1 * few, (few, many)


def test_the_cost_of_stealing_does_not_grow_with_holders_and_their_queues():
    """One actor takes everything that waits at many others."""
    counts = []
    for holders in (4, 512):
        collection = Collection(spec(holders, rules=TreeRules(roots=8, rounds=0), steal_after=1.0))
        for index in range(holders):
            assert len(collection.assign(f"holder-{index}", 1, 0.0, holders)) == 1
        stolen = []
        lines = lines_in(lambda c=collection, s=stolen: s.extend(c.assign("thief", 10**6, 0.0, 1)))
        assert len(stolen) == 7 * holders
        counts.append(lines / len(stolen))
    assert counts[1] < 1.1 * counts[0], counts


def test_lengths_know_the_longest_after_any_change():
    lengths = Lengths()
    for name, length in (("a", 3), ("b", 5), ("c", 5), ("b", 1), ("a", 3)):
        lengths.set(name, length)
    assert (lengths.longest(), lengths.total) == (("c", 5), 9)
    lengths.set("c", 0)
    assert (lengths.longest(), lengths.total) == (("a", 3), 4)
    for name in "ab":
        lengths.set(name, 0)
    assert (lengths.longest(), lengths.total) == (None, 0)


def test_a_moved_node_differs_in_nothing_but_the_parent():
    node = Node(
        parent=1, token_ids=(5,), logprobs=(-0.5,), versions=(3,), observation_ids=(7, 8), end=EndReason.ANSWERED,
        reward=0.5, score=1.0, tool_calls=2, note="n", entropy=0.25, slot=4,
        record=StepRecord(node="root", input="{}"), result="{}",
    )  # fmt: skip
    plain = Node(parent=1)
    assert all(getattr(node, f.name) != getattr(plain, f.name) for f in fields(Node) if f.name != "parent")
    assert node.moved(9) == replace(node, parent=9)


def test_what_travels_arrives_equal_and_in_few_bytes():
    collection = Collection(spec(8, rules=TreeRules(roots=2, nodes_per_round=2, rounds=1)))
    items = collection.assign("a", 16, now=0.0)
    results = [play(item) for item in items]
    for parcel in (Parcel(items), Parcel(results)):
        arrived = pickle.loads(pickle.dumps(parcel, protocol=5))
        assert type(arrived) is list
        assert arrived == list(parcel)
    one, all_of_them = (len(pickle.dumps(Parcel(some), protocol=5)) for some in (items[:1], items))
    assert (all_of_them - one) / 15 < 200, "a task's second item repeats neither task nor sampling"
    ledger = Ledger(sampled_tokens=3, env_seconds=0.5)
    assert pickle.loads(pickle.dumps(ledger)) == ledger
    assert pickle.loads(pickle.dumps(NewNode(node=Node(parent=0), state=b"x"))).node.parent == 0
    with pytest.raises(ValueError, match="a Node of another version: 1 fields, not"):
        Node(parent=0).__setstate__((1,))
