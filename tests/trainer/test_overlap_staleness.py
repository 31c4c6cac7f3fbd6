"""The bound on staleness with hand-made forests, and what mixed versions do to the loss: numbers on paper.

The tree: a prompt, a shared step 1 (version 3), and three leaves: 2 (version 3), 3 (versions 3, 4), and 5, which
continues from step 4 (version 2) below step 1.
"""

import math
from dataclasses import replace

import pytest
import torch

from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, Pick, TaskGroup, Tree
from trainer.advantages import advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.loss import pack_loss
from trainer.loss_inputs import loss_inputs
from trainer.packing import pack_forest
from trainer.staleness import fresh, pruned, staleness_metrics


def step(parent: int, *versions: int, reward: float | None = None) -> Node:
    return Node(
        parent=parent, token_ids=tuple(range(5, 5 + len(versions))), logprobs=(-1.0,) * len(versions),
        versions=versions, observation_ids=() if reward is not None else (8,), reward=reward,
        end=None if reward is None else EndReason.ANSWERED,
    )  # fmt: skip


def grown(*nodes: Node, name: str = "a", index: int = 0, picks: tuple[Pick, ...] = ()) -> Tree:
    return Tree(task_id=name, index=index, nodes=[Node(parent=-1, observation_ids=(1, 2)), *nodes], picks=list(picks))


def group(*trees: Tree) -> TaskGroup:
    task = Task(id=trees[0].task_id, prompt=(Message(role="user", content="?"),), truth=("x",))
    return TaskGroup(task=task, trees=trees)


def test_a_typed_tree_stays_typed_when_branches_are_cut() -> None:
    typed = replace(grown(step(0, 3), step(1, 2, reward=0.0), step(1, 3, reward=1.0)), typed=True)
    (kept,), cut = fresh([group(typed)], oldest=3)
    assert cut.leaves == 1
    assert kept.trees[0].typed
    assert len(kept.trees[0].nodes) == 3


PICKS = (Pick(scores=((0, 0.5), (1, 0.25), (4, 0.125)), chosen=(1, 4)),)
TREE = grown(
    step(0, 3),
    step(1, 3, 3, reward=1.0),
    step(1, 3, 4, reward=0.0),
    step(1, 2, 2),
    step(4, 4, reward=0.5),
    picks=PICKS,
)


def test_within_the_bound_nothing_changes():
    forest = [group(TREE)]
    kept, cut = fresh(forest, oldest=2)
    assert kept[0].trees[0] is TREE
    assert (cut.leaves, cut.tokens, cut.groups) == (0, 0, 0)


def test_a_branch_with_a_too_old_token_goes_with_the_steps_that_only_it_holds():
    """Below version 3 only step 4 is too old: leaf 5 and step 4 go, 3 tokens; the rest keeps its place."""
    kept, cut = fresh([group(TREE)], oldest=3)
    assert [(node.parent, node.versions) for node in kept[0].trees[0].nodes] == [
        (-1, ()), (0, (3,)), (1, (3, 3)), (1, (3, 4)),
    ]  # fmt: skip
    assert (cut.leaves, cut.tokens, cut.groups) == (1, 3, 0)
    assert kept[0].trees[0].picks == [Pick(scores=((0, 0.5), (1, 0.25)), chosen=(1,))]


def test_an_old_shared_step_makes_every_leaf_under_it_stale():
    young = grown(step(0, 4, reward=1.0), index=1)
    kept, cut = fresh([group(TREE, young)], oldest=4)
    assert [tree.index for tree in kept[0].trees] == [1]
    assert (cut.leaves, cut.tokens, cut.groups) == (3, 8, 0)
    kept, cut = fresh([group(TREE), group(young)], oldest=5)
    assert kept == []
    assert (cut.leaves, cut.groups) == (4, 2)


def test_indices_move_up_where_nodes_are_cut():
    """Without leaves 2 and 3, step 4 becomes node 2 and leaf 5 node 3."""
    found = pruned(TREE, [5])
    assert [node.parent for node in found.nodes] == [-1, 0, 1, 2]
    assert found.picks == [Pick(scores=((0, 0.5), (1, 0.25), (2, 0.125)), chosen=(1, 2))]


def test_the_rewards_of_cut_leaves_leave_the_statistics():
    """`loo` over rewards 1, 0, 0.5: 1 - 0.25; without the 0.5: 1 - 0."""
    (before,) = advantages(group(TREE), "loo")
    assert before.values[2] == pytest.approx(0.75)
    (after,) = advantages(fresh([group(TREE)], oldest=3)[0][0], "loo")
    assert after.values == {2: 1.0, 3: -1.0}


def test_age_is_counted_over_sampled_tokens_each_once():
    """Version 4 is trained; ages 1; 1, 1; 1, 0; 2, 2; 0: 8 in all over 8 tokens. Leaves 3 and 5 are mixed."""
    assert staleness_metrics([group(TREE)], 4) == {
        "rollout/staleness_mean": 1.0,
        "rollout/staleness_max": 2.0,
        "rollout/mixed_version_branches": 2.0,
    }
    assert staleness_metrics([], 4)["rollout/staleness_max"] == 0.0


def packed(loss: LossConfig):
    """One leaf of two tokens, sampled by versions 3 and 4 with log-probabilities ln 0.25 and ln 0.5."""
    leaf = replace(step(0, 3, 4, reward=1.0), logprobs=(math.log(0.25), math.log(0.5)))
    other = step(0, 4, reward=0.0)
    forest = [group(grown(leaf, other))]
    credit = [advantages(forest[0], "loo")]
    found = pack_forest(forest, credit, loss, LearnerConfig(), 64, 4)
    (pack,) = found.mini_batches[0][0]
    return pack


def test_packs_mark_the_tokens_of_the_weights_that_are_trained():
    pack = packed(LossConfig(kl_coef=0.0))
    assert pack.ids.tolist() == [1, 2, 5, 6, 5]
    assert pack.is_current.tolist()[2:] == [False, True, True]


def test_the_ratio_of_each_token_is_against_the_version_that_sampled_it():
    """The learner gives 0.3, 0.5 and e^-1: ratios 1.2 and 1 for the mixed path, whose weights are 1/(2*2), A = 1."""
    loss = LossConfig(kl_coef=0.0, clip_high=0.5)
    batch = loss_inputs(packed(loss), torch.device("cpu"))
    logprobs = torch.tensor([math.log(0.3), math.log(0.5), -1.0], requires_grad=True)
    parts = pack_loss(logprobs, torch.zeros(3), None, batch, loss)
    assert parts.loss.item() == pytest.approx(-(1.2 + 1.0) / 4 + 1.0 / 2)
    assert parts.largest["logprob_diff_max"].item() == pytest.approx(0.0, abs=1e-6)
    assert parts.sums["current"].item() == 2
    assert parts.sums["kl_engine"].item() == pytest.approx(0.0, abs=1e-6)


def test_decoupled_the_cap_weighs_each_token_by_what_its_own_version_thought():
    """Recomputed old log-probabilities: every ratio is 1, weighted with min(0.3/0.25, 1.1), 0.5/0.5 and 1."""
    loss = LossConfig(kl_coef=0.0, old_logprobs="recompute", tis_cap=1.1)
    batch = replace(loss_inputs(packed(loss), torch.device("cpu")), old_logprobs_R=None)
    logprobs = torch.tensor([math.log(0.3), math.log(0.5), -1.0], requires_grad=True)
    parts = pack_loss(logprobs, torch.zeros(3), None, batch, loss)
    parts.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1.1 / 4, -1.0 / 4, 1.0 / 2])
