"""Log-probabilities and entropies over the allowed tokens only, and the masks that say which those are."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from micro_models import micro_qwen2
from torch import Tensor

from trainer.decisions.masks import Masks, stop_ids
from trainer.forward import PackedPolicy, _TokenScores, allowed, to_tensors
from trainer.packing import flat_pack
from trainer.tiny_model import tiny_tokenizer
from trainer.types import Answer

CPU = torch.device("cpu")
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"intent": {"enum": ["refund", "status"]}, "note": {"type": "string", "maxLength": 4}},
        "required": ["intent", "note"],
    }
)


def packed(allowed_CV: Tensor) -> Tensor:
    """Booleans (C, V) as int32 words, made bit by bit."""
    words_CW = torch.zeros(len(allowed_CV), -(-allowed_CV.shape[1] // 32), dtype=torch.int64)
    for row, token in allowed_CV.nonzero().tolist():
        words_CW[row, token // 32] += 1 << token % 32
    return words_CW.to(torch.int32)


def plain_scores(logits_CV: Tensor, targets_C: Tensor, temperature: float, allowed_CV: Tensor) -> tuple[Tensor, Tensor]:
    logp_CV = (logits_CV.double() / temperature).masked_fill(~allowed_CV, -math.inf).log_softmax(-1)
    entropy_C = -torch.where(allowed_CV, logp_CV.exp() * logp_CV.masked_fill(~allowed_CV, 0), 0).sum(-1)
    return logp_CV.gather(-1, targets_C[:, None])[:, 0], entropy_C


def example(rows: int = 7, vocabulary: int = 70) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets, and about a third of the ids allowed, each target among them."""
    torch.manual_seed(3)
    targets_C = torch.randint(vocabulary, (rows,))
    allowed_CV = torch.rand(rows, vocabulary) < 0.3
    allowed_CV[torch.arange(rows), targets_C] = True
    return 3 * torch.randn(rows, vocabulary), targets_C, allowed_CV


def test_masks_are_unpacked_bit_by_bit() -> None:
    _, _, allowed_CV = example()
    assert torch.equal(allowed(packed(allowed_CV), 70), allowed_CV)
    assert allowed(torch.tensor([[1 << 4 | 2, -(1 << 31)]], dtype=torch.int32), 64).nonzero()[:, 1].tolist() == [
        1,
        4,
        63,
    ]


def test_scores_and_gradients_are_those_of_a_masked_softmax() -> None:
    logits_CV, targets_C, allowed_CV = example()
    grads = []
    for score in (
        lambda x: _TokenScores.apply(x * 1.0, targets_C, 0.7, packed(allowed_CV)),
        lambda x: plain_scores(x, targets_C, 0.7, allowed_CV),
    ):
        leaf_CV = logits_CV.clone().requires_grad_()
        logprobs_C, entropy_C = score(leaf_CV)
        weights_C = torch.linspace(-1, 2, len(targets_C))
        ((weights_C * logprobs_C).sum() + (weights_C.flip(0) * entropy_C).sum()).backward()
        grads.append((logprobs_C.double(), entropy_C.double(), leaf_CV.grad))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=1e-5, atol=1e-5)
    assert grads[0][2][~allowed_CV].abs().max() == 0, "what is not allowed has no gradient at all"


@pytest.mark.parametrize("output", [0, 1], ids=["logprob", "entropy"])
def test_gradients_are_finite_differences(output: int) -> None:
    logits_CV, targets_C, allowed_CV = example(rows=1, vocabulary=40)

    def value(x_CV: Tensor) -> Tensor:
        found: Tensor = _TokenScores.apply(x_CV, targets_C, 0.9, packed(allowed_CV))[output]
        return found.sum()

    leaf_CV = logits_CV.clone().requires_grad_()
    value(leaf_CV * 1.0).backward()
    for place in range(40):
        step_CV = torch.zeros(1, 40)
        step_CV[0, place] = 1e-2
        slope = (value(logits_CV + step_CV) - value(logits_CV - step_CV)).item() / 2e-2
        assert slope == pytest.approx(leaf_CV.grad[0, place].item(), abs=5e-4)


def test_a_forced_token_has_nothing_to_learn() -> None:
    logits_CV, targets_C, _ = example()
    forced_CV = torch.zeros_like(logits_CV, dtype=torch.bool)
    forced_CV[torch.arange(len(targets_C)), targets_C] = True
    leaf_CV = logits_CV.clone().requires_grad_()
    logprobs_C, entropy_C = _TokenScores.apply(leaf_CV * 1.0, targets_C, 0.7, packed(forced_CV))
    assert (logprobs_C == 0).all()
    assert (entropy_C == 0).all()
    (3 * logprobs_C.sum() - 2 * entropy_C.sum()).backward()
    assert (leaf_CV.grad == 0).all()


