"""Human feedback during a run: which steps are queued for a label, and what becomes of the labels that come.

Owns the sampling by depth, the ids, and the joining of labels with steps. A label that comes within
`feedback.max_age` training steps gives a `LateStep` to the next packs; an older one is counted as expired, one for an
unknown id is written down, told once and ignored. `trainer/decisions/feedback_files.py` owns the files. What survives
in a checkpoint is `FeedbackState`: how far the labels were read, and which of them were trained.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from envs.decisions.settings import DecisionSettings, FeedbackSettings
from envs.decisions.tree import Declared
from envs.types import Json
from rollout_workers.seeds import derive_seed
from rollout_workers.types import Forest
from trainer.advantages import TreeAdvantages
from trainer.decisions.feedback_files import (
    LABELS,
    QUEUE,
    UNKNOWN,
    Label,
    Position,
    QueuedStep,
    append_lines,
    label_line,
    new_labels,
    queue_line,
    read_queue,
)
from trainer.decisions.late import LateStep, total_of
from trainer.decisions.statistics import Running, Statistics

MAX_NAMED = 5
"""Unknown ids, or wrong lines, that a warning names."""
Decode: TypeAlias = Callable[[Sequence[int]], str]


@dataclass(slots=True, kw_only=True)
class FeedbackState:
    """What a checkpoint keeps."""

    position: Position = field(default_factory=Position)
    trained: dict[str, float] = field(default_factory=dict)
    """Label by step id, of all that were trained, so that none is trained twice."""
    waiting: dict[str, float] = field(default_factory=dict)
    """Label by step id, of steps that are queued in the file from before the run was resumed, and that the resumed run
    has not come to again."""

    def to_json(self) -> dict[str, Json]:
        """For a checkpoint."""
        trained: dict[str, Json] = dict(self.trained)
        waiting: dict[str, Json] = dict(self.waiting)
        return {
            "bytes": self.position.bytes,
            "lines": self.position.lines,
            "trained": trained,
            "waiting": waiting,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "FeedbackState":
        """The inverse of `to_json`."""
        position = Position(bytes=saved["bytes"], lines=saved["lines"])
        return cls(position=position, trained=dict(saved["trained"]), waiting=dict(saved["waiting"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Labels sorted by what becomes of them."""

    late: tuple[LateStep, ...] = ()
    trained: Mapping[str, float] = field(default_factory=dict)
    """Label by step id of the late ones."""
    expired: int = 0
    unknown: tuple[str, ...] = ()
    """Ids, each once, in the order of the labels."""
    waiting: Mapping[str, float] = field(default_factory=dict)
    """Label by step id; see `FeedbackState.waiting`."""


def share_of(settings: FeedbackSettings, depth: int) -> float:
    """Share of the steps of this depth that is queued; deeper ones than there are shares take the last one."""
    return settings.shares[min(depth, len(settings.shares) - 1)]


def is_chosen(settings: FeedbackSettings, id: str, node: str, depth: int, seed: int) -> bool:
    """Whether a step is queued: drawn by its id, so that a repeated run queues the same steps."""
    if settings.focus and node not in settings.focus:
        return False
    return random.Random(derive_seed(seed, "feedback", id)).random() < share_of(settings, depth)


def chosen_steps(
    forest: Forest,
    credit: Sequence[Sequence[TreeAdvantages]],
    statistics: Statistics,
    decision: DecisionSettings,
    *,
    step: int,
    seed: int,
    decode: Decode,
) -> Iterator[QueuedStep]:
    """The steps of a trained forest that are queued for labels, in the forest's order.

    `statistics` are those that the forest was normalised by. Steps that an expert function judges are left out: its
    reward replaces a person's.
    """
    declared = Declared(decision)
    for group, per_tree in zip(forest, credit, strict=True):
        for tree, found in zip(group.trees, per_tree, strict=True):
            for index in sorted(found.values):
                node = tree.nodes[index]
                record = node.record
                if record is None or record.reward.expert is not None or not node.token_ids:
                    continue
                id, depth = f"train-{step}/{group.task.id}/{tree.index}/{index}", declared.depth(record.node)
                if not is_chosen(decision.feedback, id, record.node, depth, seed):
                    continue
                prompt_ids = tree.nodes[node.parent].observation_ids
                queued = QueuedStep(
                    id=id,
                    step=step,
                    task=group.task.id,
                    depth=depth,
                    instruction=declared.node(record.node).instruction,
                    record=record,
                    prompt=decode(prompt_ids),
                    prompt_ids=prompt_ids,
                    token_ids=node.token_ids,
                    logprobs=node.logprobs,
                    versions=node.versions,
                    total=0.0,
                    statistics=statistics.get(record.node, Running()) if decision.normalise else None,
                )
                yield replace(queued, total=total_of(queued, decision.levels))


