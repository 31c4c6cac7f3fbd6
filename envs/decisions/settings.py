"""The `decision` section of the configuration: typed nodes, their contracts, adapters, rewards and coefficients."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from envs.decisions.declaration import declaration_problems
from envs.settings import Finite, Settings

Share: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Schema: TypeAlias = Annotated[dict[str, Any], Field(json_schema_extra={"accepted": "a JSON Schema"})]
Names: TypeAlias = Annotated[tuple[str, ...], Field(strict=False)]


class AdapterSettings(Settings):
    """The low-rank adapter of one node."""

    rank: int = Field(default=8, ge=1, le=256)
    """Rank of the two factors that each adapted layer gets."""
    alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    """The adapter's product is scaled by alpha / rank."""
    head: bool = False
    """Whether the output layer has an adapter too: an output head of the node's own."""
    freeze: bool = False
    """The adapter serves, and never changes; over a trained backbone the node's steps train that."""


class NodeRewardSettings(Settings):
    """What judges one node's outputs; each name is a built-in or the dotted path of a function."""

    automatic: Names = ("schema",)
    """Built-in: `schema`, `similarity` (to the reference, by words), `similarity_model` (by an encoder),
    `forbidden_words`; their mean is the automatic level."""
    forbidden_words: Names = ()
    """Only with `forbidden_words` in `automatic`."""
    similarity_model: Path | None = None
    """Only with `similarity_model` in `automatic`: folder of a Hugging Face text encoder, read without a network."""
    rules: Names = ()
    """Dotted paths of hard rules: functions that return a penalty of at most 0, such as -10."""
    expert: str | None = None
    """Dotted path of a function whose reward replaces the automatic and the human level."""
    weight: NotNegative = 1.0
    """Reward weight of the node among those of its level, for routing; may change during a run."""


class CoefficientSettings(Settings):
    """Loss coefficients of one node; null takes the value of the `loss` section."""

    entropy_coef: NotNegative | None = None
    """In place of loss.entropy_coef, e.g. 0.05 for a checker and 0.35 for a writer."""
    kl_coef: NotNegative | None = None
    """In place of loss.kl_coef."""
    clip_low: Annotated[float, Field(ge=0, lt=1)] | None = None
    """In place of loss.clip_low."""
    clip_high: NotNegative | None = None
    """In place of loss.clip_high."""


class NodeSettings(Settings):
    """One typed decision node."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,31}$",
        json_schema_extra={"accepted": "a lower-case letter, then at most 31 of a-z, 0-9 and _"},
    )
    """Unique; also the name of its adapter."""
    parent: str | None = Field(default=None, json_schema_extra={"accepted": "the name of one earlier node, or null"})
    """The node whose output is this one's input; null for the root."""
    instruction: str
    """Text of its prompt, before the input."""
    input_schema: Schema = Field(default={})
    """What its input must be; empty accepts anything."""
    output_schema: Schema
    """What its output must be; decoding is held to it."""
    reads: Names = ()
    """Earlier nodes whose values it sees too, each under its name."""
    act: str | None = None
    """Action of the world that its output starts; what that finds is part of the node's value."""
    adapter: AdapterSettings | None = AdapterSettings()
    """null: the backbone alone answers; the node's steps train it if `backbone` is trained, else nothing."""
    rewards: NodeRewardSettings = NodeRewardSettings()
    coefficients: CoefficientSettings = CoefficientSettings()
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest output, in tokens; null: limits.max_turn_tokens."""


class GateSettings(Settings):
    """Which children of the root run."""

    path: Path | None = None
    """Weights that `python -m trainer.gate` wrote; null: every node runs."""
    threshold: Share = 0.5
    """A child runs if its probability is at least this."""
    record_odds: bool = False
    """Record the root's output distribution in forest files, from which a gate is trained; a gate always does."""


class LevelSettings(Settings):
    """Weights of the three levels of reward, divided by their sum over the levels that a step has."""

    automatic: NotNegative = 0.6
    """Of the functions of `rewards.automatic`, or of the expert in their place."""
    human: NotNegative = 0.3
    """Of people's labels."""
    rules: NotNegative = 0.1
    """Of hard rules, whose penalties are not normalised."""


class FeedbackSettings(Settings):
    """Labels by people: which steps are queued, and how labels that come later are used."""

    enabled: bool = False
    """Whether steps are queued for labels."""
    shares: Annotated[tuple[Share, ...], Field(strict=False, min_length=1)] = (1.0, 0.7, 0.4)
    """Share of the steps that is queued, by depth from the root on; deeper nodes take the last one."""
    focus: Names = ()
    """Only these nodes; empty: all."""
    max_age: int = Field(default=8, ge=0)
    """Optimizer phases after which a label no longer trains; it is counted."""


class DecisionSettings(Settings):
    """A typed decision policy over the task."""

    policy: Literal["typed", "flat"] = "typed"
    """`typed`: nodes as declared; `flat`: the same stages by one policy in one growing context, free text."""
    world: str = Field(
        min_length=1,
        json_schema_extra={"accepted": "shop, travel, orders, or a dotted path such as my_package.make_world"},
    )
    """What the policy acts in."""
    options: dict[str, Any] = Field(default={}, json_schema_extra={"accepted": "keys and values of your own"})
    """Given to the world as keyword arguments."""
    nodes: Annotated[tuple[NodeSettings, ...], Field(strict=False, min_length=1)]
    """In the order in which they run, parents before children."""
    contracts: Literal["strict", "penalty"] = "penalty"
    """An invalid output ends the run with a sentence, or the trajectory with `invalid_reward`."""
    invalid_reward: Finite = -1.0
    """Raw reward of a node whose output is not valid."""
    backbone: Literal["frozen", "trained"] = "frozen"
    """Whether the weights below the adapters are trained too."""
    levels: LevelSettings = LevelSettings()
    credit: Literal["own", "adjacent", "all"] = "adjacent"
    """Whose tokens a node's reward reaches: its own; and its parent's; and those of all nodes above."""
    baseline: Literal["none", "task"] = "task"
    """`task`: the mean over the task's steps of the same node is taken from each advantage."""
    normalise: bool = True
    """Running mean and standard deviation of each node's reward, so that it is about N(0, 1)."""
    decay_root: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.92
    """Loss weight of the root."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Loss weight of a level over that of the level above."""
    routing: bool = True
    """Loss weight within a level by reward weight, number of children, and 1 - KL."""
    gate: GateSettings = GateSettings()
    feedback: FeedbackSettings = FeedbackSettings()

    @model_validator(mode="after")
    def _declaration_can_run(self) -> "DecisionSettings":
        """Raises ValueError with one sentence per line."""
        if problems := list(declaration_problems(self)):
            raise ValueError("\n".join(problems))
        return self
