"""The figure of the comparison: held-out success by tokens and by optimizer steps, and gains on chains."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import matplotlib as mpl

mpl.use("Agg")  # no display is needed; set before pyplot is imported

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from scripts.bench.learning_curves import Curve, Point

Place: TypeAlias = Callable[[Point], float]
"""Where an evaluation stands on the axis."""
STYLES = {
    "chain": ("#D55E00", "--", "s", "chains (GRPO)"),
    "tree": ("#0072B2", "-", "o", "trees"),
    "inter": ("#009E73", "-.", "^", "trees, inter only"),
    "intra": ("#CC79A7", ":", "D", "trees, intra only"),
}
"""Per arm: a colour of a palette that colour-blind readers can tell apart, line style, marker, words."""
BANDED = ("chain", "tree")
"""Arms whose spread is drawn as a band; four bands on top of each other could not be read."""
GRID = 200
"""Places along the axis at which the curves of the seeds are averaged."""


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Writes the figure as PNG. Lines are means over seeds, bands one standard deviation to both sides."""
    figure, (by_tokens, by_steps, gain) = plt.subplots(1, 3, figsize=(14.5, 4.4), layout="constrained")
    _success(by_tokens, curves, thousand_tokens)
    _success(by_steps, curves, lambda point: float(point.optimizer_steps))
    _gain(gain, curves)
    for axes in (by_tokens, gain):
        axes.set_xlabel("thousand tokens of training rollouts\n(sampled + computed prefill)")
    by_steps.set_xlabel("optimizer steps")
    seeds = len({one.seed for one in curves})
    by_tokens.legend(title=f"mean of {seeds} seeds; band: one std", frameon=False, loc="lower right", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def thousand_tokens(point: Point) -> float:
    """The place of an evaluation on the axis of tokens."""
    return point.ledger_tokens / 1000


def _success(axes: Axes, curves: Sequence[Curve], place: Place) -> None:
    for arm, (colour, line, marker, words) in STYLES.items():
        runs = [one.points for one in curves if one.arm == arm]
        if not runs:
            continue
        grid, values = averaged(runs, place)
        mean = values.mean(axis=0)
        if arm in BANDED and len(runs) > 1:
            std = values.std(axis=0, ddof=1)
            axes.fill_between(
                grid, np.maximum(mean - std, 0), np.minimum(mean + std, 1), color=colour, alpha=0.16, lw=0
            )
        marks = np.linspace(0, GRID - 1, 7).astype(int).tolist()
        axes.plot(grid, mean, line, color=colour, lw=2, label=words, marker=marker, ms=4.5, markevery=marks)
    axes.set_title("held-out success, greedy", fontsize=10)
    axes.set_ylim(0, 1)
    _plain(axes)


def _gain(axes: Axes, curves: Sequence[Curve]) -> None:
    """Success minus the chain run's of the same seed at equal tokens: thin lines are seeds of `tree`."""
    chains = {one.seed: one.points for one in curves if one.arm == "chain"}
    axes.axhline(0, color=STYLES["chain"][0], ls=STYLES["chain"][1], lw=1.5)
    for arm, (colour, line, marker, _) in STYLES.items():
        pairs = [(one.points, chains[one.seed]) for one in curves if one.arm == arm != "chain" and one.seed in chains]
        if not pairs:
            continue
        grid, values = averaged([run for pair in pairs for run in pair], thousand_tokens)
        gains = values[0::2] - values[1::2]
        if arm == "tree":
            axes.plot(grid, gains.T, color=colour, lw=0.8, alpha=0.6)
        marks = np.linspace(0, GRID - 1, 7).astype(int).tolist()
        axes.plot(grid, gains.mean(axis=0), line, color=colour, lw=2, marker=marker, ms=4.5, markevery=marks)
    axes.set_title("gain on chains, same seed (thin: each seed of trees)", fontsize=10)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def averaged(runs: Sequence[Sequence[Point]], place: Place) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places along the axis up to where the first run ends, and each run's success there; (GRID,) and (runs, GRID)."""
    end = min(place(run[-1]) for run in runs)
    grid = np.linspace(0.0, end, GRID)
    lines = [np.interp(grid, [place(point) for point in run], [point.success for point in run]) for run in runs]
    return grid, np.asarray(lines)
