"""What a learning phase trains of typed trees: each prompt with the steps that answer it is a small tree of its own.

A typed step saw the prompt before it and nothing else, so a search tree falls apart into trees of depth one: the root
is the prompt, the children are the steps sampled after it. Equal prompts of one node of a task (the root's prompt in
all of the task's trees) are one root. Credit is of the steps themselves, so sharing prompts changes no gradient.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rollout_workers.types import ROOT, Forest, Node, Tree
from trainer.advantages import TreeAdvantages
from trainer.config.search import LossConfig
from trainer.credit import Credit
from trainer.pieces import CreditedTree
from trainer.types import NodeCoefficients

PromptKey: TypeAlias = tuple[str, tuple[int, ...]]
"""(node, prompt's token ids)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedPlan:
    """What one learning phase does with each node. Tuples and indices are in the declaration's order."""

    coefficients: tuple[NodeCoefficients, ...]
    """With the name of each node."""
    factors: Mapping[str, float]
    """Loss weight of each trained node, e.g. `{"intent": 0.92, "retrieval": 0.782}`; others are not laid out."""
    shares: Mapping[str, float]
    """Routing share of each trained node within its level."""
    has_adapter: tuple[bool, ...]
    """Whether the node has an adapter of its own; without one its tokens have voice -1."""
    place: Mapping[str, int] = field(init=False)
    """Index of each node by name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", {node.name: index for index, node in enumerate(self.coefficients)})

    def voice(self, name: str) -> int:
        """Which adapter the node's tokens go through."""
        index = self.place[name]
        return index if self.has_adapter[index] else -1

    def is_regularised(self, name: str) -> bool:
        """Whether the node's steps have a gradient without any advantage."""
        node = self.coefficients[self.place[name]]
        return node.kl_coef > 0 or node.entropy_coef > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighted:
    """A step that carries loss."""

    node: Node
    advantage: float
    weight: float

    @property
    def signed(self) -> float:
        return self.weight * self.advantage


def typed_parts(
    groups: Forest, advantages: Sequence[Sequence[TreeAdvantages]], loss: LossConfig, plan: TypedPlan
) -> list[CreditedTree]:
    """The small trees of one mini-batch with everything that is trained on them; `advantages` parallel to `groups`.

    Steps of untrained nodes, of weight 0, and without any gradient are not laid out.
    """
    weight_of = _Weights(groups, advantages, loss, plan)
    parts = []
    for group, per_tree in zip(groups, advantages, strict=True):
        prompts: dict[PromptKey, list[_Weighted]] = {}
        for tree, index, node, value in _steps(group.trees, per_tree):
            name = _name(node)
            step = _Weighted(node=node, advantage=value, weight=weight_of(node))
            if step.weight > 0 and (step.signed != 0 or plan.is_regularised(name)):
                prompt = tree.nodes[tree.nodes[index].parent].observation_ids
                prompts.setdefault((name, prompt), []).append(step)
        for number, ((_, prompt), steps) in enumerate(prompts.items()):
            parts.append(_small_tree(group.task.id, number, prompt, steps))
    return parts


class _Weights:
    """w of a step: factor / (n * |tokens|) for `seq_mean` (n steps of its node in the mini-batch), factor / (the node's
    tokens) for `token_mean`, factor / (n * dr_grpo_length) for `dr_grpo`; 0 for untrained nodes and empty steps.
    """

    def __init__(
        self, groups: Forest, advantages: Sequence[Sequence[TreeAdvantages]], loss: LossConfig, plan: TypedPlan
    ) -> None:
        self._loss, self._factors = loss, plan.factors
        self._steps, self._tokens = Counter[str](), Counter[str]()
        for group, per_tree in zip(groups, advantages, strict=True):
            for _, _, node, _ in _steps(group.trees, per_tree):
                self._steps[_name(node)] += 1
                self._tokens[_name(node)] += len(node.token_ids)

    def __call__(self, node: Node) -> float:
        name, length = _name(node), len(node.token_ids)
        if not length or name not in self._factors:
            return 0.0
        factor, loss = self._factors[name], self._loss
        if loss.aggregation == "token_mean":
            return factor / self._tokens[name]
        if loss.aggregation == "dr_grpo":
            assert loss.dr_grpo_length is not None, "checked by the configuration"
            length = loss.dr_grpo_length
        return factor / (self._steps[name] * length)


def _steps(trees: Sequence[Tree], per_tree: Sequence[TreeAdvantages]) -> Iterator[tuple[Tree, int, Node, float]]:
    """(tree, index, node, advantage) of every step that carries loss."""
    for tree, found in zip(trees, per_tree, strict=True):
        for index, value in found.values.items():
            yield tree, index, tree.nodes[index], value


def _name(node: Node) -> str:
    assert node.record is not None, "steps of typed trees have records"
    return node.record.node


def _small_tree(task_id: str, number: int, prompt: tuple[int, ...], steps: Sequence[_Weighted]) -> CreditedTree:
    nodes = [Node(parent=-1, observation_ids=prompt)]
    nodes += [
        Node(
            parent=ROOT,
            token_ids=step.node.token_ids,
            logprobs=step.node.logprobs,
            versions=step.node.versions,
            record=step.node.record,
        )
        for step in steps
    ]
    leaves = range(1, len(nodes))
    return CreditedTree(
        tree=Tree(task_id=task_id, index=number, nodes=nodes, typed=True),
        leaves=tuple(leaves),
        credit=_credit(len(nodes), dict(zip(leaves, steps, strict=True))),
        paths={leaf: _credit(len(nodes), {leaf: step}) for leaf, step in zip(leaves, steps, strict=True)},
    )


def _credit(length: int, steps: Mapping[int, _Weighted]) -> Credit:
    found = Credit(positive=[0.0] * length, negative=[0.0] * length, weight=[0.0] * length)
    for index, step in steps.items():
        found.positive[index] = max(step.signed, 0.0)
        found.negative[index] = min(step.signed, 0.0)
        found.weight[index] = step.weight
    return found
