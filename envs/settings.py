"""The `env` section of the configuration, and nothing else."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


class Settings(BaseModel):
    """Base of all sections here: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class LocalRetrieverSettings(Settings):
    """An index in each rollout process."""

    kind: Literal["local"]
    corpus: Path
    """JSONL file with id, title, text."""


class HttpRetrieverSettings(Settings):
    """A server that speaks the Search-R1 protocol."""

    kind: Literal["http"]
    url: str = Field(pattern=r"^https?://", json_schema_extra={"accepted": "an address that begins with http"})
    """Full address, e.g. `http://10.0.0.5:8000/retrieve`."""
    timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Seconds for one attempt."""
    retries: int = Field(default=2, ge=0, le=10)
    """Attempts after the first."""


RetrieverSettings: TypeAlias = Annotated[LocalRetrieverSettings | HttpRetrieverSettings, Field(discriminator="kind")]


class RewardSettings(Settings):
    """How an outcome becomes a reward (see `envs.rewards`)."""

    kind: Literal["paper", "authors", "custom"] = "paper"
    format_penalty: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """Only with `kind: paper` or `authors`: what a broken format costs."""
    path: str | None = None
    """Dotted path of a function, for `kind: custom` only."""
    range: Annotated[tuple[Finite, Finite], Field(strict=False)] | None = Field(
        default=None, json_schema_extra={"accepted": "a list of two finite numbers, the lower one first, or null"}
    )
    """Lowest and highest reward; one outside fails its branch. null: the built-in's own range; custom: finite."""

    @model_validator(mode="after")
    def _path_goes_with_custom(self) -> "RewardSettings":
        if (self.kind == "custom") != (self.path is not None):
            raise ValueError("env.reward.path must be set for env.reward.kind=custom, and only then")
        return self

    @model_validator(mode="after")
    def _range_has_width(self) -> "RewardSettings":
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"env.reward.range={list(self.range)} must be two numbers, the lower one first")
        return self


class AnswerRewardSettings(RewardSettings):
    """The same where the outcome is an answer in words."""

    score: Literal["em", "f1"] = "em"
    """What success means: exact match or token F1."""


class WorldSettings(Settings):
    """What every environment's section has."""

    name: str
    """Which environment."""
    train_tasks: Path
    """JSONL or Parquet."""
    eval_tasks: Path
    instruction: str = ""
    """Text put before the question, e.g. how to answer; the tiny models need none."""
    max_tool_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """A step of the environment that takes longer is an environment error."""
    max_error_share: float = Field(default=0.2, ge=0, le=1)
    """Share of the branches that may end in an environment error, bad rewards included, before the run stops."""


class SearchEnvSettings(WorldSettings):
    """Question answering with a search tool."""

    name: Literal["search"]
    retriever: RetrieverSettings
    reward: AnswerRewardSettings = AnswerRewardSettings()
    topk: int = Field(default=1, ge=1, le=100)
    """Passages per search."""


class TextWorldEnvSettings(WorldSettings):
    """Text adventures."""

    name: Literal["textworld"]
    games: Path = Field(json_schema_extra={"accepted": "the path of a folder"})
    """Folder of the game files that the tasks name."""
    score: Literal["progress", "won"] = "progress"
    """What success means: the share of the game's points, or 1 for a game won and 0 otherwise."""
    reward: RewardSettings = RewardSettings()


class CustomEnvSettings(WorldSettings):
    """An environment from outside this repository."""

    name: Literal["custom"]
    path: str = Field(min_length=1, json_schema_extra={"accepted": "a dotted path such as my_package.world.make_env"})
    """Dotted path of a function that makes the environment, importable in every process."""
    options: dict[str, Any] = Field(default={}, json_schema_extra={"accepted": "keys and values of your own"})
    """Given to that function as keyword arguments."""


class DecisionEnvSettings(WorldSettings):
    """The tasks of a decision policy; its world is part of the `decision` section."""

    name: Literal["decision"]


EnvSettings: TypeAlias = Annotated[
    SearchEnvSettings | TextWorldEnvSettings | CustomEnvSettings | DecisionEnvSettings, Field(discriminator="name")
]
"""Tagged by `name`."""