def test_full_masks_change_no_bit() -> None:
    logits_CV, targets_C, _ = example()
    found = []
    for mask_CW in (None, torch.full((7, 3), -1, dtype=torch.int32)):
        leaf_CV = logits_CV.clone().requires_grad_()
        scores = _TokenScores.apply(leaf_CV * 1.0, targets_C, 0.7, mask_CW)
        (scores[0].sum() + scores[1].sum()).backward()
        found.append((*scores, leaf_CV.grad))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_chunks_and_checkpointing_change_nothing(checkpointed: bool) -> None:
    lm = micro_qwen2()
    if checkpointed:
        lm.train()
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = PackedPolicy(lm, 0.8)
    pack = flat_pack([(tuple(range(3, 23)), 15)])
    torch.manual_seed(1)
    allowed_RV = torch.rand(15, 64) < 0.4
    batch = to_tensors(pack, CPU, packed(allowed_RV | torch.nn.functional.one_hot(torch.arange(8, 23), 64).bool()))
    results = []
    for chunks in (1, 4):
        lm.zero_grad()
        scores = policy(
            batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, chunks, batch.mask_RW
        )
        (scores[0].sum() + scores[1].sum()).backward()
        results.append([*scores, *(p.grad.clone() for p in lm.parameters())])
    for one, four in zip(*results, strict=True):
        torch.testing.assert_close(one, four, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return tiny_tokenizer(['{"intent":"refund","note":"é"} status refund intent note'] * 4)


def test_masks_of_an_answer(tokenizer: object) -> None:
    vocabulary = len(tokenizer) + 45
    masks = Masks(tokenizer, vocabulary, [SCHEMA, ""], [tokenizer.eos_token_id])
    ids = [*tokenizer.encode('{"intent":"refund","note":"é"}', add_special_tokens=False), tokenizer.eos_token_id]
    rows = masks.rows(0, ids)
    assert rows.shape == (len(ids), math.ceil(vocabulary / 32))
    allowed_RV = allowed(rows, vocabulary)
    assert allowed_RV[torch.arange(len(ids)), torch.tensor(ids)].all()
    assert not allowed_RV[:, len(tokenizer) :].any(), "ids that the tokenizer does not have are never allowed"
    assert allowed_RV[-1].nonzero()[:, 0].tolist() == [tokenizer.eos_token_id], "behind the object it must end"
    assert not allowed_RV[:-1, tokenizer.eos_token_id].any(), "and nowhere before"
    assert {tokenizer.decode([i])[0] for i in allowed_RV[0].nonzero()[:, 0].tolist()} == {"{"}
    assert (masks.rows(1, ids) == -1).all(), "without a schema everything is allowed"
    assert masks.rows(0, ids) is rows, "kept"


def test_several_tokens_may_end_an_answer(tokenizer: object) -> None:
    masks = Masks(tokenizer, len(tokenizer), ['{"enum": [1]}'], [tokenizer.eos_token_id, tokenizer.pad_token_id])
    (one,) = tokenizer.encode("1", add_special_tokens=False)
    last = allowed(masks.rows(0, [one, tokenizer.pad_token_id]), len(tokenizer))[1]
    assert last.nonzero()[:, 0].tolist() == sorted([tokenizer.eos_token_id, tokenizer.pad_token_id])


def test_an_answer_of_another_grammar_is_an_error(tokenizer: object) -> None:
    masks = Masks(tokenizer, len(tokenizer), ['{"enum": [1]}'], [tokenizer.eos_token_id])
    (one,) = tokenizer.encode("1", add_special_tokens=False)
    with pytest.raises(RuntimeError, match=r"token \d+ at place 1 of an answer of decision node 0 is not allowed"):
        masks.rows(0, [one, one])
    with pytest.raises(RuntimeError, match="goes on behind the token that ends it"):
        masks.rows(0, [one, tokenizer.eos_token_id, one])


def test_masks_stand_at_the_scored_tokens_of_a_pack(tokenizer: object) -> None:
    """Prompt of 3 tokens and an answer of node 1, then one of node 0, of which the last two tokens are scored only."""
    masks = Masks(tokenizer, len(tokenizer), [SCHEMA, '{"enum": [12]}'], [tokenizer.eos_token_id])
    number = [*tokenizer.encode("12", add_special_tokens=False), tokenizer.eos_token_id]
    words = tokenizer.encode('{"intent":"status","note":""}', add_special_tokens=False)
    assert masks.of_pack(flat_pack([(words, 3)])) is None
    pack = flat_pack([((9, 9, 9, *number), len(number)), ((8, *words), 2)])
    first, second = 3, 3 + len(number) + 1
    answers = (
        Answer(start=first, stop=first + len(number), node=1),
        Answer(start=second, stop=second + len(words), node=0),
    )
    mask_RW = masks.of_pack(replace(pack, answers=answers))
    expected = torch.cat([masks.rows(1, number), masks.rows(0, words)[-2:]])
    assert torch.equal(mask_RW, expected)
    assert np.count_nonzero(pack.scored) == len(expected)


def test_few_masks_are_kept(tokenizer: object) -> None:
    masks = Masks(tokenizer, len(tokenizer), [""], [0], kept_bytes=8 * 4 * math.ceil(len(tokenizer) / 32))
    rows = [masks.rows(0, [i, i]) for i in range(5)]
    assert masks.rows(0, [4, 4]) is rows[4]
    assert masks.rows(0, [0, 0]) is not rows[0], "there is room for eight rows"


def test_what_ends_an_answer_is_read_like_the_engine_reads_it(tmp_path: object, tokenizer: object) -> None:
    micro_qwen2().save_pretrained(tmp_path)
    assert stop_ids(str(tmp_path), tokenizer, trust_remote_code=False) == (0, tokenizer.eos_token_id)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert stop_ids(str(tmp_path), tokenizer, trust_remote_code=False) == (5, 7, tokenizer.eos_token_id)
    (tmp_path / "generation_config.json").unlink()
    assert stop_ids(str(tmp_path), tokenizer, trust_remote_code=False) == (0, tokenizer.eos_token_id)
