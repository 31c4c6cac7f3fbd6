"""What one typed step is worth: automatic rewards, hard rules, and an expert function in their place.

Owns the raw rewards of a node, `NodeReward`, before any normalisation. The human level comes later and from elsewhere
(`trainer/decisions/feedback.py`); the weights of the levels and the running statistics are the trainer's.

- Automatic level: the mean of the node's automatic rewards; of an invalid output `decision.invalid_reward`.
  `schema`: 1 for a valid output. `similarity`: to the task's reference for the node, `task.meta["expected"][node]`;
  without a reference there is no such reward. `similarity_model`: the same, texts compared by an encoder, which whoever
  makes the environment brings along (`Encoders`). `forbidden_words`: 1 if none of the words occurs, else 0.
- Hard rules: functions that return 0 or a penalty below 0, such as -10; the sum of all is the penalty.
- Expert: a function whose reward replaces the automatic and the human level. The rules stay.

A function of one's own gets a `StepView`. It judges valid outputs only. What it raises or gives beyond its range is a
`RewardError`, which fails the branch and names the function.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TypeAlias

from envs.decisions.settings import DecisionSettings, NodeRewardSettings, NodeSettings
from envs.decisions.similarity import Likeness, forbidden_in, similarity, text_similarity, words
from envs.decisions.types import NodeReward, Values
from envs.dotted_path import check_call, imported
from envs.rewards import RewardError
from envs.types import Json, Task

BUILT_IN = ("schema", "similarity", "similarity_model", "forbidden_words")
"""Names of the automatic rewards that come with the project."""
Parts: TypeAlias = tuple[tuple[str, float], ...]
"""Each reward and rule by name, e.g. `(("schema", 1.0), ("no_promise", -10.0))`."""


Encoders: TypeAlias = Callable[[Path], Likeness]
"""Loads the encoder in a folder, and says how like texts are by it. Raises ValueError for a folder that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One valid step of a typed node, as reward functions see it."""

    node: str
    input: Json
    """E.g. `{"message": "Where is order A17?"}`."""
    output: Json
    """What the node said, without what its action found."""
    task: Task
    values: Values
    """Values of all nodes that have run, this one's included, with what their actions found."""
    reference: Json
    """`task.meta["expected"][node]`; None where there is none."""


