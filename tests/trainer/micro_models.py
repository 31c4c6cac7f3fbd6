"""Random models small enough for exact comparisons."""

from pathlib import Path

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)


def micro_qwen2(
    *, vocab: int = 64, hidden: int = 64, layers: int = 2, tied: bool = True, seed: int = 0
) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    return Qwen2ForCausalLM(config)


def micro_gpt2() -> GPT2LMHeadModel:
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="sdpa", initializer_range=0.2)).eval()


def micro_gemma2(**features: float | None) -> Gemma2ForCausalLM:
    """A model that can cap its logits or its attention's scores, which no layout computes."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = Gemma2Config(**sizes, **heads, initializer_range=0.2, **features)
    config.layer_types = ["full_attention"] * 2
    return Gemma2ForCausalLM(config)


def save_micro(path: Path, **kwargs: object) -> None:
    micro_qwen2(**kwargs).save_pretrained(path)
