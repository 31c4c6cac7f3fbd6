"""`python -m trainer.report runs/<name>`: one self-contained HTML page about a run, finished or not.

Owns what goes into the page: metrics, summary, configuration and a choice of trees. A missing or damaged part never
stops it; the page says what was not there.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from rollout_workers.trees import leaves
from trainer.decisions.fault import Scale, node_at_fault, scales
from trainer.decisions.labelled import Labels, read_labels, with_labels
from trainer.decisions.record_json import record_to_json
from trainer.forest_file import TreeRecord, forest_lines, ledger_to_json, pick_to_json, record_from_json
from trainer.report_page import render
from trainer.run_folder import Metrics, masked_config, read_metrics, write_atomic

NO_LABELS = Labels(by_place={})
MAX_NODES = 6_000
"""Tree nodes a page holds unless told otherwise: about 5 MB, which opens at once."""


def write_report(run: Path | str, *, out: Path | str | None = None, max_nodes: int = MAX_NODES) -> Path:
    """Writes the page of a run folder (default `<run>/report.html`) and returns its path.

    Raises:
        ValueError: `run` is no folder.

    """
    folder = Path(run)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a run folder; give the path of a folder such as runs/<name>")
    path = Path(out) if out is not None else folder / "report.html"
    write_atomic(path, render(run_data(folder, max_nodes)))
    return path


def trees_page(records: Sequence[TreeRecord], *, title: str) -> str:
    """A page with the tree explorer alone, for trees of one step."""
    forests = [_forest_data(records, len(records), NO_LABELS)] if records else []
    return render(_page(title=title, forests=forests, views=["trees"]))


def run_data(folder: Path, max_nodes: int) -> dict[str, Any]:
    """Everything the page shows, as JSON values."""
    problems: list[str] = []
    config = _read_config(folder / "config.yaml", problems)
    summary = _read_summary(folder / "summary.json", problems)
    metrics = read_metrics(folder / "metrics.jsonl")
    if not metrics:
        problems.append("metrics.jsonl: no step has been logged")
    metrics = _with_evaluations(metrics, summary)
    labels = _read_labels(folder / "feedback", problems)
    forests, left_out = _read_forests(folder / "forest", max_nodes, labels, problems)
    names = sorted({name for values in metrics.values() for name in values})
    model = config.get("model") if config else None
    return _page(
        title=folder.resolve().name,
        views=["overview", "trees", "settings"],
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        model=model.get("path") if isinstance(model, Mapping) else None,
        config=config,
        summary=summary,
        versions=summary.get("versions") if summary else None,
        steps=list(metrics),
        series={name: [values.get(name) for values in metrics.values()] for name in names},
        forests=forests,
        left_out=left_out,
        problems=problems,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.report", description="Writes the HTML report of a run.")
    parser.add_argument("run", type=Path, help="run folder, e.g. runs/quickstart-20260301-101500")
    parser.add_argument("--out", type=Path, help="file to write (default: report.html in the run folder)")
    parser.add_argument("--max-nodes", type=int, default=MAX_NODES, help="tree nodes in the page (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        path = write_report(options.run, out=options.out, max_nodes=options.max_nodes)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


def _page(**parts: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "title": "",
        "views": [],
        "written": None,
        "model": None,
        "config": None,
        "summary": None,
        "versions": None,
        "steps": [],
        "series": {},
        "forests": [],
        "left_out": {"files": 0},
        "problems": [],
    }
    return empty | parts


def _read_config(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        config = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError, OmegaConfBaseException, YAMLError) as error:
        problems.append(f"config.yaml: {_reason(error)}")
        return None
    if not isinstance(config, dict):
        return None
    masked = masked_config({str(name): value for name, value in config.items()})
    return {name: json.loads(json.dumps(value, default=str)) for name, value in masked.items()}


def _read_summary(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError) as error:
        problems.append(f"summary.json: {_reason(error)}; it is written when a run ends")
        return None
    return summary if isinstance(summary, dict) else None


def _with_evaluations(metrics: dict[int, Metrics], summary: Mapping[str, Any] | None) -> dict[int, Metrics]:
    """Adds the summary's evaluations (before, after) to the curves where no line of metrics.jsonl has them."""
    steps = {step: dict(values) for step, values in metrics.items()}
    for moment in ("before", "after"):
        found = ((summary or {}).get("eval") or {}).get(moment) or {}
        step = found.get("step")
        if isinstance(step, int | float):
            logged = steps.setdefault(int(step), {})
            for name, value in found.items():
                logged.setdefault(f"eval/{name}", value)
    return dict(sorted(steps.items()))


def _read_labels(folder: Path, problems: list[str]) -> Labels:
    try:
        return read_labels(folder)
    except OSError as error:
        problems.append(f"feedback/: {_reason(error)}")
        return NO_LABELS


def _reason(error: Exception) -> str:
    return "not found" if isinstance(error, FileNotFoundError) else f"not readable ({str(error).splitlines()[0]})"


