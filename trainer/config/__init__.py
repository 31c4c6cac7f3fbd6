"""Every setting of a run as typed sections; `RunConfig` holds them all. Imports nothing heavy."""

from trainer.config.env import HttpRetriever, LocalRetriever, RewardConfig, SearchEnvConfig
from trainer.config.machines import (
    CheckpointConfig,
    ClusterConfig,
    EvaluationConfig,
    GuardsConfig,
    LearnerConfig,
    LoggerConfig,
    PushConfig,
    RolloutConfig,
)
from trainer.config.run import RunConfig
from trainer.config.search import AdvantageConfig, LimitsConfig, LossConfig, ModelConfig, SchedulerConfig, TreeConfig

__all__ = [
    "AdvantageConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "EvaluationConfig",
    "GuardsConfig",
    "HttpRetriever",
    "LearnerConfig",
    "LimitsConfig",
    "LocalRetriever",
    "LoggerConfig",
    "LossConfig",
    "ModelConfig",
    "PushConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SchedulerConfig",
    "SearchEnvConfig",
    "TreeConfig",
]
