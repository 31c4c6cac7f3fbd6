"""How much signal a policy gradient has per token: pure functions over gradients of independent groups.

An arm has T tasks with R independent groups each; a group's gradient is a vector, and a group costs tokens. A batch
of n groups of different tasks has the mean of their gradients, so its expectation is that of one group and its
covariance that of one group divided by n. So one number ranks arms that cost differently: signal ÷ (noise · tokens).
Tasks are drawn from a population: every estimate of an expectation's square pairs different tasks only, so that
noise never counts as signal, and confidence intervals resample tasks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Independent groups of one arm."""

    vectors_TRD: npt.NDArray[np.float32]
    """Gradient of every group: T tasks, R groups of each, D dimensions."""
    along_TR: Array
    """Inner product of every group's gradient with a fixed unit vector, the yardstick; NaN without one."""
    aim_TR: Array
    """The same with the yardstick of the group's own task; NaN without one."""
    tokens_TR: Array
    """What each group cost: sampled and computed prefill tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """All inner products that the estimates need, so that a resampling of tasks costs T² instead of T·R·D."""

    own_TT: Array
    """Of the tasks' mean gradients."""
    cross_TT: Array
    """Of the tasks' mean gradients with the reference's."""
    reference_TT: Array
    power_T: Array
    """Mean squared length of a task's gradients."""
    within_T: Array
    """Unbiased variance over the groups of a task, summed over dimensions; NaN with one group per task."""
    along_T: Array
    aim_T: Array
    aim_within_T: Array
    """Unbiased variance over the groups of a task; NaN with one group per task."""
    tokens_T: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read off one arm. g is the gradient of a group, E over tasks and rollouts, r that of the reference."""

    tokens: float
    """Per group."""
    signal: float
    """|E g|², unbiased; may be below 0 where there is hardly any."""
    noise: float
    """Trace of the covariance of g."""
    noise_within: float
    """The part of it that stays when the task is given."""
    snr: float
    """signal / (noise · tokens) per million tokens."""
    cosine: float
    """Between E g and E r: how far the arm's expectation points along the reference."""
    useful: float
    """(E g · E r)² / (|E r|² · noise · tokens) per million tokens: SNR of the part along the reference."""
    useful_within: float
    """The same with `noise_within`: for tasks that are given."""
    along: float
    """E g along the yardstick."""
    yard: float
    """along² / (noise · tokens) per million tokens, unbiased: as `useful`, along a direction that has no noise."""
    yard_within: float
    aim: float
    """m² / (v · tokens) per million tokens, unbiased: m is the mean of <g, yardstick of its own task>, v the variance
    that it has in groups of the same task."""
    calm: float
    """1 / (noise · tokens), per million tokens: ranks arms that have the same expectation."""
    calm_within: float


def products(arm: Draws, reference: Draws) -> Products:
    """Inner products of an arm and the reference. Raises ValueError when they differ in tasks or dimensions."""
    tasks, repeats, size = arm.vectors_TRD.shape
    if (tasks, size) != (reference.vectors_TRD.shape[0], reference.vectors_TRD.shape[2]):
        raise ValueError("an arm and the reference must have the same tasks and dimensions")
    mean_TD, reference_TD = arm.vectors_TRD.mean(axis=1), reference.vectors_TRD.mean(axis=1)
    power_T = np.square(arm.vectors_TRD, dtype=np.float64).sum(axis=2).mean(axis=1)
    mean_power_T = np.square(mean_TD, dtype=np.float64).sum(axis=1)
    return Products(
        own_TT=_gram(mean_TD, mean_TD),
        cross_TT=_gram(mean_TD, reference_TD),
        reference_TT=_gram(reference_TD, reference_TD),
        power_T=power_T,
        within_T=(power_T - mean_power_T) * (repeats / (repeats - 1)) if repeats > 1 else np.full(tasks, math.nan),
        along_T=arm.along_TR.mean(axis=1),
        aim_T=arm.aim_TR.mean(axis=1),
        aim_within_T=arm.aim_TR.var(axis=1, ddof=1) if repeats > 1 else np.full(tasks, math.nan),
        tokens_T=arm.tokens_TR.mean(axis=1),
    )


