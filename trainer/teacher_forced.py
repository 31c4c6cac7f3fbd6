"""How well a model imitates demonstrations it was not trained on, when every earlier token is the demonstrator's.

Each agent step is judged in two parts: the decision (thought and kind of action, up to and including the opening tag)
and the content (query, answer or command, with the closing tag). A part is right when the likeliest token is the one
shown all the way. A demonstrator that decides by chance can't be matched every time; contents should be.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.demonstrations import Demonstration, Example, encode, prompt_ids

OPENING = re.compile(r"<(search|answer|act)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A span of an example's ids whose tokens must all be right."""

    kind: str
    """E.g. `"decision"`, `"search 2"` (content of the second search) or `"answer"`."""
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """Result over a set of demonstrations."""

    loss: float
    """Mean negative log-likelihood per trained token, in nats."""
    right: dict[str, tuple[int, int]]
    """Kind of part -> (right, all)."""

    def line(self) -> str:
        """E.g. `"held-out loss 0.312 | decision 0.71 | search 1 0.97 | answer 0.95"`."""
        shares = [f"{kind} {good / count:.3f}" for kind, (good, count) in sorted(self.right.items())]
        return " | ".join([f"held-out loss {self.loss:.3f}", *shares])


def parts(demonstration: Demonstration, tokenizer: Any) -> list[Part]:
    """Spans of every trained segment, in ids of `trainer.demonstrations.encode`."""
    found: list[Part] = []
    at, searches = len(prompt_ids(tokenizer, demonstration.messages)), 0
    for segment in demonstration.segments:
        encoded = tokenizer(segment.text, add_special_tokens=False, return_offsets_mapping=True)
        length = len(encoded["input_ids"])
        opening = OPENING.search(segment.text)
        if segment.train and opening:
            cut = at + sum(stop <= opening.end() for _, stop in encoded["offset_mapping"])
            searches += opening[1] == "search"
            content = f"search {searches}" if opening[1] == "search" else opening[1]
            found.append(Part(kind="decision", start=at, stop=cut))
            found.append(Part(kind=content, start=cut, stop=at + length))
        elif segment.train:
            found.append(Part(kind="text", start=at, stop=at + length))
        at += length
    return found


def padded(examples: Sequence[Example], pad: int) -> tuple[Tensor, Tensor]:
    """(ids_BT, trained_BT), padded on the right, where causal attention never looks."""
    longest = max(len(example.ids) for example in examples)
    rows = [[*example.ids, *[pad] * (longest - len(example.ids))] for example in examples]
    masks = [[*example.trained, *[False] * (longest - len(example.ids))] for example in examples]
    return torch.tensor(rows), torch.tensor(masks)


@torch.no_grad()
def imitation(
    model: Any, tokenizer: Any, demonstrations: Sequence[Demonstration], pad: int, rows: int = 16
) -> Imitation:
    """Runs the model over all demonstrations, `rows` at once."""
    model.eval()
    nats, tokens = 0.0, 0
    good: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for first in range(0, len(demonstrations), rows):
        chosen = demonstrations[first : first + rows]
        ids_BT, trained_BT = padded([encode(item, tokenizer) for item in chosen], pad)
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1].float()
        likeliest_BT = logits_BTV.argmax(-1)
        trained_BT = trained_BT[:, 1:]
        nats += torch.nn.functional.cross_entropy(
            logits_BTV[trained_BT], ids_BT[:, 1:][trained_BT], reduction="sum"
        ).item()
        tokens += int(trained_BT.sum())
        for row, item in enumerate(chosen):
            right_T = likeliest_BT[row] == ids_BT[row, 1:]
            for part in parts(item, tokenizer):
                every[part.kind] += 1
                good[part.kind] += bool(right_T[part.start - 1 : part.stop - 1].all())
    model.train()
    return Imitation(loss=nats / tokens, right={kind: (good[kind], every[kind]) for kind in every})
