"""Random trees of random tokens, for tests that compare two ways to compute the same number."""

import random

from envs.types import EndReason, Message, Task
from rollout_workers.types import Forest, Node, TaskGroup, Tree


def random_tree(
    rng: random.Random, task_id: str, index: int, *, steps: int = 3, branches: int = 2, vocab: int = 64
) -> Tree:
    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab) for _ in range(rng.randint(low, high)))

    tree = Tree(task_id=task_id, index=index, nodes=[Node(parent=-1, observation_ids=ids(3, 6))])

    def chain(parent: int, slot: int) -> None:
        for left in range(rng.randint(1, steps), 0, -1):
            sampled = ids(1, 5)
            tree.nodes.append(
                Node(
                    parent=parent,
                    token_ids=sampled,
                    logprobs=tuple(rng.uniform(-6.0, -2.5) for _ in sampled),
                    versions=(0,) * len(sampled),
                    observation_ids=ids(1, 6) if left > 1 else (),
                    end=EndReason.ANSWERED if left == 1 else None,
                    reward=rng.choice((0.0, 0.3, 1.0)) if left == 1 else None,
                    slot=slot,
                )
            )
            parent = len(tree.nodes) - 1

    chain(0, 0)
    for slot in range(1, branches + 1):
        chain(rng.choice([i for i, node in enumerate(tree.nodes) if not node.is_leaf]), slot)
    return tree


def random_forest(seed: int, *, tasks: int = 3, trees: int = 2, vocab: int = 64) -> Forest:
    rng = random.Random(seed)
    return [
        TaskGroup(
            task=Task(id=f"t{t}", prompt=(Message(role="user", content="?"),), truth=("x",)),
            trees=tuple(random_tree(rng, f"t{t}", i, vocab=vocab) for i in range(trees)),
        )
        for t in range(tasks)
    ]
