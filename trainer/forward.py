"""The packed forward pass: from a row of trees to the log-probability of each trained token.

Owns the attention mask of a pack and the only place where logits exist. On CPUs (and wherever flex attention is not
available) the mask is a dense boolean matrix for SDPA, which costs O(T^2): keep packs small there. On CUDA the same
`end` array becomes a block mask for flex attention, which skips blocks that no token sees (not run on a GPU yet).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.types import TreePack

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
    from transformers import PreTrainedModel

FLEX_BLOCK = 128
"""Packs are padded to a multiple of flex attention's block, so that few shapes are compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTensors:
    """What a forward pass of a pack needs, on a device. R = number of scored tokens (`TreePack.scored`)."""

    ids_T: Tensor
    positions_T: Tensor
    end_T: Tensor
    rows_R: Tensor
    """Index whose hidden state predicts each scored token."""
    targets_R: Tensor
    """Id of each scored token."""


def to_tensors(pack: TreePack, device: torch.device) -> PackTensors:
    """Moves a pack to `device`; for CUDA it is padded to a multiple of `FLEX_BLOCK` with tokens that see themselves."""
    scored = pack.scored
    assert (pack.source[scored] >= 0).all(), "the first token of a row cannot be scored"
    padding = -pack.tokens % FLEX_BLOCK if device.type == "cuda" else 0
    end_T = torch.cat([torch.from_numpy(pack.end), torch.arange(pack.tokens, pack.tokens + padding) + 1])
    return PackTensors(
        ids_T=F.pad(torch.from_numpy(pack.ids), (0, padding)).to(device),
        positions_T=F.pad(torch.from_numpy(pack.positions), (0, padding)).to(device),
        end_T=end_T.to(device),
        rows_R=torch.from_numpy(pack.source[scored]).to(device),
        targets_R=torch.from_numpy(pack.ids[scored]).to(device),
    )


def dense_mask(end_T: Tensor) -> Tensor:
    """Boolean (1, 1, T, T): query i sees key j if and only if j <= i < end[j]."""
    index_T = torch.arange(len(end_T), device=end_T.device)
    mask_TT = (index_T[None, :] <= index_T[:, None]) & (index_T[:, None] < end_T[None, :])
    return mask_TT[None, None]


def block_mask(end_T: Tensor) -> "BlockMask":
    """The same mask as a flex-attention `BlockMask`; transformers hands a ready 4-D mask on to the attention layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    def mask_mod(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end_T[key])

    return create_block_mask(mask_mod, B=1, H=1, Q_LEN=len(end_T), KV_LEN=len(end_T), device=str(end_T.device))


class PackedPolicy(nn.Module):
    """A Hugging Face causal language model that scores packs.

    The logits of a whole pack never exist: hidden states of trained rows go through the output layer in `chunks`
    parts, and with more than one part each is computed again in the backward pass instead of being kept. The output
    layer is called as a module, so that ZeRO-3's hooks gather its weight, also when it is tied to the embedding.
    """

    def __init__(self, lm: "PreTrainedModel", temperature: float) -> None:
        super().__init__()
        self.lm = lm
        self.temperature = temperature

    def forward(
        self, ids_T: Tensor, positions_T: Tensor, end_T: Tensor, rows_R: Tensor, targets_R: Tensor, chunks: int
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities at `temperature`, and entropies in nats, of the predictions at `rows_R`: float32 (R,) each.

        Every rank must pass the same `chunks` under ZeRO-3, since each call of the output layer is a collective there;
        a chunk may be empty.
        """
        flex = self.lm.config._attn_implementation == "flex_attention"
        hidden_TH = self.lm.base_model(
            input_ids=ids_T[None],
            position_ids=positions_T[None],
            attention_mask=block_mask(end_T) if flex else dense_mask(end_T),
            use_cache=False,
        ).last_hidden_state[0]
        parts = zip(hidden_TH[rows_R].tensor_split(chunks), targets_R.tensor_split(chunks), strict=True)
        recompute = chunks > 1 and torch.is_grad_enabled()
        scored = [
            checkpoint(self._score, hidden_CH, targets_C, use_reentrant=False)
            if recompute
            else self._score(hidden_CH, targets_C)
            for hidden_CH, targets_C in parts
        ]
        return torch.cat([logprobs for logprobs, _ in scored]), torch.cat([entropy for _, entropy in scored])

    def output_layer(self) -> nn.Module:
        """The layer that turns hidden states into logits."""
        layer = self.lm.get_output_embeddings()  # type: ignore[no-untyped-call]
        assert isinstance(layer, nn.Module)
        return layer

    def tied_name(self) -> str | None:
        """Name of the output layer's weight if it is the embedding's, e.g. `"lm_head.weight"`; None otherwise.

        Such a weight is a parameter under the embedding's name only.
        """
        output_layer = self.output_layer()
        if output_layer.weight is not self.lm.get_input_embeddings().weight:
            return None
        return next(f"{name}.weight" for name, module in self.lm.named_modules() if module is output_layer)

    def _score(self, hidden_CH: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = self.output_layer()(hidden_CH).float() / self.temperature
        normaliser_C = logits_CV.logsumexp(-1)
        logprobs_C = logits_CV.gather(-1, targets_C[:, None])[:, 0] - normaliser_C
        mean_logit_C = ((logits_CV - normaliser_C[:, None]).exp() * logits_CV).sum(-1)
        return logprobs_C, normaliser_C - mean_logit_C
