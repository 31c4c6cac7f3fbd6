"""Makes environments and their parts from settings."""

from collections.abc import Callable
from typing import Any

from envs.custom_env import custom_env
from envs.decisions.flat_env import FlatDecisionEnv
from envs.decisions.making import make_decision_env
from envs.decisions.rewards import Encoders
from envs.decisions.settings import DecisionSettings
from envs.decisions.types import TypedEnv
from envs.http_retriever import HttpRetriever
from envs.retriever import LocalRetriever, Retriever
from envs.rewards import AuthorsReward, CheckedReward, PaperReward, custom_reward
from envs.scoring import SCORES
from envs.search_env import SearchEnv
from envs.settings import (
    CustomEnvSettings,
    DecisionEnvSettings,
    EnvSettings,
    HttpRetrieverSettings,
    RetrieverSettings,
    RewardSettings,
    TextWorldEnvSettings,
)
from envs.textworld_env import TextWorldEnv
from envs.types import Env, Message, Task


def make_env(
    settings: EnvSettings, decision: DecisionSettings | None = None, encoders: Encoders | None = None
) -> Env[Any] | TypedEnv[Any]:
    """The environment that the `env` section describes; a local index is built now (about 2 s for the quickstart).

    With `name: decision` it is that of the `decision` section, a `TypedEnv` unless its policy is flat; `encoders` are
    for its nodes that use `similarity_model`. Raises
    ValueError for a missing or broken corpus file, for a package, a custom reward, environment or world that cannot be
    imported, and for one that is none.
    """
    if isinstance(settings, DecisionEnvSettings):
        if decision is None:
            raise ValueError("env.name=decision needs a decision section, which an env section alone does not have")
        return make_decision_env(decision, encoders)
    if isinstance(settings, CustomEnvSettings):
        return custom_env(settings.path, settings.options)
    if isinstance(settings, TextWorldEnvSettings):
        return TextWorldEnv(settings.games, score=settings.score, reward=make_reward(settings.reward))
    return SearchEnv(
        make_retriever(settings.retriever),
        score=SCORES[settings.reward.score],
        reward=make_reward(settings.reward),
        topk=settings.topk,
        max_tool_seconds=settings.max_tool_seconds,
    )


def opening_of(env: Env[Any] | TypedEnv[Any]) -> Callable[[Task], tuple[Message, ...]]:
    """What gives the first prompt of a task: the task itself, or a decision policy's root."""
    if isinstance(env, TypedEnv):
        return lambda task: env.ask(env.reset(task)).messages
    return env.opening if isinstance(env, FlatDecisionEnv) else lambda task: task.prompt


def make_retriever(settings: RetrieverSettings) -> Retriever:
    """A local index or a client. Raises ValueError for a missing or broken corpus file."""
    if isinstance(settings, HttpRetrieverSettings):
        return HttpRetriever(settings.url, timeout_s=settings.timeout_s, retries=settings.retries)
    return LocalRetriever.from_file(settings.corpus)


def make_reward(settings: RewardSettings) -> CheckedReward:
    """The reward function, checked. Raises ValueError naming the path of a custom one that cannot be imported."""
    if settings.path is not None:
        return CheckedReward(name=settings.path, function=custom_reward(settings.path), range=settings.range)
    made = (PaperReward if settings.kind == "paper" else AuthorsReward)(penalty=settings.format_penalty)
    return CheckedReward(name=settings.kind, function=made, range=settings.range or made.range)
