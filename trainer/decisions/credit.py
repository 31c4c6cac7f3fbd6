"""From the raw rewards of typed steps to their advantages: levels, normalisation, and whose reward reaches whom.

Per step s of node d the soft levels (automatic, human, or the expert in place of both) are mixed to one raw reward,
which the node's running statistics normalise; the hard rules' penalty joins after that, so that one -10 never widens
the standard deviation. The result is `total(s)`. The advantage of s is its own total, plus what the typed nodes below d
made of it: the mean of their totals over the steps that continue from s in the search tree. Formulas: docs/method.md.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from envs.decisions.settings import DecisionSettings, LevelSettings
from envs.decisions.tree import Declared
from envs.decisions.types import NodeReward, StepRecord
from envs.types import EndReason
from rollout_workers.trees import backup_sum, leaves, path
from rollout_workers.types import Forest, Tree
from trainer.advantages import TreeAdvantages
from trainer.decisions.statistics import Running, Statistics, with_batches
from trainer.leaf_advantages import mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """One step's levels of reward, put together."""

    raw: float | None
    """Weighted mean of the soft levels it has; None without any."""
    soft_share: float
    """Weight of the soft levels over that of all levels it has, e.g. `0.6 / (0.6 + 0.1)`."""
    penalty: float
    """Sum of the hard rules, at most 0."""

    def total(self, normal: float) -> float:
        """What the step is worth: soft_share * normal + (1 - soft_share) * penalty."""
        return self.soft_share * normal + (1 - self.soft_share) * self.penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedCredit:
    """The credit of a forest."""

    advantages: list[list[TreeAdvantages]]
    """`[task][tree]`, of nodes; `values` has every step that carries loss."""
    statistics: dict[str, Running]
    """The running statistics with this forest taken in."""
    metrics: dict[str, float]
    """`decision/<node>/...` about rewards and advantages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A typed step that carries loss."""

    record: StepRecord
    mixed: Mixed | None
    normal: float | None
    """Its raw reward by the running statistics."""

    @property
    def total(self) -> float | None:
        """None without any level of reward."""
        return None if self.mixed is None else self.mixed.total(self.normal or 0.0)


def typed_credit(forest: Forest, decision: DecisionSettings, known: Statistics) -> TypedCredit:
    """Advantages of every typed step. The forest enters the statistics `known` first, and is then normalised by them.

    Steps from which only environment errors follow carry nothing and are in no statistic. Raises ValueError (one
    sentence) for a reward that is not finite.
    """
    mixed = [[_mixed_steps(tree, decision.levels) for tree in group.trees] for group in forest]
    raws: dict[str, list[float]] = defaultdict(list)
    for found in (one for group in mixed for tree in group for one in tree.values()):
        if found.mixed is not None and found.mixed.raw is not None:
            raws[found.record.node].append(found.mixed.raw)
    statistics = with_batches(known, raws)
    steps = [
        [{i: _normalised(step, statistics, decision) for i, step in tree.items()} for tree in group] for group in mixed
    ]
    reach = _Reach(decision)
    values = [
        _less_baseline([reach.values(*pair) for pair in zip(group.trees, per_tree, strict=True)], per_tree, decision)
        for group, per_tree in zip(forest, steps, strict=True)
    ]
    advantages = [
        [
            TreeAdvantages(level="node", values=of_tree, leaves=tuple(_rewarded(tree)))
            for tree, of_tree in zip(group.trees, of_group, strict=True)
        ]
        for group, of_group in zip(forest, values, strict=True)
    ]
    metrics = _metrics(decision, steps, values, statistics)
    return TypedCredit(advantages=advantages, statistics=statistics, metrics=metrics)


def mix(reward: NodeReward, levels: LevelSettings) -> Mixed | None:
    """Puts the levels of one step together; None if it has none of positive weight.

    A level is missing where it says nothing, and the weights of the others are divided by their sum. With the weights
    0.6, 0.3 and 0.1 and without a label: raw = automatic, total = 6/7 * normal + 1/7 * penalty. An expert's reward
    takes the place, and the weights, of both soft levels.
    """
    if reward.expert is not None:
        soft = [(levels.automatic + levels.human, reward.expert)]
    else:
        soft = [
            (weight, value)
            for weight, value in ((levels.automatic, reward.automatic), (levels.human, reward.human))
            if value is not None
        ]
    weight = math.fsum(share for share, _ in soft)
    rules = levels.rules if reward.penalty is not None else 0.0
    if weight + rules <= 0:
        return None
    raw = math.fsum(share * value for share, value in soft) / weight if weight > 0 else None
    return Mixed(raw=raw, soft_share=weight / (weight + rules), penalty=reward.penalty or 0.0)


def _rewarded(tree: Tree) -> list[int]:
    return [leaf for leaf in leaves(tree) if tree.nodes[leaf].end is not EndReason.ENV_ERROR]


