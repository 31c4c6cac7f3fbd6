"""The gradient identity: a packed tree trains exactly as one row per leaf does."""

from dataclasses import replace

import pytest
import torch
from micro_models import micro_qwen2
from random_forests import random_forest
from torch import Tensor

from rollout_workers import trees
from rollout_workers.types import Forest
from trainer.advantages import TreeAdvantages, advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.forward import PackedPolicy, PackTensors, to_tensors
from trainer.leaf_weights import leaf_weights
from trainer.loss import k3, pack_loss
from trainer.loss_inputs import LossInputs, loss_inputs
from trainer.packing import pack_forest

CPU = torch.device("cpu")


def rows(lm: torch.nn.Module, forest: Forest) -> list[tuple[int, int, int, Tensor, Tensor]]:
    """(task, tree, leaf, log-probabilities, rollout log-probabilities) of the sampled tokens of each path."""
    found = []
    for t, group in enumerate(forest):
        for i, tree in enumerate(group.trees):
            for leaf in trees.leaves(tree):
                ids = torch.tensor(trees.path_ids(tree, leaf))
                logprobs = lm(input_ids=ids[None]).logits[0].log_softmax(-1)
                positions, old, at = [], [], 0
                for node in (tree.nodes[index] for index in trees.path(tree, leaf)):
                    positions += range(at, at + len(node.token_ids))
                    old += node.logprobs
                    at += len(node.token_ids) + len(node.observation_ids)
                where = torch.tensor(positions)
                found.append((t, i, leaf, logprobs[where - 1, ids[where]], torch.tensor(old)))
    return found


def flat_loss(
    lm: torch.nn.Module, reference: torch.nn.Module, forest: Forest, adv: list[list[TreeAdvantages]], config: LossConfig
) -> Tensor:
    """The objective of the method, leaf by leaf and token by token, with min and clip as printed."""
    weights = leaf_weights(forest, adv, config)
    with torch.no_grad():
        fixed = [row[3] for row in rows(reference, forest)]
    total = torch.zeros(())
    for (t, i, leaf, logprobs, old), ref in zip(rows(lm, forest), fixed, strict=True):
        a = adv[t][i].values[leaf]
        ratio = (logprobs - old).exp()
        term = torch.minimum(ratio * a, ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * a)
        if a < 0 and config.dual_clip is not None:
            term = torch.maximum(term, torch.tensor(config.dual_clip * a))
        gap = ref - logprobs
        total = total + weights[t][i][leaf] * (term - config.kl_coef * (gap.exp() - gap - 1)).sum()
    return -total


def score(policy: PackedPolicy, batch: PackTensors) -> tuple[Tensor, Tensor]:
    return policy(batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, 1)


def packed_loss(
    lm: torch.nn.Module,
    reference: torch.nn.Module,
    forest: Forest,
    adv: list[list[TreeAdvantages]],
    config: LossConfig,
    capacity: int,
) -> Tensor:
    packed = pack_forest(forest, adv, config, LearnerConfig(max_tokens_per_pack=capacity))
    total = torch.zeros(())
    for pack in packed.mini_batches[0][0]:
        batch = to_tensors(pack, CPU)
        with torch.no_grad():
            ref = score(PackedPolicy(reference, 1.0), batch)[0]
        total = total + pack_loss(*score(PackedPolicy(lm, 1.0), batch), ref, loss_inputs(pack, CPU), config).loss
    return total


