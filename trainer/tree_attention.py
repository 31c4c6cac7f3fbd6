"""Attention of the layouts `level` and `flat`, which transformers' models call in every layer in place of their own.

Owns how a pack's row is cut into segments. A segment is a longest run of tokens of which each follows the one before
it on its path: the trunk of a tree, or a branch down to its leaf. Every token of a segment sees the same prefix (the
path that the segment continues) and the tokens of the segment up to itself. In preorder such a prefix is a few
contiguous ranges of the row, mostly one, so nothing is gathered and no mask exists: a segment attends to each range
without a mask and to itself causally, and the parts are merged by their log-sum-exps, exactly.

This is the form the method's `level` has here. Running whole decoder layers depth by depth over cached keys would need
a cache, which gradient checkpointing switches off, and one forward call per depth, of which ZeRO-3 wants equally many
on every rank. Here only attention knows about trees: the model runs once over the row, with its usual hooks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from trainer.types import Ints

LEVEL = "espalier_level"
"""Name of `level_attention` among transformers' attention implementations."""
FLAT = "espalier_flat"
"""Name of `flat_attention` there."""
AttentionFunction: TypeAlias = Callable[..., tuple[Tensor, None]]
"""What transformers calls in every layer: (module, query, key, value, mask, and more by name)."""
UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")
"""Arguments by which a layer asks for an attention that only its own implementation has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens `start` to `stop` of a row, e.g. in `TreePack`'s example 0 to 3 with no prefix, 3 to 5 with ((0, 2),)."""

    start: int
    stop: int
    prefix: tuple[tuple[int, int], ...]
    """Ranges (first, behind last) of the tokens that all of them see, in order: the path that the segment continues."""


def segments(end: Ints) -> tuple[Segment, ...]:
    """The segments of a row, left to right, from the array that is its whole mask: i sees j iff j <= i < end[j]."""
    index_T = np.arange(len(end))
    starts = [0, *(np.flatnonzero(end[:-1] <= index_T[1:]) + 1).tolist(), len(end)]
    return tuple(
        Segment(start=start, stop=stop, prefix=_ranges(np.flatnonzero(end[:start] > start)))
        for start, stop in pairwise(starts)
    )


def _ranges(ascending: Ints) -> tuple[tuple[int, int], ...]:
    """Runs of consecutive numbers, e.g. [0, 1, 4] as ((0, 2), (4, 5))."""
    if not len(ascending):
        return ()
    parts = np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1)
    return tuple((int(part[0]), int(part[-1]) + 1) for part in parts)


def _attention(rows: Callable[[Tensor, Tensor, Tensor, Sequence[Segment], float], Tensor]) -> AttentionFunction:
    """`rows`, which maps (query, key, value, segments, scale) to (1, heads, T, D), as transformers calls attention.

    The result takes one row (1, heads, T, D) and returns (1, T, heads, D). It raises ValueError where the layer wants
    more than scaled dot products, or does not hand on `segments`.
    """

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        segments: Sequence[Segment] | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        cut = _checked(segments, query, dropout, others)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return rows(query, key, value, cut, scale).transpose(1, 2), None

    return attention


def _by_segments(query: Tensor, key: Tensor, value: Tensor, cut: Sequence[Segment], scale: float) -> Tensor:
    out: Tensor = _SegmentAttention.apply(query, key, value, cut, scale)  # type: ignore[no-untyped-call]
    return out


def _by_rows(query: Tensor, key: Tensor, value: Tensor, cut: Sequence[Segment], scale: float) -> Tensor:
    """For rows that share nothing: torch's causal attention on each, without padding and without a mask."""
    assert not any(segment.prefix for segment in cut), "layout flat takes packs of single paths"
    lengths = [segment.stop - segment.start for segment in cut]
    rows = zip(*(torch.split(states, lengths, 2) for states in (query, *_repeated(query, key, value))), strict=True)
    parts = [F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2) for q, k, v in rows]
    return torch.cat(parts, 1).transpose(1, 2)  # in memory as `attention` returns it, so that nothing is copied again


level_attention = _attention(_by_segments)
"""Attention of a row by segments."""
flat_attention = _attention(_by_rows)
"""Attention of a row whose paths share nothing."""


def _checked(cut: Sequence[Segment] | None, query: Tensor, dropout: float, others: dict[str, Any]) -> Sequence[Segment]:
    wanted = [name for name in UNSUPPORTED if others.get(name) is not None]
    if wanted:
        raise ValueError(f"its attention uses {', '.join(wanted)}, which trees in packs do not support")
    if cut is None:
        raise ValueError("its layers do not hand on what attention over trees in packs needs")
    assert dropout == 0.0, "models are loaded without dropout"
    assert len(query) == 1, "a pack is one row"
    return cut


