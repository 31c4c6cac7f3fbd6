"""Which models can be trained with trees in packs."""

from pathlib import Path

import pytest
import torch
from micro_models import micro_qwen2
from test_learner import run_config
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from trainer.forward import PackedPolicy
from trainer.pretrained import check_packing, load_model, packed_minus_flat

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | dict.fromkeys(
    ("num_attention_heads", "num_key_value_heads"), 2
)


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SMALL, attn_implementation="sdpa", initializer_range=0.2))


def gpt2() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=2, attn_implementation="sdpa", initializer_range=0.2
    )
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("make", [micro_qwen2, llama, gpt2])
def test_suitable_models(make: "type[PreTrainedModel]", tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = PackedPolicy(make(), 1.0)
    assert packed_minus_flat(policy) < 1e-4
    check_packing(policy, run_config(tmp_path))


def test_a_model_that_changes_its_logits_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        **SMALL, head_dim=16, final_logit_softcapping=1.0, attn_logit_softcapping=None, initializer_range=0.2
    )
    config.layer_types = ["full_attention"] * 2
    with pytest.raises(ValueError, match=r"cannot be trained with trees in packs: .* differ by"):
        check_packing(PackedPolicy(Gemma2ForCausalLM(config), 1.0), run_config(tmp_path))


def test_short_windows_are_refused(tmp_path: Path) -> None:
    policy = PackedPolicy(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=512)), 1.0)
    with pytest.raises(ValueError, match=r"windows of 512 tokens.*set limits.max_context_tokens to at most 512"):
        check_packing(policy, run_config(tmp_path))


def test_loading_removes_dropout(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    lm = load_model(run_config(tmp_path), train=True)
    assert lm.training
    assert [module.p for module in lm.modules() if isinstance(module, torch.nn.Dropout)].count(0.0) > 2
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(lm(input_ids=ids).logits, lm(input_ids=ids).logits)
    assert not any(p.requires_grad for p in load_model(run_config(tmp_path), train=False).parameters())
