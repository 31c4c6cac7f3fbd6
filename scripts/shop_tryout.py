"""A quick look at a policy of the shop, typed and flat, with no engine, actors or Ray.

    python -m scripts.shop_tryout --model conf/model/shop --data data/shop [--temperature T] [--samples N] [--show N]

Decoding is free here, not held to the schemas: an answer of a typed node may be invalid, as one of the flat policy may.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from envs.decisions.flat_env import FlatDecisionEnv
from envs.decisions.rewards import Judge
from envs.decisions.settings import DecisionSettings
from envs.decisions.typed_env import TypedDecisionEnv
from envs.decisions.walk import Walk
from envs.shop.demonstrator import read_declaration
from envs.shop.world import ANSWER, ShopWorld, wrong_statements
from envs.tasks import load_tasks
from envs.types import StepResult, Task
from trainer.demonstrations import prompt_ids

BATCH = 50
LONGEST = 80
"""Tokens of one answer."""


@dataclass(slots=True, kw_only=True)
class Ticket:
    """One ticket being worked on."""

    task: Task
    state: Walk
    context: list[int] = field(default_factory=list)
    """Of the flat policy: everything so far."""
    tokens: int = 0
    """Sampled."""
    texts: list[str] = field(default_factory=list)
    result: StepResult | None = None


class Form(Protocol):
    """How the nodes are run."""

    def reset(self, task: Task) -> Ticket:
        """A new ticket."""
        ...

    def prompt(self, ticket: Ticket) -> list[int]:
        """Ids of the next step's context."""
        ...

    async def step(self, ticket: Ticket, sampled: list[int], text: str) -> None:
        """Takes an answer."""
        ...


class Typed:
    """Every node asked by a prompt of its own."""

    def __init__(self, settings: DecisionSettings, world: ShopWorld, tokenizer: Any) -> None:
        self._env, self._tokenizer = TypedDecisionEnv(settings, world, Judge(settings)), tokenizer

    def reset(self, task: Task) -> Ticket:
        """See `Form`."""
        return Ticket(task=task, state=self._env.reset(task))

    def prompt(self, ticket: Ticket) -> list[int]:
        """See `Form`."""
        return prompt_ids(self._tokenizer, self._env.ask(ticket.state).messages)

    async def step(self, ticket: Ticket, sampled: list[int], text: str) -> None:
        """See `Form`."""
        ticket.state, result = await self._env.answer(ticket.state, text)
        ticket.result = result if result.end else None


class Flat:
    """One growing context."""

    def __init__(self, settings: DecisionSettings, world: ShopWorld, tokenizer: Any) -> None:
        self._env, self._tokenizer = FlatDecisionEnv(settings, world), tokenizer

    def reset(self, task: Task) -> Ticket:
        """See `Form`."""
        context = prompt_ids(self._tokenizer, self._env.opening(task))
        return Ticket(task=task, state=self._env.reset(task), context=context)

    def prompt(self, ticket: Ticket) -> list[int]:
        """See `Form`."""
        return ticket.context

    async def step(self, ticket: Ticket, sampled: list[int], text: str) -> None:
        """See `Form`."""
        ticket.state, result = await self._env.step(ticket.state, text, turns_left=0)
        ticket.context += [*sampled, *self._tokenizer.encode(result.observation, add_special_tokens=False)]
        ticket.result = result if result.end else None


async def play(model: Any, tokenizer: Any, form: Form, tasks: Sequence[Task], temperature: float) -> list[Ticket]:
    """Plays every ticket to its end, batch by batch."""
    tickets = [form.reset(task) for task in tasks]
    while going := [ticket for ticket in tickets if ticket.result is None]:
        for first in range(0, len(going), BATCH):
            chosen = going[first : first + BATCH]
            rows = sample(model, tokenizer, [form.prompt(ticket) for ticket in chosen], temperature)
            for ticket, ids in zip(chosen, rows, strict=True):
                text = str(tokenizer.decode(ids, skip_special_tokens=True))
                ticket.texts.append(text)
                ticket.tokens += len(ids)
                await form.step(ticket, ids, text)
    return tickets


@torch.no_grad()
def sample(model: Any, tokenizer: Any, prompts: Sequence[list[int]], temperature: float) -> list[list[int]]:
    """Sampled ids of each prompt, up to and including the end of sequence or of a flat step."""
    pad, longest = tokenizer.pad_token_id, max(map(len, prompts))
    ends = {tokenizer.eos_token_id, *tokenizer.encode("</output>", add_special_tokens=False)[-1:]}
    ids_BT = torch.tensor([[pad] * (longest - len(ids)) + ids for ids in prompts])
    seen_BT = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
    how = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    made_BT = model.generate(
        input_ids=ids_BT,
        attention_mask=seen_BT,
        max_new_tokens=LONGEST,
        eos_token_id=sorted(ends),
        pad_token_id=pad,
        do_sample=bool(temperature),
        **how,
    )
    return [_until(row, ends) for row in made_BT[:, longest:].tolist()]


def report(tickets: Sequence[Ticket]) -> list[str]:
    """Success per family and in all, wrong statements, tokens, and faults."""
    right: Counter[str] = Counter()
    every: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    answers, wrong = 0, 0
    for ticket in tickets:
        assert ticket.result is not None
        for key in (str(ticket.task.meta["family"]), "total"):
            every[key] += 1
            right[key] += ticket.result.score == 1.0
        answers += ANSWER in ticket.state.values
        wrong += wrong_statements(ticket.state.values, ticket.task)
        faults[ticket.result.note[:60]] += bool(ticket.result.note)
    lines = [f"{key}: {right[key] / every[key]:.3f} of {every[key]}" for key in sorted(every)]
    tokens = sum(ticket.tokens for ticket in tickets) / len(tickets)
    lines.append(f"{answers} answers, wrong statements per answer {wrong / max(answers, 1):.3f}, {tokens:.0f} tokens")
    return [*lines, *(f"invalid: {note} ({count})" for note, count in faults.most_common(3) if count)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        settings, world = read_declaration(options.declaration), ShopWorld(str(options.data / "shop.sqlite"))
        tasks = load_tasks(options.data / "heldout.jsonl", limit=options.count) * options.samples
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    for name, kind in (("typed", Typed), ("flat", Flat)):
        torch.manual_seed(options.seed)
        tickets = asyncio.run(play(model, tokenizer, kind(settings, world, tokenizer), tasks, options.temperature))
        print(f"{name}, temperature {options.temperature:g}")
        print("\n".join(f"  {line}" for line in report(tickets)), flush=True)
        for ticket in tickets[: options.show]:
            print(f"  {ticket.task.prompt[-1].content}  [{ticket.task.truth[0]}]")
            print("\n".join(f"      {text}" for text in ticket.texts))
    return 0


def _until(row: Sequence[int], ends: set[int]) -> list[int]:
    stop = next((place for place, token in enumerate(row, start=1) if token in ends), len(row))
    return list(row[:stop])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.shop_tryout", description="Plays held-out tickets.")
    parser.add_argument("--model", required=True, help="Hugging Face folder, e.g. conf/model/shop")
    parser.add_argument("--data", type=Path, default=Path("data/shop"), help="from python -m envs.shop.prepare")
    parser.add_argument("--declaration", type=Path, default=Path("conf/decision/shop.yaml"), help="of the nodes")
    parser.add_argument("--count", type=int, help="tickets, from the start of the file (default: all)")
    parser.add_argument("--samples", type=int, default=1, help="answers per ticket (default 1)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--show", type=int, default=0, help="tickets to print in full")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
