"""Demonstrations: recorded trajectories to imitate, their file format, and their token ids with the training mask.

One JSON object per line: `task_id`, `messages` (role and content, the last one from the user) and `segments`, texts
that follow the prompt in turn: what the agent wrote (`train: true`) and what the environment answered (`train: false`).
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.types import Message

FIELDS = ("task_id", "messages", "segments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One piece of text after the prompt."""

    text: str
    """E.g. `"<think> find the country </think><search> Ulm </search>"`."""
    train: bool
    """True for the agent's own text, False for observations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One trajectory to imitate."""

    task_id: str
    messages: tuple[Message, ...]
    segments: tuple[Segment, ...]
    """At least one of them trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A demonstration as token ids."""

    ids: tuple[int, ...]
    """Prompt, then every segment."""
    trained: tuple[bool, ...]
    """Same length as `ids`: True where the token belongs to a trained segment, by the recorded lengths."""


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Reads a file. Raises ValueError, one sentence naming file and line, when something is missing or wrong."""
    demonstrations = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    demonstrations.append(_demonstration(line, f"{path} line {number}"))
    except OSError as error:
        raise ValueError(f"demonstrations {path} cannot be read: {error.strerror or error}") from None
    if not demonstrations:
        raise ValueError(f"{path} has no demonstrations; expected one per line with the fields {', '.join(FIELDS)}")
    return demonstrations


def _demonstration(line: bytes, place: str) -> Demonstration:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not a JSON object: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{place}: expected an object with the fields {', '.join(FIELDS)}")
    for name in FIELDS:
        if name not in record:
            raise ValueError(f"{place}: field {name!r} is missing; required fields are {', '.join(FIELDS)}")
    return Demonstration(
        task_id=str(record["task_id"]),
        messages=_messages(record["messages"], place),
        segments=_segments(record["segments"], place),
    )


def _messages(value: Any, place: str) -> tuple[Message, ...]:
    good = isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)
        for item in value
    )
    if not good or not value or value[-1]["role"] != "user":
        raise ValueError(f"{place}: field 'messages' must be a list of role and content, the last one the user's")
    return tuple(Message(role=item["role"], content=item["content"]) for item in value)


def _segments(value: Any, place: str) -> tuple[Segment, ...]:
    good = isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("text"), str) and isinstance(item.get("train"), bool)
        for item in value
    )
    if not good or not any(item["train"] and item["text"] for item in value):
        raise ValueError(
            f"{place}: field 'segments' must be a list of text and train (true or false), at least one to train"
        )
    return tuple(Segment(text=item["text"], train=item["train"]) for item in value)


def prompt_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Ids of the chat prompt, exactly as rollouts make them."""
    chat = [{"role": message.role, "content": message.content} for message in messages]
    encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
    return [int(token) for token in encoded["input_ids"]]


def encode(demonstration: Demonstration, tokenizer: Any) -> Example:
    """Prompt ids, then each segment encoded by itself, as sampled steps and observations follow each other."""
    ids = prompt_ids(tokenizer, demonstration.messages)
    trained = [False] * len(ids)
    for segment in demonstration.segments:
        piece = tokenizer.encode(segment.text, add_special_tokens=False)
        ids += piece
        trained += [segment.train] * len(piece)
    return Example(ids=tuple(ids), trained=tuple(trained))


def split_heldout(
    demonstrations: Sequence[Demonstration], share: float, most: int, rng: random.Random
) -> tuple[list[Demonstration], list[Demonstration]]:
    """(to train on, held out): a random `share`, `most` at most, at least one of each when there are two."""
    shuffled = list(demonstrations)
    rng.shuffle(shuffled)
    held = min(most, max(1, round(share * len(shuffled)))) if len(shuffled) > 1 else 0
    return shuffled[held:], shuffled[:held]


def batches(examples: Sequence[Example], batch_tokens: int, rng: random.Random) -> Iterator[list[Example]]:
    """One epoch in random order. Examples of similar length share a batch of at most `batch_tokens` padded tokens.

    A single example may be longer. `batches` of lengths 3, 9, 4, 8 with 16 tokens: {3, 4} and {8, 9} apart.
    """
    order = sorted(examples, key=lambda example: (len(example.ids), rng.random()))
    groups: list[list[Example]] = [[]]
    for example in order:
        if groups[-1] and len(example.ids) * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(example)
    rng.shuffle(groups)
    yield from (group for group in groups if group)
