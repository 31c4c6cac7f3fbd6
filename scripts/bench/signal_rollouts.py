"""The groups whose gradients are compared: real rollouts of one policy, on one engine, for every shape of tree."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from envs.tasks import load_tasks
from envs.types import Env, Task
from rollout_workers import trees
from rollout_workers.growth import TreeRules
from rollout_workers.picking import RULES
from rollout_workers.seeds import derive_seed
from rollout_workers.types import Forest, Node, TaskGroup
from scripts.bench.rollout_runs import Bench, Work
from trainer.advantages import leaf_rewards
from trainer.config import RunConfig
from trainer.session import collection_spec, tree_rules

MOST_PAIRS = 4000
"""Pairs of leaves per task that a correlation is taken from; drawn at random beyond that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """M roots, N nodes per round, L rounds, and how nodes are picked; without rounds M chains."""

    roots: int
    nodes: int = 0
    rounds: int = 0
    picking: str | None = None
    """A `tree.picking`; None: the run's."""

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """`"9"` are 9 chains, `"2x6x1"` is (2, 6, 1), `"2x1x6:surprisal"` is (2, 1, 6) with its nodes picked so.

        Raises ValueError for anything else.
        """
        numbers, _, picking = text.partition(":")
        parts = numbers.split("x")
        good = len(parts) in (1, 3) and all(part.isdecimal() and int(part) > 0 for part in parts)
        if not good or (":" in text and (picking not in RULES or not parts[1:])):
            raise ValueError(
                f"{text!r} is no shape: give a number of chains, or ROOTSxNODESxROUNDS such as 2x6x1, and for trees "
                f":RULE with one of {', '.join(RULES)}"
            )
        roots, nodes, rounds = (int(part) for part in (*parts, "0", "0")[:3])
        return cls(roots=roots, nodes=nodes, rounds=rounds, picking=picking or None)

    @property
    def is_chain(self) -> bool:
        """Whether nothing branches."""
        return self.rounds == 0

    @property
    def leaves_per_tree(self) -> int:
        """1 + L·N."""
        return 1 + self.rounds * self.nodes

    def __str__(self) -> str:
        """For tables, e.g. `"(2,1,6) surprisal"`."""
        if self.is_chain:
            return f"{self.roots} chains"
        return f"({self.roots},{self.nodes},{self.rounds})" + (f" {self.picking}" if self.picking else "")

    def rules(self, config: RunConfig) -> TreeRules:
        """The run's rules with this shape."""
        given = tree_rules(config)
        return replace(
            given,
            roots=self.roots,
            nodes_per_round=self.nodes,
            rounds=self.rounds,
            branches_per_node=1,
            picking=self.picking or given.picking,
        )


def chosen_tasks(config: RunConfig, count: int) -> tuple[Task, ...]:
    """`count` training tasks, drawn without replacement by the run's seed. Raises ValueError if there are fewer."""
    tasks = load_tasks(config.env.train_tasks, instruction=config.env.instruction)
    if len(tasks) < count:
        raise ValueError(f"--tasks {count}: {config.env.train_tasks} has {len(tasks)} tasks")
    return tuple(random.Random(derive_seed(config.seed, "signal")).sample(tasks, count))


async def collect(
    bench: Bench, env: Env[Any], config: RunConfig, shapes: Mapping[str, Shape], tasks: Sequence[Task], repeats: int
) -> dict[str, list[Forest]]:
    """Per arm `repeats` forests of `tasks`, each with an empty prefix cache."""
    found: dict[str, list[Forest]] = {arm: [] for arm in shapes}
    started = time.monotonic()
    for repeat in range(repeats):
        for arm, shape in shapes.items():
            rules = shape.rules(config)
            spec = collection_spec(config, "signal", tasks, rules, config.rollout.temperature)
            seed = derive_seed(config.seed, config.limits.max_turns, arm, repeat)
            work = Work(env=env, tasks=tuple(tasks), rules=rules, sampling=spec.sampling, seed=seed)
            outcome = await bench.run(work, keep_turns=config.rollout.keep_turns)
            found[arm].append(outcome.forest)
    leaves = sum(group.ledger.leaves for forests in found.values() for forest in forests for group in forest)
    print(f"{config.limits.max_turns} turns: {leaves} leaves in {time.monotonic() - started:.0f} s", flush=True)
    return found


