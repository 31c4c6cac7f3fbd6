"""Makes environments and their parts from settings."""

from typing import Any

from envs.http_retriever import HttpRetriever
from envs.retriever import LocalRetriever, Retriever
from envs.rewards import AuthorsReward, CheckedReward, PaperReward, custom_reward
from envs.scoring import SCORES
from envs.search_env import SearchEnv
from envs.settings import EnvSettings, HttpRetrieverSettings, RetrieverSettings, RewardSettings
from envs.types import Env


def make_env(settings: EnvSettings) -> Env[Any]:
    """The environment that the `env` section describes; a local index is built now (about 2 s for the quickstart).

    Raises ValueError for a missing or broken corpus file and for a custom reward that cannot be imported.
    """
    return SearchEnv(
        make_retriever(settings.retriever),
        score=SCORES[settings.reward.score],
        reward=make_reward(settings.reward),
        topk=settings.topk,
        max_tool_seconds=settings.max_tool_seconds,
    )


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
