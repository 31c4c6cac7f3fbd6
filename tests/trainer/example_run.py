"""A run folder made by hand: the search task, two trees per question, metrics of 30 steps. For the report's tests."""

import math
import random
from pathlib import Path

from envs.types import EndReason, Message, Task
from rollout_workers.picking import RULES, PickSettings
from rollout_workers.types import Forest, Ledger, Node, TaskGroup, Tree
from trainer.advantages import advantages
from trainer.run_folder import RunFolder, library_versions

_ATTACK = "document.documentElement.dataset.hacked=1"
HOSTILE = f'</script><script>{_ATTACK}</script><img src=x onerror="{_ATTACK}">\u2028\'"&amp;'
INSTRUCTION = "Answer the question. Think first, then search or answer.\n"
PLACES = {
    "Ulm": ("Germany", "Berlin", "German"),
    "Kraków": ("Poland", "Warsaw", "Polish"),
    "Nagoya": ("Japan", "Tokyo", "日本語 (Japanese)"),
    "Cusco": ("Peru", "Lima", "Spanish"),
    "Tromsø": ("Norway", "Oslo", "Norwegian"),
    "Pécs": ("Hungary", "Budapest", "Hungarian"),
    "Ghent": ("Belgium", "Brussels", "Dutch"),
    "Mombasa": ("Kenya", "Nairobi", "Swahili"),
}


class Words:
    """A tokenizer of whole words, bytes where a character is not ASCII, so that tokens can end inside a character."""

    def __init__(self) -> None:
        self.vocabulary: list[bytes] = [bytes([value]) for value in range(256)]

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for word in text.replace(" ", "\0 ").split("\0"):
            data = word.encode()
            if word.isascii() and data:
                if data not in self.vocabulary:
                    self.vocabulary.append(data)
                ids.append(self.vocabulary.index(data))
            else:
                ids.extend(data)
        return tuple(ids)

    def decode(self, ids) -> str:
        return b"".join(self.vocabulary[token_id] for token_id in ids).decode("utf-8", "replace")


class Grower:
    """Grows made-up trees with the shape that the scheduler's trees have."""

    def __init__(self, words: Words, seed: int, skill: float, picking: str = "random") -> None:
        self.words, self.random, self.skill = words, random.Random(seed), skill
        self.pick = RULES[picking]

    def node(self, parent: int, slot: int, version: int, action: str, observation: str = "", **result) -> Node:
        ids = self.words.encode(action)
        logprobs = tuple(-self.random.expovariate(0.8 + 3 * self.skill) for _ in ids)
        return Node(
            parent=parent,
            token_ids=ids,
            logprobs=logprobs,
            versions=(version,) * len(ids),
            observation_ids=self.words.encode(observation),
            slot=slot,
            **result,
        )

    def chain(self, nodes: list[Node], parent: int, slot: int, version: int, task: Task, turns: int) -> None:
        """One branch from `parent`: searches, then an answer that is right with probability `skill`."""
        city, (country, capital, language) = task.meta["city"], PLACES[task.meta["city"]]
        for turn in range(turns):
            query = city if turn == 0 else country
            think = f"<think>I need the {'country' if turn == 0 else 'capital'} of {query}.</think>"
            seen = f"<information>{query}: {city} is a city in {country}. The capital of {country} is {capital}; "
            seen += f"its language is {language}.</information>"
            nodes.append(self.node(parent, slot, version, f"{think}<search>{query}</search>", seen, tool_calls=1))
            parent = len(nodes) - 1
        dice = self.random.random()
        if dice < 0.06:
            end = {"end": EndReason.TURN_LIMIT, "reward": -0.2, "score": 0.0}
            nodes.append(self.node(parent, slot, version, f"<think>Still looking for {city}", **end))
            return
        right = dice < 0.06 + self.skill
        answer = capital if right else self.random.choice(["Munich", "Paris", country, city])
        end = {"end": EndReason.ANSWERED, "reward": float(right), "score": float(right)}
        think = f"<think>{country} has the capital {answer}.</think>"
        nodes.append(self.node(parent, slot, version, f"{think}<answer>{answer}</answer>", **end))

    def group(self, number: int, version: int, expansions: int, trees: int = 2) -> TaskGroup:
        city = list(PLACES)[number % len(PLACES)]
        text = f"{INSTRUCTION}What is the capital of the country in which {city} lies?"
        meta = {"hops": 1 + number % 3, "city": city, "family": "city_capital"}
        prompt = (Message(role="user", content=text),)
        task = Task(id=f"city_capital/{city.lower()}-{number}", prompt=prompt, truth=(PLACES[city][1],), meta=meta)
        grown = tuple(self.tree(task, i, version, expansions) for i in range(trees))
        cost = Ledger(
            sampled_tokens=sum(len(node.token_ids) for tree in grown for node in tree.nodes),
            tool_calls=sum(node.tool_calls for tree in grown for node in tree.nodes),
            leaves=sum(node.is_leaf for tree in grown for node in tree.nodes),
            trees=trees,
            env_seconds=0.25,
            engine_busy_s=0.5,
        )
        return TaskGroup(task=task, trees=grown, ledger=cost)

    def tree(self, task: Task, index: int, version: int, expansions: int) -> Tree:
        prompt = f"<|user|>\n{task.prompt[0].content}\n<|assistant|>\n"
        nodes = [Node(parent=-1, observation_ids=self.words.encode(prompt))]
        self.chain(nodes, 0, 0, version, task, turns=2)
        tree = Tree(task_id=task.id, index=index, nodes=nodes)
        for slot in range(1, expansions + 1):
            tree.picks.append(self.pick(tree, 1, self.random, PickSettings()))
            start = tree.picks[-1].chosen[0]
            self.chain(nodes, start, slot, version, task, turns=self.random.choice([0, 1, 1, 2]))
        return tree


