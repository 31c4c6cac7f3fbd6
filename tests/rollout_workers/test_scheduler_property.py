"""Whatever happens to actors and branches: each leaf comes exactly once, and the ledger has every token."""

from dataclasses import asdict

from by_hand import play, run_to_end, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_workers import trees
from rollout_workers.collection import Collection
from rollout_workers.growth import TreeRules
from rollout_workers.types import Ledger, WorkItem

RULES = TreeRules(roots=2, nodes_per_round=2, rounds=2)
SPEC = spec(3, rules=RULES, steal_after=1.5, lease_timeout_s=5.0, max_attempts=1000)
FOREIGN = Collection(spec(1, rules=TreeRules(roots=9, rounds=0))).assign("x", 9, now=0.0)[8]
ACTORS = ("a", "b", "c")


def plain_forest() -> list:
    collection = Collection(SPEC)
    run_to_end(collection)
    return [group.trees for group in collection.forest()]


EXPECTED = plain_forest()


class World:
    """A collection and all branches that some actor has, also those that nobody waits for any more."""

    def __init__(self) -> None:
        self.collection = Collection(SPEC)
        self.now = 0.0
        self.in_hand: list[WorkItem] = []
        self.results = self.discarded = self.requeued = self.stolen = self.stolen_results = 0

    def take(self, actor: str, capacity: int, says_room: bool) -> None:
        if says_room:
            self.collection.hear(actor, capacity, self.now)
        items = self.collection.assign(actor, capacity, self.now, len(ACTORS))
        assert len(items) <= capacity
        self._get(items)

    def _get(self, items: list[WorkItem]) -> None:
        self.in_hand += items
        self.stolen += sum(item.stolen for item in items)

    def _come(self, item: WorkItem) -> None:
        self.results += 1
        self.stolen_results += item.stolen
        self.discarded += not self.collection.complete(play(item))

    def relieve(self, owner: str, thief: str) -> None:
        self._get(self.collection.relieve(owner, thief, 3, self.now, len(ACTORS)))

    def bring(self, place: int, keep: bool) -> None:
        """A branch comes back; with `keep` it will come again."""
        if not self.in_hand:
            return
        index = place % len(self.in_hand)
        self._come(self.in_hand[index] if keep else self.in_hand.pop(index))

    def stray(self) -> None:
        before = self.discarded
        self._come(FOREIGN)
        assert self.discarded == before + 1

    def lose(self, actor: str) -> None:
        """The actor is declared dead; its branches may still come, as after a lost connection."""
        self.requeued += self.collection.release(actor)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.requeued += self.collection.expire(self.now)

    def finish(self) -> None:
        for _ in range(20):  # after 6 s nothing is out any more, and nothing is kept for the other actors
            if self.collection.is_complete:
                return
            self.wait(6.0)
            self.take("last", 100, False)
            while self.in_hand:
                self._come(self.in_hand.pop())


actors = st.sampled_from(ACTORS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), actors, st.integers(1, 6), st.booleans()),
        st.tuples(st.just("bring"), st.integers(0, 99), st.booleans()),
        st.tuples(st.just("relieve"), actors, actors),
        st.tuples(st.just("stray")),
        st.tuples(st.just("lose"), actors),
        st.tuples(st.just("wait"), st.sampled_from((1.0, 3.0, 6.0))),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_each_leaf_comes_once_and_no_token_is_lost(story):
    world = World()
    for name, *arguments in story:
        getattr(world, name)(*arguments)
        collection = world.collection
        done, total = collection.progress
        assert total == 3 * 2 * 5
        assert done + collection.queued + collection.leases <= total
    world.finish()
    forest, ledger = collection_end(world.collection)
    assert [group.trees for group in forest] == EXPECTED, "the forest does not depend on the story"
    slots = [sorted(tree.nodes[leaf].slot for leaf in trees.leaves(tree)) for group in forest for tree in group.trees]
    assert slots == [list(range(5))] * 6
    assert (ledger.branches, ledger.leaves, ledger.trees) == (world.results, 30, 6)
    assert (ledger.sampled_tokens, ledger.discarded_tokens) == (2 * world.results, 2 * world.discarded)
    assert ledger.branches_requeued == world.requeued
    assert (ledger.branches_stolen, ledger.prefill_tokens_stolen) == (world.stolen, 5 * world.stolen_results)
    assert world.collection.queued == world.collection.leases == 0


def collection_end(collection: Collection):
    """The forest, and its ledger after a check that the parts are the whole."""
    total = Ledger()
    total.add(collection.overhead)
    for group in collection.forest():
        total.add(group.ledger)
    assert asdict(total) == asdict(collection.ledger)
    return collection.forest(), total