def joined(
    labels: Mapping[str, float],
    queued: Mapping[str, QueuedStep | int],
    ahead: Collection[str],
    trained: Mapping[str, float],
    decision: DecisionSettings,
    step: int,
) -> Joined:
    """What becomes of labels (by step id) in training step `step`.

    `queued`: the steps that wait; of those too old to keep, the training step alone. `ahead`: ids that the queue holds
    from before the run was resumed, and that the run has not come to again. A second label for a step is trained with
    what it changes of the first one.
    """
    late: list[LateStep] = []
    expired: list[str] = []
    unknown: list[str] = []
    waiting: dict[str, float] = {}
    for id, label in labels.items():
        known, before = queued.get(id), trained.get(id)
        if known is None and id in ahead:
            waiting[id] = label
        elif known is None:
            unknown.append(id)
        elif label == before:
            continue
        elif isinstance(known, int) or step - known.step > decision.feedback.max_age:
            expired.append(id)
        else:
            then = known.total if before is None else total_of(known, decision.levels, before)
            late.append(LateStep(step=known, difference=total_of(known, decision.levels, label) - then))
    return Joined(
        late=tuple(late),
        trained={one.step.id: labels[one.step.id] for one in late},
        expired=len(expired),
        unknown=tuple(unknown),
        waiting=waiting,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one training step gets from people."""

    late: tuple[LateStep, ...]
    """To be trained with the step's own forest."""
    metrics: dict[str, float]
    """`decision/feedback/*`."""
    notes: tuple[str, ...]
    """Sentences to be shown: unknown ids, and lines that are no labels."""


class Feedback:
    """The queue and the labels of one run. One thread uses it: the loop's."""

    def __init__(self, folder: Path, seed: int) -> None:
        """`folder`: `runs/<name>/feedback`, made when the first step is queued."""
        self._queue, self._labels, self._unknown, self._seed = folder / QUEUE, folder / LABELS, folder / UNKNOWN, seed
        self._queued: dict[str, QueuedStep | int] = {}
        self._ahead = {step.id: step for step in read_queue(self._queue)}
        self._told = {label.id for label in new_labels(self._unknown, Position()).labels}
        """Unknown ids that are written down and were told."""
        self.state = FeedbackState()

    def restore(self, saved: Mapping[str, Any], step: int) -> None:
        """Continues after training step `step` with what `state.to_json` gave then."""
        self.state = FeedbackState.from_json(saved)
        for id in [id for id, known in self._ahead.items() if known.step <= step]:
            self._queued[id] = self._ahead.pop(id)

    def hear(self, decision: DecisionSettings, step: int) -> Heard:
        """What training step `step` gets from the labels that have come since the step before."""
        self._forget(step, decision.feedback.max_age)
        found = new_labels(self._labels, self.state.position)
        labels = self.state.waiting | {label.id: label.label for label in found.labels}
        result = joined(labels, self._queued, self._ahead, self.state.trained, decision, step)
        self.state.position, self.state.waiting = found.position, dict(result.waiting)
        self.state.trained |= result.trained
        counts = {
            "labelled": len(found.labels),
            "late": len(result.late),
            "expired": result.expired,
            "unknown": len(result.unknown),
        }
        return Heard(
            late=result.late,
            metrics={f"decision/feedback/{name}": float(count) for name, count in counts.items()},
            notes=(*self._list_unknown(result.unknown, labels), *_wrong_lines(found.problems)),
        )

    def queue(self, steps: Iterable[QueuedStep]) -> dict[str, float]:
        """Adds steps to the queue; returns `decision/feedback/queued`.

        A resumed run comes to steps that the queue has already. One that turned out the same stays as it is; one that
        turned out differently gets an id of its own, so that no label is taken for what another step said.
        """
        lines = []
        count = 0
        for step in steps:
            before, id, number = self._ahead.pop(step.id, None), step.id, 1
            if before is None or (before.prompt_ids, before.token_ids) != (step.prompt_ids, step.token_ids):
                if before is not None:
                    self._ahead[before.id] = before
                while id in self._ahead or id in self._queued:
                    number += 1
                    id = f"{step.id}~{number}"
                lines.append(queue_line(replace(step, id=id)))
            self._queued[id] = replace(step, id=id)
            count += 1
        append_lines(self._queue, lines)
        return {"decision/feedback/queued": float(count)}

    def _forget(self, step: int, max_age: int) -> None:
        """Keeps the number alone of steps too old for any label, and of those that the resumed run did not meet."""
        for id in [id for id, known in self._ahead.items() if known.step < step]:
            self._queued[id] = self._ahead.pop(id).step
        for id, known in self._queued.items():
            if isinstance(known, QueuedStep) and step - known.step > max_age:
                self._queued[id] = known.step

    def _list_unknown(self, ids: Sequence[str], labels: Mapping[str, float]) -> Iterator[str]:
        """Writes down the ids that were not told yet; one sentence names the first of them and the file of all."""
        new = [id for id in ids if id not in self._told]
        self._told.update(new)
        append_lines(self._unknown, [label_line(Label(id=id, label=labels[id])) for id in new])
        if new:
            named = ", ".join(repr(id) for id in new[:MAX_NAMED])
            more = f" and {len(new) - MAX_NAMED} more, all in {self._unknown}" if len(new) > MAX_NAMED else ""
            steps = f"{len(new)} labels are" if len(new) > 1 else "1 label is"
            yield f"{self._labels}: {steps} for steps that were never queued, and ignored: {named}{more}"


def _wrong_lines(problems: Sequence[str]) -> Iterator[str]:
    yield from problems[:MAX_NAMED]
    if len(problems) > MAX_NAMED:
        yield f"{len(problems) - MAX_NAMED} further lines of that file are no labels"
