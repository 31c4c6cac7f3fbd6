"""The clipped policy-gradient loss on a pack.

Leaves that share a prefix share its tokens, so the sum over leaves folds into three weights per token (P, N, W of
`TreePack`): each token is trained once, with exactly the gradient of one row per leaf. Where a whole agent step or a
whole path shares one ratio, P and N belong to that unit (`RatioUnits`), while the KL and entropy terms stay per token.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import LossConfig
from trainer.loss_inputs import LossInputs

LOG_RATIO_MAX = 30.0
"""Far beyond every clip range; keeps an infinite ratio from meeting a zero gradient, which would make a NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """The loss of one pack, and sums for the log that add up over packs and ranks."""

    loss: Tensor
    """Scalar to minimise; the sum over all packs of the optimizer step is the loss of the step."""
    sums: dict[str, Tensor]
    """Sums over the pack's trained tokens (divide by `tokens`) or over its ratios (divide by `ratios`)."""
    largest: dict[str, Tensor]
    """Maxima over the pack's trained tokens or ratios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """What is clipped: one ratio per trained token or per unit. Q ratios."""

    positive_Q: Tensor
    negative_Q: Tensor
    ratio_Q: Tensor
    """New to old probability; of a unit the geometric mean over its tokens (GSPO, arXiv 2507.18071, Eq. 7)."""
    engine_ratio_Q: Tensor
    """Old policy's probability to the rollout engine's, in the same mean; without gradient."""


def pack_loss(
    logprobs_R: Tensor, entropy_R: Tensor, reference_R: Tensor | None, batch: LossInputs, config: LossConfig
) -> LossParts:
    """-[sum over ratios of v*(P*min(r, 1+hi) + N*max(r, 1-lo)) + sum over tokens of W*(entropy_coef*H - kl_coef*K3)].

    r = exp(logprob - old_logprob), averaged in the exponent over a unit's tokens where there are units. With
    `dual_clip` c the second term is N*min(max(r, 1-lo), c). v = min(old / engine probability, `tis_cap`) without
    gradient, and 1 without a cap: truncated importance sampling corrects for an engine that samples from a slightly
    different policy than the learner computes (Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"). K3 is exp(d) - d - 1 with d = reference - logprob (Schulman's estimator of
    KL(policy, reference)). `reference_R` is needed if and only if `kl_coef` is above 0.
    """
    ratios = _ratios(logprobs_R, batch)
    gain_Q = ratios.positive_Q * ratios.ratio_Q.clamp(max=1 + config.clip_high)
    gain_Q = gain_Q + ratios.negative_Q * ratios.ratio_Q.clamp(min=1 - config.clip_low, max=config.dual_clip)
    if config.tis_cap is not None:
        gain_Q = gain_Q * ratios.engine_ratio_Q.clamp(max=config.tis_cap)
    loss = -gain_Q.sum()
    sums = _token_sums(logprobs_R.detach(), entropy_R.detach(), batch) | _ratio_sums(ratios, config)
    if config.entropy_coef > 0:
        loss = loss - config.entropy_coef * (batch.weight_R * entropy_R).sum()
    if config.kl_coef > 0:
        assert reference_R is not None, "a KL term needs reference log-probabilities"
        trained_R = batch.weight_R != 0
        kl_K = k3(logprobs_R[trained_R], reference_R[trained_R])
        loss = loss + config.kl_coef * (batch.weight_R[trained_R] * kl_K).sum()
        sums["kl_reference"] = kl_K.detach().sum()
    gap_R = (logprobs_R.detach() - batch.rollout_logprobs_R).abs()
    largest = {"ratio_max": _max(ratios.ratio_Q.detach()), "logprob_diff_max": _max(gap_R)}
    return LossParts(loss=loss, sums=sums, largest=largest)


def k3(logprobs_R: Tensor, other_R: Tensor) -> Tensor:
    """Per-token K3 estimate of KL(policy, other) from tokens the policy sampled; never below 0."""
    gap_R = other_R - logprobs_R
    return torch.exp(gap_R) - gap_R - 1


def _ratios(logprobs_R: Tensor, batch: LossInputs) -> Ratios:
    old_R = _old(logprobs_R, batch)
    new_Q, engine_Q = logprobs_R - old_R, old_R - batch.rollout_logprobs_R
    positive_Q, negative_Q = batch.positive_R, batch.negative_R
    if batch.units is not None:
        new_Q, engine_Q = batch.units.mean(new_Q), batch.units.mean(engine_Q)
        positive_Q, negative_Q = batch.units.positive_U, batch.units.negative_U
    return Ratios(
        positive_Q=positive_Q,
        negative_Q=negative_Q,
        ratio_Q=torch.exp(new_Q.clamp(max=LOG_RATIO_MAX)),
        engine_ratio_Q=torch.exp(engine_Q.clamp(max=LOG_RATIO_MAX)),
    )


def _old(logprobs_R: Tensor, batch: LossInputs) -> Tensor:
    return logprobs_R.detach() if batch.old_logprobs_R is None else batch.old_logprobs_R


def _token_sums(logprobs_R: Tensor, entropy_R: Tensor, batch: LossInputs) -> dict[str, Tensor]:
    """Over trained tokens only: those that another pack trains would count twice."""
    trained_R = batch.weight_R != 0
    return {
        "tokens": trained_R.sum(dtype=torch.float32),
        "kl_old": k3(_old(logprobs_R, batch), logprobs_R)[trained_R].sum(),
        "kl_engine": k3(batch.rollout_logprobs_R, logprobs_R)[trained_R].sum(),
        "entropy": entropy_R[trained_R].sum(),
    }


def _ratio_sums(ratios: Ratios, config: LossConfig) -> dict[str, Tensor]:
    """`clipped` counts ratios of which some leaf's term has no gradient because the ratio left the clip range."""
    ratio_Q = ratios.ratio_Q.detach()
    upper = config.dual_clip if config.dual_clip is not None else math.inf
    clipped_Q = (ratios.positive_Q > 0) & (ratio_Q > 1 + config.clip_high)
    clipped_Q |= (ratios.negative_Q < 0) & ((ratio_Q < 1 - config.clip_low) | (ratio_Q > upper))
    sums = {"ratios": ratio_Q.new_tensor(len(ratio_Q)), "clipped": clipped_Q.sum(dtype=torch.float32)}
    if config.tis_cap is not None:
        sums["tis_weight"] = ratios.engine_ratio_Q.clamp(max=config.tis_cap).sum()
        sums["tis_capped"] = (ratios.engine_ratio_Q > config.tis_cap).sum(dtype=torch.float32)
    return sums


def _max(values_Q: Tensor) -> Tensor:
    return values_Q.max() if len(values_Q) else values_Q.new_zeros(())
