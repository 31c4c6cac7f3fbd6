"""How much each decision node's loss weighs: decay with depth, and routing within a level of the declaration.

A node that moves away from where it started gets less of its level's gradient, its siblings more.
"""

import math
from collections.abc import Mapping, Sequence

from envs.decisions.settings import DecisionSettings
from envs.decisions.tree import Declared


def depth_weight(depth: int, decision: DecisionSettings) -> float:
    """decay_root * decay^depth, e.g. 0.92, 0.782 and 0.6647 at the depths 0, 1 and 2."""
    return decision.decay_root * decision.decay**depth


def shares(weights: Sequence[float], children: Sequence[int], kls: Sequence[float]) -> list[float]:
    """Shares of the nodes of a level: in proportion to weight * max(1, children) * clamp(1 - KL, 0, 1), summing to 1.

    Equal where all of that is 0. A leaf counts like a node with one child, and a KL above 1 gives nothing. Example:
    weights (1, 1), no children, KLs (0, 0.5): 2/3 and 1/3.
    """
    parts = [
        weight * max(1, count) * min(max(1.0 - kl, 0.0), 1.0)
        for weight, count, kl in zip(weights, children, kls, strict=True)
    ]
    whole = math.fsum(parts)
    return [part / whole for part in parts] if whole > 0 else [1 / len(parts)] * len(parts)


def routing_shares(decision: DecisionSettings, kls: Mapping[str, float]) -> dict[str, float]:
    """Share of each trained node within its level; equal shares without `decision.routing`.

    Frozen nodes take part in nothing: the shares of a level's trained nodes sum to 1. A node without a KL yet has 0.
    """
    declared = Declared(decision)
    levels: dict[int, list[str]] = {}
    for name in declared.order:
        if declared.is_trained(name):
            levels.setdefault(declared.depth(name), []).append(name)
    found: dict[str, float] = {}
    for names in levels.values():
        if decision.routing:
            weights = [declared.node(name).rewards.weight for name in names]
            counts = [len(declared.children(name)) for name in names]
            mine = shares(weights, counts, [kls.get(name, 0.0) for name in names])
        else:
            mine = [1 / len(names)] * len(names)
        found |= dict(zip(names, mine, strict=True))
    return found


def factors(decision: DecisionSettings, routed: Mapping[str, float]) -> dict[str, float]:
    """Loss weight of each trained node: its depth's weight * its share * number of shares in its level.

    So where a level's shares are equal, each node has just the weight of its depth.
    """
    declared = Declared(decision)
    depths = {name: declared.depth(name) for name in routed}
    return {
        name: depth_weight(depths[name], decision) * share * list(depths.values()).count(depths[name])
        for name, share in routed.items()
    }
