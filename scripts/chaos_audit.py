"""What must be true of a run whatever was done to it: each leaf was trained once, by the right version of the weights.

Reads the run folder only. Every check gives sentences about what is wrong, none where all is well.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout_workers.types import Tree
from trainer.forest_file import read_forest
from trainer.run_folder import read_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the settings say that each step collects and trains."""

    tasks: int
    roots: int
    branches: int
    """Leaves per tree, e.g. 1 + 2 = 3."""
    max_staleness: int = 0
    """So many versions of the weights older than the newest ones before it may a step's tokens be."""

    @property
    def trees(self) -> int:
        """Per step."""
        return self.tasks * self.roots

    @property
    def leaves(self) -> int:
        """Per step."""
        return self.trees * self.branches


def trained(folder: Path) -> dict[int, Mapping[str, float | None]]:
    """Metrics of every step that was learned; where a run went back, of the last time."""
    metrics = read_metrics(folder / "metrics.jsonl")
    return {step: values for step, values in metrics.items() if "learner/seconds" in values}


def problems(folder: Path, shape: Shape, finished: int | None) -> list[str]:
    """What is wrong with a run that came to its end after `finished` steps, or was stopped before it (None)."""
    steps = trained(folder)
    wanted = finished if finished is not None else max(steps, default=0)
    if sorted(steps) != list(range(1, wanted + 1)) or not steps:
        return [f"the steps on record are {sorted(steps)} and not 1 to {wanted}"]
    found = [sentence for step, values in steps.items() for sentence in _step_problems(step, values, shape)]
    for step in steps:
        found += _forest_problems(folder, step, shape, may_lack=finished is None and step == max(steps))
    return found + (list(_summary_problems(folder, shape, finished)) if finished is not None else [])


def _step_problems(step: int, values: Mapping[str, float | None], shape: Shape) -> Iterator[str]:
    for name, expected in {
        "tree/trees": shape.trees,
        "tree/leaves": shape.leaves,
        "ledger/leaves": shape.leaves,
        "push/version": step,
        "rollout/stale_leaves": 0,
    }.items():
        if values.get(name) != expected:
            yield f"step {step} has {name} {values.get(name)} and not {expected}"
    if not 0 <= (oldest := values.get("rollout/staleness_max") or 0) <= shape.max_staleness:
        yield f"step {step} trained tokens of age {oldest:g}, more than {shape.max_staleness}"
    rewarded, without = values.get("reward/leaves") or 0, values.get("reward/leaves_without_reward") or 0
    if rewarded + without != shape.leaves:
        yield f"step {step} gave credit to {rewarded:g} leaves, {without:g} had no reward, of {shape.leaves}"


def _forest_problems(folder: Path, step: int, shape: Shape, *, may_lack: bool) -> Iterator[str]:
    file = folder / "forest" / f"step-{step:06d}.jsonl"
    if not file.exists():
        if not may_lack:  # a run that is killed may have written the step's metrics and not its trees
            yield f"the trees of step {step} are not on record"
        return
    trees = [record.tree for record in read_forest(file)]
    counts = Counter((tree.task_id, tree.index) for tree in trees)
    if len(counts) != shape.trees or max(counts.values()) > 1:
        yield f"step {step} has {len(trees)} trees, {len(counts)} different ones, and not {shape.trees}"
    for tree in trees:
        yield from tree_problems(tree, step, shape)


def tree_problems(tree: Tree, step: int, shape: Shape) -> Iterator[str]:
    """Each branch of a tree must have ended in one leaf, sampled by the version that the step trains, or by one that
    is as old as `shape` allows.
    """
    name = f"tree {tree.index} of task {tree.task_id} in step {step}"
    ends = Counter(node.slot for node in tree.nodes if node.is_leaf)
    if ends != Counter(range(shape.branches)):
        yield f"{name} has the leaves {dict(sorted(ends.items()))} per branch, and not one of each of {shape.branches}"
    versions = {version for node in tree.nodes for version in node.versions}
    allowed = range(max(step - 1 - shape.max_staleness, 0), step)
    if not versions <= set(allowed):
        by = " or ".join(map(str, allowed))
        yield f"{name} was sampled by the versions {sorted(versions)} of the weights, and not by {by}"


def _summary_problems(folder: Path, shape: Shape, finished: int) -> Iterator[str]:
    file = folder / "summary.json"
    if not file.exists():
        yield "there is no summary.json"
        return
    summary = json.loads(file.read_text(encoding="utf-8"))
    found = (summary["steps"], summary["weights_version"], summary["ledger"]["leaves"])
    if found != (expected := (finished, finished, finished * shape.leaves)):
        yield f"the summary has (steps, weights version, leaves) {found} and not {expected}"
