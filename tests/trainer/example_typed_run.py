"""A run folder of a typed decision policy made by hand: a shop's tickets through four nodes. For the report's tests."""

import json
import math
import random
from pathlib import Path

from example_run import CONFIG, SUMMARY, Words, evaluation, metrics_of

from envs.decisions.types import Gating, NodeReward, StepRecord
from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, TaskGroup, Tree
from trainer.advantages import TreeAdvantages
from trainer.run_folder import RunFolder, library_versions

NODES = {"intent": None, "retrieval": "intent", "policy": "intent", "response": "intent"}
INSTRUCTIONS = {
    "intent": "What is wanted?",
    "retrieval": "Which query?",
    "policy": "What do the rules say?",
    "response": "What is the answer?",
}
MESSAGES = [
    ("Where is order {order}? It was promised for Friday.", "where"),
    ("I want my money back for order {order}, the lamp does not work.", "refund"),
    ("Please cancel {order}, I ordered twice by mistake.", "cancel"),
]


class Clerk:
    """Answers tickets, rightly with a probability of its own for each node."""

    def __init__(self, words: Words, seed: int, skill: float) -> None:
        self.words, self.random, self.skill = words, random.Random(seed), skill

    def task(self, number: int) -> Task:
        text, intent = MESSAGES[number % len(MESSAGES)]
        order = str(1700 + 7 * number)
        message = text.format(order=order)
        expected = {
            "intent": {"intent": intent, "order": order},
            "retrieval": {"find": "tracking" if intent == "where" else "purchase", "order": order},
            "policy": {"decision": "none" if intent == "where" else "approve"},
            "response": {"text": f"{'Order' if intent == 'where' else 'Refund for'} {order}: done."},
        }
        meta = {"expected": expected, "question": message}
        return Task(id=f"shop/{number}", prompt=(Message(role="user", content=message),), truth=(intent,), meta=meta)

    def step(self, name: str, task: Task, value: dict) -> StepRecord:
        right = task.meta["expected"][name]
        if self.random.random() < 0.04:
            reward = NodeReward(automatic=-1.0, penalty=0.0)
            fault = f"{next(iter(right))}: 'perhaps' is not one of the accepted values"
            return StepRecord(node=name, input=json.dumps(value), fault=fault, reward=reward, parts=(("schema", 0.0),))
        good = self.random.random() < self.skill
        output = right if good else {**right, next(iter(right)): self.random.choice(["none", "unclear", "thanks"])}
        found = json.dumps({"status": "in transit", "carrier": "Post"}) if name == "retrieval" else ""
        penalty = -10.0 if name == "response" and self.random.random() < 0.1 else 0.0
        parts = (("schema", 1.0), ("similarity", float(good)), *([("no_promise", penalty)] if penalty else []))
        reward = NodeReward(
            automatic=(1 + good) / 2, penalty=penalty, human=0.75 if self.random.random() < 0.2 else None
        )
        gating = (
            Gating(node="retrieval", probability=0.93, runs=True),
            Gating(node="policy", probability=0.61, runs=True),
        )
        return StepRecord(
            node=name,
            input=json.dumps(value),
            output=json.dumps(output),
            found=found,
            reward=reward,
            parts=parts,
            gating=gating if name == "intent" else (),
        )

    def prompt(self, name: str, value: dict) -> tuple[int, ...]:
        return self.words.encode(f"<|user|>\n{INSTRUCTIONS[name]}\n{json.dumps(value)}\n<|assistant|>\n")

    def tree(self, task: Task, index: int, version: int, branches: int) -> Tree:
        request = {"message": task.prompt[0].content}
        nodes = [Node(parent=-1, observation_ids=self.prompt("intent", request))]
        values: list[tuple[dict, bool]] = [(request, True)]
        names = list(NODES)
        self.chain(task, nodes, values, 0, 0, 0, version)
        for slot in range(1, branches + 1):
            depth = self.depths(nodes)
            start = self.random.choice(
                [i for i, node in enumerate(nodes) if node.end is None and depth[i] < len(names)]
            )
            self.chain(task, nodes, values, start, depth[start], slot, version)
        return Tree(task_id=task.id, index=index, nodes=nodes, typed=True)

    def depths(self, nodes: list[Node]) -> list[int]:
        found: list[int] = []
        for node in nodes:
            found.append(0 if node.parent < 0 else found[node.parent] + 1)
        return found

    def chain(
        self, task: Task, nodes: list[Node], values: list[dict], parent: int, place: int, slot: int, version: int
    ):
        names = list(NODES)
        for name in names[place:]:
            given, right = values[parent]
            record = self.step(name, task, given)
            last = name == names[-1] or bool(record.fault)
            said = json.loads(record.output) if record.output else {}
            value = {**said, **(json.loads(record.found) if record.found else {})}
            ids = self.words.encode(record.output or '{"intent":"perhaps"')
            right = right and said == task.meta["expected"][name]
            score = float(right)
            following = names[min(names.index(name) + 1, 3)]
            nodes.append(
                Node(
                    parent=parent,
                    token_ids=ids,
                    logprobs=tuple(-self.random.expovariate(4.0) for _ in ids),
                    versions=(version,) * len(ids),
                    observation_ids=() if last else self.prompt(following, value),
                    slot=slot,
                    record=record,
                    end=(EndReason.INVALID_ACTION if record.fault else EndReason.ANSWERED) if last else None,
                    reward=score if last else None,
                    score=score if last else None,
                )
            )
            values.append((value, right))
            parent = len(nodes) - 1
            if last:
                return

    def group(self, number: int, version: int) -> TaskGroup:
        task = self.task(number)
        return TaskGroup(task=task, trees=tuple(self.tree(task, index, version, 3) for index in range(2)))


