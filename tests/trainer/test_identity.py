"""The identity of the method: trees in packs have the gradient of one row per leaf, whatever the loss and layout."""

import copy
import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from micro_models import micro_qwen2
from plain_loss import plain_loss, random_advantages
from random_forests import random_forest
from torch import Tensor
from transformers import PreTrainedModel

from rollout_workers import trees
from rollout_workers.types import Forest
from trainer.config import LearnerConfig, LossConfig
from trainer.forward import PackedPolicy, to_tensors
from trainer.layout import Layout
from trainer.loss import pack_loss
from trainer.loss_inputs import loss_inputs
from trainer.packing import pack_forest
from trainer.types import TreePack

CPU = torch.device("cpu")
AGGREGATIONS = {
    "seq_mean": {},
    "token_mean": {"aggregation": "token_mean"},
    "dr_grpo": {"aggregation": "dr_grpo", "dr_grpo_length": 20},
}
EVERYTHING = {"kl_coef": 0.05, "entropy_coef": 0.02, "clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.3}


def sampled_by(lm: PreTrainedModel, forest: Forest, shift: float, seed: int) -> Forest:
    """The forest with log-probabilities of `lm`, off by an amount per tree, step and token: too high in odd trees."""
    rng = random.Random(seed)

    def node(tree: trees.Tree, index: int) -> trees.Tree:
        one = tree.nodes[index]
        ids = trees.path_ids(tree, index)
        first = len(ids) - len(one.observation_ids) - len(one.token_ids)
        table = lm(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        own = [table[first + k - 1, token].item() for k, token in enumerate(one.token_ids)]
        common = shift * (1 if tree.index % 2 else -1) + rng.gauss(0, shift / 2)
        return replace(one, logprobs=tuple(value + common + rng.gauss(0, shift) for value in own))

    with torch.no_grad():
        return [
            replace(
                group,
                trees=tuple(
                    replace(tree, nodes=[tree.nodes[0], *(node(tree, i) for i in range(1, len(tree.nodes)))])
                    for tree in group.trees
                ),
            )
            for group in forest
        ]


def nudged(lm: PreTrainedModel, size: float) -> PreTrainedModel:
    """The learner before its updates: the same model, a little elsewhere."""
    other = copy.deepcopy(lm)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += (
                size * parameter.std() * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            )
    return other


def packed_loss(
    lm: PreTrainedModel,
    reference: PreTrainedModel,
    old_lm: PreTrainedModel | None,
    packs: list[TreePack],
    config: LossConfig,
    layout: Layout,
) -> Tensor:
    def logprobs(model: PreTrainedModel, batch: object) -> tuple[Tensor, Tensor]:
        policy = PackedPolicy(model, 1.0, layout)
        return policy(batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, 1)

    total = torch.zeros(())
    for pack in packs:
        batch, inputs = to_tensors(pack, CPU), loss_inputs(pack, CPU)
        with torch.no_grad():
            fixed = logprobs(reference, batch)[0]
            if old_lm is not None:
                inputs = replace(inputs, old_logprobs_R=None if old_lm is lm else logprobs(old_lm, batch)[0])
        total = total + pack_loss(*logprobs(lm, batch), fixed, inputs, config).loss
    return total


def gradients(lm: PreTrainedModel, loss: Tensor) -> list[Tensor]:
    lm.zero_grad()
    loss.backward()
    return [parameter.grad.double() for parameter in lm.parameters()]


LEVELS = ("token", "turn", "sequence")
WAYS: tuple[tuple[Layout, int], ...] = (("level", 36), ("level", 512), ("packed", 36), ("packed", 512), ("flat", 512))
"""Layouts, each with the size of its packs: no path has more than 33 tokens and many trees have more than 36, so trees
are split in small packs and whole in large ones; rows of their own repeat prefixes anyway.
"""


def check(config: LossConfig, *, seed: int, level: str, shift: float) -> Counter[str]:
    """Every layout within 1e-5 of the plain rows in every parameter; returns how often each bound was reached."""
    lm, reference = micro_qwen2(seed=seed).double(), micro_qwen2(seed=seed + 100).double()
    forest = sampled_by(lm, random_forest(seed, tasks=2), shift, seed)
    adv = random_advantages(forest, seed, level)
    old_lm = None
    if config.old_logprobs == "recompute":
        old_lm = nudged(lm, 0.1) if shift else lm
    loss, cuts = plain_loss(lm, reference, old_lm, forest, adv, config)
    expected = gradients(lm, loss)
    lm, reference = lm.float(), reference.float()
    before = old_lm if old_lm is None or old_lm is lm else old_lm.float()
    for layout, capacity in WAYS:
        learner = LearnerConfig(layout=layout, max_tokens_per_pack=capacity)
        packed = pack_forest(forest, adv, config, learner, lm.config.hidden_size)
        assert (packed.stats["tree/repeated_tokens"] > 0) == (capacity == 36 or layout == "flat")
        packs = packed.mini_batches[0][0]
        found = gradients(lm, packed_loss(lm, reference, before, packs, config, layout))
        assert all((a - b).norm() <= 1e-5 * a.norm() for a, b in zip(expected, found, strict=True)), layout
    return cuts


CASES = [
    *itertools.product(LEVELS, AGGREGATIONS, ("leaf",), (0.0, 0.4)),
    *itertools.product(LEVELS, ("seq_mean",), ("node",), (0.0, 0.4)),
]


@pytest.mark.parametrize(("ratio_level", "aggregation", "level", "shift"), CASES)
def test_trees_give_the_gradient_of_rows(ratio_level: str, aggregation: str, level: str, shift: float) -> None:
    config = LossConfig(**AGGREGATIONS[aggregation], **EVERYTHING, ratio_level=ratio_level)
    cuts = check(config, seed=7, level=level, shift=shift)
    assert not shift or (cuts["low"] and cuts["high"] and cuts["dual"])


@pytest.mark.parametrize("shift", [0.0, 0.4], ids=["on_policy", "off_policy"])
@pytest.mark.parametrize("ratio_level", LEVELS)
def test_recomputed_logprobs_and_truncated_weights(ratio_level: str, shift: float) -> None:
    config = LossConfig(**EVERYTHING, ratio_level=ratio_level, old_logprobs="recompute", tis_cap=1.2)
    cuts = check(config, seed=3, level="leaf", shift=shift)
    assert not shift or (cuts["low"] and cuts["high"] and cuts["dual"] and cuts["tis"])


@pytest.mark.parametrize("level", ["leaf", "node"])
@pytest.mark.parametrize("ratio_level", LEVELS)
def test_leaves_without_advantage_may_be_left_out(ratio_level: str, level: str) -> None:
    check(LossConfig(kl_coef=0.0, dual_clip=None, ratio_level=ratio_level), seed=8, level=level, shift=0.4)


SWITCHES = ({}, {"dual_clip": None}, {"kl_coef": 0.0, "entropy_coef": 0.0})
RECOMPUTE = {"old_logprobs": "recompute", "tis_cap": 1.2}


@pytest.mark.slow
@pytest.mark.parametrize("ratio_level", LEVELS)
def test_every_pair_of_settings(ratio_level: str) -> None:
    """Six of the 432 combinations per ratio level: each choice meets each choice of every other setting.

    Aggregation and switch form a Latin square with the ratio level. Old log-probabilities, kind of advantage and shift
    are three bits that come with their opposites, and agree and differ in turn.
    """
    cuts = Counter[str]()
    bits = ((0, 0, 0), (0, 1, 0), (0, 0, 1))
    for place, (aggregation, three) in enumerate(zip(AGGREGATIONS, bits, strict=True)):
        switch = SWITCHES[(place + LEVELS.index(ratio_level)) % 3]
        for seed, (old, level, shift) in ((1, three), (8, tuple(1 - bit for bit in three))):
            settings = EVERYTHING | AGGREGATIONS[aggregation] | switch | (RECOMPUTE if old else {})
            config = LossConfig(**settings, ratio_level=ratio_level)
            cuts += check(config, seed=seed, level=("leaf", "node")[level], shift=(0.0, 0.5)[shift])
    assert all(cuts[bound] for bound in ("low", "high", "dual", "tis"))
