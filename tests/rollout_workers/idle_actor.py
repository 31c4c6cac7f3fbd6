"""A rollout actor of this process that was not started: no engine, no environment."""

from pathlib import Path

from pydantic import TypeAdapter

from envs.settings import EnvSettings
from rollout_workers.actor import ActorSettings, RolloutActor
from rollout_workers.engine_settings import EngineSettings


def idle_actor(name: str, *, max_branches: int = 64, progress_s: float = 5.0) -> RolloutActor:
    env = TypeAdapter(EnvSettings).validate_python(
        {"name": "custom", "path": "a.b", "train_tasks": Path("t"), "eval_tasks": Path("e")}
    )
    engine = EngineSettings(model="m", max_branches=max_branches)
    settings = ActorSettings(engine=engine, env=env, env_timeout_s=1, turn_timeout_s=1, progress_s=progress_s)
    return RolloutActor(name, settings)
