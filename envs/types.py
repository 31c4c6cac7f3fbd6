"""The types an environment speaks: tasks in, step results out.

This module owns the contract between a task's world and everything above it. It imports nothing but the standard
library, so that any process (scheduler, driver, data tools) can load it in milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from envs.pickling import fast_pickle

if TYPE_CHECKING:
    from envs.decisions.types import StepRecord

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class EndReason(StrEnum):
    """Why a trajectory ended; the value is what logs, metrics and forest files show."""

    ANSWERED = "answered"
    """The agent gave its final answer."""
    TURN_LIMIT = "turn_limit"
    """The agent did not answer in its last, answer-only turn."""
    LENGTH_LIMIT = "length_limit"
    """One agent step used up `limits.max_turn_tokens` before it reached an action."""
    CONTEXT_LIMIT = "context_limit"
    """Prompt plus steps would not fit into `limits.max_context_tokens`."""
    INVALID_ACTION = "invalid_action"
    """The step held no action the environment understands."""
    ENV_ERROR = "env_error"
    """The environment raised or timed out; the branch carries no reward and is kept out of every statistic."""


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message of a prompt, e.g. `Message(role="user", content="In which country is Ulm?")`."""

    role: str
    content: str


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem: what the agent is asked, and what a right answer is."""

    id: str
    """Unique over the whole data set, e.g. `"city_capital/ulm"`."""
    prompt: tuple[Message, ...]
    """At least one message, the last one from the user."""
    truth: tuple[str, ...]
    """Accepted answers, at least one, e.g. `("Berlin",)`."""
    meta: Mapping[str, Json] = field(default_factory=dict)
    """Anything a report or a filter wants, e.g. `{"hops": 2, "family": "city_capital", "split": "train"}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the environment says to one agent step. `end is None` means the trajectory goes on."""

    observation: str = ""
    """Text appended to the context after the agent's own tokens, e.g. `"<information>Ulm: ...</information>"`."""
    reward: float | None = None
    """Outcome reward of the whole trajectory, set if and only if `end` is set and is not ENV_ERROR, e.g. `0.8`."""
    score: float | None = None
    """Plain task score in [0, 1] without shaping (what evaluation reports), set together with `reward`, e.g. `1.0`."""
    end: EndReason | None = None
    tool_calls: int = 0
    """Calls to tools this step made, e.g. `1` for one search."""
    note: str = ""
    """One sentence for people, e.g. why the environment failed; never shown to the agent."""
    record: "StepRecord | None" = None
    """What a typed decision node did in this step."""
    result: str = ""
    """JSON text of the whole task's structured result, set with `end` by typed policies."""


State = TypeVar("State")


class Env(Protocol[State]):
    """A world that agents act in. State is a value: stepping never changes the state passed in, so that a branch is
    a second call with the same state. States must pickle, since a branch may continue on another machine.

    The rollout side owns the turn count. It passes `turns_left`: how many tool turns remain *after* this step;
    0 announces that the next turn is answer-only (the observation should say so), and -1 means that this step was
    the answer-only turn: no tool runs, and the result must have an `end`.
    """

    stop: tuple[str, ...]
    """Strings that close an agent step, e.g. `("</search>", "</answer>")`."""

    def reset(self, task: Task) -> State:
        """The state before the first agent step of `task`."""
        ...

    async def step(self, state: State, action: str, *, turns_left: int) -> tuple[State, StepResult]:
        """Applies one agent step (its text up to and including the stop string); returns the new state and result."""
        ...
