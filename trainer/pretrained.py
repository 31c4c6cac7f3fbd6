"""Hugging Face models in and out: loading for training, and the export."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from trainer.config import RunConfig
from trainer.paths import open_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_model(config: RunConfig, *, train: bool) -> "PreTrainedModel":
    """The model at `model.path` in `model.dtype` on the CPU; with `train` ready for gradients, otherwise frozen.

    It stays without dropout: a random mask would make the ratio of new to old probability random too.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]
    lm: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        config.model.path,
        dtype=getattr(torch, config.model.dtype),
        attn_implementation="sdpa",
        trust_remote_code=config.model.trust_remote_code,
    )
    lm.requires_grad_(train)
    lm.train(train)
    if train and config.learner.gradient_checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in lm.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 (typed as a submodule)
    return lm


def write_folder(lm: "PreTrainedModel", state: dict[str, Tensor], config: RunConfig, path: Path) -> None:
    """Writes weights, configuration and the tokenizer of `model.path` as a folder that transformers and vLLM load."""
    lm.save_pretrained(path, state_dict=state)
    open_weights(path)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path, trust_remote_code=config.model.trust_remote_code)
    tokenizer.save_pretrained(path)
