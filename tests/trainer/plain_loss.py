"""The objective of the method, leaf by leaf and token by token, as it is printed: what packed training is held against.

Shares no code with packing, credit or loss. Every leaf is a row of its own through the model.
"""

import random
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rollout_workers import trees
from rollout_workers.types import Forest, Tree
from trainer.advantages import TreeAdvantages
from trainer.config import LossConfig

Advantages = list[list[TreeAdvantages]]


@dataclass
class Row:
    """A path. The lists run over its sampled tokens."""

    ids: list[int]
    weight: float
    at: list[int]
    node: list[int]
    advantage: list[float]
    engine: list[float]


def random_advantages(forest: Forest, seed: int, level: str) -> Advantages:
    """Not from rewards: any numbers will do, with zeros among them."""
    rng = random.Random(seed)
    found: Advantages = []
    for group in forest:
        found.append([])
        for tree in group.trees:
            leaves = trees.leaves(tree)
            keys = leaves if level == "leaf" else range(1, len(tree.nodes))
            values = {key: rng.choice((0.0, rng.uniform(0.2, 2.0), -rng.uniform(0.2, 2.0))) for key in keys}
            found[-1].append(TreeAdvantages(level=level, values=values, leaves=tuple(leaves)))
    return found


def plain_rows(forest: Forest, advantages: Advantages, config: LossConfig) -> list[Row]:
    found = []
    for group, per_tree in zip(forest, advantages, strict=True):
        rows = [_row(tree, leaf, adv) for tree, adv in zip(group.trees, per_tree, strict=True) for leaf in adv.leaves]
        for row in rows:
            divisor = config.dr_grpo_length if config.aggregation == "dr_grpo" else len(row.at)
            row.weight = 1 / (len(forest) * len(rows) * divisor)
        found += rows
    if config.aggregation == "token_mean":
        for row in found:
            row.weight = 1 / sum(len(other.at) for other in found)
    return found


def _row(tree: Tree, leaf: int, adv: TreeAdvantages) -> Row:
    row = Row(ids=trees.path_ids(tree, leaf), weight=0.0, at=[], node=[], advantage=[], engine=[])
    position = 0
    for index in trees.path(tree, leaf):
        node = tree.nodes[index]
        for k, logprob in enumerate(node.logprobs):
            row.at.append(position + k)
            row.node.append(index)
            row.advantage.append(adv.values[leaf if adv.level == "leaf" else index])
            row.engine.append(logprob)
        position += len(node.token_ids) + len(node.observation_ids)
    return row


def scored(lm: nn.Module, row: Row) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each sampled token."""
    table = lm(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
    logprobs = torch.stack([table[i - 1, row.ids[i]] for i in row.at])
    return logprobs, torch.stack([-(table[i - 1].exp() * table[i - 1]).sum() for i in row.at])


def plain_loss(
    lm: nn.Module,
    reference: nn.Module,
    old_lm: nn.Module | None,
    forest: Forest,
    advantages: Advantages,
    config: LossConfig,
) -> tuple[Tensor, Counter[str]]:
    """The loss, and how many token terms were cut at which bound. Without `old_lm` the engine's numbers are old."""
    total, cuts = torch.zeros((), dtype=torch.float64), Counter[str]()
    for row in plain_rows(forest, advantages, config):
        new, entropy = scored(lm, row)
        engine = torch.tensor(row.engine, dtype=new.dtype)
        with torch.no_grad():
            ref, old = scored(reference, row)[0], scored(old_lm, row)[0] if old_lm is not None else engine
        for t in range(len(row.at)):
            group = [
                s
                for s in range(len(row.at))
                if config.ratio_level == "sequence"
                or (config.ratio_level == "turn" and row.node[s] == row.node[t])
                or s == t
            ]
            ratio = torch.exp(sum(new[s] - old[s] for s in group) / len(group))
            trust = torch.exp(sum(old[s] - engine[s] for s in group) / len(group))
            gain = _surrogate(ratio, row.advantage[t], config, cuts)
            if config.tis_cap is not None:
                gain = torch.clamp(trust, max=config.tis_cap) * gain
                cuts["tis"] += trust.item() > config.tis_cap
            kl = torch.exp(ref[t] - new[t]) - (ref[t] - new[t]) - 1
            total = total + row.weight * (gain - config.kl_coef * kl + config.entropy_coef * entropy[t])
    return -total, cuts


def _surrogate(ratio: Tensor, advantage: float, config: LossConfig, cuts: Counter[str]) -> Tensor:
    clipped = torch.clamp(ratio, 1 - config.clip_low, 1 + config.clip_high)
    term = torch.minimum(ratio * advantage, clipped * advantage)
    cuts["high"] += advantage > 0 and ratio.item() > 1 + config.clip_high
    cuts["low"] += advantage < 0 and ratio.item() < 1 - config.clip_low
    if config.dual_clip is not None and advantage < 0:
        term = torch.maximum(term, torch.tensor(config.dual_clip * advantage, dtype=term.dtype))
        cuts["dual"] += ratio.item() > config.dual_clip
    return term
