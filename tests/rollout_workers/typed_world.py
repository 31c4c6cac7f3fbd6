"""Typed nodes for rollout tests: three letters are asked for, each by a prompt of its own. Ids are character codes."""

import json
from typing import Any

from envs.decisions.settings import DecisionSettings
from envs.decisions.typed_env import TypedDecisionEnv
from envs.decisions.types import NodeReward


class Letters:
    """The request is the task's prompt; `look` finds the letter in capitals; a task is worth 1 if it ends with z."""

    def request(self, task):
        return {"q": task.prompt[-1].content}

    async def act(self, action, output, task):
        if output["b"] == "boom":
            raise RuntimeError("the world broke")
        return {"found": output["b"].upper()}

    def score(self, values, task):
        return float(values["c"]["c"] == "z")


class Half:
    """Every valid step is worth a half."""

    def judge(self, node, *, fault, **_):
        return NodeReward(automatic=-1.0 if fault else 0.5), ()


def _node(name: str, parent: str | None, **more: Any) -> dict[str, Any]:
    letter = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    return {"name": name, "parent": parent, "instruction": f"{name}?", "output_schema": letter, **more}


def letters_env(**changes: Any) -> TypedDecisionEnv:
    """a → b (which looks) → c, the last one without an adapter."""
    nodes = [_node("a", None, max_tokens=9), _node("b", "a", act="look"), _node("c", "b", adapter=None)]
    return TypedDecisionEnv(DecisionSettings(world="x.y", nodes=nodes, **changes), Letters(), Half())


def say(**letter: str) -> str:
    return json.dumps(letter, separators=(",", ":"))
