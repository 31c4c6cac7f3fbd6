"""The page about the scheduler's benchmark, made of its JSON file, and whether its goals were reached.

python -m scripts.bench.scheduler_page docs/results/scheduler.json docs/results/scheduler.md
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import markdown
from scripts.bench.scheduler_actors import FULL_BRANCHES, PACED_BRANCHES, PACED_ITEMS_PER_ACTOR

Row = Mapping[str, float]

WANTED_PER_S, WANTED_FLATNESS = 5000, 1.5
FULL = {
    "actors": "actors",
    "items": "branches",
    "assignments_per_s": "assignments per second",
    "cost_per_assignment_us": "CPU µs per assignment",
    "scheduler_busy": "cores busy",
    "items_per_push": "branches per push",
    "memory_mb": "memory, MiB",
    "take_s": "handing over, s",
}
PACED = {
    "actors": "actors",
    "items": "branches",
    "latency_s": "mean branch, s",
    "seconds": "whole, s",
    "cost_per_assignment_us": "CPU µs per assignment",
    "items_per_push": "branches per push",
    "idle_share": "idle share",
    "idle_share_before_tail": "before the tail",
    "tail_s": "tail, s",
    "fairness": "fairness",
    "stolen_share": "stolen share",
}
PAGE = """# The tree scheduler under load

    {command}

The real scheduler actor and its protocol, with {actors} rollout actors that only sleep: no engine, no
environment. Everything on one machine with {cpus} cores, Python {python}, Ray {ray}.

{goals}

## More than it can take

Branches so short that the actors together could do several times more than the scheduler hands out, so that the
scheduler is what is measured. {rounds}

{full}

The cost is CPU time of the scheduler's process: unpickling results, growing trees, handing out, pickling, and what each
message costs, the more the fewer branches it carries. So each actor runs at most {slots} branches here, as many as
there are first chains for each of 1,024 actors: with few actors a message carries no more than with many. Memory is
that process's when the last branch is back, all trees of the collection in it.

## At a pace that it can follow

At most {cap} branches per actor, each actor running {at_once} at a time, and no more in all than above. A branch's
time is log-normal: 1 in 100 takes 4 times the mean, some 8 times.

{paced}

- CPU per assignment: of the scheduler's process. It is mostly what a message costs, whatever it carries: actors that
  are not in a hurry push each branch as soon as it is finished. So it is several times what it is under load, where
  one message carries many.
- Idle share: of the actors' time, that without any branch. The tail is the time of the last 5 % of the branches, when
  there is no work left for everybody; with so few branches per actor it is a large part of the whole.
- Fairness: Jain's index of the branches per actor, 1 when all ran equally many.
- Stolen share: branches run by an actor that does not hold their tree.
"""


def goals(result: Mapping[str, Any]) -> dict[str, bool]:
    """What the benchmark is meant to show, each true or false."""
    return {
        f"assignments_{WANTED_PER_S}_per_s": min(result["assignments_per_s"]) >= WANTED_PER_S,
        f"cost_flat_within_{WANTED_FLATNESS}": result["flatness"] <= WANTED_FLATNESS,
    }


def page(result: Mapping[str, Any], command: str) -> str:
    """The page as Markdown."""
    return PAGE.format(
        command=command,
        actors=", ".join(map(str, result["actors"])),
        **{key: result["machine"][key] for key in ("cpus", "python", "ray")},
        goals="\n".join(f"- {line}" for line in _verdicts(result)),
        rounds=f"Medians of {len(result['rounds'])} collections each, all numbers of actors in turn.",
        slots=FULL_BRANCHES,
        full=table(result["full"], FULL),
        paced=table(result["paced"], PACED),
        cap=PACED_ITEMS_PER_ACTOR,
        at_once=PACED_BRANCHES,
    )


def _verdicts(result: Mapping[str, Any]) -> list[str]:
    met = [markdown.verdict(held) for held in goals(result).values()]
    least, flatness = min(result["assignments_per_s"]), result["flatness"]
    return [
        f"At least {WANTED_PER_S:,} assignments per second with any number of actors: {met[0]} (lowest: {least:,.0f}).",
        f"The cost of an assignment flat within {WANTED_FLATNESS} times: {met[1]} ({flatness:.2f}).",
    ]


def table(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Rows as a Markdown table."""
    shown = [[f"{row[key]:,.0f}" if row[key] >= 100 else f"{row[key]:.3g}" for key in columns] for row in rows]
    return markdown.table(list(columns.values()), shown)


def main(source: str, target: str) -> None:
    """Writes the page of a JSON file."""
    command = f"python -m scripts.bench.scheduler --json {source} --page {target}"
    result = json.loads(Path(source).read_text(encoding="utf-8"))
    Path(target).write_text(page(result, command), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
