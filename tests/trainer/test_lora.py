"""Adapters on micro models: which layers get them, what they stand for, and what is refused."""

from pathlib import Path

import pytest
import torch
from learner_runs import run_config
from micro_models import micro_gpt2, micro_qwen2
from transformers import PreTrainedModel

from trainer.lora import adapt, adapters_off, factors, fingerprint, weights


def adapted(lm: PreTrainedModel, path: Path, **settings: object) -> PreTrainedModel:
    adapt(lm, run_config(path, lora={"rank": 2, "alpha": 6.0} | settings))
    return lm


def shake(lm: PreTrainedModel) -> None:
    torch.manual_seed(3)
    for _, factor in factors(lm):
        torch.nn.init.normal_(factor, std=0.2)


def logits(lm: PreTrainedModel) -> torch.Tensor:
    return lm(input_ids=torch.tensor([[1, 2, 3, 4]])).logits


@pytest.mark.parametrize("make", [micro_qwen2, micro_gpt2])
def test_merged_weights_compute_what_the_adapters_do(make: "type[PreTrainedModel]", tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = make().eval()
    torch.manual_seed(0)
    lm = adapted(make().eval(), tmp_path)
    assert torch.equal(logits(lm), logits(base))
    shake(lm)
    expected = logits(lm)
    merged = {weight.name: weight.full() for weight in weights(lm)}
    assert list(merged) == [name for name, _ in base.named_parameters()]
    assert (expected - logits(base)).abs().max() > 0.1
    with adapters_off(lm):
        torch.testing.assert_close(logits(lm), logits(base), rtol=0, atol=1e-6)
    assert torch.equal(logits(lm), expected)
    base.load_state_dict(merged, strict=False)
    torch.testing.assert_close(logits(base), expected, rtol=0, atol=2e-5)


def test_one_merged_weight_on_paper(tmp_path: Path) -> None:
    lm = adapted(micro_qwen2(), tmp_path, targets=["q_proj"])
    (_, a_RI), (_, b_OR), *_ = factors(lm)
    with torch.no_grad():
        a_RI.copy_(torch.ones(2, 64))
        b_OR.copy_(torch.full((64, 2), 0.5))
    query = next(weight for weight in weights(lm) if weight.layer)
    # alpha / rank = 6 / 2 = 3, and each entry of B A is 2 * 0.5 * 1 = 1.
    torch.testing.assert_close(query.full(), query.parameter.detach() + 3.0)
    assert query.name == "model.layers.0.self_attn.q_proj.weight"


def test_only_the_named_layers_are_adapted(tmp_path: Path) -> None:
    lm = adapted(micro_qwen2(), tmp_path, targets=["q_proj", "layers.1.mlp.up_proj"])
    trained = [name for name, p in lm.named_parameters() if p.requires_grad]
    assert [name.removeprefix("base_model.model.") for name, _ in factors(lm)] == [
        f"model.layers.{layer}.lora_{factor}.weight"
        for layer in ("0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj")
        for factor in "AB"
    ]
    assert len(trained) == 6


def test_the_seed_fixes_the_adapters_and_nothing_else_is_drawn(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    found = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        found.append(adapted(micro_qwen2(seed=seed), tmp_path))
    one, other = found
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(factors(one), factors(other), strict=True))
    assert fingerprint(one) == fingerprint(micro_qwen2(seed=5))
    assert fingerprint(one) != fingerprint(other)
    torch.manual_seed(5)
    lm = micro_qwen2(seed=0)
    torch.manual_seed(5)
    adapted(lm, tmp_path)
    assert torch.equal(torch.rand(1), expected)


def test_an_output_layer_of_its_own_can_be_adapted(tmp_path: Path) -> None:
    lm = adapted(micro_qwen2(tied=False), tmp_path, targets=["lm_head"])
    shake(lm)
    weight = {weight.name: weight for weight in weights(lm)}["lm_head.weight"]
    hidden = lm.model(input_ids=torch.tensor([[1, 2, 3, 4]])).last_hidden_state
    torch.testing.assert_close(logits(lm), hidden @ weight.full().T, rtol=0, atol=1e-4)


def test_unknown_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"learner\.lora\.targets names 'query', which is no linear layer of model\.path=.*: "
        r"it has down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj \(or \[all-linear\]\)",
    ):
        adapted(micro_qwen2(), tmp_path, targets=["q_proj", "query"])


def test_a_tied_output_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"names the output layer of model\.path=.*, whose weight is also the embed"):
        adapted(micro_qwen2(), tmp_path, targets=["lm_head"])
