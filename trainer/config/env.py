"""Section of the search environment."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.config.base import Count, CountOrZero, Positive, Section, Share, Text


class LocalRetriever(Section):
    """Search in a corpus file, indexed in the actor."""

    kind: Literal["local"]
    corpus: Text


class HttpRetriever(Section):
    """Search through a retrieval server."""

    kind: Literal["http"]
    url: Annotated[str, Field(pattern=r"^https?://\S+$")]
    timeout_s: Positive = 10.0
    retries: CountOrZero = 3


class RewardConfig(Section):
    """How an answer is graded."""

    kind: Literal["paper", "authors", "custom"] = "paper"
    score: Literal["em", "f1"] = "em"
    format_penalty: Annotated[float, Field(ge=0)] = 0.2
    path: Text | None = None

    @model_validator(mode="after")
    def _path_and_kind(self) -> "RewardConfig":
        if (self.kind == "custom") != (self.path is not None):
            raise ValueError("env.reward.path must be set for env.reward.kind=custom, and only then")
        return self


class SearchEnvConfig(Section):
    """Multi-hop questions answered with a search tool."""

    name: Literal["search"]
    train_tasks: Text
    eval_tasks: Text
    topk: Count = 1
    instruction: str = ""
    max_tool_seconds: Positive = 30.0
    max_error_share: Share = 0.1
    retriever: Annotated[LocalRetriever | HttpRetriever, Field(discriminator="kind")]
    reward: RewardConfig = RewardConfig()