def paired(products_TT: Array, weights_T: Array) -> float:
    """Mean over pairs of different tasks, each task counted `weights_T` times and never paired with itself.

    The mean of <a_i, b_j> over i ≠ j is an unbiased estimate of <E a, E b>. Example: a = b = (1, 0) and (0, 1) have the
    products [[1, 0], [0, 1]], so 0: what is common to both.
    """
    every = float(weights_T @ products_TT @ weights_T) - float(np.square(weights_T) @ np.diag(products_TT))
    return every / (float(weights_T.sum()) ** 2 - float(np.square(weights_T).sum()))


def reading(arm: Products, weights_T: Array | None = None) -> Reading:
    """All figures of an arm; `weights_T` says how often each task counts (default: once)."""
    weights_T = np.ones(len(arm.tokens_T)) if weights_T is None else weights_T
    signal, along = paired(arm.own_TT, weights_T), paired(arm.cross_TT, weights_T)
    reference = paired(arm.reference_TT, weights_T)
    noise = float(np.average(arm.power_T, weights=weights_T)) - signal
    within = float(np.average(arm.within_T, weights=weights_T))
    tokens = float(np.average(arm.tokens_T, weights=weights_T))
    useful = max(along, 0.0) ** 2 / reference if reference > 0 else math.nan
    squared = paired(arm.along_T[:, None] * arm.along_T[None, :], weights_T)
    aim = paired(arm.aim_T[:, None] * arm.aim_T[None, :], weights_T)
    aim_within = float(np.average(arm.aim_within_T, weights=weights_T))
    cost, cost_within = noise * tokens / MILLION, within * tokens / MILLION
    return Reading(
        tokens=tokens,
        signal=signal,
        noise=noise,
        noise_within=within,
        snr=_over(signal, cost),
        cosine=along / math.sqrt(signal * reference) if signal > 0 and reference > 0 else math.nan,
        useful=_over(useful, cost),
        useful_within=_over(useful, cost_within),
        along=float(np.average(arm.along_T, weights=weights_T)),
        yard=_over(squared, cost),
        yard_within=_over(squared, cost_within),
        aim=_over(aim, aim_within * tokens / MILLION),
        calm=_over(1.0, cost),
        calm_within=_over(1.0, cost_within),
    )


def _over(value: float, cost: float) -> float:
    """NaN where there is no noise at all: gradients that are all 0, or all equal."""
    return value / cost if cost > 0 else math.nan


def batch_cosine(found: Reading, tokens: float) -> float:
    """Expected cosine of a batch that costs `tokens` with the reference's expectation, noise lengthening the batch.

    Example: signal 1, noise 3 and 10 tokens per group, cosine 1: with 10 tokens 1/sqrt(1 + 3) = 0.5.
    """
    if not found.signal > 0:
        return math.nan
    return found.cosine / math.sqrt(1 + found.noise / found.signal * found.tokens / tokens)


