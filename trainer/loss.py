"""The clipped policy-gradient loss on the trained tokens of a pack.

Leaves that share a prefix share its tokens, so the ratio r of a token is the same for all of them and the sum over
leaves folds into three weights per token (P, N, W of `TreePack`): each token is trained once, with exactly the gradient
of one row per leaf.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import LossConfig
from trainer.forward import PackTensors

LOG_RATIO_MAX = 30.0
"""Far beyond every clip range; keeps an infinite ratio from meeting a zero gradient, which would make a NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """The loss of one pack, and sums for the log that add up over packs and ranks."""

    loss: Tensor
    """Scalar to minimise; the sum over all packs of the optimizer step is the loss of the step."""
    sums: dict[str, Tensor]
    """Sums over the pack's trained tokens; divide by `tokens` for means."""
    largest: dict[str, Tensor]
    """Maxima over the pack's trained tokens."""


def pack_loss(
    logprobs_R: Tensor, entropy_R: Tensor, reference_R: Tensor | None, batch: PackTensors, config: LossConfig
) -> LossParts:
    """-sum of P*min(r, 1+hi) + N*max(r, 1-lo) - kl_coef*W*K3 + entropy_coef*W*entropy over the R trained tokens.

    r = exp(logprob - old_logprob). With `dual_clip` c the second term is N*min(max(r, 1-lo), c). K3 is
    exp(d) - d - 1 with d = reference - logprob (Schulman's estimator of KL(policy, reference)).
    `reference_R` is needed if and only if `kl_coef` is above 0.
    """
    high, low = 1 + config.clip_high, 1 - config.clip_low
    ratio_R = torch.exp((logprobs_R - batch.old_logprobs_R).clamp(max=LOG_RATIO_MAX))
    gain_R = batch.positive_R * ratio_R.clamp(max=high)
    gain_R = gain_R + batch.negative_R * ratio_R.clamp(min=low, max=config.dual_clip)
    sums = _ratio_sums(logprobs_R.detach(), entropy_R.detach(), ratio_R.detach(), batch, config)
    if config.entropy_coef > 0:
        gain_R = gain_R + config.entropy_coef * batch.weight_R * entropy_R
    if config.kl_coef > 0:
        assert reference_R is not None, "a KL term needs reference log-probabilities"
        kl_R = k3(logprobs_R, reference_R)
        gain_R = gain_R - config.kl_coef * batch.weight_R * kl_R
        sums["kl_reference"] = kl_R.detach().sum()
    gap_R = (logprobs_R.detach() - batch.old_logprobs_R).abs()
    largest = {"ratio_max": _max(ratio_R.detach()), "logprob_diff_max": _max(gap_R)}
    return LossParts(loss=-gain_R.sum(), sums=sums, largest=largest)


def k3(logprobs_R: Tensor, other_R: Tensor) -> Tensor:
    """Per-token K3 estimate of KL(policy, other) from tokens the policy sampled; never below 0."""
    gap_R = other_R - logprobs_R
    return torch.exp(gap_R) - gap_R - 1


def _ratio_sums(
    logprobs_R: Tensor, entropy_R: Tensor, ratio_R: Tensor, batch: PackTensors, config: LossConfig
) -> dict[str, Tensor]:
    """`clipped` counts tokens of which some leaf's term has no gradient because its ratio left the clip range."""
    upper = config.dual_clip if config.dual_clip is not None else math.inf
    clipped_R = (batch.positive_R > 0) & (ratio_R > 1 + config.clip_high)
    clipped_R |= (batch.negative_R < 0) & ((ratio_R < 1 - config.clip_low) | (ratio_R > upper))
    return {
        "tokens": torch.tensor(float(len(ratio_R)), device=ratio_R.device),
        "clipped": clipped_R.float().sum(),
        "kl_old": k3(batch.old_logprobs_R, logprobs_R).sum(),
        "entropy": entropy_R.sum(),
    }


def _max(values_R: Tensor) -> Tensor:
    return values_R.max() if len(values_R) else values_R.new_zeros(())
