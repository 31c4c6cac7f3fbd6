"""Arms of the signal benchmark: their gradients, what they cost, and how each compares with chains."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_workers.types import Forest
from scripts.bench.signal_gradients import Gradients, Sketch, adam_scale
from scripts.bench.signal_math import (
    Draws,
    Reading,
    batch_cosine,
    halves_cosine,
    interval,
    products,
    ratios,
    reading,
    resampled,
    sharing,
    worth_of_leaves,
)
from scripts.bench.signal_rollouts import (
    Shape,
    cost,
    differences,
    mean_turns,
    new_steps,
    noise_correlation,
    task_means,
    unsureness,
)
from trainer.advantages import advantages, is_dead, leaf_rewards
from trainer.demonstrations import Example

Row = dict[str, Any]
REFERENCE = "reference"
CHAIN_KIND = "tree"
"""Of chains: there it is the advantage of GRPO."""
METRICS = ("plain", "adam")
FIGURES = ("snr", "useful", "yard", "along", "cosine")
RATIOS = ("yard", "yard_within", "aim", "calm", "calm_within", "useful", "snr")
RESAMPLINGS = 1000
EXAMPLES = 300
"""Demonstrations of the yardstick."""
SCALE_GROUPS = 24
"""Groups of the reference that Adam's scale is taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Groups of one shape, with one kind of advantage."""

    shape: Shape
    kind: str
    draws: Mapping[str, Draws]
    """Per metric."""

    @property
    def name(self) -> str:
        """Unique in a configuration, e.g. `"(2,6,1) tree"`."""
        return f"{self.shape} {self.kind}"