def hostile_group(words: Words) -> TaskGroup:
    """A question, an action and an observation that would run as a script if they were ever read as HTML."""
    grower = Grower(words, 0, 0.5)
    task = Task(id="hostile/1", prompt=(Message(role="user", content=INSTRUCTION + HOSTILE),), truth=(HOSTILE,))
    nodes = [
        Node(parent=-1, observation_ids=words.encode(HOSTILE)),
        grower.node(0, 0, 1, f"<think>{HOSTILE}</think><search>{HOSTILE}</search>", HOSTILE, tool_calls=1),
        grower.node(1, 0, 1, f"<answer>{HOSTILE}</answer>", end=EndReason.ANSWERED, reward=1.0, score=1.0),
        grower.node(1, 1, 1, HOSTILE, end=EndReason.ENV_ERROR),
    ]
    return TaskGroup(task=task, trees=(Tree(task_id=task.id, index=0, nodes=nodes),))


def metrics_of(step: int, steps: int, rng: random.Random) -> dict[str, float]:
    """Numbers that look like training: success rises, noise stays."""
    done = step / steps
    success = 0.34 + 0.42 * (1 - math.exp(-3 * done)) + rng.gauss(0, 0.035)
    return {
        "rollout/success": success,
        "rollout/reward": success - 0.03,
        "rollout/tokens_per_s": 2300 + rng.gauss(0, 120),
        "rollout/engine_busy_share": 0.83 + rng.gauss(0, 0.02),
        "rollout/prefill_overhead": 1.034 + rng.gauss(0, 0.004),
        "rollout/prefill_block_bound": 1.025,
        "tree/leaves": 128,
        "tree/trees": 32,
        "tree/nodes": 330 + rng.randint(-25, 25),
        "tree/depth": 3,
        "tree/pick_score_mean": -0.3 + 0.1 * done + rng.gauss(0, 0.02),
        "tree/pick_depth_mean": 0.8 + rng.gauss(0, 0.05),
        "tree/pick_root_share": 0.4 + rng.gauss(0, 0.03),
        "reward/mean": success - 0.03,
        "reward/std": 0.47 - 0.1 * done + rng.gauss(0, 0.01),
        "reward/dead_groups": 0.2 + 0.25 * done + rng.gauss(0, 0.02),
        "learner/loss": -0.01 + rng.gauss(0, 0.006),
        "learner/grad_norm": 1.4 - 0.5 * done + rng.gauss(0, 0.15),
        "learner/lr": 3e-4 * min(1, (step + 1) / 5),
        "learner/kl_reference": 0.02 * done + abs(rng.gauss(0, 0.001)),
        "learner/entropy": 0.9 - 0.5 * done,
        "learner/clip_share": 0.004 + abs(rng.gauss(0, 0.002)),
        "learner/trained_tokens": 21_000 + rng.randint(-900, 900),
        "learner/approx_kl": abs(rng.gauss(0, 0.0004)),
        "learner/skipped_steps": int(step == 12),
        "learner/bad_steps": int(step == 12),
        "learner/tis_weight": 0.98 + rng.gauss(0, 0.005),
        "learner/tis_capped_share": 0.01 + abs(rng.gauss(0, 0.003)),
        "tree/repeated_tokens": 900 + rng.randint(-90, 90),
        "tree/rank_balance": 0.94 + rng.gauss(0, 0.01),
        "tree/flat_tokens": 54_000 + rng.randint(-900, 900),
        "tree/unique_tokens": 21_400 + rng.randint(-900, 900),
        "learner/tree_token_ratio": 2.6 + rng.gauss(0, 0.1),
        "rollout/end_answered_share": 0.93 + 0.05 * done,
        "rollout/end_turn_limit_share": 0.07 - 0.05 * done,
        "push/seconds": 0.12 + abs(rng.gauss(0, 0.01)),
        "push/bytes": 9_100_000,
        "push/max_abs_logprob_diff": 0.001 + abs(rng.gauss(0, 0.0015)),
        "push/version": step,
        "ledger/sampled_tokens": 12_400 + rng.randint(-800, 800),
        "ledger/prefill_tokens_computed": 6_100 + rng.randint(-300, 300),
        "ledger/prefill_tokens_cached": 31_000 + rng.randint(-900, 900),
        "ledger/prefill_tokens_unique": 5_900 + rng.randint(-300, 300),
        "ledger/prefill_tokens_block_bound": 147 + rng.randint(-20, 20),
        "ledger/discarded_tokens": rng.randint(0, 400),
        "ledger/branches_stolen": rng.randint(0, 6),
        "ledger/siblings_equal": rng.randint(10, 30),
        "ledger/growth_stopped": rng.randint(0, 3),
        "ledger/tool_calls": 230 + rng.randint(-15, 15),
        "time/collect_s": 6.1 + rng.gauss(0, 0.3),
        "time/learn_s": 4.2 + rng.gauss(0, 0.2),
        "time/push_s": 0.12,
        "custom/something": rng.random(),
    }


