"""The gradient inside a tree has the form of step-DPO's, with weight p(win) * p(lose).

One agent step is shared, then the tree branches into two continuations drawn from the policy at the same state s. With
rewards 1 (win) and 0 (lose) and advantages that are not divided by a standard deviation, A = R - mean over the tree:

- Both win or both lose: A = 0, no gradient.
- One wins and one loses: A = +1/2 and -1/2, so the gradient at ratio 1 is
  w/2 * (grad log pi(win|s) - grad log pi(lose|s)), where w is the weight of a leaf. The shared step gets
  w * (1/2 - 1/2) = 0: only the branching counts.

Two independent draws give the pair (win, lose) in either order, with probability 2 * pi(win|s) * pi(lose|s). So the
expected gradient is   w * pi(win|s) * pi(lose|s) * (grad log pi(win|s) - grad log pi(lose|s)),
a preference gradient of the pair at the state where it branches, as in step-DPO (there the weight is
beta * sigmoid(-margin) instead of the product of the probabilities). With several winning and losing continuations the
pairs add up to w * p_win * p_lose * (grad log p_win - grad log p_lose), where p_win = sum of pi(win|s): the
same form for the classes.
"""

from itertools import product

import pytest
import torch
from torch import Tensor

from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, TaskGroup, Tree
from trainer.advantages import advantages
from trainer.config import LossConfig
from trainer.credit import tree_credit
from trainer.leaf_weights import leaf_weights

FIRST = 1
"""The shared step's token; its state is the prompt, state 0. After it the policy is in state 1."""
WEIGHT = 1 / 4
"""seq_mean: one task, two leaves, two sampled tokens on each path."""


def branched(tokens: tuple[int, int], rewards: dict[int, float]) -> TaskGroup:
    def step(parent: int, token: int, reward: float | None) -> Node:
        end = None if reward is None else EndReason.ANSWERED
        return Node(parent=parent, token_ids=(token,), logprobs=(0.0,), versions=(0,), end=end, reward=reward)

    nodes = [Node(parent=-1, observation_ids=(0,)), step(0, FIRST, None)]
    nodes += [step(1, token, rewards[token]) for token in tokens]
    task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
    return TaskGroup(task=task, trees=(Tree(task_id="t", index=0, nodes=nodes),))


def tree_gradient(table: Tensor, group: TaskGroup, kind: str) -> Tensor:
    """Gradient of the objective at ratio 1, where P*min(r, 1+eps) + N*max(r, 1-eps) has slope P + N in log pi."""
    found, tree = advantages(group, kind), group.trees[0]
    credit = tree_credit(tree, found[0], leaf_weights([group], [found], LossConfig())[0][0])
    logprobs = table.log_softmax(-1)
    states = {1: 0, 2: 1, 3: 1}
    terms = [
        (credit.positive[i] + credit.negative[i]) * logprobs[state, tree.nodes[i].token_ids[0]]
        for i, state in states.items()
    ]
    return torch.autograd.grad(torch.stack(terms).sum(), table)[0]


def expected_gradient(table: Tensor, rewards: dict[int, float], kind: str) -> Tensor:
    """Exact expectation over the two continuations: every pair of tokens, weighted with its probability."""
    chance = table[1].detach().softmax(-1)
    total = torch.zeros_like(table)
    for pair in product(rewards, repeat=2):
        total += chance[pair[0]] * chance[pair[1]] * tree_gradient(table, branched(pair, rewards), kind)
    return total


def step_dpo_form(table: Tensor, rewards: dict[int, float]) -> Tensor:
    """p_win * p_lose * (grad log p_win - grad log p_lose) at the state of the branching."""
    logprobs = table.log_softmax(-1)[1]
    win = torch.stack([logprobs[token] for token, reward in rewards.items() if reward == 1]).logsumexp(0)
    lose = torch.stack([logprobs[token] for token, reward in rewards.items() if reward == 0]).logsumexp(0)
    weight = (win + lose).exp().detach()
    return weight * torch.autograd.grad(win - lose, table)[0]


# The factor of A = R - mean over the tree: 1 for `edge` (V(node) - V(parent) at the branching is just that), and 2 for
# `loo`, where the mean leaves the leaf itself out: R - R' = 2 * (R - (R + R')/2).
@pytest.mark.parametrize(("kind", "factor"), [("edge", 1.0), ("loo", 2.0)])
@pytest.mark.parametrize("rewards", [{0: 1.0, 1: 0.0}, {0: 1.0, 1: 0.0, 2: 0.0, 3: 1.0, 4: 0.0}], ids=["two", "five"])
def test_the_gradient_inside_a_tree_has_the_form_of_step_dpo(
    kind: str, factor: float, rewards: dict[int, float]
) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2, len(rewards), generator=generator, dtype=torch.float64).requires_grad_()
    found = expected_gradient(table, rewards, kind)
    torch.testing.assert_close(found, factor * WEIGHT * step_dpo_form(table, rewards), rtol=1e-12, atol=1e-15)
    assert found[1].abs().max() > 0.01
    assert found[0].abs().max() == 0


@pytest.mark.parametrize("tokens", [(0, 0), (1, 1)])
def test_two_wins_or_two_losses_give_no_gradient(tokens: tuple[int, int]) -> None:
    table = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    assert tree_gradient(table, branched(tokens, {0: 1.0, 1: 0.0}), "edge").abs().max() == 0


def test_the_normalised_kinds_point_the_same_way() -> None:
    """Dividing by the standard deviation of (1, 0) only rescales: `intra` is sqrt(2) times A = R - mean, up to eps."""
    table = torch.tensor([[0.0, 0.0], [0.3, -0.4]], dtype=torch.float64, requires_grad=True)
    rewards = {0: 1.0, 1: 0.0}
    scaled = expected_gradient(table, rewards, "intra") / expected_gradient(table, rewards, "edge")
    assert scaled[1].tolist() == pytest.approx([2**0.5, 2**0.5], rel=1e-5)
