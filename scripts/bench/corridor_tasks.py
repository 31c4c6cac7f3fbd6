"""Makes tasks of the corridor (`scripts.bench.corridor`) and plays them: training and held-out files, demonstrations.

    python -m scripts.bench.corridor_tasks --out data/corridor/turn-10 --choice 10

writes train.jsonl, heldout.jsonl and expert.jsonl, an expert's play of the training tasks.

    python -m scripts.bench.corridor_tasks --out data/corridor --demos 4000 --right 0.3

writes demos.jsonl only: paths with the gems at any turn, played by a demonstrator that opens every door and takes the
gem that was asked for with probability 0.3. All of it depends on the options only.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from envs.demonstration import Demonstration, probability, write_records
from envs.prepare import write_tasks
from envs.types import Message, Task
from scripts.bench.corridor import Corridor, Walk

DOORS = ("bamboo", "brass", "copper", "glass", "iron", "marble", "oak", "paper", "silver", "stone", "velvet", "wicker")
GEMS = ("agate", "amber", "beryl", "coral", "garnet", "jade", "onyx", "opal", "pearl", "quartz", "ruby", "topaz")


def make_task(name: str, turns: int, choice: int | None) -> Task:
    """A path of so many turns with the gems at turn `choice` (None: at any); `name` decides all the rest."""
    rng = random.Random(name)
    first, second = rng.sample(GEMS, 2)
    walk = Walk(
        doors=tuple(rng.choice(DOORS) for _ in range(turns - 1)),
        gems=(first, second),
        choice=choice or rng.randint(1, turns),
        wanted=rng.choice((first, second)),
    )
    return Task(
        id=f"corridor/{name}",
        prompt=(Message(role="user", content=f"bring me the {walk.wanted}. {walk.view}"),),
        truth=(walk.wanted,),
        meta={
            "doors": list(walk.doors),
            "gems": list(walk.gems),
            "choice": walk.choice,
            "expert": list(commands(walk, walk.wanted)),
        },
    )


def commands(walk: Walk, gem: str) -> Iterator[str]:
    """Those that lead to the end of the path and take `gem` on the way."""
    while walk.turn <= walk.turns:
        possible = walk.commands
        command = next(one for one, taken in possible.items() if taken == gem or len(possible) == 1)
        yield command
        walk = walk.after(command)


async def demonstrate(task: Task, right: float, rng: random.Random) -> Demonstration:
    """Plays a task; takes the gem asked for with probability `right`, and else the other one."""
    world = Corridor()
    played, state = Demonstration(task=task), world.reset(task)
    gem = state.wanted if rng.random() < right else next(one for one in state.gems if one != state.wanted)
    for command in commands(state, gem):
        text = f"<act> {command} </act>"
        state, result = await world.step(state, text, turns_left=state.turns - state.turn)
        played.add(text, result)
    return played


async def play(tasks: Sequence[Task], right: float, seed: int) -> list[Demonstration]:
    """One demonstration of each task."""
    return [await demonstrate(task, right, random.Random(f"{seed}/{task.id}")) for task in tasks]


def make(options: argparse.Namespace) -> str:
    """Writes the files; returns one sentence for people. Raises ValueError for a choice outside the path."""
    if options.turns < 2 or (options.choice is not None and not 1 <= options.choice <= options.turns):
        raise ValueError(f"--choice {options.choice} must be a turn of the path: from 1 to --turns ({options.turns})")
    options.out.mkdir(parents=True, exist_ok=True)
    counts = {"demos": options.demos} if options.demos else {"train": options.train, "heldout": options.heldout}
    for split, count in counts.items():
        names = [f"{split}/{options.seed}/{number}" for number in range(count)]
        tasks = [make_task(name, options.turns, options.choice) for name in names]
        if split != "demos":
            write_tasks(options.out / f"{split}.jsonl", tasks)
        if split != "heldout":
            played = asyncio.run(play(tasks, options.right if options.demos else 1.0, options.seed))
            file = "demos.jsonl" if options.demos else "expert.jsonl"
            write_records(options.out / file, (one.record() for one in played))
    return f"{options.out}: " + ", ".join(f"{count} {split}" for split, count in counts.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    try:
        print(make(_parser().parse_args(arguments)))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.corridor_tasks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--turns", type=int, default=10, help="of a path (default 10)")
    parser.add_argument("--choice", type=int, help="turn of the gems (default: each task another one)")
    parser.add_argument("--train", type=int, default=400, help="training tasks (default 400)")
    parser.add_argument("--heldout", type=int, default=100, help="held-out tasks (default 100)")
    parser.add_argument("--demos", type=int, default=0, help="demonstrations, instead of tasks")
    parser.add_argument("--right", type=probability, default=0.3, help="right choices of the demonstrator")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