def cost(group: TaskGroup) -> int:
    """Sampled and computed prefill tokens of a group."""
    return group.ledger.sampled_tokens + group.ledger.prefill_tokens_computed


def mean_turns(forests: Sequence[Forest]) -> float:
    """Mean number of agent steps on the path to a leaf."""
    depths = [
        trees.depths(tree)[leaf]
        for forest in forests
        for group in forest
        for tree in group.trees
        for leaf in trees.leaves(tree)
    ]
    return sum(depths) / len(depths)


def new_steps(forests: Sequence[Forest]) -> float:
    """Agent steps per leaf, each counted once: less than the mean number of turns where leaves share steps."""
    grown = [tree for forest in forests for group in forest for tree in group.trees]
    return sum(len(tree.nodes) - 1 for tree in grown) / sum(len(trees.leaves(tree)) for tree in grown)


def differences(forests: Sequence[Forest], seed: int = 0) -> tuple[list[float], list[float]]:
    """(reward differences of leaves of one tree, of leaves of different trees of the same task), over all forests."""
    rng = random.Random(seed)
    same: list[float] = []
    other: list[float] = []
    for groups in zip(*forests, strict=True):
        per_tree = [list(leaf_rewards(tree).values()) for group in groups for tree in group.trees]
        same += [a - b for rewards in per_tree for a, b in combinations(rewards, 2)]
        pairs = list(_across(per_tree))
        other += rng.sample(pairs, min(len(pairs), MOST_PAIRS))
    return same, other


def task_means(forests: Sequence[Forest]) -> dict[str, float]:
    """Per task the mean reward of all its leaves."""
    rewards: dict[str, list[float]] = {}
    for group in (group for forest in forests for group in forest):
        rewards.setdefault(group.task.id, []).extend(r for tree in group.trees for r in leaf_rewards(tree).values())
    return {task: sum(values) / len(values) for task, values in rewards.items()}


def sampled(node: Node) -> float:
    """Squared length of a step's score if those of all tokens are equally long: the number of its tokens."""
    return float(len(node.token_ids))


def unsureness(node: Node) -> float:
    """Squared length of a step's score as its log-probabilities tell: the sum of (1 - p)² over its tokens.

    In the logits the score of a token is its one-hot vector minus the probabilities, whose squared length is from
    (1 - p)² to 2(1 - p)². A token that the policy is sure of has none. Example: p of 1, 1 and 0.5 give 0.25.
    """
    return math.fsum((1 - math.exp(logprob)) ** 2 for logprob in node.logprobs)


def noise_correlation(
    forests: Sequence[Forest], means: Mapping[str, float], squared: Callable[[Node], float] = sampled
) -> float:
    """How much of the noise of two leaves of a tree is the same, with `seq_mean` and a baseline of the task's mean.

    A leaf adds A/|H| times the sum of its tokens' scores to the gradient. If scores of different tokens are orthogonal
    and a step's score has the squared length `squared(step)`, two leaves have the product A·A'·(shared)/(|H|·|H'|), a
    leaf with itself A²·(all)/|H|²; the result is the ratio of their means. `means` has the reward that A is measured
    from. 0 without pairs.
    """
    pairs: list[float] = []
    alone: list[float] = []
    for tree in (tree for forest in forests for group in forest for tree in group.trees):
        weights = [squared(node) for node in tree.nodes]
        paths = {leaf: set(trees.path(tree, leaf)) for leaf in leaf_rewards(tree)}
        shares = {
            leaf: (reward - means[tree.task_id]) / max(1.0, sum(sampled(tree.nodes[step]) for step in paths[leaf]))
            for leaf, reward in leaf_rewards(tree).items()
        }
        alone += [shares[leaf] ** 2 * sum(weights[step] for step in steps) for leaf, steps in paths.items()]
        pairs += [
            shares[a] * shares[b] * sum(weights[step] for step in paths[a] & paths[b])
            for a, b in combinations(paths, 2)
        ]
    return (sum(pairs) / len(pairs)) / (sum(alone) / len(alone)) if pairs and any(alone) else 0.0


def _across(per_tree: Sequence[Sequence[float]]) -> Iterator[float]:
    for left, right in combinations(per_tree, 2):
        yield from (a - b for a in left for b in right)
