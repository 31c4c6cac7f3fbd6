"""Products of adapters on CPUs: each row through its own, and rows without one as they were. Imports vllm (15 s)."""

import pytest
import torch

pytestmark = pytest.mark.slow

SLOTS = [None, 7, 5]
"""Which adapter lies in which slot: none, number 7, number 5."""
TOKENS = (5, 5, 0, 7, 7, 7, 0, 5)
SAMPLES = (5, 0, 7)
"""Adapter of each row; 0: none."""


def test_each_row_goes_through_its_own_adapter() -> None:
    from vllm.lora.layers import LoRAMapping

    from rollout_workers.vllm_adapters import GroupedProducts

    torch.manual_seed(0)
    products = GroupedProducts(64, max_batches=8, device=torch.device("cpu"))
    products.update_metadata(LoRAMapping(TOKENS, SAMPLES, is_prefill=True), SLOTS, 4, 11)
    a_SRI = tuple(torch.randn(3, 1, 4, 6) for _ in range(2))
    b_SOR = tuple(torch.randn(3, 1, size, 4) for size in (3, 2))
    x, y = torch.randn(len(TOKENS), 6), torch.randn(len(TOKENS), 5)
    found = y.clone()
    products.add_lora_linear(found, x, a_SRI, b_SOR, 1.5, (3, 2))
    for row, number in enumerate(TOKENS):
        if number == 0:
            assert torch.equal(found[row], y[row]), "vLLM's own would add the last slot's product"
            continue
        slot = SLOTS.index(number)
        parts = [b[slot, 0] @ (a[slot, 0] @ x[row]) * 1.5 for a, b in zip(a_SRI, b_SOR, strict=True)]
        torch.testing.assert_close(found[row], y[row] + torch.cat(parts))

    head_a, head_b = torch.randn(3, 1, 4, 6), torch.randn(3, 1, 11, 4)
    hidden, logits = torch.randn(len(SAMPLES), 6), torch.randn(len(SAMPLES), 12)  # one column of padding
    found = logits.clone()
    products.add_lora_logits(found, hidden, head_a, head_b, 1.0)
    assert torch.equal(found[1], logits[1])
    for row, slot in ((0, 2), (2, 1)):
        product = head_b[slot, 0] @ (head_a[slot, 0] @ hidden[row])
        torch.testing.assert_close(found[row], logits[row] + torch.cat([product, torch.zeros(1)]))


def test_one_adapter_for_all_rows_and_none_for_any() -> None:
    from vllm.lora.layers import LoRAMapping

    from rollout_workers.vllm_adapters import GroupedProducts

    products = GroupedProducts(64, max_batches=8, device=torch.device("cpu"))
    x, y, a, b = torch.ones(2, 3), torch.zeros(2, 2), torch.ones(3, 1, 1, 3), torch.ones(3, 1, 2, 1)
    products.update_metadata(LoRAMapping((5, 5), (5,), is_prefill=True), SLOTS, 4, 11)
    products.add_lora_linear(y, x, (a,), (b,), 2.0, (2,))
    assert y.tolist() == [[6.0, 6.0], [6.0, 6.0]]
    products.update_metadata(LoRAMapping((0, 0), (0,), is_prefill=True), SLOTS, 4, 11)
    products.add_lora_linear(y, x, (a,), (b,), 2.0, (2,))
    assert y.tolist() == [[6.0, 6.0], [6.0, 6.0]]