def typed_metrics(step: int, steps: int, rng: random.Random) -> dict[str, float]:
    found = {}
    for place, name in enumerate(NODES):
        done = 1 - math.exp(-3 * step / steps)
        values = {
            "steps": 200 - 20 * place,
            "tokens": 4000,
            "reward": 0.3 + 0.1 * place + (0.6 - 0.1 * place) * done + rng.gauss(0, 0.02),
            "reward_std": 0.3,
            "normal_mean": rng.gauss(0, 0.1),
            "advantage_abs": 0.6,
            "valid_share": min(1.0, 0.9 + 0.1 * done),
            "kl_mean": (0.01 + 0.02 * place) * done,
            "entropy": 0.9 - 0.4 * done + 0.1 * place,
            "clip_share": 0.003 * (1 + place),
            "share": 1.0 if place == 0 else 1 / 3 + 0.05 * (place - 2) * done,
            "factor": 0.92 if place == 0 else 0.782 * (1 + 0.15 * (place - 2) * done),
            "penalised_share": 0.02 if name == "response" else 0.0,
            "label_share": 0.0,
        }
        found |= {f"decision/{name}/{key}": value for key, value in values.items()}
    feedback = {"queued": 410, "labelled": 22, "late": 19, "expired": 2, "unknown": 1}
    found |= {f"decision/feedback/{name}": value + rng.randint(0, 3) for name, value in feedback.items()}
    if step == 7:
        found |= {"decision/live/response.rewards.weight": 2.0, "decision/live/response.rewards.weight/before": 1.0}
    gate = {"run_share": 0.8, "saved_tokens": 5200.0, "saved_s": 1.25}
    return found | {f"decision/gate/{name}": value + rng.random() / 10 for name, value in gate.items()}


def build_typed(path: Path, steps: int = 20) -> RunFolder:
    """Writes the whole folder."""
    folder, words, rng = RunFolder(path), Words(), random.Random(3)
    nodes = [{"name": name, "parent": parent} for name, parent in NODES.items()]
    folder.write_config(CONFIG | {"name": "shop", "env": {"name": "decision"}, "decision": {"nodes": nodes}})
    folder.append_metrics(0, {"decision/backbone_share": 0.72, "decision/memory_saved": 0.63})
    for step in range(1, steps + 1):
        evals = evaluation(0.3 + 0.4 * step / steps) if step % 10 == 0 else {}
        folder.append_metrics(step, metrics_of(step, steps, rng) | typed_metrics(step, steps, rng) | evals)
        if step % 10 == 0:
            clerk = Clerk(words, step, 0.5 + 0.3 * step / steps)
            forest = [clerk.group(number, step) for number in range(10)]
            credit = [
                [
                    TreeAdvantages(
                        level="node",
                        values={i: rng.gauss(0, 1) for i in range(1, len(tree.nodes))},
                        leaves=tuple(i for i, node in enumerate(tree.nodes) if node.end),
                    )
                    for tree in group.trees
                ]
                for group in forest
            ]
            folder.write_forest("step", step, forest, words.decode, credit)
    folder.write_summary(SUMMARY | {"steps": steps, "versions": library_versions()})
    return folder
