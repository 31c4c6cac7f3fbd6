"""What vLLM 0.32 lacks for serving the adapters of a typed policy; imports vllm. Active in its processes only where
the engine has adapters.

- Its products for CPUs copy an adapter's weights once per token, and give tokens without an adapter those of the last
  one: wrong as soon as requests with and without adapters share a batch. `GroupedProducts` multiplies once per adapter
  (6 to 9 times less CPU time for 512 tokens of a prompt, and for the logits of 32 requests).
- Some architectures (Qwen2) do not list their output layer among those that can be adapted, though it can be.
"""

import os
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from rollout_workers.weight_names import ADAPTERS

Groups: TypeAlias = list[tuple[int, Tensor | slice]]
"""Per adapter in use its slot and the rows that go through it."""


def register() -> None:
    """Prepares this vLLM process, once `ADAPTERS` is in its environment; a second call changes nothing."""
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        cast("Any", current_platform).get_punica_wrapper = lambda: f"{__name__}.{GroupedProducts.__name__}"
    architecture = os.environ[ADAPTERS]
    model: Any = ModelRegistry._try_load_model_cls(architecture) if architecture else None
    if model is not None and "lm_head" not in model.embedding_modules:
        model.embedding_modules = {**model.embedding_modules, "lm_head": "output_embeddings"}


class GroupedProducts(PunicaWrapperCPU):
    """y += scale * (x A) B for the rows of each adapter; rows without one stay as they are."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._tokens: Groups = []
        self._samples: Groups = []

    def update_metadata(self, *arguments: Any, **settings: Any) -> None:
        """Called whenever other requests run; sorts the rows by adapter."""
        super().update_metadata(*arguments, **settings)
        self._tokens, self._samples = list(_groups(self.token_lora_indices)), list(_groups(self.sampler_indices))

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **_: Any,
    ) -> None:
        """Of a linear layer; y (T, outputs) has `output_slices` side by side, x is (T, inputs)."""
        rows_y, rows_x = y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1])
        for slot, rows in self._tokens:
            part, start = rows_x[rows], 0
            for a_SRI, b_SOR, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                rows_y[rows, start : start + size] += part @ a_SRI[slot, 0].T @ b_SOR[slot, 0].T * scale
                start += size

    def add_lora_logits(
        self, y: Tensor, x: Tensor, lora_a_stacked: Tensor, lora_b_stacked: Tensor, scale: float, **_: Any
    ) -> None:
        """Of the output layer; y is (rows to sample from, vocabulary)."""
        for slot, rows in self._samples:
            product = x[rows] @ lora_a_stacked[slot, 0].T @ lora_b_stacked[slot, 0].T
            y[rows, : product.shape[-1]] += (product * scale)[:, : y.shape[-1]].to(y.dtype)

    def add_lora_embedding(
        self, y: Tensor, x: Tensor, lora_b_stacked: Tensor, add_inputs: bool = True, **_: Any
    ) -> None:
        """Of the embedding, which no adapter of ours changes."""


def _groups(slots_T: Tensor) -> Iterator[tuple[int, Tensor | slice]]:
    """E.g. slots `[0, 0, -1, 2]` give `(0, rows [0, 1])` and `(2, row [3])`; one adapter for all gives a slice."""
    for slot in cast("list[int]", torch.unique(slots_T).tolist()):
        if slot >= 0:
            rows = (slots_T == slot).nonzero()[:, 0]
            yield slot, slice(0, len(rows)) if len(rows) == len(slots_T) else rows