def _mixed_steps(tree: Tree, levels: LevelSettings) -> dict[int, Step]:
    """Index -> step, for those with a leaf below that is no environment error."""
    alive = backup_sum(tree, dict.fromkeys(_rewarded(tree), 1.0))
    found = {}
    for index, node in enumerate(tree.nodes):
        if node.record is not None and alive[index]:
            _check_finite(tree, index, node.record)
            found[index] = Step(record=node.record, mixed=mix(node.record.reward, levels), normal=None)
    return found


def _check_finite(tree: Tree, index: int, record: StepRecord) -> None:
    for value in astuple(record.reward):
        if value is not None and not math.isfinite(value):
            raise ValueError(
                f"step {index} of tree {tree.index} of task {tree.task_id!r} (node {record.node}) has a reward of "
                f"{value}; rewards must be finite numbers"
            )


def _normalised(step: Step, statistics: Statistics, decision: DecisionSettings) -> Step:
    if step.mixed is None or step.mixed.raw is None:
        return step
    raw, name = step.mixed.raw, step.record.node
    normal = statistics[name].normal(raw) if decision.normalise else raw
    return Step(record=step.record, mixed=step.mixed, normal=normal)


class _Reach:
    """Whose reward reaches whose tokens: `decision.credit`."""

    def __init__(self, decision: DecisionSettings) -> None:
        declared = Declared(decision)
        self._above: dict[str, set[str]] = {name: set() for name in declared.order}
        """Per node the nodes above it that its reward reaches."""
        for name in declared.order if decision.credit != "own" else ():
            parent = declared.parent(name)
            if parent is not None:
                further = self._above[parent] if decision.credit == "all" else set()
                self._above[name] = {parent, *further}

    def values(self, tree: Tree, steps: Mapping[int, Step]) -> dict[int, float]:
        """Advantage of each step before the baseline: its own total, and per reaching node the mean of those below."""
        below: dict[int, dict[str, list[float]]] = {index: defaultdict(list) for index in steps}
        for index, step in steps.items():
            if step.total is None:
                continue
            for above in path(tree, index)[:-1]:
                if above in steps and steps[above].record.node in self._above[step.record.node]:
                    below[above][step.record.node].append(step.total)
        return {
            index: math.fsum([step.total or 0.0, *(mean(totals) for totals in below[index].values())])
            for index, step in steps.items()
        }


def _less_baseline(
    values: Sequence[dict[int, float]], steps: Sequence[Mapping[int, Step]], decision: DecisionSettings
) -> list[dict[int, float]]:
    """Under `baseline: task` each advantage of a task less the mean of its node's, where there are at least two."""
    if decision.baseline == "none":
        return list(values)
    of_node: dict[str, list[float]] = defaultdict(list)
    for found, known in zip(values, steps, strict=True):
        for index, value in found.items():
            of_node[known[index].record.node].append(value)
    base = {name: mean(each) if len(each) > 1 else 0.0 for name, each in of_node.items()}
    return [
        {index: value - base[known[index].record.node] for index, value in found.items()}
        for found, known in zip(values, steps, strict=True)
    ]


def _metrics(
    decision: DecisionSettings,
    steps: Sequence[Sequence[Mapping[int, Step]]],
    values: Sequence[Sequence[Mapping[int, float]]],
    statistics: Statistics,
) -> dict[str, float]:
    found: dict[str, float] = {}
    pairs = [
        (step, of_tree[index])
        for group, of_group in zip(steps, values, strict=True)
        for tree, of_tree in zip(group, of_group, strict=True)
        for index, step in tree.items()
    ]
    for node in decision.nodes:
        mine = [(step, value) for step, value in pairs if step.record.node == node.name]
        found[f"decision/{node.name}/steps"] = float(len(mine))
        if mine:
            numbers = _node_numbers(mine) | {"reward_std": statistics.get(node.name, Running()).std}
            found |= {f"decision/{node.name}/{name}": value for name, value in numbers.items()}
    return found


def _node_numbers(pairs: Sequence[tuple[Step, float]]) -> dict[str, float]:
    """Means over one node's steps of a batch; `reward` is raw, before normalisation."""
    records = [step.record for step, _ in pairs]
    raws = [step.mixed.raw for step, _ in pairs if step.mixed is not None and step.mixed.raw is not None]
    normals = [step.normal for step, _ in pairs if step.normal is not None]
    shares = {
        "valid_share": [not record.fault for record in records],
        "penalised_share": [(record.reward.penalty or 0.0) < 0 for record in records],
        "label_share": [record.reward.human is not None for record in records],
    }
    found = {name: sum(each) / len(each) for name, each in shares.items()}
    found["advantage_abs"] = math.fsum(abs(value) for _, value in pairs) / len(pairs)
    if raws:
        found |= {"reward": mean(raws), "normal_mean": math.fsum(normals) / len(normals)}
    return found
