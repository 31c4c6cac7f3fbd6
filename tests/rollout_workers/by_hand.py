"""Collections played by hand: what to collect, branches made of small numbers, and somebody who runs all of them."""

import random

from echo_world import task

from envs.types import EndReason
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.growth import TreeRules
from rollout_workers.types import BranchResult, Ledger, NewNode, Node, Sampling, WorkItem

PROMPT = (1, 2)


def spec(tasks: int = 1, **changes) -> CollectionSpec:
    rules = changes.pop("rules", TreeRules(roots=2, nodes_per_round=2, rounds=1))
    return CollectionSpec(
        phase="train-1", tasks=tuple(task(f"q{i}") for i in range(tasks)), rules=rules, sampling=Sampling(), seed=5,
        **changes,
    )  # fmt: skip


def play(item: WorkItem, steps: int = 2) -> BranchResult:
    """A branch of `steps` nodes of one token, the item's slot; 7 tokens of prefill, 5 of them lost if stolen."""
    nodes = [
        NewNode(
            node=Node(
                parent=i - 1, token_ids=(item.slot,), logprobs=(-1.0,), versions=(0,), slot=item.slot,
                observation_ids=() if i == steps - 1 else (9,),
                end=EndReason.ANSWERED if i == steps - 1 else None,
                reward=1.0 if i == steps - 1 else None,
                score=1.0 if i == steps - 1 else None,
            ),
            state=None if i == steps - 1 else b"s",
            action=f"{item.id} {i}",
        )
        for i in range(steps)
    ]  # fmt: skip
    return BranchResult(
        item_id=item.id, prompt_ids=() if item.context_ids else PROMPT, nodes=tuple(nodes),
        ledger=Ledger(
            branches=1, sampled_tokens=steps, prefill_tokens_computed=7, prefill_tokens_stolen=5 * item.stolen
        ),
    )  # fmt: skip


def run_to_end(collection: Collection, shuffle: random.Random | None = None) -> None:
    while not collection.is_complete:
        items = collection.assign("a", 100, now=0.0)
        assert items, collection.describe()
        if shuffle:
            shuffle.shuffle(items)
        for item in items:
            assert collection.complete(play(item))
