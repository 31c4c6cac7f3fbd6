"""How models are loaded."""

from pathlib import Path

import torch
from learner_runs import run_config
from transformers import GPT2Config, GPT2LMHeadModel

from trainer.pretrained import load_model


def test_loading_removes_dropout(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2)).save_pretrained(tmp_path)
    lm = load_model(run_config(tmp_path), train=True)
    assert lm.training
    assert [module.p for module in lm.modules() if isinstance(module, torch.nn.Dropout)].count(0.0) > 2
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(lm(input_ids=ids).logits, lm(input_ids=ids).logits)
    assert not any(p.requires_grad for p in load_model(run_config(tmp_path), train=False).parameters())
