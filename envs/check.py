"""Command: runs an environment through the contract of `envs.types.Env`, and says of each clause whether it holds.

`python -m envs.check textworld` takes the name of an environment that comes with the project (search, textworld or
decision, which is the shop), with the settings and held-out tasks of its preset;
`python -m envs.check textworld.yaml --tasks data/textworld/heldout.jsonl` takes the settings of an environment from a
YAML or JSON file (the `env` section of a run's configuration, or a whole `config.yaml` of a run folder);
`python -m envs.check my_package.world.make_env --options '{"width": 3}' --tasks T.jsonl` takes a dotted path. One line
per clause, `ok` or what is wrong and how to mend it; the exit code is 1 when something is. With a run's command line
instead of files: `python -m trainer.check_env experiment=textworld`.

What an agent would do comes from `meta.expert` of the tasks (a list of commands), of a decision from `meta.expected`,
or from `--actions FILE`, one agent step per line. Without any, the accepted answer is tried, and the clauses that need
a step that goes on are said to be skipped.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.check_clauses import CLAUSES, run_clause
from envs.check_subject import subject
from envs.check_trial import Trial
from envs.tasks import chosen_tasks, load_tasks
from envs.types import Env, Task

SHOWN = 8
"""Tasks tried, unless told otherwise."""


def check(env: Env[Any], tasks: Sequence[Task], actions: Sequence[str] = (), max_turns: int = 12) -> int:
    """Runs every clause over every task and prints a line for each. Returns the number of clauses that don't hold.

    `actions` are agent steps to try in turn; empty: those of each task's `meta.expert`.
    """
    wrong = asyncio.run(_count_wrong([Trial.of(env, task, actions, max_turns) for task in tasks]))
    print(
        f"{len(CLAUSES) - wrong} of {len(CLAUSES)} clauses hold, on {len(tasks)} task{'s' if len(tasks) > 1 else ''}."
    )
    return wrong


async def _count_wrong(trials: Sequence[Trial]) -> int:
    """All clauses in one event loop, as in a run: what an environment keeps open may belong to it."""
    wrong = 0
    for clause in CLAUSES:
        found = await run_clause(clause, trials)
        print(found.line(), flush=True)
        wrong += not found.ok
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 1 when a clause does not hold, 2 for a wrong setting."""
    options = _parser().parse_args(arguments)
    try:
        found = subject(options.environment, options.options)
        settings = found.settings
        if options.tasks is None and settings is None:
            raise ValueError("--tasks is needed with a dotted path")
        path: Path = options.tasks if settings is None else options.tasks or settings.eval_tasks
        tasks = chosen_tasks(load_tasks(path, instruction=settings.instruction if settings else ""), options.count)
        turns = max(options.max_turns, found.steps)
        return int(check(found.env, found.shown(tasks), _actions(options.actions), turns) > 0)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _actions(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"--actions {path} cannot be read: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.check", description="Checks an environment's contract.")
    parser.add_argument(
        "environment",
        help="search, textworld or decision, a file of settings, or a dotted path such as my_world.make_env",
    )
    parser.add_argument("--options", default="{}", help="JSON object: keyword arguments for a dotted path")
    parser.add_argument("--tasks", type=Path, help="task file (default: eval_tasks of the settings)")
    parser.add_argument("--count", type=int, default=SHOWN, help=f"tasks to try (default {SHOWN})")
    parser.add_argument("--actions", type=Path, help="file of agent steps to try, one per line")
    parser.add_argument("--max-turns", type=int, default=12, help="tool turns, as limits.max_turns (default 12)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
