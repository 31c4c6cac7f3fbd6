"""Trees as text: one JSON line per tree in `forest/step-000012.jsonl` and `forest/eval-000012.jsonl`.

Owns the line format and both directions. A line holds what people read (texts, token pieces, advantages) and all of
what the types hold (ids, log-probabilities, versions), so a file loads back into `Task` and `Tree` without a tokenizer.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

from envs.types import EndReason, Message, Task
from rollout_workers.types import Forest, Ledger, Node, Pick, Tree
from trainer.advantages import TreeAdvantages
from trainer.decisions.record_json import record_from_json as step_from_json
from trainer.decisions.record_json import record_to_json as step_to_json

Decode: TypeAlias = Callable[[Sequence[int]], str]
ForestKind: TypeAlias = Literal["step", "eval"]
Advantages: TypeAlias = Sequence[Sequence[TreeAdvantages]]
"""`[task][tree]`, parallel to a forest."""

_UNFINISHED = "\ufffd"
"""What decoders show for bytes that are not (yet) a whole character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeText:
    """What a node looks like to people."""

    action: str = ""
    """The sampled tokens, decoded; empty for the root."""
    observation: str = ""
    """The environment's answer; for the root the whole prompt as the model saw it."""
    pieces: tuple[str, ...] = ()
    """Text of each sampled token, joined equal to `action`; empty when the tokenizer allows no such split. A token
    that ends inside a character is `""` and the character belongs to the token that completes it."""
    advantage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRecord:
    """One line of a forest file."""

    kind: ForestKind
    step: int
    task: Task
    tree: Tree
    texts: tuple[NodeText, ...]
    """One per node of `tree`."""
    ledger: Ledger | None = None
    """What all trees of the task cost; with the task's first tree only."""


def record_forest(
    kind: ForestKind,
    step: int,
    forest: Forest,
    decode: Decode,
    advantages: Advantages | None = None,
    limit: int | None = None,
) -> list[TreeRecord]:
    """The trees of a step with their texts. `limit` counts trees; whole tasks are kept until it is reached."""
    decode_one = cache(lambda token_id: decode((token_id,)))
    records: list[TreeRecord] = []
    for place, group in enumerate(forest):
        if limit is not None and len(records) >= limit:
            break
        for number, tree in enumerate(group.trees):
            known = advantages[place][number].values if advantages is not None else {}
            texts = tuple(_node_text(node, decode, decode_one, known.get(i)) for i, node in enumerate(tree.nodes))
            cost = group.ledger if number == 0 else None
            records.append(TreeRecord(kind=kind, step=step, task=group.task, tree=tree, texts=texts, ledger=cost))
    return records


def forest_text(records: Sequence[TreeRecord]) -> str:
    """The text of a forest file: one line per tree, a newline after each."""
    return "".join(json.dumps(record_to_json(record), ensure_ascii=False) + "\n" for record in records)


def read_forest(path: Path | str) -> list[TreeRecord]:
    """Loads a forest file back; a half-written last line is left out.

    Raises:
        ValueError: a line is JSON but not a tree; the sentence names file and line.

    """
    records: list[TreeRecord] = []
    for number, line in forest_lines(path):
        try:
            records.append(record_from_json(line))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: not a tree of a forest file ({error!r})") from error
    return records


