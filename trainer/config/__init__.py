"""Every setting of a run as typed sections; `RunConfig` holds them all. Imports nothing heavy.

The `env` section is `envs.settings.EnvSettings`: environments describe their own settings.
"""

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
    "LearnerConfig",
    "LimitsConfig",
    "LoggerConfig",
    "LossConfig",
    "ModelConfig",
    "PushConfig",
    "RolloutConfig",
    "RunConfig",
    "SchedulerConfig",
    "TreeConfig",
]
