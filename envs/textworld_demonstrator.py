"""Command: an imperfect demonstrator plays text adventures and writes demonstrations.

It knows the way (TextWorld tells the commands that win from any position), but wanders off: with probability `detour`
it does something possible at random instead, and with probability `slip` it gives a command that is not possible. What
it does after a detour is again the best, so a model that imitates it learns to act and to recover, and is left to learn
what not to try.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.demonstration import Demonstration, probability, right_by_level, write_records
from envs.rewards import PaperReward
from envs.tasks import load_tasks
from envs.textworld_env import TextWorldEnv
from envs.textworld_game import Position
from envs.textworld_maker import other_names
from envs.types import Task

IDLE = ("examine ", "look", "inventory")
"""Commands that change nothing; no detour takes them."""
REPORT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the demonstrator decides; both probabilities 0 make an expert."""

    detour: float = 0.25
    """Probability of a possible command at random."""
    slip: float = 0.05
    """Probability of a command that is not possible, made from the best one."""
    max_turns: int = 12
    """Commands per game."""


def act_step(command: str) -> str:
    """E.g. `"<act> open red box </act>"`."""
    return f"<act> {command} </act>"


def choose(position: Position, habits: Habits, rng: random.Random) -> str:
    """The next command."""
    best, drawn = position.expert[0], rng.random()
    if drawn < habits.slip:
        verb, _, rest = best.partition(" ")
        return f"{'open' if verb != 'open' else 'take'} {rest}"
    if drawn < habits.slip + habits.detour:
        others = [command for command in sorted(position.commands) if not command.startswith(IDLE) and command != best]
        return rng.choice(others or [best])
    return best


async def demonstrate(env: TextWorldEnv, task: Task, habits: Habits, rng: random.Random) -> Demonstration:
    """Plays one task against the real environment, to its end."""
    played, state = Demonstration(task=task), env.reset(task)
    for turn in range(habits.max_turns):
        text = act_step(choose(env.position(state), habits, rng))
        state, result = await env.step(state, text, turns_left=habits.max_turns - turn - 1)
        if played.add(text, result).end is not None:
            break
    return played


async def play_all(tasks: Sequence[Task], games: Path, habits: Habits, seed: int, samples: int) -> list[Demonstration]:
    """Plays all tasks; each game's choices depend on its task's id, its number and the seed only."""
    env, reported, played = TextWorldEnv(games, reward=PaperReward()), time.monotonic(), []
    for number, task in enumerate(tasks):
        rngs = [random.Random(f"{seed}/{task.id}/{sample}") for sample in range(samples)]
        played += [await demonstrate(env, task, habits, rng) for rng in rngs]
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            print(f"{number + 1} of {len(tasks)} games", flush=True)
    return played


def success_lines(played: Sequence[Demonstration]) -> list[str]:
    """One line per level, then the total, e.g. `"steps 8: won 0.41 of 300"`, and the mean score and commands."""
    commands = sum(train for item in played for _, train in item.segments) / len(played)
    score = sum(item.score for item in played) / len(played)
    lines = [f"{key}: won {share:.3f} of {count}" for key, share, count in right_by_level(played, "steps")]
    return [*lines, f"mean score {score:.3f}, mean commands {commands:.1f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    options = _parser().parse_args(arguments)
    habits = Habits(detour=options.detour, slip=options.slip, max_turns=options.max_turns)
    try:
        tasks = load_tasks(options.tasks, instruction=options.instruction)
        played = asyncio.run(play_all(tasks, options.games, habits, options.seed, options.samples))
        rng = random.Random(options.seed)
        write_records(
            options.out, (item.record(other_names(rng)) if options.rename else item.record() for item in played)
        )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(["success of the demonstrator", *success_lines(played)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.textworld_demonstrator", description="Writes demonstrations.")
    parser.add_argument("--tasks", type=Path, required=True, help="task file, e.g. data/textworld/train.jsonl")
    parser.add_argument("--games", type=Path, required=True, help="folder of game files, e.g. data/textworld/games")
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    parser.add_argument("--samples", type=int, default=1, help="demonstrations per game (default 1)")
    parser.add_argument("--detour", type=probability, default=0.25, help="probability of a random possible command")
    parser.add_argument("--slip", type=probability, default=0.05, help="probability of an impossible command")
    parser.add_argument(
        "--rename", action="store_true", help="give the things of each demonstration each other's names, at random"
    )
    parser.add_argument("--max-turns", type=int, default=12, help="commands per game, as limits.max_turns")
    parser.add_argument("--instruction", default="", help="text before the prompt, as env.instruction")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
