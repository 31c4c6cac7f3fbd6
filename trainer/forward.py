"""The packed forward pass: from a row of trees to the log-probability of each scored token.

Owns the attention of each layout and the only place where logits exist. All layouts run the model once over the row of
a pack, and every other layer token by token; they differ in attention only:
- `level`: by segments, without a mask (`tree_attention`); the way of CPUs. It has matrix products for other devices,
  checked on CPUs; never run on a GPU.
- `packed`: with a mask from `TreePack.end`. On CPUs a dense boolean matrix for SDPA, which costs O(T^2); on CUDA a
  block mask for flex attention, which skips blocks that no token sees (not run on a GPU yet).
- `flat`: packs whose rows share nothing; causal attention on each.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.decisions.route import Route
from trainer.layout import Layout
from trainer.tree_attention import FLAT, LEVEL, register, segments
from trainer.types import TreePack

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
    from transformers import PreTrainedModel

FLEX_BLOCK = 128
"""Packs are padded to a multiple of flex attention's block, so that few shapes are compiled."""
FORBIDDEN = -1e9
"""Stands for minus infinity, of which 0 times would be no number; the exponential of it is 0 all the same."""
CACHED_LOGITS = 1 << 17
"""Logits that one step of the loss's arithmetic works on: 512 KiB in float32, which stays in a core's cache."""


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
    voice_T: Tensor | None = None
    """Which adapter each token goes through (`TreePack.voice`); None: the model has one way for all."""
    mask_RW: Tensor | None = None
    """Packed masks of the ids that each scored token was chosen from (see `trainer.decisions.masks`); None: all."""


