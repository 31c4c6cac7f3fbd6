"""The figure of the comparison: held-out success against tokens and optimizer steps, mean and spread per arm."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no display is needed; set before pyplot is imported

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from scripts.bench.learning_curves import Curve, Point

STYLES = {
    "tree": ("#0072B2", "-", "o", "trees"),
    "chain": ("#D55E00", "--", "s", "chains (GRPO)"),
    "inter": ("#009E73", "-.", "^", "trees, inter only"),
    "intra": ("#8A5A9E", ":", "D", "trees, intra only"),
}
"""Per arm: a colour of a palette that colour-blind readers can tell apart, line style, marker, words."""
GRID = 200
"""Places along the axis at which the curves of the seeds are averaged."""


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Writes the figure as PNG. Each line is the mean over seeds, each band one standard deviation to both sides."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
    _panel(left, curves, lambda point: point.ledger_tokens / 1000)
    _panel(right, curves, lambda point: float(point.optimizer_steps))
    left.set_xlabel("thousand tokens of training rollouts (sampled + computed prefill)")
    left.set_ylabel("held-out success, greedy")
    right.set_xlabel("optimizer steps")
    seeds = len({one.seed for one in curves})
    left.legend(title=f"mean and one std over {seeds} seeds", frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(axes: Axes, curves: Sequence[Curve], place: Callable[[Point], float]) -> None:
    for arm, (colour, line, marker, words) in STYLES.items():
        runs = [one.points for one in curves if one.arm == arm]
        if not runs:
            continue
        grid, values = averaged(runs, place)
        mean, std = values.mean(axis=0), values.std(axis=0, ddof=1) if len(runs) > 1 else 0 * grid
        axes.fill_between(grid, np.maximum(mean - std, 0), np.minimum(mean + std, 1), color=colour, alpha=0.13, lw=0)
        axes.plot(grid, mean, line, color=colour, lw=2, label=words)
        at = np.mean([[place(point) for point in run] for run in runs], axis=0)
        axes.plot(at[at <= grid[-1]], np.interp(at[at <= grid[-1]], grid, mean), marker, color=colour, ms=4.5)
    axes.set_ylim(0, 1)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def averaged(
    runs: Sequence[Sequence[Point]], place: Callable[[Point], float]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Places along the axis up to where the first run ends, and each run's success there; (GRID,) and (runs, GRID)."""
    end = min(place(run[-1]) for run in runs)
    grid = np.linspace(0.0, end, GRID)
    lines = [np.interp(grid, [place(point) for point in run], [point.success for point in run]) for run in runs]
    return grid, np.asarray(lines)