class Study:
    """One configuration's groups and their gradients; it grows by parts of the tasks."""

    def __init__(
        self,
        gradients: Gradients,
        shapes: Mapping[str, Shape],
        kinds: Sequence[str],
        dimensions: int,
        experts: Mapping[str, Example],
    ) -> None:
        """`shapes` by name, `REFERENCE` among them; `kinds` are the advantages of trees; `experts` by task."""
        few = list(experts.values())[:EXAMPLES]
        self._experts = experts
        self._yardstick = gradients.of_likelihood(few) if few else None
        self._gradients = gradients
        self._shapes = shapes
        self._kinds = kinds
        self._sketch = Sketch(gradients.size, dimensions, seed=1)
        self._scale: npt.NDArray[np.float32] | None = None
        self._forests: dict[str, list[Forest]] = {}
        self._draws: dict[tuple[str, str], dict[str, Draws]] = {}

    def add(self, forests: Mapping[str, Sequence[Forest]]) -> None:
        """Takes further tasks: per arm equally many forests of them."""
        started = time.monotonic()
        if self._scale is None:
            pilot = (self._gradients.of(group, "loo", plain=True) for group in forests[REFERENCE][0])
            alive = (gradient for gradient in pilot if gradient is not None)
            self._scale = adam_scale(list(islice(alive, SCALE_GROUPS)))
        tasks = [group.task.id for group in forests[REFERENCE][0]]
        own = [self._gradients.of_likelihood([self._experts[one]]) if one in self._experts else None for one in tasks]
        for name, shape in self._shapes.items():
            before = self._forests.setdefault(name, [[] for _ in forests[name]])
            self._forests[name] = [[*old, *new] for old, new in zip(before, forests[name], strict=True)]
            for kind in self._kinds_of(name, shape):
                found = self._sketched(forests[name], kind, own, self._scale, plain=name == REFERENCE)
                known = self._draws.get((name, kind))
                self._draws[name, kind] = found if known is None else {m: joined(known[m], found[m]) for m in METRICS}
        print(f"gradients in {time.monotonic() - started:.0f} s", flush=True)

    def row(self, budgets: Sequence[int]) -> Row:
        """Everything that is known so far."""
        reference, arms = self._draws[REFERENCE, "loo"], self._arms()
        means = task_means(self._forests[REFERENCE])
        looks = {name: rollouts(shape, self._forests[name], means) for name, shape in self._shapes.items()}
        about_reference = looks.pop(REFERENCE)
        explained(looks)
        return {
            "tasks": len(means),
            "reference": about_reference
            | {metric: asdict(reading(products(reference[metric], reference[metric]))) for metric in METRICS},
            "rollouts": {str(self._shapes[name]): look for name, look in looks.items()},
            "metrics": {metric: compare(arms, metric, reference[metric], budgets) for metric in METRICS},
        }

    def _kinds_of(self, name: str, shape: Shape) -> Sequence[str]:
        if name == REFERENCE:
            return ["loo"]
        return [CHAIN_KIND] if shape.is_chain else self._kinds

    def _sketched(
        self,
        forests: Sequence[Forest],
        kind: str,
        own: Sequence[npt.NDArray[np.float32] | None],
        scale: npt.NDArray[np.float32],
        *,
        plain: bool,
    ) -> dict[str, Draws]:
        per_task = list(zip(*forests, strict=True))
        vectors = np.zeros((len(METRICS), len(per_task), len(forests), self._sketch.dimensions), np.float32)
        along = np.full(vectors.shape[:3], math.nan if self._yardstick is None else 0.0)
        aim = np.zeros_like(along)
        aim[:, [mine is None for mine in own]] = math.nan
        scales = (np.ones_like(scale), scale)
        sticks = [None if self._yardstick is None else unit(self._yardstick * one) for one in scales]
        for task, groups in enumerate(per_task):
            own_sticks = [None if (mine := own[task]) is None else unit(mine * one) for one in scales]
            for repeat, group in enumerate(groups):
                if (gradient := self._gradients.of(group, kind, plain=plain)) is None:
                    continue
                for metric, one in enumerate(scales):
                    scaled = gradient * one
                    vectors[metric, task, repeat] = self._sketch.of(scaled)
                    for found, stick in ((along, sticks[metric]), (aim, own_sticks[metric])):
                        if stick is not None:
                            found[metric, task, repeat] = float(scaled @ stick)
        tokens = np.array([[cost(group) for group in groups] for groups in per_task], np.float64)
        return {
            name: Draws(vectors_TRD=vectors[at], along_TR=along[at], aim_TR=aim[at], tokens_TR=tokens)
            for at, name in enumerate(METRICS)
        }

    def _arms(self) -> list[Arm]:
        """Those measured, and `intra` of trees that have `tree` and `inter`."""
        found: list[Arm] = []
        for name, shape in self._shapes.items():
            if name == REFERENCE:
                continue
            kinds = self._kinds_of(name, shape)
            found += [Arm(shape=shape, kind=kind, draws=self._draws[name, kind]) for kind in kinds]
            if {"tree", "inter"} <= set(kinds) and "intra" not in kinds:
                both, inter = self._draws[name, "tree"], self._draws[name, "inter"]
                draws = {metric: minus(both[metric], inter[metric]) for metric in METRICS}
                found.append(Arm(shape=shape, kind="intra", draws=draws))
        return found


def joined(first: Draws, second: Draws) -> Draws:
    """The tasks of both."""
    return Draws(
        vectors_TRD=np.concatenate([first.vectors_TRD, second.vectors_TRD]),
        along_TR=np.concatenate([first.along_TR, second.along_TR]),
        aim_TR=np.concatenate([first.aim_TR, second.aim_TR]),
        tokens_TR=np.concatenate([first.tokens_TR, second.tokens_TR]),
    )


def minus(both: Draws, inter: Draws) -> Draws:
    """Gradients of `intra`, as those of `tree` minus those of `inter`: nothing is clipped at ratios of 1, so gradients
    are linear in advantages.
    """
    return Draws(
        vectors_TRD=both.vectors_TRD - inter.vectors_TRD,
        along_TR=both.along_TR - inter.along_TR,
        aim_TR=both.aim_TR - inter.aim_TR,
        tokens_TR=both.tokens_TR,
    )


