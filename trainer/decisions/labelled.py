"""Joins people's labels with the trees of forest files, for whoever looks at a run.

A label names a queued step, `train-3/<task>/<tree>/<index>`, which tells where the step stands in the forest file of
its training step. A resumed run may have come to that place with another step, whose id ends in `~2`; so tokens are
compared too.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.decisions.feedback_files import LABELS, QUEUE, Label, Position, new_labels, read_queue
from trainer.forest_file import TreeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The newest label of each step that has one."""

    by_place: Mapping[str, Sequence[tuple[tuple[int, ...], Label]]]
    """Id without the number of a repeat -> (sampled ids, label) of each step that was queued from that place."""

    def of(self, record: TreeRecord, index: int) -> Label | None:
        """The label of one step of a tree, if it has one."""
        if record.kind != "step":
            return None
        node, place = record.tree.nodes[index], f"train-{record.step}/{record.task.id}/{record.tree.index}/{index}"
        return next((label for ids, label in self.by_place.get(place, ()) if ids == node.token_ids), None)


def read_labels(folder: Path) -> Labels:
    """From `runs/<name>/feedback`; none if there is no such folder. Labels of unknown steps are left out.

    OSError passes if a file is there and cannot be read.
    """
    newest = {label.id: label for label in new_labels(folder / LABELS, Position()).labels}
    found: dict[str, list[tuple[tuple[int, ...], Label]]] = defaultdict(list)
    for step in read_queue(folder / QUEUE) if newest else ():
        if (label := newest.get(step.id)) is not None:
            found[_place(step.id)].append((step.token_ids, label))
    return Labels(by_place=found)


def with_labels(record: TreeRecord, labels: Labels) -> TreeRecord:
    """The record with each label as the human level of its step's reward."""
    if not labels.by_place:
        return record
    nodes = list(record.tree.nodes)
    for index, node in enumerate(nodes):
        if node.record is not None and (label := labels.of(record, index)) is not None:
            reward = replace(node.record.reward, human=label.label)
            nodes[index] = replace(node, record=replace(node.record, reward=reward))
    return replace(record, tree=replace(record.tree, nodes=nodes))


def _place(id: str) -> str:
    """The id without the number of a repeat: `"train-3/t/0/2~2"` gives `"train-3/t/0/2"`."""
    before, tilde, number = id.rpartition("~")
    return before if tilde and number.isdecimal() else id
