"""Steps whose label came after they had been trained: each is trained once more, for what the label changes.

The step was trained with the total reward that it had without a label. With the label its total is another one; the
difference is the advantage with which it is trained again, normalised by the statistics of then. Its tokens keep the
log-probabilities of the policy that sampled them, so the importance ratio corrects for the age, as it does everywhere.
A late label reaches the tokens of its own step only: no parent, no baseline of the task.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envs.decisions.settings import LevelSettings
from envs.types import EndReason, Task
from rollout_workers.types import ROOT, Forest, Node, TaskGroup, Tree
from trainer.advantages import TreeAdvantages
from trainer.decisions.credit import mix
from trainer.decisions.feedback_files import QueuedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class LateStep:
    """A step to be trained again."""

    step: QueuedStep
    difference: float
    """Its total reward with the label, less the total that it was last trained with, e.g. `0.7`."""


def total_of(step: QueuedStep, levels: LevelSettings, human: float | None = None) -> float:
    """The step's total reward with this label, or without one, by the statistics of when it was trained.

    Example: weights 0.6 and 0.3, automatic 0.5, mean 0.5, std 0.25, no rules. Without a label the raw reward is 0.5 and
    the total 0; with label 1 raw is (0.3 + 0.3) / 0.9 = 0.667 and the total 0.667. Where all raw rewards of the node
    were equal so far, what a label adds is not divided by anything. A node that has no other soft level has no
    statistics either: there a label counts from 0.5.
    """
    mixed = mix(replace(step.record.reward, human=human), levels)
    if mixed is None:
        return 0.0
    if mixed.raw is None or step.statistics is None:
        return mixed.total(mixed.raw or 0.0)
    if not step.statistics.count:
        return mixed.total(mixed.raw - 0.5)
    return mixed.total(step.statistics.normal(mixed.raw) or mixed.raw - step.statistics.mean)


def with_late(
    forest: Forest, credit: Sequence[Sequence[TreeAdvantages]], late: Sequence[LateStep]
) -> tuple[Forest, list[list[TreeAdvantages]]]:
    """The forest with a group of its own for each late step, spread evenly, so that mini-batches get as many each.

    Each group is a tree of depth one: the prompt, and the step after it with its advantage. Labels that change nothing
    are left out.
    """
    late = [step for step in late if step.difference]
    groups = [(group, list(per_tree)) for group, per_tree in zip(forest, credit, strict=True)]
    for place, step in enumerate(late):
        at = round((place + 1) * len(forest) / (len(late) + 1)) + place
        groups.insert(at, (_group(step.step), [_advantages(step.difference)]))
    return [group for group, _ in groups], [per_tree for _, per_tree in groups]


def label_shares(late: Sequence[LateStep], steps: Mapping[str, float]) -> dict[str, float]:
    """Per node with late steps their share among all of the node's steps of this phase.

    `steps`: the others, by node. Example: 2 late ones beside 8 give 0.2.
    """
    counts = Counter(step.step.record.node for step in late)
    return {name: count / (count + steps.get(name, 0.0)) for name, count in counts.items()}


def _group(step: QueuedStep) -> TaskGroup:
    nodes = [
        Node(parent=-1, observation_ids=step.prompt_ids),
        Node(
            parent=ROOT,
            token_ids=step.token_ids,
            logprobs=step.logprobs,
            versions=step.versions,
            end=EndReason.ANSWERED,
            record=step.record,
        ),
    ]
    tree = Tree(task_id=step.task, index=0, nodes=nodes, typed=True)
    return TaskGroup(task=Task(id=step.task, prompt=(), truth=()), trees=(tree,))


def _advantages(value: float) -> TreeAdvantages:
    return TreeAdvantages(level="node", values={1: value}, leaves=(1,))
