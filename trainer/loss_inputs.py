"""What the loss of a pack reads beside the model's outputs: weights, stored log-probabilities and ratio units, on the
device. Row k of every `_R` tensor is the k-th scored token of the pack, as in `trainer.forward.PackTensors`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.types import RatioUnits, TreePack


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTensors:
    """`RatioUnits` on a device: U units with E members; members are rows among the R scored tokens."""

    positive_U: Tensor
    negative_U: Tensor
    size_U: Tensor
    """Number of members of each unit, at least 1."""
    member_rows_E: Tensor
    member_units_E: Tensor

    def mean(self, values_R: Tensor) -> Tensor:
        """Mean of a per-token value over the members of each unit, (U,); differentiable."""
        sums_U = values_R.new_zeros(len(self.size_U))
        return sums_U.index_add(0, self.member_units_E, values_R[self.member_rows_E]) / self.size_U


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One pack's part of the objective. R scored tokens, of which those with weight 0 only enter ratio units."""

    positive_R: Tensor
    negative_R: Tensor
    weight_R: Tensor
    rollout_logprobs_R: Tensor
    """As the rollout engine reported them when it sampled the tokens."""
    old_logprobs_R: Tensor | None
    """Denominator of the ratio; None: the learner's own of this very forward pass, so every ratio is exactly 1."""
    units: UnitTensors | None = None
    """What shares a ratio; None: each token has its own."""


def loss_inputs(pack: TreePack, device: torch.device) -> LossInputs:
    """Moves the loss's share of a pack to `device`, with the rollout engine's log-probabilities as the old ones."""
    scored = pack.scored
    rollout_R = torch.from_numpy(pack.old_logprobs[scored]).to(device)
    return LossInputs(
        positive_R=torch.from_numpy(pack.positive[scored]).to(device),
        negative_R=torch.from_numpy(pack.negative[scored]).to(device),
        weight_R=torch.from_numpy(pack.weight[scored]).to(device),
        rollout_logprobs_R=rollout_R,
        old_logprobs_R=rollout_R,
        units=None if pack.units is None else _unit_tensors(pack.units, scored, device),
    )


def _unit_tensors(units: RatioUnits, scored: npt.NDArray[np.bool_], device: torch.device) -> UnitTensors:
    row_of_token = np.cumsum(scored) - 1
    size = np.bincount(units.member_units, minlength=len(units.positive))
    assert size.all(), "a ratio unit without members"
    return UnitTensors(
        positive_U=torch.from_numpy(units.positive).to(device),
        negative_U=torch.from_numpy(units.negative).to(device),
        size_U=torch.from_numpy(size.astype(np.float32)).to(device),
        member_rows_E=torch.from_numpy(row_of_token[units.member_tokens]).to(device),
        member_units_E=torch.from_numpy(units.member_units).to(device),
    )
