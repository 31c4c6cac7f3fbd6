"""Hand-made typed policies and forests: each search node is a typed step with a record and a prompt of its own."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace

from envs.decisions.settings import (
    AdapterSettings,
    CoefficientSettings,
    DecisionSettings,
    NodeRewardSettings,
    NodeSettings,
)
from envs.decisions.types import NodeReward, StepRecord
from envs.types import EndReason, Message, Task
from rollout_workers.types import Forest, Node, TaskGroup, Tree
from trainer.config import RunConfig

LINE = {"intent": None, "retrieval": "intent", "policy": "retrieval", "response": "policy"}
"""Four levels deep: node -> parent."""
FAN = {"intent": None, "lookup": "intent", "shipping": "intent", "aftersales": "lookup"}
"""Two children of the root, of which the first has a child."""


def node(name: str, parent: str | None, *, adapter: bool = True, freeze: bool = False, **more: object) -> NodeSettings:
    rewards = NodeRewardSettings(**{k: more.pop(k) for k in ("weight", "expert") if k in more})
    return NodeSettings(
        name=name,
        parent=parent,
        instruction=f"Do {name}.",
        output_schema={"type": "object", "properties": {"x": {"type": "string"}}},
        adapter=AdapterSettings(freeze=freeze) if adapter else None,
        rewards=rewards,
        coefficients=CoefficientSettings(**more),
    )


def decision(
    parents: dict[str, str | None] = LINE, of: dict[str, dict] | None = None, **keys: object
) -> DecisionSettings:
    """`of`: keyword arguments of `node` by name; `keys`: of the whole policy."""
    nodes = tuple(node(name, parent, **(of or {}).get(name, {})) for name, parent in parents.items())
    return DecisionSettings(world="shop", nodes=nodes, **keys)


def step(
    parent: int,
    name: str,
    reward: NodeReward | float | None = None,
    *,
    ids: tuple[int, ...] = (5,),
    prompt: tuple[int, ...] = (),
    end: EndReason | None = None,
    fault: str = "",
    version: int = 0,
) -> Node:
    """A step of node `name`; a number is its automatic reward. `prompt`: what the steps after it see."""
    judged = reward if isinstance(reward, NodeReward) else NodeReward(automatic=reward)
    return Node(
        parent=parent,
        token_ids=ids,
        logprobs=(-1.0,) * len(ids),
        versions=(version,) * len(ids),
        observation_ids=prompt,
        end=end,
        reward=None if end in (None, EndReason.ENV_ERROR) else 0.0,
        score=None if end in (None, EndReason.ENV_ERROR) else 0.0,
        record=StepRecord(node=name, input="{}", output="" if fault else "{}", fault=fault, reward=judged),
    )


DONE = EndReason.ANSWERED


def tree(*steps: Node, index: int = 0, prompt: tuple[int, ...] = (1, 2), name: str = "t") -> Tree:
    return Tree(task_id=name, index=index, nodes=[Node(parent=-1, observation_ids=prompt), *steps], typed=True)


def task_of(name: str) -> Task:
    return Task(id=name, prompt=(Message(role="user", content="?"),), truth=("x",))


def group(*trees: Tree, name: str = "t") -> TaskGroup:
    return TaskGroup(task=task_of(name), trees=trees)


def random_typed_forest(
    seed: int, names: tuple[str, ...], *, tasks: int = 3, vocab: int = 64, said: Sequence[tuple[int, ...]] = ()
) -> Forest:
    """Two trees per task, each with a branch at every second step; the nodes of a path run in the order of `names`.

    What is sampled is drawn from `said`, or any tokens.
    """
    rng = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab) for _ in range(rng.randint(low, high)))

    def grow(nodes: list[Node], parent: int, depth: int) -> None:
        for _ in range(2 if depth % 2 else 1):
            last = depth == len(names) - 1
            sampled = rng.choice(said) if said else ids(1, 5)
            one = step(
                parent, names[depth], rng.choice((0.0, 0.3, 1.0)), ids=sampled,
                prompt=() if last else ids(3, 7), end=DONE if last else None,
            )  # fmt: skip
            nodes.append(replace(one, logprobs=tuple(rng.uniform(-6.0, -2.5) for _ in sampled)))
            if not last:
                grow(nodes, len(nodes) - 1, depth + 1)

    forest = []
    for t in range(tasks):
        prompt = ids(3, 6)
        trees = []
        for index in range(2):
            nodes = [Node(parent=-1, observation_ids=prompt)]
            grow(nodes, 0, 0)
            trees.append(Tree(task_id=f"t{t}", index=index, nodes=nodes, typed=True))
        forest.append(group(*trees, name=f"t{t}"))
    return forest


def typed_config(decided: DecisionSettings, **sections: object) -> RunConfig:
    """A run of the policy; nothing of it is started."""
    env = {"name": "decision", "train_tasks": "a.jsonl", "eval_tasks": "b.jsonl"}
    base = {"name": "r", "model": {"path": "m"}, "env": env, "decision": decided.model_dump(mode="json")}
    return RunConfig.model_validate_json(json.dumps(base | sections), strict=True)