def halves_cosine(arm: Draws, tokens: float, rng: np.random.Generator, splits: int = 200) -> tuple[float, int]:
    """(mean cosine between two independent batches, groups per batch), each batch worth about `tokens`.

    Batches share no task; each takes one random group of each of its tasks, and at most half of the tasks.
    """
    tasks, repeats, _ = arm.vectors_TRD.shape
    size = min(max(1, round(tokens / float(arm.tokens_TR.mean()))), tasks // 2)
    found = []
    for _ in range(splits):
        order, which = rng.permutation(tasks), rng.integers(repeats, size=(tasks,))
        first, second = (
            arm.vectors_TRD[part, which[part]].mean(axis=0, dtype=np.float64)
            for part in (order[:size], order[size : 2 * size])
        )
        length = float(np.linalg.norm(first) * np.linalg.norm(second))
        found.append(float(first @ second) / length if length else 0.0)
    return float(np.mean(found)), size


def resampled(arms: Mapping[str, Products], count: int, rng: np.random.Generator) -> dict[str, list[Reading]]:
    """`count` readings of every arm; the tasks of each are drawn with replacement, the same ones for all arms."""
    tasks = len(next(iter(arms.values())).tokens_T)
    found: dict[str, list[Reading]] = {name: [] for name in arms}
    for _ in range(count):
        weights_T = rng.multinomial(tasks, [1 / tasks] * tasks).astype(np.float64)
        for name, arm in arms.items():
            found[name].append(reading(arm, weights_T))
    return found


def interval(values: Sequence[float], level: float = 0.95) -> list[float] | None:
    """Lower and upper bound that hold the middle `level` of the finite values; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    return [float(np.quantile(finite, (1 - level) / 2)), float(np.quantile(finite, (1 + level) / 2))]


def ratios(arm: Sequence[Reading], base: Sequence[Reading], name: str) -> list[float]:
    """Figure `name` of an arm over that of another one, resampling by resampling; infinite where the other has none."""
    pairs = ((getattr(one, name), getattr(other, name)) for one, other in zip(arm, base, strict=True))
    return [mine / theirs if theirs > 0 else math.inf for mine, theirs in pairs]


def sharing(same_tree: Sequence[float], other_tree: Sequence[float]) -> float:
    """Correlation of the rewards of two leaves of a tree, from differences of pairs of leaves of one task.

    1 - E[(R - R')² | same tree] / E[(R - R')² | different trees of the task]: 0 if leaves of a tree are like
    independent ones, 1 if they always have the same reward. NaN if no two trees differ.
    """
    apart = float(np.mean(np.square(other_tree))) if len(other_tree) else 0.0
    return 1 - float(np.mean(np.square(same_tree))) / apart if apart and len(same_tree) else math.nan


def worth_of_leaves(leaves_per_token: float, correlation: float, leaves_per_tree: int) -> float:
    """What `leaves_per_token` times as many leaves are worth if those of a tree share noise (Kish's design effect).

    leaves_per_token / (1 + (m - 1) · correlation). Example: three leaves for the price of one whose noise is all the
    same are worth 3 / (1 + 2) = 1: no gain.
    """
    return leaves_per_token / (1 + (leaves_per_tree - 1) * correlation)


def _gram(left_TD: npt.NDArray[np.float32], right_TD: npt.NDArray[np.float32]) -> Array:
    found: Array = left_TD.astype(np.float64) @ right_TD.astype(np.float64).T
    return found


def even_worth(branches: int) -> float:
    """`worth_of_leaves` of a tree with so many branches on long paths whose reward is decided evenly along the path.

    A branch starts anywhere on its first chain: after a share f, uniform in [0, 1]. It costs 1 - f of a chain. Two
    leaves that share s of their paths have rewards with correlation s and so the noise correlation s²: on average 1/3
    for a branch and the first chain, which share f, and 1/6 for two branches, which share the smaller of two f. One
    branch is worth (2 / 1.5) / (1 + 1/3) = 1: neither gain nor loss.
    """
    pairs = branches * (branches + 1) / 2
    correlation = (branches / 3 + (pairs - branches) / 6) / pairs
    return worth_of_leaves((1 + branches) / (1 + branches / 2), correlation, 1 + branches)


def decided_worth(branches: int, turns: int, turn: int) -> float:
    """`worth_of_leaves` of a tree with so many branches, drawn at random in one round, if one turn decides the reward.

    A branch starts before any of the `turns` turns, each alike: it costs (turns + 1) / (2·turns) of a chain, and with
    probability 1 - turn/turns after the decision, which it then repeats. All noise is the decision's: other steps have
    scores of 0. Example: six branches, ten turns: 7 / 4.3 = 1.63 if the last one decides, and if the first does, where
    the pairs repeat it with probability 0.9 (first chain) and 0.81, 1.63 / (1 + 6·0.836) = 0.27.
    """
    late = 1 - turn / turns
    pairs = branches * (branches + 1) / 2
    correlation = (branches * late + (pairs - branches) * late**2) / pairs
    return worth_of_leaves((1 + branches) / (1 + branches * (turns + 1) / (2 * turns)), correlation, 1 + branches)
