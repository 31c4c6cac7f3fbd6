"""A typed forest in packs has the gradient of one row per step with its node's own coefficients, by plain code."""

import copy
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from micro_models import micro_qwen2
from test_decision_packing import plan_of, random_values
from test_identity import gradients, nudged, packed_loss
from test_phase import PlainEngine
from torch import Tensor
from transformers import PreTrainedModel
from typed_forests import FAN, decision, random_typed_forest, typed_config

from envs.decisions.settings import DecisionSettings
from rollout_workers.types import Forest, Node
from trainer.advantages import TreeAdvantages
from trainer.config import LearnerConfig, LossConfig
from trainer.packing import pack_forest
from trainer.phase import Phase
from trainer.types import RankPacks

DECIDED = decision(
    FAN,
    {
        "intent": {"entropy_coef": 0.05, "kl_coef": 0.0, "clip_low": 0.05},
        "lookup": {"entropy_coef": 0.35, "kl_coef": 0.2, "clip_high": 0.3},
        "shipping": {"weight": 2.0, "clip_low": 0.3, "clip_high": 0.05},
        "aftersales": {"freeze": True},
    },
)
"""A checker, a writer, one with other clip ranges, and a frozen one."""
FACTORS = {"intent": 0.92, "lookup": 0.92 * 0.85 * 2 / 3, "shipping": 0.92 * 0.85 * 4 / 3}
BASE = {"kl_coef": 0.03, "entropy_coef": 0.01, "clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.3}
AGGREGATIONS = {"seq_mean": {}, "token_mean": {"aggregation": "token_mean"}}


def sampled_by(lm: PreTrainedModel, forest: Forest, seed: int) -> Forest:
    """The forest with log-probabilities of `lm` after each step's own prompt, off by an amount per step and token."""
    rng = random.Random(seed)

    def shifted(nodes: list[Node], index: int) -> Node:
        node = nodes[index]
        common = rng.gauss(0, 0.4)
        own = scored(lm, nodes[node.parent].observation_ids, node.token_ids)[0].tolist()
        return replace(node, logprobs=tuple(value + common + rng.gauss(0, 0.2) for value in own))

    with torch.no_grad():
        return [
            replace(
                group,
                trees=tuple(
                    replace(tree, nodes=[tree.nodes[0], *(shifted(tree.nodes, i) for i in range(1, len(tree.nodes)))])
                    for tree in group.trees
                ),
            )
            for group in forest
        ]


def scored(lm: PreTrainedModel, prompt: tuple[int, ...], ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each sampled token of a row of its own."""
    table = lm(input_ids=torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
    return table[range(len(ids)), list(ids)], -(table.exp() * table).sum(-1)


def plain_loss(
    lm: PreTrainedModel,
    reference: PreTrainedModel,
    old_lm: PreTrainedModel | None,
    forest: Forest,
    values: list[list[dict[int, float]]],
    loss: LossConfig,
) -> tuple[Tensor, Counter[str]]:
    """Every step of a trained node as a row of its own, token by token; and how often each bound was reached."""
    steps = [
        (tree.nodes[tree.nodes[i].parent].observation_ids, tree.nodes[i], values[g][t][i])
        for g, group in enumerate(forest)
        for t, tree in enumerate(group.trees)
        for i in range(1, len(tree.nodes))
    ]
    count = Counter(node.record.node for _, node, _ in steps)
    tokens = Counter(node.record.node for _, node, _ in steps for _ in node.token_ids)
    own = {node.name: node.coefficients for node in DECIDED.nodes}
    total, cuts = torch.zeros((), dtype=torch.float64), Counter[str]()
    for prompt, node, advantage in steps:
        name = node.record.node
        if name not in FACTORS:
            continue
        size = len(node.token_ids)
        per_token = tokens[name] if loss.aggregation == "token_mean" else count[name] * size
        pick = {key: getattr(own[name], key) for key in ("entropy_coef", "kl_coef", "clip_low", "clip_high")}
        pick = {key: getattr(loss, key) if value is None else value for key, value in pick.items()}
        new, entropy = scored(lm, prompt, node.token_ids)
        engine = torch.tensor(node.logprobs, dtype=new.dtype)
        with torch.no_grad():
            ref = scored(reference, prompt, node.token_ids)[0]
            old = engine if old_lm is None else scored(old_lm, prompt, node.token_ids)[0]
        for t in range(size):
            gap = new[t] - old[t] if loss.ratio_level == "token" else (new - old).sum() / size
            ratio = torch.exp(gap)
            cut = torch.clamp(ratio, 1 - pick["clip_low"], 1 + pick["clip_high"])
            gain = torch.minimum(ratio * advantage, cut * advantage)
            cuts[f"{name} high"] += advantage > 0 and ratio.item() > 1 + pick["clip_high"]
            cuts[f"{name} low"] += advantage < 0 and ratio.item() < 1 - pick["clip_low"]
            if loss.dual_clip is not None and advantage < 0:
                gain = torch.maximum(gain, torch.tensor(loss.dual_clip * advantage, dtype=gain.dtype))
            kl = torch.exp(ref[t] - new[t]) - (ref[t] - new[t]) - 1
            total = total + FACTORS[name] / per_token * (
                gain - pick["kl_coef"] * kl + pick["entropy_coef"] * entropy[t]
            )
    return -total, cuts


def packs(
    forest: Forest,
    values: list[list[dict[int, float]]],
    loss: LossConfig,
    decided: DecisionSettings = DECIDED,
    **learner: object,
) -> RankPacks:
    adv = [[TreeAdvantages(level="node", values=of, leaves=()) for of in per_tree] for per_tree in values]
    return pack_forest(forest, adv, loss, LearnerConfig(**learner), 64, typed=plan_of(decided, loss)).mini_batches[0]


WAYS = (
    {"layout": "level", "max_tokens_per_pack": 14, "ranks": 1},
    {"layout": "packed", "max_tokens_per_pack": 512, "ranks": 1},
    {"layout": "flat", "max_tokens_per_pack": 64, "ranks": 3},
)
"""Small packs in which prompts are repeated, one large pack, and rows of their own dealt to three ranks."""


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("ratio_level", ["token", "turn", "sequence"])
def test_packs_give_the_gradient_of_one_row_per_step(ratio_level: str, aggregation: str, recompute: bool) -> None:
    loss = LossConfig(**BASE, **AGGREGATIONS[aggregation], ratio_level=ratio_level)
    loss = loss.model_copy(update={"old_logprobs": "recompute" if recompute else "rollout"})
    lm, reference = micro_qwen2(seed=5).double(), micro_qwen2(seed=105).double()
    forest = sampled_by(lm, random_typed_forest(5, tuple(FAN), tasks=6), 5)
    values = random_values(forest, 5)
    old_lm = nudged(lm, 0.1) if recompute else None
    expected_loss, cuts = plain_loss(lm, reference, old_lm, forest, values, loss)
    expected = gradients(lm, expected_loss)
    assert recompute or all(cuts[f"{name} {bound}"] for name in FACTORS for bound in ("low", "high"))
    lm, reference = lm.float(), reference.float()
    before = old_lm.float() if old_lm is not None else None
    for way in WAYS:
        dealt = [pack for of_rank in packs(forest, values, loss, **way) for pack in of_rank]
        found_loss = packed_loss(lm, reference, before, dealt, loss, way["layout"])
        assert found_loss.item() == pytest.approx(expected_loss.item(), rel=1e-4, abs=1e-5)
        found = gradients(lm, found_loss)
        assert all((a - b).norm() <= 2e-5 * a.norm() for a, b in zip(expected, found, strict=True)), way


def test_a_phase_reports_each_node_whatever_the_packs() -> None:
    loss = LossConfig(**BASE)
    config = typed_config(DECIDED).model_copy(update={"loss": loss})
    forest = sampled_by(micro_qwen2(), random_typed_forest(5, tuple(FAN)), 5)
    values = random_values(forest, 5)
    whole, split = (
        Phase(PlainEngine(), config).run(packs(forest, values, loss, layout="packed", max_tokens_per_pack=size))
        for size in (4096, 20)
    )
    names = {name: value for name, value in whole.items() if name.startswith("decision/")}
    assert {name.split("/")[1] for name in names} == set(FACTORS), "no frozen node"
    for name, value in names.items():
        assert split[name] == pytest.approx(value, rel=1e-4), name
    sampled = Counter(
        node.record.node for group in forest for tree in group.trees for node in tree.nodes[1:] for _ in node.token_ids
    )
    assert names["decision/lookup/tokens"] == sampled["lookup"]
    assert whole["learner/trained_tokens"] == sum(sampled[name] for name in FACTORS)
    assert names["decision/shipping/clip_share"] > 0
    assert names["decision/lookup/kl"] == 0, "from the starting policy, where it begins"
    assert names["decision/intent/kl"] > 0, "without a KL term: from the policy that sampled"
    assert math.isclose(
        sum(names[f"decision/{name}/entropy"] * sampled[name] for name in FACTORS) / whole["learner/trained_tokens"],
        whole["learner/entropy"],
        rel_tol=1e-4,
    )


def test_only_a_node_with_a_kl_term_needs_reference_log_probabilities() -> None:
    """`loss.kl_coef` alone says nothing when every node has its own."""
    forest = random_typed_forest(5, tuple(FAN))
    values = random_values(forest, 5)
    for coefficient, scored_there in ((0.0, 0), (0.1, 1)):
        decided = decision(FAN, {name: {"kl_coef": coefficient if name == "lookup" else 0.0} for name in FAN})
        loss = LossConfig(kl_coef=0.05)
        engine = PlainEngine()
        calls: list[int] = []
        plain = engine.reference
        engine.reference = lambda batch, chunks, plain=plain, calls=calls: calls.append(1) or plain(batch, chunks)
        config = typed_config(decided).model_copy(update={"loss": loss})
        found = Phase(engine, config).run(packs(forest, values, loss, decided, layout="packed"))
        assert len(calls) == scored_there
        assert ("learner/kl_reference" in found) == bool(scored_there)


def test_coefficients_reach_only_their_own_node() -> None:
    """An entropy bonus of one node: the gradient differs from that without it by that of its own steps alone."""
    lm = micro_qwen2(seed=3).double()
    forest = random_typed_forest(3, tuple(FAN), tasks=1)
    values = random_values(forest, 3)
    loss = LossConfig(kl_coef=0.0)
    found = {}
    for coefficient in (0.0, 0.2):
        decided = decision(FAN, {"shipping": {"entropy_coef": coefficient}})
        (pack,) = packs(forest, values, loss, decided, layout="packed", max_tokens_per_pack=4096)[0]
        model = copy.deepcopy(lm).float()
        found[coefficient] = gradients(model, packed_loss(model, model, None, [pack], loss, "packed"))
    shipping = [
        (tree.nodes[node.parent].observation_ids, node.token_ids)
        for tree in forest[0].trees
        for node in tree.nodes[1:]
        if node.record.node == "shipping"
    ]
    bonus = sum(scored(lm, *each)[1].mean() for each in shipping) / len(shipping)
    expected = gradients(lm, -0.2 * 0.92 * 0.85 * bonus)
    for with_bonus, without, own in zip(found[0.2], found[0.0], expected, strict=True):
        assert (with_bonus - without - own).norm() <= 1e-4 * own.norm() + 1e-6
