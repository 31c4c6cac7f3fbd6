"""Command: an imperfect demonstrator plays the questions about cities and writes demonstrations.

It reads passages well and copies without mistakes; what it does badly are decisions. Where a question needs another
search, it answers too early with probability `early`, with the name it has just read, and searches something useless
first with probability `wrong`. A model that imitates it learns to act, and is left to learn when to stop.
"""

import argparse
import asyncio
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.demonstration import Demonstration, probability, right_by_level, write_records
from envs.families import FAMILIES, Family
from envs.retriever import LocalRetriever
from envs.rewards import PaperReward
from envs.scoring import exact_match
from envs.search_env import SearchEnv
from envs.tasks import load_tasks
from envs.types import StepResult, Task

READ = {
    "country": re.compile(r" is a city in (.+?)\. Its time zone is "),
    "time zone": re.compile(r"Its time zone is (\S+)\. Population"),
    "population": re.compile(r"Population (\d+)\."),
    **{
        label: re.compile(rf"(?:has|;) {label} (.+?)(?:;|\. )")
        for label in ("capital", "currency", "continent", "calling code", "largest neighbour", "highest point")
    },
    "internet domain": re.compile(r"(?:has|;) internet domain (\.\w+)\. "),
}
"""Relation -> where its value stands in an observation (the texts of `envs.corpus`)."""
LOOKED_UP = {"country": "country", "capital": "capital", "largest neighbour": "neighbour"}
"""Relation that leads to the next passage -> what the thought calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the demonstrator decides; both probabilities 0 make an expert."""

    early: float = 0.6
    """Probability of answering where another search is needed."""
    wrong: float = 0.1
    """Probability of a useless search (the city once more) before a needed one."""
    max_turns: int = 4
    """Tool turns; no useless search is made that would leave too few."""


def search_step(what: str, query: str) -> str:
    """E.g. `"<think> look up the country </think><search> Germany </search>"`."""
    return f"<think> look up the {what} </think><search> {query} </search>"


def answer_step(answer: str) -> str:
    """E.g. `"<think> i know </think><answer> Berlin </answer>"`."""
    return f"<think> i know </think><answer> {answer} </answer>"


async def demonstrate(env: SearchEnv, task: Task, habits: Habits, rng: random.Random) -> Demonstration:
    """Plays one task against the real environment. Raises ValueError for a task of another family."""
    family = FAMILIES.get(str(task.meta.get("family")))
    if family is None:
        raise ValueError(f"task {task.id}: the demonstrator plays only the families {', '.join(FAMILIES)}")
    city = _city(family, task)
    demo = Demonstration(task=task)
    state, used = env.reset(task), 0

    async def act(text: str) -> StepResult:
        nonlocal state, used
        used += 1
        state, result = await env.step(state, text, turns_left=habits.max_turns - used)
        return demo.add(text, result)

    what, entity = "city", city
    for place, relation in enumerate(family.path):
        if place and rng.random() < habits.early:
            break
        needed = family.hops - place
        if place and habits.max_turns - used > needed and rng.random() < habits.wrong:
            await act(search_step("city", city))
        seen = (await act(search_step(what, entity))).observation
        match = READ[relation].search(seen)
        if match is None:
            raise ValueError(f"task {task.id}: the passage found for {entity!r} does not tell the {relation}")
        what, entity = LOOKED_UP.get(relation, ""), match[1]
    await act(answer_step(entity))
    return demo


def _city(family: Family, task: Task) -> str:
    """The city's name, read from the question."""
    before, after = family.template.split("{city}")
    question = task.prompt[-1].content
    match = re.search(re.escape(before) + "(.+)" + re.escape(after), question)
    if match is None:
        raise ValueError(f"task {task.id}: the question does not read {family.template!r}")
    return match[1]


async def play_all(tasks: Sequence[Task], corpus: Path, habits: Habits, seed: int) -> list[Demonstration]:
    """Plays all tasks with the top passage per search; each task's choices depend on its id and the seed only."""
    env = SearchEnv(LocalRetriever.from_file(corpus), score=exact_match, reward=PaperReward(), topk=1)
    return [await demonstrate(env, task, habits, random.Random(f"{seed}/{task.id}")) for task in tasks]


def success_lines(demos: Sequence[Demonstration]) -> list[str]:
    """One line per number of hops, then the total, e.g. `"hops 2: 0.41 of 1333"`."""
    return [f"{key}: {share:.3f} of {count}" for key, share, count in right_by_level(demos, "hops")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    options = _parser().parse_args(arguments)
    habits = Habits(early=options.early, wrong=options.wrong, max_turns=options.max_turns)
    try:
        tasks = load_tasks(options.tasks, instruction=options.instruction)
        demos = asyncio.run(play_all(tasks, options.corpus, habits, options.seed))
        write_records(options.out, (demo.record() for demo in demos))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(["success of the demonstrator", *success_lines(demos)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.demonstrator", description="Writes demonstrations.")
    parser.add_argument("--tasks", type=Path, required=True, help="task file, e.g. data/quickstart/train.jsonl")
    parser.add_argument("--corpus", type=Path, required=True, help="corpus file, e.g. data/quickstart/corpus.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    parser.add_argument("--early", type=probability, default=0.6, help="probability of answering too early")
    parser.add_argument("--wrong", type=probability, default=0.1, help="probability of a useless search first")
    parser.add_argument("--max-turns", type=int, default=4, help="tool turns, as limits.max_turns")
    parser.add_argument("--instruction", default="", help="text before the question, as env.instruction")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
