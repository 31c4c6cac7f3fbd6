"""A model as wide as those that people train, and as shallow as a benchmark on one thread can afford."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

WORDS = "one random decoder layer with the widths of Qwen2.5-0.5B"
"""Layers are alike, so that their number changes no ratio of times."""


def write_wide_model(folder: Path, tokenizer: Path) -> None:
    """Writes the model, with the tokenizer of the folder `tokenizer`, whose vocabulary it takes.

    Widths from the public configuration of Qwen/Qwen2.5-0.5B: hidden 896, MLP 4864, 14 heads, 2 key-value heads.
    """
    spoken = AutoTokenizer.from_pretrained(tokenizer)
    config = Qwen2Config(
        vocab_size=len(spoken),
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=1,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    spoken.save_pretrained(folder)