def forest_lines(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and JSON object of every whole line."""
    with Path(path).open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield number, line


def record_to_json(record: TreeRecord) -> dict[str, Any]:
    """The JSON object of one line."""
    task = record.task
    line: dict[str, Any] = {
        "kind": record.kind,
        "step": record.step,
        "task": {
            "id": task.id,
            "prompt": [{"role": message.role, "content": message.content} for message in task.prompt],
            "truth": list(task.truth),
            "meta": dict(task.meta),
        },
        "tree": record.tree.index,
        "typed": record.tree.typed,
        "picks": [pick_to_json(pick) for pick in record.tree.picks],
        "nodes": [_node_to_json(node, text) for node, text in zip(record.tree.nodes, record.texts, strict=True)],
    }
    if record.ledger is not None:
        line["ledger"] = ledger_to_json(record.ledger)
    return line


def ledger_to_json(ledger: Ledger) -> dict[str, float]:
    """The counts that are not 0."""
    return {name: value for name in Ledger.__slots__ if (value := getattr(ledger, name))}


def _ledger_from_json(item: Mapping[str, Any]) -> Ledger:
    """Counts that this version does not know are left out."""
    known = {name: value for name, value in item.items() if name in Ledger.__slots__}
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in known.values()):
        raise ValueError("a ledger holds numbers only")
    return Ledger(**known)


def record_from_json(line: Mapping[str, Any]) -> TreeRecord:
    """The inverse of `record_to_json`."""
    source = line["task"]
    task = Task(
        id=source["id"],
        prompt=tuple(Message(role=message["role"], content=message["content"]) for message in source["prompt"]),
        truth=tuple(source["truth"]),
        meta=source["meta"],
    )
    nodes = [_node_from_json(item) for item in line["nodes"]]
    texts = tuple(
        NodeText(
            action=item["action"],
            observation=item["observation"],
            pieces=tuple(item["pieces"]),
            advantage=item["advantage"],
        )
        for item in line["nodes"]
    )
    picks = [_pick_from_json(item) for item in line.get("picks", ())]
    tree = Tree(task_id=task.id, index=line["tree"], nodes=nodes, picks=picks, typed=line.get("typed", False))
    cost = _ledger_from_json(line["ledger"]) if "ledger" in line else None
    return TreeRecord(kind=line["kind"], step=line["step"], task=task, tree=tree, texts=texts, ledger=cost)


def token_pieces(token_ids: Sequence[int], text: str, decode: Decode, decode_one: Callable[[int], str]) -> list[str]:
    """Splits `text`, the decoding of `token_ids`, into one piece per token; `[]` when no split joins back to it.

    Tokens are decoded one at a time, and together with the ones before them while a character is unfinished. Where
    that loses text (tokenizers that strip a leading space), the growth of the decoded prefix is taken instead.
    """
    pieces: list[str] = []
    pending: list[int] = []
    for token_id in token_ids:
        pending.append(token_id)
        piece = decode_one(token_id) if len(pending) == 1 else decode(pending)
        whole = not piece.endswith(_UNFINISHED)
        pieces.append(piece if whole else "")
        if whole:
            pending = []
    if "".join(pieces) == text:
        return pieces
    ends = [0] + [_stable_length(decode(token_ids[: i + 1]), text) for i in range(len(token_ids))]
    if token_ids and ends[-1] == len(text) and all(a <= b for a, b in pairwise(ends)):
        return [text[a:b] for a, b in pairwise(ends)]
    return []


def _stable_length(prefix: str, text: str) -> int:
    """How many characters of `text` a decoded prefix already shows."""
    if prefix == text:
        return len(text)
    prefix = prefix.rstrip(_UNFINISHED)
    return len(prefix) if text.startswith(prefix) else -1


def _node_text(node: Node, decode: Decode, decode_one: Callable[[int], str], advantage: float | None) -> NodeText:
    action = decode(node.token_ids) if node.token_ids else ""
    return NodeText(
        action=action,
        observation=decode(node.observation_ids) if node.observation_ids else "",
        pieces=tuple(token_pieces(node.token_ids, action, decode, decode_one)),
        advantage=advantage,
    )


def _node_to_json(node: Node, text: NodeText) -> dict[str, Any]:
    line = {
        "parent": node.parent,
        "slot": node.slot,
        "action": text.action,
        "observation": text.observation,
        "end": node.end.value if node.end else None,
        "reward": node.reward,
        "score": node.score,
        "advantage": text.advantage,
        "tool_calls": node.tool_calls,
        "entropy": node.entropy,
        "pieces": list(text.pieces),
        "token_ids": list(node.token_ids),
        "logprobs": list(node.logprobs),
        "versions": list(node.versions),
        "observation_ids": list(node.observation_ids),
    }
    if node.record is not None:
        line["record"] = step_to_json(node.record)
    if node.result:
        line["result"] = node.result
    if node.note:
        line["note"] = node.note
    return line


def _node_from_json(item: Mapping[str, Any]) -> Node:
    return Node(
        parent=item["parent"],
        token_ids=tuple(item["token_ids"]),
        logprobs=tuple(item["logprobs"]),
        versions=tuple(item["versions"]),
        observation_ids=tuple(item["observation_ids"]),
        end=EndReason(item["end"]) if item["end"] else None,
        reward=item["reward"],
        score=item["score"],
        tool_calls=item["tool_calls"],
        note=item.get("note", ""),
        entropy=item.get("entropy"),
        slot=item["slot"],
        record=step_from_json(item["record"]) if item.get("record") else None,
        result=item.get("result", ""),
    )


def pick_to_json(pick: Pick) -> dict[str, Any]:
    """One round of a line. A score of −∞, of a node about which nothing was known, is null in JSON."""
    scores = [[node, score if math.isfinite(score) else None] for node, score in pick.scores]
    return {"chosen": list(pick.chosen), "scores": scores}


def _pick_from_json(item: Mapping[str, Any]) -> Pick:
    scores = tuple((node, -math.inf if score is None else score) for node, score in item["scores"])
    return Pick(scores=scores, chosen=tuple(item["chosen"]))
