"""Decision tasks played by hand: worlds of a few lines, a judge that gives marks, and somebody who answers in turn."""

import json
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from envs.decisions.settings import DecisionSettings
from envs.decisions.types import NodeReward
from envs.types import Message, StepResult, Task
from trainer.compose import CONFIG_DIR


def task(message: str, name: str = "t1", **meta: Any) -> Task:
    return Task(id=name, prompt=(Message(role="user", content=message),), truth=("-",), meta=meta)


def example(name: str, **changes: Any) -> DecisionSettings:
    """`conf/decision/<name>.yaml`."""
    made: Any = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "decision" / f"{name}.yaml"))
    return DecisionSettings.model_validate(made | changes)


class Marks:
    """1 for a valid step, -1 for another; remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []

    def judge(self, node, **shown):
        self.shown.append({"node": node, **shown})
        mark = -1.0 if shown["fault"] else 1.0
        return NodeReward(automatic=mark), (("schema", mark),)


class EchoWorld:
    """The request is the message; `look` finds how long the output is; a task is worth 1."""

    def request(self, task):
        return {"message": task.prompt[-1].content}

    async def act(self, action, output, task):
        assert action == "look"
        return {"length": len(json.dumps(output))}

    def score(self, values, task):
        return 1.0


async def answers(env: Any, task: Task, given: Sequence[Any]) -> tuple[list[Any], list[StepResult]]:
    """Answers each ask with the JSON of the next value, or the text itself; (asks, results)."""
    state, asks, results = env.reset(task), [], []
    for value in given:
        asks.append(env.ask(state))
        text = value if isinstance(value, str) else json.dumps(value)
        state, result = await env.answer(state, text, ())
        results.append(result)
        if result.end is not None:
            break
    return asks, results