def evaluation(success: float) -> dict[str, float]:
    hops = {f"eval/hops{k}_success": success + 0.18 - 0.12 * k for k in (1, 2, 3)}
    return {"eval/success": success, "eval/n": 200, "time/eval_s": 11.0, **hops, "eval/hops1_n": 70, "eval/step": 0}


def build(path: Path, *, steps: int = 30, summary: bool = True) -> RunFolder:
    """Writes the whole folder."""
    folder, words, rng = RunFolder(path), Words(), random.Random(7)
    folder.write_config(CONFIG)
    for step in range(1, steps + 1):
        evals = evaluation(0.38 + 0.34 * step / steps) if step % 10 == 0 else {}
        folder.append_metrics(step, metrics_of(step, steps, rng) | evals)
        if step % 5 == 0:
            grower = Grower(words, step, 0.3 + 0.45 * step / steps, picking="uncertain")
            forest: Forest = [grower.group(i, step, expansions=3) for i in range(12)]
            forest.append(hostile_group(words))
            credit = [advantages(group) for group in forest]
            folder.write_forest("step", step, forest, words.decode, credit)
        if step % 10 == 0:
            grower = Grower(words, step, 0.3 + 0.45 * step / steps)
            tests = [grower.group(i, step, expansions=0, trees=1) for i in range(40)]
            folder.write_forest("eval", step, tests, words.decode)
    if summary:
        folder.write_summary(SUMMARY | {"steps": steps, "weights_version": steps, "versions": library_versions()})
    return folder


CONFIG = {
    "seed": 0,
    "name": "quickstart",
    "steps": 30,
    "model": {"path": "models/tiny", "dtype": "float32"},
    "env": {"name": "search", "retriever": {"kind": "http", "url": "http://me:secret@search:8000", "api_key": "abc"}},
    "tree": {"roots": 2, "nodes_per_round": 3, "branches_per_node": 1, "rounds": 1},
    "guards": {"max_logprob_diff": 0.02},
    "limits": {"max_turn_tokens": 64},
}
_AT_START = {name.removeprefix("eval/"): value for name, value in evaluation(0.38).items() if name[:5] == "eval/"}
SUMMARY = {
    "eval": {"before": _AT_START, "after": {"success": 0.72, "n": 200, "step": 30}},
    "ledger": {
        "sampled_tokens": 372_000,
        "prefill_tokens_computed": 183_000,
        "prefill_tokens_cached": 930_000,
        "prefill_tokens_unique": 177_000,
        "prefill_tokens_block_bound": 4_400,
        "prefill_tokens_stolen": 9_000,
        "discarded_tokens": 6_100,
        "tool_calls": 6_900,
        "requests": 11_200,
        "branches": 3_900,
        "branches_failed": 2,
        "branches_requeued": 0,
        "branches_stolen": 85,
        "siblings_equal": 610,
        "siblings_resampled": 480,
        "growth_stopped": 41,
        "observations_cut": 0,
        "leaves": 3_840,
        "trees": 960,
        "env_seconds": 912.0,
        "engine_busy_s": 150.4,
    },
    "time_s": {"total": 402.0, "collect": 183.0, "learn": 126.0, "push": 3.6, "eval": 44.0},
    "parity": {"max_abs_logprob_diff": 0.0046},
    "seed": 0,
}
