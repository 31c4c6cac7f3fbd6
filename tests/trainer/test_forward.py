import numpy as np
import pytest
import torch
from micro_models import micro_qwen2
from random_forests import random_forest

from rollout_workers import trees
from trainer.advantages import advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.forward import PackedPolicy, PackTensors, block_mask, dense_mask, to_tensors
from trainer.packing import flat_pack, pack_forest
from trainer.types import TreePack, blank_pack

CPU = torch.device("cpu")


def score(policy: PackedPolicy, batch: PackTensors, chunks: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return policy(batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, chunks)


def packs(seed: int, capacity: int) -> list[TreePack]:
    forest = random_forest(seed)
    learner = LearnerConfig(max_tokens_per_pack=capacity)
    return pack_forest(forest, [advantages(group) for group in forest], LossConfig(), learner, 64).mini_batches[0][0]


def test_five_token_mask() -> None:
    """Prompt (a b), branches (c) and (d e): the exact mask, by eye."""
    end = torch.tensor([5, 5, 3, 5, 5])
    assert dense_mask(end)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]


def test_block_mask_is_the_dense_mask() -> None:
    from torch.nn.attention.flex_attention import create_mask

    end = torch.from_numpy(packs(0, 512)[0].end)
    blocks = block_mask(end)
    again = create_mask(blocks.mask_mod, 1, 1, len(end), len(end), device="cpu")
    assert torch.equal(again, dense_mask(end))


@pytest.mark.parametrize("tied", [True, False])
def test_packed_logprobs_equal_flat_ones(tied: bool) -> None:
    forest = random_forest(4)
    lm = micro_qwen2(tied=tied)
    policy = PackedPolicy(lm, 0.7)
    flat: dict[tuple[int, ...], float] = {}
    for group in forest:
        for tree in group.trees:
            for leaf in trees.leaves(tree):
                ids = trees.path_ids(tree, leaf)
                logprobs = (lm(input_ids=torch.tensor([ids])).logits[0] / 0.7).log_softmax(-1)
                flat |= {tuple(ids[: i + 1]): logprobs[i - 1, ids[i]].item() for i in range(1, len(ids))}
    for pack in packs(4, 90):
        batch = to_tensors(pack, CPU)
        found, _ = score(policy, batch)
        mask = dense_mask(batch.end_T)[0, 0].numpy()
        for lp, index in zip(found.tolist(), np.flatnonzero(pack.weight), strict=True):
            assert lp == pytest.approx(flat[tuple(pack.ids[mask[index]].tolist())], abs=2e-5)


def test_chunks_change_nothing() -> None:
    lm = micro_qwen2()
    policy = PackedPolicy(lm, 1.0)
    batch = to_tensors(packs(5, 256)[0], CPU)
    grads = []
    for chunks in (1, 7):
        lm.zero_grad()
        logprobs, entropy = score(policy, batch, chunks)
        (logprobs.sum() + entropy.sum()).backward()
        grads.append([p.grad.clone() for p in lm.parameters()])
    for one, seven in zip(*grads, strict=True):
        torch.testing.assert_close(one, seven, rtol=1e-4, atol=1e-4)


def test_entropy_of_a_uniform_policy() -> None:
    lm = micro_qwen2(vocab=32, tied=False)
    torch.nn.init.zeros_(lm.lm_head.weight)
    logprobs, entropy = score(PackedPolicy(lm, 1.0), to_tensors(flat_pack([((1, 2, 3), 2)]), CPU))
    assert logprobs.tolist() == pytest.approx([-np.log(32)] * 2)
    assert entropy.tolist() == pytest.approx([np.log(32)] * 2)


def test_empty_pack_has_a_zero_gradient() -> None:
    lm = micro_qwen2()
    logprobs, _ = score(PackedPolicy(lm, 1.0), to_tensors(blank_pack(1), CPU), chunks=2)
    logprobs.sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() == 0 for p in lm.parameters())