def on_policy(lm: torch.nn.Module, forest: Forest, shift: float) -> None:
    """Replaces the rollout's log-probabilities by the model's own plus noise of size `shift`, in place."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for group in forest:
            for tree in group.trees:
                for index, node in enumerate(tree.nodes):
                    ids = trees.path_ids(tree, index)[: len(trees.path_ids(tree, index)) - len(node.observation_ids)]
                    if not node.token_ids:
                        continue
                    table = lm(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
                    first = len(ids) - len(node.token_ids)
                    own = [table[k - 1, ids[k]].item() for k in range(first, len(ids))]
                    noise = (shift * torch.randn(len(own), generator=generator)).tolist()
                    logprobs = tuple(a + b for a, b in zip(own, noise, strict=True))
                    tree.nodes[index] = replace(node, logprobs=logprobs)


CONFIGS = [
    LossConfig(kl_coef=0.0),
    LossConfig(kl_coef=0.05),
    LossConfig(kl_coef=0.0, dual_clip=None),
    LossConfig(kl_coef=0.0, dual_clip=1.3),
    LossConfig(kl_coef=0.01, clip_low=0.1, clip_high=0.3),
    LossConfig(aggregation="token_mean"),
    LossConfig(aggregation="dr_grpo", dr_grpo_length=20),
]


@pytest.mark.parametrize("shift", [0.0, 0.5], ids=["on_policy", "off_policy"])
@pytest.mark.parametrize("capacity", [64, 512], ids=["split", "whole"])
@pytest.mark.parametrize("config", CONFIGS)
def test_gradient_identity(config: LossConfig, capacity: int, shift: float) -> None:
    lm, reference = micro_qwen2(seed=0).double(), micro_qwen2(seed=1).double()
    forest = random_forest(7, tasks=2)
    on_policy(lm, forest, shift)
    lm, reference = lm.float(), reference.float()
    adv = [advantages(group) for group in forest]
    grads = []
    for loss in (
        flat_loss(lm, reference, forest, adv, config),
        packed_loss(lm, reference, forest, adv, config, capacity),
    ):
        lm.zero_grad()
        loss.backward()
        grads.append([p.grad.clone() for p in lm.parameters()])
    worst = max(((a - b).norm() / a.norm()).item() for a, b in zip(*grads, strict=True))
    assert worst < 1e-5


def batch_of(positive: list[float], negative: list[float], old: list[float]) -> LossInputs:
    return LossInputs(
        positive_R=torch.tensor(positive),
        negative_R=torch.tensor(negative),
        weight_R=torch.ones(len(old)),
        rollout_logprobs_R=torch.tensor(old),
        old_logprobs_R=torch.tensor(old),
    )


def test_numbers_on_paper() -> None:
    """Ratios 2, 0.5, 4: P*min(2, 1.2) = 1.2; N*max(0.5, 0.8) = -0.8; N*min(4, 3) = -3; loss = 2.6."""
    batch = batch_of([1.0, 0.0, 0.0], [0.0, -1.0, -1.0], [0.0, 0.0, 0.0])
    logprobs = torch.tensor([2.0, 0.5, 4.0]).log()
    parts = pack_loss(logprobs, torch.zeros(3), None, batch, LossConfig(kl_coef=0.0))
    assert parts.loss.item() == pytest.approx(2.6)
    assert parts.sums["clipped"].item() == 3
    assert parts.sums["tokens"].item() == 3
    assert parts.largest["ratio_max"].item() == pytest.approx(4)
    assert parts.largest["logprob_diff_max"].item() == pytest.approx(torch.tensor(4.0).log().item())


def test_entropy_bonus_and_kl() -> None:
    batch = batch_of([0.0], [0.0], [0.0])
    config = LossConfig(kl_coef=0.1, entropy_coef=0.5)
    parts = pack_loss(torch.tensor([0.0]), torch.tensor([2.0]), torch.tensor([1.0]), batch, config)
    assert parts.loss.item() == pytest.approx(0.1 * (2.718282 - 2) - 0.5 * 2.0)
    assert parts.sums["kl_reference"].item() == pytest.approx(0.718282)


def test_k3_is_never_negative() -> None:
    assert k3(torch.tensor([0.0, 0.0, -1.0]), torch.tensor([1.0, -1.0, -1.0])).tolist() == pytest.approx(
        [0.718282, 0.367879, 0], abs=1e-6
    )


def test_an_overflowing_ratio_leaves_no_nan() -> None:
    batch = batch_of([1.0], [-1.0], [-500.0])
    logprobs = torch.tensor([0.0], requires_grad=True)
    pack_loss(logprobs, torch.zeros(1), None, batch, LossConfig(kl_coef=0.0)).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0
