"""Command: the imperfect clerk answers tickets and writes demonstrations, as typed nodes and as the flat policy.

    python -m envs.shop.demonstrator --tasks T.jsonl --database D.sqlite --out O.jsonl

Every ticket is played in both forms by the same clerk with the same luck, so that a model which imitates them starts
from about the same success either way. A typed ticket is one demonstration per node; in a share of them the nodes that
the ticket does not need are skipped, as a gate would do.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from envs.decisions.contracts import compact
from envs.decisions.flat_env import FlatDecisionEnv
from envs.decisions.rewards import Judge
from envs.decisions.settings import DecisionSettings
from envs.decisions.typed_env import TypedDecisionEnv
from envs.decisions.types import Gating
from envs.decisions.walk import Course, Walk
from envs.demonstration import probability, write_records
from envs.shop.clerk import Clerk, Habits
from envs.shop.world import ShopWorld, wrong_statements
from envs.tasks import load_tasks
from envs.types import Json, Task

END = "<|end|>"
"""Ends a typed answer: the end-of-sequence token of the tiny models."""
Record: TypeAlias = dict[str, object]


class Player:
    """Plays tickets against the real environments."""

    def __init__(self, settings: DecisionSettings, world: ShopWorld, habits: Habits) -> None:
        self._world = world
        self._habits = habits
        self._course = Course(settings, world)
        self._typed = TypedDecisionEnv(settings, world, Judge(settings))
        self._flat = FlatDecisionEnv(settings, world)

    async def typed(self, task: Task, seed: str, *, gated: bool) -> tuple[list[Record], float]:
        """(one demonstration per node, score)."""
        clerk, state, records = Clerk(self._habits, random.Random(seed)), self._typed.reset(task), list[Record]()
        while True:
            ask = self._typed.ask(state)
            text = compact(clerk.write(ask.node, self._given(state), _intent(task)))
            messages = [{"role": message.role, "content": message.content} for message in ask.messages]
            segments = [{"text": text + END, "train": True}]
            records.append({"task_id": f"{task.id}/{ask.node}", "messages": messages, "segments": segments})
            state, result = await self._typed.answer(state, text)
            if result.end is not None:
                return records, result.score or 0.0
            if gated and len(records) == 1:
                state = replace(state, gating=self._gating(task))

    async def flat(self, task: Task, seed: str) -> tuple[Record, float, int]:
        """(the demonstration, score, wrong statements)."""
        clerk, state, segments = Clerk(self._habits, random.Random(seed)), self._flat.reset(task), list[Record]()
        messages = [{"role": message.role, "content": message.content} for message in self._flat.opening(task)]
        while node := self._course.current(state):
            text = f"<output>{compact(clerk.write(node, self._given(state), _intent(task)))}</output>"
            segments.append({"text": text, "train": True})
            state, result = await self._flat.step(state, text, turns_left=0)
            if result.end is None:
                segments.append({"text": result.observation, "train": False})
        record: Record = {"task_id": task.id, "messages": messages, "segments": segments}
        return record, result.score or 0.0, wrong_statements(state.values, task)

    def _given(self, state: Walk) -> Mapping[str, Json]:
        node = self._course.current(state)
        assert node is not None
        given = self._course.input(state, node)
        assert isinstance(given, dict)
        return given

    def _gating(self, task: Task) -> tuple[Gating, ...]:
        """What a gate without mistakes decides."""
        needs, declared = _needs(task), self._course.declared
        children = declared.children(declared.root)
        return tuple(Gating(node=name, probability=float(name in needs), runs=name in needs) for name in children)


async def play_all(player: Player, tasks: Sequence[Task], seed: int, gated: float) -> tuple[list[Record], list[str]]:
    """(all demonstrations, lines for people). What happens to a ticket depends on its id and the seed only."""
    records: list[Record] = []
    scores: list[tuple[float, float, int]] = []
    for task in tasks:
        luck = f"{seed}/{task.id}"
        typed, typed_score = await player.typed(task, luck, gated=random.Random(f"gate/{luck}").random() < gated)
        flat, flat_score, wrong = await player.flat(task, luck)
        records += [*typed, flat]
        scores.append((typed_score, flat_score, wrong))
    typed_mean, flat_mean, wrong_mean = (sum(column) / len(scores) for column in zip(*scores, strict=True))
    return records, [
        f"success of the clerk on {len(tasks)} tickets: typed {typed_mean:.3f}, flat {flat_mean:.3f}",
        f"wrong statements per answer: {wrong_mean:.3f}",
    ]


def read_declaration(path: Path) -> DecisionSettings:
    """The decision section of a YAML file. Raises ValueError naming the file."""
    from yaml import YAMLError, safe_load  # type: ignore[import-untyped]

    try:
        return DecisionSettings.model_validate(safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, YAMLError) as error:
        raise ValueError(f"--declaration {path} cannot be read: {str(error).splitlines()[0]}") from None


def _intent(task: Task) -> dict[str, Json]:
    expected = task.meta["expected"]
    assert isinstance(expected, dict)
    intent = expected["intent"]
    assert isinstance(intent, dict)
    return intent


def _needs(task: Task) -> list[Json]:
    needs = task.meta["needs"]
    assert isinstance(needs, list)
    return needs


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    options = _parser().parse_args(arguments)
    names = ("guess", "confuse", "generous", "hopeful", "slip")
    habits = Habits(**{name: getattr(options, name) for name in names})
    try:
        settings = read_declaration(options.declaration)
        player = Player(settings, ShopWorld(str(options.database)), habits)
        tasks = load_tasks(options.tasks)
        records, lines = asyncio.run(play_all(player, tasks, options.seed, options.gated))
        write_records(options.out, records)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join([*lines, f"{len(records)} demonstrations"]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.shop.demonstrator", description="Writes demonstrations.")
    parser.add_argument("--tasks", type=Path, required=True, help="tickets, e.g. data/shop/train.jsonl")
    parser.add_argument("--database", type=Path, required=True, help="their database, e.g. data/shop/shop.sqlite")
    parser.add_argument("--declaration", type=Path, default=Path("conf/decision/shop.yaml"), help="of the nodes")
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    parser.add_argument("--gated", type=probability, default=0.4, help="share of typed tickets with nodes skipped")
    for name in ("guess", "confuse", "generous", "hopeful", "slip"):
        default = getattr(Habits(), name)
        parser.add_argument(f"--{name}", type=probability, default=default, help=f"see envs.shop.clerk ({default})")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
