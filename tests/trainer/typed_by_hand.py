"""Typed trees and queued steps made by hand, for the tests of feedback and of faults."""

import json

from envs.decisions.settings import DecisionSettings
from envs.decisions.types import NodeReward, StepRecord
from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, TaskGroup, Tree
from trainer.advantages import TreeAdvantages
from trainer.decisions.feedback_files import QueuedStep
from trainer.decisions.statistics import Running

PARENTS = {"intent": None, "retrieval": "intent", "reply": "retrieval"}


def decision(**changes) -> DecisionSettings:
    nodes = [
        {"name": name, "parent": parent, "instruction": f"Do {name}.", "output_schema": {"type": "object"}}
        for name, parent in PARENTS.items()
    ]
    return DecisionSettings(**{"world": "my.world", "nodes": nodes} | changes)


def record(node: str, automatic: float | None = 1.0, output=None, fault: str = "", **more) -> StepRecord:
    said = "" if fault else json.dumps({"of": node} if output is None else output)
    reward = NodeReward(automatic=automatic, **more)
    return StepRecord(node=node, input='{"message": "hi"}', output=said, fault=fault, reward=reward)


def step_node(parent: int, node: StepRecord, ids=(7, 8), last=False, reward=1.0) -> Node:
    end = {"end": EndReason.ANSWERED, "reward": reward, "score": max(reward, 0.0)} if last else {}
    prompt = () if last else (100 + parent + 1,)
    return Node(
        parent=parent,
        token_ids=ids,
        logprobs=(-0.5,) * len(ids),
        versions=(3,) * len(ids),
        observation_ids=prompt,
        record=node,
        **end,
    )


def chain(task_id: str, *records: StepRecord, index: int = 0, reward: float = 1.0) -> Tree:
    nodes = [Node(parent=-1, observation_ids=(100,))]
    for place, one in enumerate(records):
        nodes.append(step_node(place, one, last=place == len(records) - 1, reward=reward))
    return Tree(task_id=task_id, index=index, nodes=nodes, typed=True)


def group(task_id: str, *trees: Tree, **meta) -> TaskGroup:
    prompt = (Message(role="user", content="hi"),)
    return TaskGroup(task=Task(id=task_id, prompt=prompt, truth=("x",), meta=meta), trees=trees)


def whole(trees) -> list[TreeAdvantages]:
    """Credit in which every step carries loss."""
    return [
        TreeAdvantages(level="node", values=dict.fromkeys(range(1, len(t.nodes)), 0.0), leaves=(len(t.nodes) - 1,))
        for t in trees
    ]


def queued(id: str = "train-3/t/0/1", step: int = 3, node: str = "intent", automatic: float | None = 0.5, **more):
    """Raw rewards of the node are 0.5 on average with a standard deviation of 0.25."""
    values = {
        "total": 0.0,
        "statistics": Running(count=4, mean=0.5, squares=4 * 0.0625),
        "depth": list(PARENTS).index(node),
        "token_ids": (7, 8),
    } | more
    return QueuedStep(
        id=id,
        step=step,
        task="t",
        instruction=f"Do {node}.",
        record=record(node, automatic),
        prompt=f"Do {node}. hi",
        prompt_ids=(100, 101),
        logprobs=(-0.5, -0.25),
        versions=(2, 2),
        **values,
    )