def _read_forests(
    folder: Path, max_nodes: int, labels: Labels, problems: list[str]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The forests of the page in the order of their steps, and how many files were left out.

    The newest file may use half of the node budget, each other one an eighth. Files are taken newest first for each
    kind, then the oldest, then by halving the gaps, so that what is there spans the run.
    """
    paths = {kind: sorted(folder.glob(f"{kind}-*.jsonl")) for kind in ("step", "eval")}
    order = _spread(paths["step"]), _spread(paths["eval"])
    queue = [path for pair in _zip_longest(*order) for path in pair]
    found: list[dict[str, Any]] = []
    used = 0
    for place, path in enumerate(queue):
        share = min(max_nodes // (2 if place == 0 else 8), max_nodes - used)
        if share <= 0:
            break
        records, total = _read_some(path, share, problems)
        if records:
            found.append(_forest_data(records, total, labels))
            used += sum(len(record.tree.nodes) for record in records)
        elif not total:
            problems.append(f"forest/{path.name}: holds no whole tree")
    if not queue:
        problems.append("forest/: no trees have been written")
    found.sort(key=lambda forest: (forest["step"], forest["kind"] == "step"))
    return found, {"files": len(queue) - len(found)}


def _zip_longest(first: Sequence[Path], second: Sequence[Path]) -> list[list[Path]]:
    longest = max(len(first), len(second))
    return [[*first[i : i + 1], *second[i : i + 1]] for i in range(longest)]


def _spread(paths: Sequence[Path]) -> list[Path]:
    """Last, first, then the middles of ever smaller gaps: of 5 files the order is 4, 0, 2, 1, 3."""
    if not paths:
        return []
    order = [len(paths) - 1, 0]
    gaps = [(0, len(paths) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [paths[i] for i in dict.fromkeys(order)]


def _read_some(path: Path, max_nodes: int, problems: list[str]) -> tuple[list[TreeRecord], int]:
    """Whole tasks from a file's start, up to `max_nodes` (at least one task), and its number of trees."""
    records: list[TreeRecord] = []
    nodes = total = 0
    full = False
    for number, line in forest_lines(path):
        total += 1
        if full:
            continue
        try:
            record = record_from_json(line)
        except (KeyError, TypeError, ValueError) as error:
            problems.append(f"forest/{path.name}, line {number}: not a tree ({error!r})")
            continue
        full = bool(records) and record.task.id != records[-1].task.id and nodes + len(record.tree.nodes) > max_nodes
        if not full:
            records.append(record)
            nodes += len(record.tree.nodes)
    return records, total


def _forest_data(records: Sequence[TreeRecord], total: int, labels: Labels) -> dict[str, Any]:
    """One forest file as the page wants it: trees grouped by task."""
    tasks: dict[str, dict[str, Any]] = {}
    records = [with_labels(record, labels) for record in records]
    known = scales(record.tree for record in records)
    for record in records:
        task = record.task
        entry = tasks.setdefault(
            task.id,
            {
                "id": task.id,
                "prompt": [{"role": message.role, "content": message.content} for message in task.prompt],
                "truth": list(task.truth),
                "meta": dict(task.meta),
                "trees": [],
            },
        )
        if record.ledger is not None:
            entry["ledger"] = ledger_to_json(record.ledger)
        picks = [pick_to_json(pick) for pick in record.tree.picks]
        tree = {"index": record.tree.index, "nodes": _nodes_data(record, labels), "picks": picks}
        if record.tree.typed:
            tree |= {"typed": True, "blames": _blames(record, known)}
        entry["trees"].append(tree)
    first = records[0]
    return {
        "id": f"{first.kind}-{first.step:06d}",
        "kind": first.kind,
        "step": first.step,
        "tasks": list(tasks.values()),
        "trees": len(records),
        "trees_in_file": total,
    }


def _nodes_data(record: TreeRecord, labels: Labels) -> list[dict[str, Any]]:
    return [
        {
            "parent": node.parent,
            "slot": node.slot,
            "action": text.action,
            "observation": text.observation,
            "end": node.end.value if node.end else None,
            "reward": _rounded(node.reward),
            "score": _rounded(node.score),
            "advantage": _rounded(text.advantage),
            "tool_calls": node.tool_calls,
            "entropy": _rounded(node.entropy),
            "tokens": len(node.token_ids),
            "observation_tokens": len(node.observation_ids),
            "pieces": list(text.pieces),
            "logprobs": [_rounded(value) for value in node.logprobs],
            "versions": list(node.versions),
            **({"typed": record_to_json(node.record)} if node.record is not None else {}),
            **({"label_note": label.note} if (label := labels.of(record, index)) and label.note else {}),
            **({"note": node.note} if node.note else {}),
        }
        for index, (node, text) in enumerate(zip(record.tree.nodes, record.texts, strict=True))
    ]


def _blames(record: TreeRecord, known: Mapping[str, Scale]) -> dict[str, dict[str, Any]]:
    """Per failed leaf the node at fault on its path."""
    found = {leaf: node_at_fault(record.tree, leaf, record.task, known) for leaf in leaves(record.tree)}
    return {str(leaf): {"index": blame.index, "why": blame.why} for leaf, blame in found.items() if blame is not None}


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None


if __name__ == "__main__":
    raise SystemExit(main())