def unit(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The same direction with length 1."""
    found: npt.NDArray[np.float32] = vector / np.linalg.norm(vector)
    return found


def compare(arms: Sequence[Arm], metric: str, reference: Draws, budgets: Sequence[int]) -> Row:
    """Figures of all arms in one metric, with 95 % intervals from resampled tasks."""
    tables = {arm.name: products(arm.draws[metric], reference) for arm in arms}
    readings = {name: reading(table) for name, table in tables.items()}
    spread = resampled(tables, RESAMPLINGS, np.random.default_rng(0))
    chains = [arm.name for arm in arms if arm.shape.is_chain]
    half = min(found.tokens for found in readings.values()) * len(reference.tokens_TR) / 2
    found: Row = {"halves_tokens": round(half), "arms": {}}
    for arm in arms:
        mine, name = readings[arm.name], arm.name
        base = nearest(chains, readings, mine.tokens)
        cosine, groups = halves_cosine(arm.draws[metric], half, np.random.default_rng(0))
        found["arms"][name] = {
            **asdict(mine),
            "intervals": {key: interval([getattr(one, key) for one in spread[name]]) for key in FIGURES},
            "base": base,
            "factor": {key: factor(mine, readings[base], spread[name], spread[base], key) for key in RATIOS},
            "halves": {"cosine": cosine, "groups": groups},
            "batch_cosine": {str(tokens): batch_cosine(mine, tokens) for tokens in budgets},
        }
    return found


def nearest(chains: Sequence[str], readings: Mapping[str, Reading], tokens: float) -> str:
    """The chain arm whose groups cost about `tokens`."""
    return min(chains, key=lambda name: abs(math.log(readings[name].tokens / tokens)))


def factor(mine: Reading, base: Reading, my_spread: Sequence[Reading], base_spread: Sequence[Reading], key: str) -> Row:
    """A figure over the chain arm's: so many times the tokens would chains need."""
    theirs = getattr(base, key)
    return {
        "value": getattr(mine, key) / theirs if theirs > 0 else None,
        "interval": interval(ratios(my_spread, base_spread, key)),
    }


def rollouts(shape: Shape, forests: Sequence[Forest], means: Mapping[str, float]) -> Row:
    """What the groups of a shape look like, gradients apart; `means` are the tasks' mean rewards."""
    groups = [group for forest in forests for group in forest]
    rewards = [reward for group in groups for tree in group.trees for reward in leaf_rewards(tree).values()]
    tokens, leaves = sum(map(cost, groups)), sum(group.ledger.leaves for group in groups)
    same, other = differences(forests)
    return {
        "roots": shape.roots,
        "leaves_per_tree": shape.leaves_per_tree,
        "leaves_per_group": leaves / len(groups),
        "tokens_per_group": tokens / len(groups),
        "leaves_per_1k_tokens": 1000 * leaves / tokens,
        "mean_turns": mean_turns(forests),
        "new_steps_per_leaf": new_steps(forests),
        "mean_reward": float(np.mean(rewards)),
        "reward_std": float(np.std(rewards)),
        "dead_groups": float(np.mean([is_dead(advantages(group, "inter")) for group in groups])),
        "reward_correlation": 0.0 if shape.is_chain else sharing(same, other),
        "noise_correlation": noise_correlation(forests, means),
        "score_correlation": noise_correlation(forests, means, unsureness),
    }


def explained(shapes: Mapping[str, Row]) -> None:
    """Adds to each shape what its leaves per token are worth against chains, given how alike the leaves of a tree are.

    The chains are those that cost about as much.
    """
    chains = [found for found in shapes.values() if found["leaves_per_tree"] == 1]
    for found in shapes.values():
        base = min(chains, key=lambda one: abs(math.log(one["tokens_per_group"] / found["tokens_per_group"])))
        per_token = found["leaves_per_1k_tokens"] / base["leaves_per_1k_tokens"]
        found["leaves_per_token_ratio"] = per_token
        for worth, correlation in (("expected_worth", "noise_correlation"), ("score_worth", "score_correlation")):
            found[worth] = worth_of_leaves(per_token, found[correlation], found["leaves_per_tree"])
