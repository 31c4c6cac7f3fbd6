"""The layouts compute the same log-probabilities and gradients, and models that a layout cannot train are refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from learner_runs import run_config
from micro_models import micro_gemma2, micro_gpt2, micro_qwen2
from random_forests import random_forest
from transformers import (
    AttentionInterface,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from trainer.advantages import advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.forward import PackedPolicy, dense_mask, to_tensors
from trainer.layout import Layout, chosen_layout
from trainer.layout_check import check_layout, difference, first_layers
from trainer.loss import pack_loss
from trainer.loss_inputs import loss_inputs
from trainer.packing import pack_forest
from trainer.tree_attention import Segment, level_attention, segments
from trainer.types import PackedForest, TreePack

CPU = torch.device("cpu")
LAYOUTS: tuple[Layout, ...] = ("level", "packed", "flat")
SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | dict.fromkeys(
    ("num_attention_heads", "num_key_value_heads"), 4
)
GROUPED = SMALL | {"num_key_value_heads": 2, "attn_implementation": "sdpa", "initializer_range": 0.2}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**GROUPED))


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=16))


def mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=None))


def untied_qwen2() -> PreTrainedModel:
    return micro_qwen2(tied=False)


def packed_forest(seed: int, layout: Layout, capacity: int) -> PackedForest:
    forest = random_forest(seed)
    learner = LearnerConfig(layout=layout, max_tokens_per_pack=capacity)
    return pack_forest(forest, [advantages(group) for group in forest], LossConfig(), learner, 64)


def packs(seed: int, layout: Layout, capacity: int) -> list[TreePack]:
    return packed_forest(seed, layout, capacity).mini_batches[0][0]


def trained(lm: PreTrainedModel, layout: Layout, capacity: int = 200) -> tuple[float, torch.Tensor]:
    """Loss and gradient of a random forest."""
    policy = PackedPolicy(lm, 0.8, layout)
    lm.zero_grad()
    total = 0.0
    for pack in packs(3, layout, capacity):
        batch = to_tensors(pack, CPU)
        scores = policy(batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, 1)
        loss = pack_loss(*scores, None, loss_inputs(pack, CPU), LossConfig(kl_coef=0.0, entropy_coef=0.01)).loss
        loss.backward()
        total += float(loss.detach())
    return total, torch.cat([p.grad.float().flatten() for p in lm.parameters()])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("make", [micro_qwen2, untied_qwen2, llama, qwen3])
def test_layouts_agree(make: "type[PreTrainedModel]", checkpointing: bool) -> None:
    torch.manual_seed(0)
    lm = make()
    if checkpointing:
        lm.train()
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    loss, gradient = trained(lm, "flat")
    for layout in ("level", "packed"):
        for capacity, split in ((40, True), (1000, False)):
            assert (packed_forest(3, layout, capacity).stats["tree/repeated_tokens"] > 0) == split
            other_loss, other = trained(lm, layout, capacity)
            assert other_loss == pytest.approx(loss, abs=1e-6)
            assert (other - gradient).norm() / gradient.norm() < 1e-5


def test_layouts_agree_in_bfloat16() -> None:
    lm = micro_qwen2().bfloat16()
    _, gradient = trained(lm, "flat")
    for layout in ("level", "packed"):
        assert (trained(lm, layout)[1] - gradient).norm() / gradient.norm() < 0.1


def test_segments_of_five_tokens() -> None:
    """Prompt (a b), branches (c) and (d e): the trunk goes on into the first branch, the second continues (a b)."""
    cut = segments(np.array([5, 5, 3, 5, 5]))
    assert cut == (Segment(start=0, stop=3, prefix=()), Segment(start=3, stop=5, prefix=((0, 2),)))


def test_segments_of_a_branch_of_a_branch() -> None:
    """a b | c, then from a: d e | f, then from d: g. The prefix of g is a, d: two ranges. Then a tree of one token."""
    end = np.array([7, 3, 3, 7, 6, 6, 7, 8])
    assert [(cut.start, cut.stop, cut.prefix) for cut in segments(end)] == [
        (0, 3, ()),
        (3, 6, ((0, 1),)),
        (6, 7, ((0, 1), (3, 4))),
        (7, 8, ()),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_segments_see_what_the_mask_shows(seed: int) -> None:
    for pack in packs(seed, "level", 300):
        mask = dense_mask(torch.from_numpy(pack.end))[0, 0]
        again = torch.zeros_like(mask)
        for cut in segments(pack.end):
            own = slice(cut.start, cut.stop)
            again[own, own] = torch.ones(cut.stop - cut.start, cut.stop - cut.start).tril().bool()
            for first, stop in cut.prefix:
                again[own, first:stop] = True
        assert torch.equal(mask, again)


@pytest.mark.parametrize("value_size", [8, 6], ids=["cpu_kernel", "matrix_products"])
def test_attention_by_segments_is_masked_attention(value_size: int) -> None:
    """Four heads over two key heads. The kernel wants values as wide as keys, so others go the way of other devices."""
    end = packs(1, "level", 300)[0].end
    sizes = ((4, 8), (2, 8), (2, value_size))
    states = [torch.randn(1, heads, len(end), size, dtype=torch.float64, requires_grad=True) for heads, size in sizes]
    out, _ = level_attention(torch.nn.Identity(), *states, None, segments=segments(end))
    mask = dense_mask(torch.from_numpy(end))
    expected = F.scaled_dot_product_attention(*states, attn_mask=mask, enable_gqa=True).transpose(1, 2)
    weights = torch.randn_like(out)
    torch.testing.assert_close(out, expected)
    found = torch.autograd.grad((out * weights).sum(), states)
    for one, other in zip(found, torch.autograd.grad((expected * weights).sum(), states), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_attention_are_those_of_finite_differences() -> None:
    cut = segments(np.array([5, 5, 3, 5, 5]))
    states = [torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def attend(*states: torch.Tensor) -> torch.Tensor:
        return level_attention(torch.nn.Identity(), *states, None, segments=cut)[0]

    assert torch.autograd.gradcheck(attend, states)


def test_auto_goes_by_device() -> None:
    assert chosen_layout(LearnerConfig()) == "level"
    assert chosen_layout(LearnerConfig(device="cuda")) == "packed"
    assert chosen_layout(LearnerConfig(layout="flat", device="cuda")) == "flat"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [micro_qwen2, llama, qwen3, mistral, micro_gpt2])
def test_suitable_models(make: "type[PreTrainedModel]", layout: Layout, tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = PackedPolicy(make(), 1.0, layout)
    found = difference(policy)
    assert found.nats < 1e-4
    assert found.gradient < 1e-4
    check_layout(policy, run_config(tmp_path))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_is_compared_in_float32(layout: Layout, tmp_path: Path) -> None:
    policy = PackedPolicy(micro_qwen2(vocab=300, layers=3).bfloat16(), 1.0, layout)
    check_layout(policy, run_config(tmp_path))
    assert difference(policy).gradient > 1e-3  # rounding alone is beyond the bound
    small = first_layers(policy)
    assert small.lm.config.num_hidden_layers == 2
    theirs, ours = policy.lm.get_input_embeddings().weight, small.lm.get_input_embeddings().weight
    assert torch.equal(ours[1], theirs[2].float())  # token 1 of 128 is token 2 of 300
    assert difference(small).nats < 1e-4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_that_changes_its_logits_is_refused(layout: Layout, tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = PackedPolicy(micro_gemma2(final_logit_softcapping=1.0, attn_logit_softcapping=None), 1.0, layout)
    with pytest.raises(ValueError, match=rf"model\.path=.* cannot be trained with learner\.layout={layout}: .* differ"):
        check_layout(policy, run_config(tmp_path))


def test_capped_scores_are_refused(tmp_path: Path) -> None:
    policy = PackedPolicy(micro_gemma2(attn_logit_softcapping=50.0), 1.0, "packed")
    with pytest.raises(ValueError, match="its attention caps its scores"):
        check_layout(policy, run_config(tmp_path))
    policy = PackedPolicy(micro_gemma2(attn_logit_softcapping=50.0), 1.0, "level")
    with pytest.raises(ValueError, match="its attention uses softcap"):
        difference(policy)


def test_short_windows_are_refused(tmp_path: Path) -> None:
    policy = PackedPolicy(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=512)), 1.0)
    with pytest.raises(ValueError, match=r"windows of 512 tokens.*set limits.max_context_tokens to at most 512"):
        check_layout(policy, run_config(tmp_path))


def everything_before(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
) -> tuple[torch.Tensor, None]:
    """A wrong attention over trees: a branch sees its siblings."""
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2), None


def no_gradient_to_keys(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object, **more: object
) -> tuple[torch.Tensor, None]:
    """Right values, wrong gradients."""
    return level_attention(module, query, key.detach(), value, None, scaling=more["scaling"], segments=more["segments"])


@pytest.mark.parametrize("wrong", [everything_before, no_gradient_to_keys])
def test_a_wrong_attention_is_caught(wrong: "type[object]", tmp_path: Path) -> None:
    policy = PackedPolicy(micro_qwen2(), 1.0, "level")
    AttentionInterface.register(wrong.__name__, wrong)
    policy.lm.set_attn_implementation(wrong.__name__)
    with pytest.raises(ValueError, match=r"learner\.layout=level: on a small tree its log-probabilities differ"):
        check_layout(policy, run_config(tmp_path))
