"""How the driver turns tasks into prompts: exactly as the rollout actors do."""

from typing import Any

from envs.decisions.contracts import ContractError
from envs.registry import make_env, opening_of
from envs.types import Message, Task
from rollout_workers.actor import TokenizerCodec
from rollout_workers.text_likeness import text_likeness
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError


def run_codec(config: RunConfig, tokenizer: Any) -> TokenizerCodec:
    """Of a decision policy the prompt is what its root is asked, so the world is made here too.

    Raises ValueError for a world that is not there; the codec raises ConfigError naming a task without a request.
    """
    if config.decision is None:
        return TokenizerCodec(tokenizer)
    opens = opening_of(make_env(config.env, config.decision, text_likeness))

    def opening(task: Task) -> tuple[Message, ...]:
        try:
            return opens(task)
        except ContractError as error:
            raise ConfigError([f"{error}."]) from None
        except (Exception, SystemExit) as error:  # whatever the world raises
            said = f"{type(error).__name__}: {error}".rstrip(".")
            raise ConfigError([f"decision.world makes no request of task {task.id!r}: {said}."]) from error

    return TokenizerCodec(tokenizer, opening)