def _repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with one head per query head."""
    times = query.shape[1] // key.shape[1]
    return (key, value) if times == 1 else (key.repeat_interleave(times, 1), value.repeat_interleave(times, 1))


class _SegmentAttention(torch.autograd.Function):
    """Attention by segments. Between the passes it keeps queries, keys, values, the output and its log-sum-exps only.

    Backward of one part: with P = exp(scores - lse) and the merged output and log-sum-exp in place of the part's own,
    the usual formulas of attention's gradient hold for each part on its own (FlashAttention, arXiv 2205.14135, B.2).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, cut: Sequence[Segment], scale: float) -> Tensor:
        keys, values = _repeated(query, key, value)
        out = query.new_empty(*query.shape[:1], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
        lse = torch.empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32), device=query.device)
        for segment in cut:
            own = slice(segment.start, segment.stop)
            merged, norm = _part(query[:, :, own], keys[:, :, own], values[:, :, own], True, scale)
            for first, stop in segment.prefix:
                seen = slice(first, stop)
                other, other_norm = _part(query[:, :, own], keys[:, :, seen], values[:, :, seen], False, scale)
                both = torch.logaddexp(norm, other_norm)
                merged = merged * (norm - both).exp()[..., None] + other * (other_norm - both).exp()[..., None]
                norm = both
            out[:, :, own], lse[:, :, own] = merged, norm
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.cut, ctx.scale = cut, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        keys, values = _repeated(query, key, value)
        wide = torch.promote_types(query.dtype, torch.float32)
        grads = [torch.empty_like(states, dtype=wide) for states in (query, keys, values)]
        for segment in ctx.cut:  # left to right, so that a prefix was written before it is added to
            own = slice(segment.start, segment.stop)
            given = (grad_out[:, :, own], query[:, :, own], out[:, :, own], lse[:, :, own])
            parts = _part_backward(*given, keys[:, :, own], values[:, :, own], True, ctx.scale)
            for grad, part in zip(grads, parts, strict=True):
                grad[:, :, own] = part
            for first, stop in segment.prefix:
                seen = slice(first, stop)
                parts = _part_backward(*given, keys[:, :, seen], values[:, :, seen], False, ctx.scale)
                for grad, part, where in zip(grads, parts, (own, seen, seen), strict=True):
                    grad[:, :, where] += part
        folded = (grads[0], _folded(grads[1], key), _folded(grads[2], value))
        return (*(grad.to(query.dtype) for grad in folded), None, None)


def _folded(grad: Tensor, states: Tensor) -> Tensor:
    """Sums the gradients of repeated heads: the backward of `_repeated`."""
    heads = states.shape[1]
    return grad if grad.shape[1] == heads else grad.view(len(grad), heads, -1, *grad.shape[2:]).sum(2)


def _part(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of some queries to some keys: output and log-sum-exp of the scores."""
    if _fused(query, value):
        fused: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
        return fused
    scores = _scores(query, key, causal, scale)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(value.dtype) @ value, lse


def _part_backward(
    grad_out: Tensor, query: Tensor, out: Tensor, lse: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value of one part, given the output and log-sum-exp of all parts together."""
    if _fused(query, value):
        fused: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, query, key, value, out, lse, 0.0, causal, scale=scale
        )
        return fused
    weights = (_scores(query, key, causal, scale) - lse[..., None]).exp()
    grad_weights = (grad_out @ value.transpose(-1, -2)).to(lse.dtype)
    correction = (grad_out.to(lse.dtype) * out).sum(-1, keepdim=True)
    grad_scores = (weights * (grad_weights - correction) * scale).to(query.dtype)
    return (
        grad_scores @ key,
        grad_scores.transpose(-1, -2) @ query,
        weights.to(query.dtype).transpose(-1, -2) @ grad_out,
    )


def _scores(query: Tensor, key: Tensor, causal: bool, scale: float) -> Tensor:
    scores = (query @ key.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32)) * scale
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores


def _fused(query: Tensor, value: Tensor) -> bool:
    """Whether torch's CPU kernel applies, which never holds the scores; elsewhere matrix products do the same."""
    return query.device.type == "cpu" and query.shape[-1] == value.shape[-1]


def register() -> None:
    """Makes both known to transformers; they take no mask, so none is made."""
    for name, function in ((LEVEL, level_attention), (FLAT, flat_attention)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    return None
