"""The loss on numbers that can be checked on paper. That it is the method's objective: `test_identity.py`."""

import math
from dataclasses import replace

import pytest
import torch

from trainer.config import LossConfig
from trainer.loss import k3, pack_loss
from trainer.loss_inputs import LossInputs, UnitTensors


def batch_of(positive: list[float], negative: list[float], old: list[float]) -> LossInputs:
    return LossInputs(
        positive_R=torch.tensor(positive),
        negative_R=torch.tensor(negative),
        weight_R=torch.ones(len(old)),
        rollout_logprobs_R=torch.tensor(old),
        old_logprobs_R=torch.tensor(old),
        current_R=torch.ones(len(old), dtype=torch.bool),
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


def units_of(positive: list[float], negative: list[float], members: list[list[int]]) -> UnitTensors:
    return UnitTensors(
        positive_U=torch.tensor(positive),
        negative_U=torch.tensor(negative),
        size_U=torch.tensor([float(len(rows)) for rows in members]),
        member_rows_E=torch.tensor([row for rows in members for row in rows]),
        member_units_E=torch.tensor([unit for unit, rows in enumerate(members) for _ in rows]),
    )


def test_a_unit_has_the_geometric_mean_of_its_ratios() -> None:
    """Token ratios 4, 1, 0.25: units (4, 1) -> 2, cut at 1.2; (4, 0.25) -> 1. Gain 2*1.2 - 3*1 = -0.6."""
    batch = batch_of([9.0] * 3, [-9.0] * 3, [0.0] * 3)
    batch = replace(batch, units=units_of([2.0, 0.0], [0.0, -3.0], [[0, 1], [0, 2]]))
    logprobs = torch.tensor([4.0, 1.0, 0.25]).log().requires_grad_()
    parts = pack_loss(logprobs, torch.zeros(3), None, batch, LossConfig(kl_coef=0.0))
    assert parts.loss.item() == pytest.approx(0.6)
    assert parts.sums["ratios"].item() == 2
    assert parts.sums["clipped"].item() == 1
    parts.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([1.5, 0, 1.5])


def test_tokens_of_another_pack_count_in_ratios_only() -> None:
    """The first token has weight 0: its infinite KL, entropy and mismatch belong to the pack that trains it."""
    batch = replace(batch_of([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]), weight_R=torch.tensor([0.0, 1.0]))
    batch = replace(batch, units=units_of([1.0], [0.0], [[0, 1]]))
    config = LossConfig(kl_coef=0.1, entropy_coef=0.5)
    parts = pack_loss(torch.tensor([-200.0, 0.0]), torch.tensor([7.0, 2.0]), torch.zeros(2), batch, config)
    assert parts.loss.item() == pytest.approx(-math.exp(-100) - 0.5 * 2.0)
    assert parts.sums["tokens"].item() == 1
    assert parts.sums["entropy"].item() == 2
    assert parts.sums["kl_engine"].item() == 0


def test_truncated_weights_multiply_the_policy_gradient_only() -> None:
    """Old to engine probability 4 (cut at 2) and 0.5; ratios 1: gain 2*1 - 0.5*1. The KL term is not weighted."""
    batch = batch_of([1.0, 0.0], [0.0, -1.0], [0.25, 2.0])
    engine = torch.tensor([0.25, 2.0]).log()
    batch = replace(batch, rollout_logprobs_R=engine, old_logprobs_R=None)
    config = LossConfig(kl_coef=0.1, old_logprobs="recompute", tis_cap=2.0)
    logprobs = torch.zeros(2, requires_grad=True)
    parts = pack_loss(logprobs, torch.zeros(2), torch.tensor([1.0, 0.0]), batch, config)
    assert parts.loss.item() == pytest.approx(-1.5 + 0.1 * (math.e - 2))
    assert parts.sums["tis_weight"].item() == pytest.approx(2.5)
    assert parts.sums["tis_capped"].item() == 1
    parts.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-2 + 0.1 * (1 - math.e), 0.5])


def test_truncated_weight_of_a_unit_is_its_geometric_mean() -> None:
    """Old to engine 4 and 1: the unit of both has weight 2, below the cap of 3."""
    batch = batch_of([0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    batch = replace(batch, rollout_logprobs_R=torch.tensor([0.25, 1.0]).log(), units=units_of([1.0], [0.0], [[0, 1]]))
    config = LossConfig(kl_coef=0.0, old_logprobs="recompute", tis_cap=3.0)
    assert pack_loss(torch.zeros(2), torch.zeros(2), None, batch, config).loss.item() == pytest.approx(-2)


def test_mismatch_compares_engine_and_learner_whatever_is_old() -> None:
    batch = replace(batch_of([1.0], [0.0], [0.0]), rollout_logprobs_R=torch.tensor([-0.5]))
    parts = pack_loss(torch.tensor([0.0]), torch.zeros(1), None, batch, LossConfig(kl_coef=0.0))
    assert parts.sums["kl_old"].item() == 0
    assert parts.sums["kl_engine"].item() == pytest.approx(math.exp(0.5) - 1.5)
    assert parts.largest["logprob_diff_max"].item() == 0.5
