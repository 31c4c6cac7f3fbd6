"""Branches played by hand, for tests of how one tree grows."""

from collections.abc import Sequence
from dataclasses import replace

from echo_world import task

from envs.types import EndReason
from rollout_workers.growth import TreeGrowth, TreeRules
from rollout_workers.types import BranchResult, Ledger, NewNode, Node, Sampling, WorkItem

PROMPT = tuple(range(10))


def growth(rules: TreeRules, *, seed: int = 5, topk: int = 20) -> TreeGrowth:
    return TreeGrowth(
        task=task("q"), index=0, phase="train-1", seed=seed, rules=rules, sampling=Sampling(entropy_topk=topk)
    )


def step(
    parent: int = -1,
    *,
    surprise: float = 1.0,
    entropy: float | None = None,
    tokens: int = 1,
    observation: int = 0,
    calls: int = 0,
    end: EndReason | None = None,
    score: float | None = None,
) -> Node:
    """A node whose first token has log-probability -`surprise`, the others 0."""
    return Node(
        parent=parent,
        token_ids=(7,) * tokens,
        logprobs=(-surprise, *[0.0] * (tokens - 1)),
        versions=(0,) * tokens,
        observation_ids=(9,) * observation,
        tool_calls=calls,
        entropy=entropy,
        end=end,
        score=score,
        reward=score,
    )


def answer(score: float | None = 0.0, **changes) -> Node:
    """A leaf; without a score one that ended in an environment error."""
    return step(end=EndReason.ENV_ERROR if score is None else EndReason.ANSWERED, score=score, **changes)


def branch(item: WorkItem, *nodes: Node, action: str = "", ledger: Ledger | None = None) -> BranchResult:
    """`nodes` in a row, the first one with the text `action` (default: one that no sibling has)."""
    assert nodes[-1].is_leaf
    texts = [action or item.id, *[""] * (len(nodes) - 1)]
    numbered = [
        NewNode(
            node=replace(node, parent=place - 1, slot=item.slot),
            state=None if node.is_leaf else b"s",
            action=texts[place],
        )
        for place, node in enumerate(nodes)
    ]
    return BranchResult(
        item_id=item.id,
        prompt_ids=item.context_ids or PROMPT,
        nodes=tuple(numbered),
        ledger=ledger or Ledger(branches=1),
    )


def accept(tree: TreeGrowth, results: Sequence[BranchResult]) -> list[WorkItem]:
    """Hands in the results in their order; the work that came of the last one."""
    found: list[WorkItem] = []
    for result in results:
        assert not found, "work came before every branch was back"
        found = tree.accept(result.item_id, result)
    return found
