"""What the loss of a pack reads beside the model's outputs: weights, stored log-probabilities and ratio units, on the
device. Row k of every `_R` tensor is the k-th scored token of the pack, as in `trainer.forward.PackTensors`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.types import NodeCoefficients, RatioUnits, TreePack


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
class NodeTensors:
    """Loss coefficients of a typed policy, looked up by each row's decision node. N nodes, Q ratios (R, or U units)."""

    count: int
    """N."""
    node_R: Tensor
    """Which node each row belongs to."""
    node_Q: Tensor
    """Which node each ratio belongs to: a unit never spans two."""
    entropy_coef_R: Tensor
    kl_coef_R: Tensor
    clip_low_Q: Tensor
    clip_high_Q: Tensor
    has_entropy: bool
    """Whether any node's entropy coefficient is above 0; the same in all packs of a phase."""
    has_kl: bool
    """The same of the KL coefficients."""

    def sums(self, values_R: Tensor, of: Tensor) -> Tensor:
        """(N,) sums of a value over the rows or ratios of each node; `of` is `node_R` or `node_Q`, or a part of it."""
        return torch.zeros(self.count, device=values_R.device).index_add(0, of, values_R.float())


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
    current_R: Tensor
    """Tokens sampled by the very weights that are trained: where engine and learner can be compared. Boolean."""
    units: UnitTensors | None = None
    """What shares a ratio; None: each token has its own."""
    nodes: NodeTensors | None = None
    """Coefficients per decision node; None: those of the `loss` section for all rows."""


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
        current_R=torch.from_numpy(pack.is_current[scored]).to(device),
        units=None if pack.units is None else _unit_tensors(pack.units, scored, device),
        nodes=_node_tensors(pack, scored, device) if pack.coefficients else None,
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


def _node_tensors(pack: TreePack, scored: npt.NDArray[np.bool_], device: torch.device) -> NodeTensors:
    node = np.full(pack.tokens, -1, np.int64)
    for answer in pack.answers:
        node[answer.start : answer.stop] = answer.node
    node_R = node[scored]
    assert (node_R >= 0).all(), "a trained token outside every answer"
    node_Q = node_R if pack.units is None else node[pack.units.member_tokens[_firsts(pack.units)]]

    def looked_up(name: str, of: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(_column(pack.coefficients, name)[of]).to(device)

    return NodeTensors(
        count=len(pack.coefficients),
        node_R=torch.from_numpy(node_R).to(device),
        node_Q=torch.from_numpy(node_Q).to(device),
        entropy_coef_R=looked_up("entropy_coef", node_R),
        kl_coef_R=looked_up("kl_coef", node_R),
        clip_low_Q=looked_up("clip_low", node_Q),
        clip_high_Q=looked_up("clip_high", node_Q),
        has_entropy=any(one.entropy_coef > 0 for one in pack.coefficients),
        has_kl=any(one.kl_coef > 0 for one in pack.coefficients),
    )


def _firsts(units: RatioUnits) -> npt.NDArray[np.int64]:
    """(U,) place of each unit's first member."""
    found: npt.NDArray[np.int64] = np.searchsorted(units.member_units, np.arange(len(units.positive)))
    return found


def _column(coefficients: tuple[NodeCoefficients, ...], name: str) -> npt.NDArray[np.float32]:
    return np.asarray([getattr(one, name) for one in coefficients], np.float32)
