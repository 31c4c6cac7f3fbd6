"""Which node of a failed task is at fault: pure functions over a path of typed steps.

A task is failed where its score is below 1. Along its path, in the order in which the nodes ran, at fault is

1. the first node whose output was not valid;
2. else the first node whose output is not what the task says it should have been (`task.meta["expected"]`), if the task
   says so of any node on the path;
3. else the node with the lowest reward relative to the other steps of the same node: the reward by the mean and the
   standard deviation of the node's steps in the same forest file, plus the penalty. The first one of equals.

With the third rule a path on which all are equal has no node at fault.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from envs.decisions.rewards import reference_of
from envs.decisions.similarity import similarity
from envs.decisions.types import NodeReward, StepRecord
from envs.types import Json, Task
from rollout_workers.trees import path
from rollout_workers.types import Tree

Scale: TypeAlias = tuple[float, float]
"""Mean and standard deviation (n) of one node's rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The node at fault on one path."""

    index: int
    """Of the step in its tree."""
    rule: Literal["invalid", "differs", "lowest"]
    why: str
    """One sentence for people, e.g. `"reply has the lowest reward of the path: -1.2 ..."`."""


def raw_reward(reward: NodeReward) -> float | None:
    """Expert, or else the plain mean of automatic and human as far as there are any; the penalty is not in it.

    Without the weights of `decision.levels`, which a forest file does not hold and which may change during a run.
    """
    if reward.expert is not None:
        return reward.expert
    levels = [value for value in (reward.automatic, reward.human) if value is not None]
    return sum(levels) / len(levels) if levels else None


def scales(trees: Iterable[Tree]) -> dict[str, Scale]:
    """Per node the mean and spread of its raw rewards over all steps of `trees`."""
    raws: dict[str, list[float]] = defaultdict(list)
    for tree in trees:
        for node in tree.nodes:
            if node.record is not None and (raw := raw_reward(node.record.reward)) is not None:
                raws[node.record.node].append(raw)
    return {name: (statistics.fmean(values), statistics.pstdev(values)) for name, values in raws.items()}


def relative_reward(record: StepRecord, known: Mapping[str, Scale]) -> float | None:
    """(raw - mean) / std of its node, plus the penalty; None if the step has neither."""
    raw, penalty = raw_reward(record.reward), record.reward.penalty
    if raw is None or record.node not in known:
        return penalty
    mean, spread = known[record.node]
    return ((raw - mean) / spread if spread > 1e-9 else 0.0) + (penalty or 0.0)


def node_at_fault(tree: Tree, leaf: int, task: Task, known: Mapping[str, Scale]) -> Blame | None:
    """The node at fault on the path to `leaf`; None for a path that did not fail, and where nothing tells."""
    end = tree.nodes[leaf]
    score = end.reward if end.score is None else end.score
    if score is None or score >= 1:
        return None
    steps = [(index, record) for index in path(tree, leaf) if (record := tree.nodes[index].record) is not None]
    return _invalid(steps) or _different(steps, task) or _lowest(steps, known)


_Steps: TypeAlias = Sequence[tuple[int, StepRecord]]


def _invalid(steps: _Steps) -> Blame | None:
    for index, record in steps:
        if record.fault:
            return Blame(index=index, rule="invalid", why=f"The output of {record.node} is not valid: {record.fault}")
    return None


def _different(steps: _Steps, task: Task) -> Blame | None:
    for index, record in steps:
        reference = reference_of(task, record.node)
        output = _output(record)
        if reference is not None and similarity(output, reference) < 1:
            told = f"{record.node} is the first whose output is not the expected one"
            return Blame(index=index, rule="differs", why=f"{told}: {difference(output, reference)}.")
    return None


def difference(output: Json, reference: Json, place: str = "") -> str:
    """The first place at which an output is not like its reference, e.g. `"find: 'none' instead of 'purchase'"`."""
    pairs: list[tuple[str, Json, Json]] = []
    if isinstance(output, dict) and isinstance(reference, dict):
        pairs = [(name, output.get(name), value) for name, value in reference.items()]
    elif isinstance(output, list) and isinstance(reference, list) and len(output) == len(reference):
        pairs = [(str(number), *pair) for number, pair in enumerate(zip(output, reference, strict=True), start=1)]
    for name, mine, other in pairs:
        if similarity(mine, other) < 1:
            return difference(mine, other, f"{place}.{name}" if place else name)
    return f"{f'{place}: ' if place else ''}{_shown(output)} instead of {_shown(reference)}"


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _output(record: StepRecord) -> Json:
    """None where the text is no JSON: forest files may come from anywhere."""
    try:
        found: Json = json.loads(record.output)
    except (ValueError, RecursionError):
        return None
    return found


def _lowest(steps: _Steps, known: Mapping[str, Scale]) -> Blame | None:
    worth = [(value, index, record) for index, record in steps if (value := relative_reward(record, known)) is not None]
    if not worth or min(value for value, _, _ in worth) == max(value for value, _, _ in worth):
        return None
    value, index, record = min(worth, key=lambda found: (found[0], found[1]))
    return Blame(
        index=index,
        rule="lowest",
        why=f"{record.node} has the lowest reward of the path, next to other steps of the same node: {value:+.2f}.",
    )
