"""How much each leaf counts in the loss: the weight w of the objective, over the batch of one optimizer step.

The weights depend on the whole batch of the step and never on how it is split into packs or over ranks, so that the
split cannot change the gradient. A task whose advantages are all 0 counts like any other task.
"""

from collections.abc import Sequence
from typing import TypeAlias

from rollout_workers.trees import path
from rollout_workers.types import TaskGroup, Tree
from trainer.advantages import TreeAdvantages
from trainer.config import LossConfig

Weights: TypeAlias = list[list[dict[int, float]]]
"""`[task][tree]`: leaf's node index -> weight."""


def sampled_tokens(tree: Tree, leaf: int) -> int:
    """|H|: tokens the policy sampled on the path to `leaf`."""
    return sum(len(tree.nodes[index].token_ids) for index in path(tree, leaf))


def leaf_weights(
    groups: Sequence[TaskGroup], advantages: Sequence[Sequence[TreeAdvantages]], loss: LossConfig
) -> Weights:
    """Weight of every leaf that has a reward; w multiplies the loss of each token of the leaf's path.

    With B tasks, G leaves of the task and |H| sampled tokens of the leaf (leaves without a reward count nowhere; one
    with a reward but without a sampled token has weight 0 and counts in G, since it is an outcome like any other):
    `seq_mean` 1/(B*G*|H|), the mean over tasks of the mean over leaves of the mean over tokens (Tree-GRPO);
    `token_mean` 1/sum of |H| over the batch, one constant; `dr_grpo` 1/(B*G*loss.dr_grpo_length).
    """
    lengths = [
        [
            {leaf: sampled_tokens(tree, leaf) for leaf in found.leaves}
            for tree, found in zip(group.trees, per_tree, strict=True)
        ]
        for group, per_tree in zip(groups, advantages, strict=True)
    ]
    counts = [sum(len(tree) for tree in group) for group in lengths]
    tasks = sum(1 for count in counts if count)
    total = sum(length for group in lengths for tree in group for length in tree.values())

    def weight(count: int, length: int) -> float:
        if length == 0:
            return 0.0
        if loss.aggregation == "token_mean":
            return 1.0 / total
        if loss.aggregation == "dr_grpo":
            assert loss.dr_grpo_length is not None, "checked by the configuration"
            return 1.0 / (tasks * count * loss.dr_grpo_length)
        return 1.0 / (tasks * count * length)

    return [
        [{leaf: weight(count, length) for leaf, length in tree.items()} for tree in group]
        for group, count in zip(lengths, counts, strict=True)
    ]