Score: TypeAlias = Callable[[StepView], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rewards:
    """The functions of one node, by the name that people know them by."""

    automatic: tuple[tuple[str, Callable[[StepView], float | None]], ...]
    rules: tuple[tuple[str, Score], ...]
    expert: Score | None


class Judge:
    """Judges steps by what their nodes declare."""

    def __init__(self, settings: DecisionSettings, encoders: Encoders | None = None) -> None:
        """Imports every function that the settings name and loads the encoders of `similarity_model`.

        Raises ValueError (one sentence) for one that is not there, and for `similarity_model` without `encoders`.
        """
        if (problem := next(reward_problems(settings), None)) is not None:
            raise ValueError(problem)
        self._invalid_reward = settings.invalid_reward
        self._rewards = {node.name: _rewards(node, encoders) for node in settings.nodes}

    def judge(
        self, node: str, *, input: Json, output: Json, fault: str, task: Task, values: Values
    ) -> tuple[NodeReward, Parts]:
        """The reward of one step and what it is made of. A `fault` says that the output was not valid.

        Raises RewardError when a function of the user's raises, gives no finite number, or a rule gives more than 0.
        """
        rewards = self._rewards[node]
        penalty = 0.0 if rewards.rules else None
        if fault:
            return NodeReward(automatic=self._invalid_reward, penalty=penalty), (("schema", 0.0),)
        reference = reference_of(task, node)
        view = StepView(node=node, input=input, output=output, task=task, values=values, reference=reference)
        found = [(name, function(view)) for name, function in rewards.automatic]
        parts = [(name, value) for name, value in found if value is not None]
        automatic = sum(value for _, value in parts) / len(parts) if parts else None
        penalties = [(name, rule(view)) for name, rule in rewards.rules]
        if rewards.rules:
            penalty = sum(value for _, value in penalties)
        expert = rewards.expert(view) if rewards.expert else None
        told = [*parts, *penalties] + ([("expert", expert)] if expert is not None else [])
        return NodeReward(automatic=automatic, penalty=penalty, expert=expert), tuple(told)


def reference_of(task: Task, node: str) -> Json:
    """What `node` should have said in this task, from `task.meta["expected"]`; None if the task doesn't tell."""
    expected = task.meta.get("expected")
    return expected.get(node) if isinstance(expected, dict) else None


def reward_problems(settings: DecisionSettings) -> Iterator[str]:
    """One sentence for each thing wrong with the rewards of the nodes; nothing is imported."""
    for index, node in enumerate(settings.nodes):
        key, rewards = f"decision.nodes[{index}].rewards", node.rewards
        for name, given in (
            ("forbidden_words", rewards.forbidden_words),
            ("similarity_model", rewards.similarity_model),
        ):
            if (name in rewards.automatic) != bool(given):
                yield f"{key}.{name} of node {node.name!r} goes with {name} in {key}.automatic: set both or neither"
        for phrase in rewards.forbidden_words:
            if not words(phrase):
                yield f"{key}.forbidden_words of node {node.name!r} holds {phrase!r}, which has no letter or digit"
        for name in rewards.automatic:
            if name not in BUILT_IN and "." not in name:
                yield (
                    f"{key}.automatic of node {node.name!r} names {name!r}; accepted: {', '.join(BUILT_IN)}, "
                    "or a dotted path such as my_package.rewards.brevity"
                )
        for kind, names in (("automatic", rewards.automatic), ("rules", rewards.rules)):
            for name in sorted({name for name in names if names.count(name) > 1}):
                yield f"{key}.{kind} of node {node.name!r} names {name!r} twice; accepted: each once"


def _rewards(node: NodeSettings, encoders: Encoders | None) -> _Rewards:
    rewards = node.rewards
    expert = rewards.expert
    return _Rewards(
        automatic=tuple((name, _automatic(name, node, encoders)) for name in rewards.automatic),
        rules=tuple((path, _function("rules", path, node.name, at_most=0.0)) for path in rewards.rules),
        expert=None if expert is None else _function("expert", expert, node.name),
    )


def _automatic(name: str, node: NodeSettings, encoders: Encoders | None) -> Callable[[StepView], float | None]:
    if name == "schema":
        return lambda view: 1.0
    if name in ("similarity", "similarity_model"):
        likeness = text_similarity if name == "similarity" else _by_model(node, encoders)
        return lambda view: None if view.reference is None else similarity(view.output, view.reference, likeness)
    if name == "forbidden_words":
        return _without(node.rewards)
    return _function("automatic", name, node.name)


def _by_model(node: NodeSettings, encoders: Encoders | None) -> Likeness:
    folder, key = node.rewards.similarity_model, f"rewards.similarity_model of decision node {node.name!r}"
    assert folder is not None, "checked by `reward_problems`"
    if encoders is None:
        raise ValueError(f"{key} needs a model, which `python -m envs.check` does not load")
    try:
        return encoders(folder)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _without(rewards: NodeRewardSettings) -> Score:
    forbidden: Sequence[str] = rewards.forbidden_words
    return lambda view: 0.0 if forbidden_in(view.output, forbidden) else 1.0


def _function(kind: str, path: str, node: str, at_most: float = math.inf) -> Score:
    """A user's function, every value of which is finite and at most `at_most`, or a RewardError."""
    key, accepted = f"rewards.{kind} of decision node {node!r}:", "a function of envs.decisions.rewards.StepView"
    found = imported(key, path, example="my_package.rewards.brevity", what=accepted)
    if inspect.iscoroutinefunction(found):
        raise ValueError(f"{key} {path!r} is a coroutine function; accepted: {accepted} that returns a number")
    check_call(key, path, found, _EXAMPLE)
    limit = "a finite number" if at_most == math.inf else "a finite number of at most 0"

    def checked(view: StepView) -> float:
        try:
            given: object = found(view)
            value = float(given) if isinstance(given, Real) else math.nan
        except Exception as error:  # whatever a user's function raises
            problem = f"raised {type(error).__name__} ({_short(str(error))})"
        else:
            if math.isfinite(value) and value <= at_most:
                return value
            problem = f"gave {_short(repr(given))}"
        raise RewardError(
            f"{path}, in rewards.{kind} of decision node {node!r}, {problem} for task {view.task.id!r}; "
            f"accepted is {limit}"
        )

    return checked


def _short(text: str) -> str:
    """On one line of at most 60 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


_EXAMPLE = StepView(node="", input={}, output={}, task=Task(id="", prompt=(), truth=()), values={}, reference=None)
