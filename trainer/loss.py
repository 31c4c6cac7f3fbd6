"""The clipped policy-gradient loss on a pack.

Leaves that share a prefix share its tokens, so the sum over leaves folds into three weights per token (P, N, W of
`TreePack`): each token is trained once, with exactly the gradient of one row per leaf. Where a whole agent step or a
whole path shares one ratio, P and N belong to that unit (`RatioUnits`), while the KL and entropy terms stay per token.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.config import LossConfig
from trainer.loss_inputs import LossInputs, NodeTensors

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
    of_nodes: dict[str, Tensor] = field(default_factory=dict)
    """Some of the sums per decision node, (N,) each; empty for a flat policy."""


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
    KL(policy, reference)). `reference_R` is needed if and only if `kl_coef` is above 0, of any node of a typed policy:
    there each row has the coefficients of its node.
    """
    ratios = _ratios(logprobs_R, batch)
    gain_Q = _clipped_gain(ratios, batch.nodes, config)
    if config.tis_cap is not None:
        gain_Q = gain_Q * ratios.engine_ratio_Q.clamp(max=config.tis_cap)
    loss = -gain_Q.sum()
    clipped_Q = _clipped(ratios, batch.nodes, config)
    sums = _token_sums(logprobs_R.detach(), entropy_R.detach(), batch) | _ratio_sums(ratios, clipped_Q, config)
    of_nodes = _node_sums(logprobs_R.detach(), entropy_R.detach(), clipped_Q, batch)
    entropy_coef, kl_coef = _token_coefficients(batch, config)
    if entropy_coef is not None:
        loss = loss - _weighted_sum(entropy_coef, batch.weight_R * entropy_R)
    if kl_coef is not None:
        assert reference_R is not None, "a KL term needs reference log-probabilities"
        trained_R = batch.weight_R != 0
        kl_K = k3(logprobs_R[trained_R], reference_R[trained_R])
        coef_K = kl_coef[trained_R] if isinstance(kl_coef, Tensor) else kl_coef
        loss = loss + _weighted_sum(coef_K, batch.weight_R[trained_R] * kl_K)
        sums["kl_reference"] = kl_K.detach().sum()
        if batch.nodes is not None:
            of_nodes["kl_reference"] = batch.nodes.sums(kl_K.detach(), batch.nodes.node_R[trained_R])
    gap_R = (logprobs_R.detach() - batch.rollout_logprobs_R).abs()
    largest = {"ratio_max": _max(ratios.ratio_Q.detach()), "logprob_diff_max": _max(gap_R[batch.current_R])}
    return LossParts(loss=loss, sums=sums, largest=largest, of_nodes=of_nodes)


def k3(logprobs_R: Tensor, other_R: Tensor) -> Tensor:
    """Per-token K3 estimate of KL(policy, other) from tokens the policy sampled; never below 0."""
    gap_R = other_R - logprobs_R
    return torch.exp(gap_R) - gap_R - 1


def _token_coefficients(batch: LossInputs, config: LossConfig) -> tuple[float | Tensor | None, float | Tensor | None]:
    """Coefficients of entropy and KL, one for all rows or one per row; None where the loss has no such term."""
    if (nodes := batch.nodes) is None:
        return config.entropy_coef or None, config.kl_coef or None
    return nodes.entropy_coef_R if nodes.has_entropy else None, nodes.kl_coef_R if nodes.has_kl else None


def _weighted_sum(coefficient: float | Tensor, values_R: Tensor) -> Tensor:
    """Sum of coefficient * value; one coefficient for all is taken out of the sum."""
    return (coefficient * values_R).sum() if isinstance(coefficient, Tensor) else coefficient * values_R.sum()


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
    """Over trained tokens only: those that another pack trains would count twice. `kl_engine` only where engine and
    learner hold the same weights, over the tokens counted in `current`.
    """
    trained_R = batch.weight_R != 0
    current_R = trained_R & batch.current_R
    return {
        "tokens": trained_R.sum(dtype=torch.float32),
        "kl_old": k3(_old(logprobs_R, batch), logprobs_R)[trained_R].sum(),
        "current": current_R.sum(dtype=torch.float32),
        "kl_engine": k3(batch.rollout_logprobs_R, logprobs_R)[current_R].sum(),
        "entropy": entropy_R[trained_R].sum(),
    }


def _clipped_gain(ratios: Ratios, nodes: NodeTensors | None, config: LossConfig) -> Tensor:
    """P*min(r, 1+hi) + N*min(max(r, 1-lo), dual_clip) of each ratio."""
    if nodes is None:
        gain_Q = ratios.positive_Q * ratios.ratio_Q.clamp(max=1 + config.clip_high)
        return gain_Q + ratios.negative_Q * ratios.ratio_Q.clamp(min=1 - config.clip_low, max=config.dual_clip)
    low_Q = ratios.ratio_Q.clamp(min=1 - nodes.clip_low_Q)
    if config.dual_clip is not None:
        low_Q = low_Q.clamp(max=config.dual_clip)
    return ratios.positive_Q * ratios.ratio_Q.clamp(max=1 + nodes.clip_high_Q) + ratios.negative_Q * low_Q


def _clipped(ratios: Ratios, nodes: NodeTensors | None, config: LossConfig) -> Tensor:
    """Ratios of which some leaf's term has no gradient because the ratio left the clip range. Boolean."""
    ratio_Q = ratios.ratio_Q.detach()
    high = config.clip_high if nodes is None else nodes.clip_high_Q
    low = config.clip_low if nodes is None else nodes.clip_low_Q
    upper = config.dual_clip if config.dual_clip is not None else math.inf
    clipped_Q = (ratios.positive_Q > 0) & (ratio_Q > 1 + high)
    return clipped_Q | (ratios.negative_Q < 0) & ((ratio_Q < 1 - low) | (ratio_Q > upper))


def _node_sums(logprobs_R: Tensor, entropy_R: Tensor, clipped_Q: Tensor, batch: LossInputs) -> dict[str, Tensor]:
    """Sums per decision node over its trained tokens or its ratios; empty for a flat policy."""
    if (nodes := batch.nodes) is None:
        return {}
    trained_R = batch.weight_R != 0
    of_K = nodes.node_R[trained_R]
    return {
        "tokens": nodes.sums(torch.ones_like(entropy_R)[trained_R], of_K),
        "entropy": nodes.sums(entropy_R[trained_R], of_K),
        "kl_old": nodes.sums(k3(_old(logprobs_R, batch), logprobs_R)[trained_R], of_K),
        "ratios": nodes.sums(torch.ones_like(clipped_Q), nodes.node_Q),
        "clipped": nodes.sums(clipped_Q, nodes.node_Q),
    }


def _ratio_sums(ratios: Ratios, clipped_Q: Tensor, config: LossConfig) -> dict[str, Tensor]:
    ratio_Q = ratios.ratio_Q.detach()
    sums = {"ratios": ratio_Q.new_tensor(len(ratio_Q)), "clipped": clipped_Q.sum(dtype=torch.float32)}
    if config.tis_cap is not None:
        sums["tis_weight"] = ratios.engine_ratio_Q.clamp(max=config.tis_cap).sum()
        sums["tis_capped"] = (ratios.engine_ratio_Q > config.tis_cap).sum(dtype=torch.float32)
    return sums


def _max(values_Q: Tensor) -> Tensor:
    return values_Q.max() if len(values_Q) else values_Q.new_zeros(())
