"""What the steps of a typed decision policy are asked, and what is recorded of each. Plain values, nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from envs.pickling import fast_pickle
from envs.types import Json, Message, StepResult, Task

Alternatives: TypeAlias = tuple[tuple[str, float], ...]
"""Texts of the sampled token at one position and of the likeliest others there, with their log-probabilities, e.g.
`((" 5", -2.3), (" 4", -0.1))`. A token that ends inside a character has its bytes (Python's `surrogateescape`)."""


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One typed step: a prompt of its own, of which nothing earlier in the trajectory is a part."""

    node: str
    """Name of the decision node, e.g. `"retrieval"`."""
    messages: tuple[Message, ...]
    """Its instruction and its validated input as a chat prompt, the last message from the user."""
    adapter: str | None = None
    """LoRA adapter that answers; None: the backbone alone."""
    schema: str = ""
    """JSON Schema (as text) that decoding is held to; empty: free text."""
    max_tokens: int | None = None
    """Longest answer; None: `limits.max_turn_tokens`."""
    alternatives: int = 0
    """Likeliest tokens per position that the answer comes with, for the gate; 0: none."""


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReward:
    """Raw rewards of one typed step by level, before normalisation; None where a level says nothing."""

    automatic: float | None = None
    """Mean of the node's automatic rewards, e.g. `0.8`."""
    human: float | None = None
    """A person's label, in [0, 1]; comes later than the step."""
    penalty: float | None = None
    """Sum of the node's hard rules, never above 0, e.g. `-10.0`; None where the node declares none."""
    expert: float | None = None
    """Replaces automatic and human where the node has an expert function."""


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class Gating:
    """What the gate said about one child of the root."""

    node: str
    probability: float
    """That the node must run."""
    runs: bool


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One typed step as reports, rewards and labels see it."""

    node: str
    input: str
    """JSON text of the node's input."""
    output: str = ""
    """JSON text of its validated output, without what its action found; empty when it was not valid."""
    fault: str = ""
    """Why the output was not valid, naming the field, e.g. `"intent: 'x' is not one of ['refund']"`; else empty."""
    found: str = ""
    """JSON text of what the node's action found in the world; empty where it has none."""
    reward: NodeReward = NodeReward()
    parts: tuple[tuple[str, float], ...] = ()
    """Each automatic reward and hard rule by name, e.g. `(("schema", 1.0), ("no_promise", -10.0))`."""
    odds: tuple[tuple[str, float], ...] = ()
    """Of the root only, with a gate or for training one: probability per value of its enumerated outputs."""
    gating: tuple[Gating, ...] = ()
    """Of the root only: what the gate decided; part of the behaviour policy."""


Values: TypeAlias = Mapping[str, Json]
"""Output (with what its action found) of each node that has run, by node name."""
State = TypeVar("State")


@runtime_checkable
class TypedEnv(Protocol[State]):
    """An environment whose every step is asked by a prompt of its own. States are values, as those of `Env`."""

    stop: tuple[str, ...]

    def reset(self, task: Task) -> State:
        """The state before the first step."""
        ...

    def ask(self, state: State) -> Ask:
        """What the next step is asked."""
        ...

    async def answer(
        self, state: State, action: str, alternatives: tuple[Alternatives, ...]
    ) -> tuple[State, StepResult]:
        """Takes the answer; `alternatives` per sampled token where the `Ask` wanted them, else empty.

        The result has an `end` after the last node, a `record` always, and no observation: the next `ask` is one.
        """
        ...

    def give_up(self, state: State) -> StepResult:
        """What a task is worth that has to end before the next step, whose prompt is too long."""
        ...


class DecisionWorld(Protocol):
    """What a decision policy acts in: data, actions, and the judgement of a whole task."""

    def request(self, task: Task) -> dict[str, Json]:
        """The root's input, e.g. `{"message": "Where is order A17?"}`."""
        ...

    async def act(self, action: str, output: Json, task: Task) -> dict[str, Json]:
        """Runs the action that a node declares (`act`) on its output; what it gives joins the node's value."""
        ...

    def score(self, values: Values, task: Task) -> float:
        """How well the task was done, in [0, 1], from the values of all nodes that have run."""
        ...
