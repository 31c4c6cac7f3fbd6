"""One task on its way through the declared nodes: the state, and what an answer does to it.

The state is a value of plain JSON, so a branch from the middle continues from exactly what was stored. What typed and
flat policies share is here; they differ in how a node is asked and in what is judged.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from envs.decisions.contracts import Contract, compact, parse
from envs.decisions.settings import DecisionSettings
from envs.decisions.tree import Declared
from envs.decisions.types import DecisionWorld, Gating
from envs.pickling import fast_pickle
from envs.types import Json, Task

Decide: TypeAlias = Callable[[], tuple[Gating, ...]]
"""What the gate says; asked once, after a valid answer of the root."""


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Where a task is."""

    task: Task
    values: Mapping[str, Json] = field(default_factory=dict)
    """Value of each node that has run, in the order in which they ran."""
    gating: tuple[Gating, ...] = ()
    """What the gate decided; empty before the root has answered, and without a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one answer came to."""

    node: str
    input: Json
    output: dict[str, Any] | None
    """None where there is a fault."""
    fault: str
    """Why the answer is not valid, naming the field; also if it makes the input of a later node invalid."""
    found: dict[str, Json] | None
    """What the node's action found; None where it has none."""
    after: Walk
    """Without the node's value where there is a fault."""


class Course:
    """The nodes of a decision policy in a world."""

    def __init__(self, settings: DecisionSettings, world: DecisionWorld) -> None:
        self.settings = settings
        self.declared = Declared(settings)
        self.contracts = {node.name: Contract(node) for node in settings.nodes}
        self._world = world

    def current(self, walk: Walk) -> str | None:
        """The node that runs next; None after the last one."""
        order = self.declared.order
        return next((name for name in order if name not in walk.values and not self.is_skipped(walk, name)), None)

    def is_skipped(self, walk: Walk, name: str) -> bool:
        """Whether the gate decided that the node, or the child of the root above it, does not run."""
        branch = self.declared.branch(name)
        return any(gate.node == branch and not gate.runs for gate in walk.gating)

    def input(self, walk: Walk, name: str) -> Json:
        """The root's is the request; another node's is its parent's value, with the values that it reads beside.

        What the gate skipped reads as null.
        """
        parent, reads = self.declared.parent(name), self.declared.node(name).reads
        if parent is None:
            return self._world.request(walk.task)
        value = walk.values[parent]
        assert isinstance(value, dict), "values are objects"
        return {**value, **{read: walk.values.get(read) for read in reads}} if reads else value

    async def take(self, walk: Walk, text: str, decide: Decide = tuple) -> Taken:
        """Reads the current node's answer, runs its action, and moves on. Raises what the world raises."""
        name = self.current(walk)
        assert name is not None, "no node is left to answer"
        given, found, after = self.input(walk, name), None, walk
        output, fault = self.contracts[name].read(text)
        if not fault:
            found = await self._act(name, output, walk.task)
            gating = decide() if name == self.declared.root else walk.gating
            after = Walk(task=walk.task, values={**walk.values, name: {**output, **(found or {})}}, gating=gating)
            fault = next(self._input_faults(walk, after), "")
        return Taken(
            node=name,
            input=given,
            output=None if fault else output,
            fault=fault,
            found=found,
            after=walk if fault else after,
        )

    async def _act(self, name: str, output: dict[str, Any], task: Task) -> dict[str, Json] | None:
        action = self.declared.node(name).act
        if action is None:
            return None
        found: Any = await self._world.act(action, output, task)
        try:
            value, _ = parse(compact(found))  # tuples become lists, and nobody keeps a hold on it
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"decision.world: action {action!r} found what is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise RuntimeError(f"decision.world: action {action!r} must find an object, not {type(found).__name__}")
        return value

    def _input_faults(self, before: Walk, after: Walk) -> Iterator[str]:
        """Of the nodes whose input the newest value completes, those that don't accept it."""
        for name in self.declared.order:
            waits = name not in after.values and not self.is_skipped(after, name)
            is_fed = waits and self._is_complete(after, name) and not self._is_complete(before, name)
            if is_fed and (fault := self.contracts[name].input_fault(self.input(after, name))):
                yield f"input of node {name!r}: {fault}"

    def _is_complete(self, walk: Walk, name: str) -> bool:
        return all(need in walk.values or self.is_skipped(walk, need) for need in self.declared.needs(name))

    def score(self, walk: Walk) -> float:
        """What the world says of the whole task. Raises RuntimeError when that is no number from 0 to 1."""
        score: object = self._world.score(walk.values, walk.task)
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            raise RuntimeError(f"decision.world: score must be a number from 0 to 1, not {score!r}")
        assert math.isfinite(score)
        return float(score)

    def result(self, walk: Walk) -> str:
        """JSON text of the task's structured result, e.g. `{"intent":{"intent":"refund"},"reply":{"text":"Yes."}}`."""
        return compact(dict(walk.values))