def to_tensors(pack: TreePack, device: torch.device, mask_RW: Tensor | None = None) -> PackTensors:
    """Moves a pack to `device`, with the masks of its scored tokens if some were chosen under a grammar."""
    scored = pack.scored
    assert (pack.source[scored] >= 0).all(), "the first token of a row cannot be scored"
    return PackTensors(
        ids_T=torch.from_numpy(pack.ids).to(device),
        positions_T=torch.from_numpy(pack.positions).to(device),
        end_T=torch.from_numpy(pack.end).to(device),
        rows_R=torch.from_numpy(pack.source[scored]).to(device),
        targets_R=torch.from_numpy(pack.ids[scored]).to(device),
        voice_T=None if pack.voice is None else torch.from_numpy(pack.voice).to(device),
        mask_RW=None if mask_RW is None else mask_RW.to(device),
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


def attention_name(layout: Layout, device: str) -> str:
    """Transformers' name of the attention that computes `layout` on a device type such as `"cpu"`."""
    if layout == "packed":
        return "flex_attention" if device == "cuda" else "sdpa"
    return LEVEL if layout == "level" else FLAT


class PackedPolicy(nn.Module):
    """A Hugging Face causal language model that scores packs in one layout.

    Hidden states of scored rows go through the output layer in `chunks` parts. The logits of a single part are kept
    until the backward pass; with more, each part's are computed again there, so that no more than one part's exist at a
    time. `LearnerEngine.chunks` sets the number. The output layer is called as a module, so that ZeRO-3's hooks gather
    its weight, also when it is tied to the embedding.
    """

    def __init__(self, lm: "PreTrainedModel", temperature: float, layout: Layout = "packed") -> None:
        super().__init__()
        self.lm = lm
        self.temperature = temperature
        self.layout = layout
        self.route: Route | None = None
        """Where the tokens of a row go in a model with adapters of decision nodes; None without any."""
        self.place(torch.device("cpu"))

    def place(self, device: torch.device) -> "PackedPolicy":
        """Moves the model to `device`, with the attention that its layout has there."""
        register()
        self.lm.set_attn_implementation(attention_name(self.layout, device.type))
        return self.to(device)

    def forward(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        end_T: Tensor,
        rows_R: Tensor,
        targets_R: Tensor,
        chunks: int,
        mask_RW: Tensor | None = None,
        voice_T: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities at `temperature`, and entropies in nats, of the predictions at `rows_R`: float32 (R,) each.

        With `mask_RW` both are those of the distribution over the allowed ids alone.

        Every rank must pass the same `chunks` under ZeRO-3, since each call of the output layer is a collective there;
        a chunk may be empty.
        """
        with self._along(voice_T):
            hidden_TH = self._hidden(ids_T, positions_T, end_T)
        voices = [None] * chunks if voice_T is None else voice_T.index_select(0, rows_R).tensor_split(chunks)
        masks = [None] * chunks if mask_RW is None else mask_RW.tensor_split(chunks)
        hidden_RH = hidden_TH.index_select(0, rows_R)
        parts = zip(hidden_RH.tensor_split(chunks), targets_R.tensor_split(chunks), masks, voices, strict=True)
        recompute = chunks > 1 and torch.is_grad_enabled()
        scored = [
            checkpoint(self._score, hidden_CH, targets_C, mask_CW, voice_C, use_reentrant=False)
            if recompute
            else self._score(hidden_CH, targets_C, mask_CW, voice_C)
            for hidden_CH, targets_C, mask_CW, voice_C in parts
        ]
        return torch.cat([logprobs for logprobs, _ in scored]), torch.cat([entropy for _, entropy in scored])

    def _hidden(self, ids_T: Tensor, positions_T: Tensor, end_T: Tensor) -> Tensor:
        """(T, H) last hidden states of a row. What attention needs to know is made here, once for all layers."""
        tree: dict[str, object] = {}
        if self.layout != "packed":
            tree["segments"] = segments(end_T.cpu().numpy())
        elif ids_T.device.type == "cuda":
            padding = (0, -len(ids_T) % FLEX_BLOCK)
            own_P = torch.arange(len(ids_T), len(ids_T) + padding[1], device=ids_T.device) + 1
            ids_T, positions_T, end_T = F.pad(ids_T, padding), F.pad(positions_T, padding), torch.cat([end_T, own_P])
            tree["attention_mask"] = block_mask(end_T)
        else:
            tree["attention_mask"] = dense_mask(end_T)
        found = self.lm.base_model(input_ids=ids_T[None], position_ids=positions_T[None], use_cache=False, **tree)
        hidden_TH: Tensor = found.last_hidden_state[0]
        return hidden_TH

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

    def _score(
        self, hidden_CH: Tensor, targets_C: Tensor, mask_CW: Tensor | None, voice_C: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with nullcontext() if self.route is None else self.route.detour(voice_C):
            logits_CV = self.output_layer()(hidden_CH)
        scored: tuple[Tensor, Tensor] = _TokenScores.apply(  # type: ignore[no-untyped-call]
            logits_CV, targets_C, self.temperature, mask_CW
        )
        return scored

    def _along(self, voice_T: Tensor | None) -> AbstractContextManager[None]:
        """Sends the tokens of a row through their adapters, in the block and, with gradients, until the next row.

        Layers that are checkpointed run again in the backward pass.
        """
        if self.route is None:
            return nullcontext()
        if not torch.is_grad_enabled():
            return self.route.detour(voice_T)
        self.route.follow(voice_T)
        return nullcontext()


class _TokenScores(torch.autograd.Function):
    """Log-probability of a target and entropy of each row of logits, in float32; keeps the logits and nothing else.

    With p = softmax(logits / temperature), H its entropy and y the target: d log p_y / d logits =
    (1_y - p) / temperature, and dH / d logits = -p (log p + H) / temperature. Both passes go through the rows in blocks
    that stay in the cache, and the backward pass writes the gradient over float32 logits, which nobody reads again.

    With a mask the logits of ids that are not allowed are `FORBIDDEN`, so their p, and their gradient, are exactly 0.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_CV: Tensor, targets_C: Tensor, temperature: float, mask_CW: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        normalisers, means, chosen = [], [], []
        rows = zip(*(_blocks(each, logits_CV) for each in (logits_CV, targets_C)), strict=True)
        for (logits_BV, targets_B), mask_BW in zip(rows, _mask_blocks(mask_CW, logits_CV), strict=True):
            scaled_BV = _scaled(logits_BV, temperature, mask_BW)
            normalisers.append(scaled_BV.logsumexp(-1))
            chosen.append(scaled_BV.gather(-1, targets_B[:, None])[:, 0])
            means.append(((scaled_BV - normalisers[-1][:, None]).exp_().mul_(scaled_BV)).sum(-1))
        normaliser_C, mean_C = torch.cat(normalisers), torch.cat(means)
        ctx.save_for_backward(logits_CV, targets_C, normaliser_C, mean_C, mask_CW)
        ctx.temperature = temperature
        return torch.cat(chosen) - normaliser_C, normaliser_C - mean_C

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None, None, None]:
        logits_CV, targets_C, normaliser_C, mean_C, mask_CW = ctx.saved_tensors
        of_logprob_C, of_entropy_C = (torch.zeros_like(normaliser_C) if grad is None else grad for grad in grads)
        grad_CV = logits_CV if logits_CV.dtype == torch.float32 else torch.empty_like(logits_CV)
        per_row = (targets_C[:, None], normaliser_C[:, None], mean_C[:, None], of_logprob_C[:, None])
        rows = zip(*(_blocks(each, logits_CV) for each in (logits_CV, grad_CV, *per_row)), strict=True)
        more = zip(_blocks(of_entropy_C, logits_CV), _mask_blocks(mask_CW, logits_CV), strict=True)
        for (logits_BV, grad_BV, target_B1, normaliser_B1, mean_B1, of_logprob_B1), (of_entropy_B, mask_BW) in zip(
            rows, more, strict=True
        ):
            scaled_BV = _scaled(logits_BV, ctx.temperature, mask_BW)
            block_BV = (scaled_BV - normaliser_B1).exp_()
            if grads[1] is None:
                block_BV *= -of_logprob_B1
            else:  # log p + H = scaled - mean
                block_BV *= scaled_BV.sub_(mean_B1).mul_(-of_entropy_B[:, None]).sub_(of_logprob_B1)
            block_BV.scatter_add_(-1, target_B1, of_logprob_B1)
            grad_BV.copy_(block_BV.div_(ctx.temperature))
        return grad_CV, None, None, None


def _scaled(logits_BV: Tensor, temperature: float, mask_BW: Tensor | None) -> Tensor:
    """Float32 logits over the temperature, in a tensor of their own; `FORBIDDEN` where the mask has no bit."""
    scaled_BV = logits_BV.float() / temperature
    return scaled_BV if mask_BW is None else scaled_BV.masked_fill_(~allowed(mask_BW, logits_BV.shape[-1]), FORBIDDEN)


def allowed(mask_BW: Tensor, vocabulary: int) -> Tensor:
    """(B, vocabulary) booleans of packed masks: id 32w + b is allowed where bit b of the int32 word w is set."""
    bits_8 = 1 << torch.arange(8, dtype=torch.uint8, device=mask_BW.device)
    bytes_BY = mask_BW.contiguous().view(torch.uint8)  # little-endian, as all machines that torch runs on
    return (bytes_BY[:, :, None] & bits_8).ne(0).flatten(1)[:, :vocabulary]


def _mask_blocks(mask_CW: Tensor | None, logits_CV: Tensor) -> Iterable[Tensor | None]:
    return repeat(None, len(_blocks(logits_CV, logits_CV))) if mask_CW is None else _blocks(mask_CW, logits_CV)


def _blocks(rows: Tensor, logits_CV: Tensor) -> tuple[Tensor, ...]:
    """`rows`, of which each belongs to a row of logits, in parts with about `CACHED_LOGITS` logits each.

    In one part on devices that pay for every kernel they start.
    """
    if logits_CV.device.type != "cpu":
        return (rows,)
    return torch.split(rows, max(CACHED_LOGITS // logits_CV.shape[-1], 1))
