"""The page about the rollout benchmark, made of its JSON file, and whether its goals were reached.

python -m scripts.bench.rollout_page docs/results/rollout.json docs/results/rollout.md
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.bench.markdown import table, verdict

Row = dict[str, Any]

PAGE = """# Rollouts: branching, the prefix cache, barriers

    {command}

One engine on one CPU thread, the tiny model, all collections one after the other, with the same tasks and seed for
trees and chains: {tasks} tasks, half as many in those with long observations and with barriers; {cpus} cores. The
worlds are real ones, questions over the corpus and TextWorld, but what the model says is turned into a valid action, so
that every trajectory has the same number of turns: it can't play text adventures, and would answer questions too early.
Every collection checks that the ledger agrees with the engine's own counters. The figures are those of
[rollout.json](rollout.json); the exit code is 1 if a goal was missed.

{verdicts}

## Trees against chains

Leaves per 1,000 tokens (sampled, and computed prefill) of trees and of as many chains. The cost formula expects: a
branch costs (D + 1) / (2·D) of a chain of D turns, so (M, N, L) has (1 + L·N) / (1 + L·N·(D + 1) / (2·D)) times the
leaves. Measured ratios are above it because a branch of n turns has only n - 1 observations, and below it where paths
say the same and share their blocks, which chains do more often than the branches of a tree.

{configs}

In time it is {leaves_per_s_ratio:.2f} times the leaves per second for (2, 6, 1) at 10 turns, the engine busy for
{engine_busy:.0%} of it.

## The prefix cache

Computed ÷ unique prefill: 1 is each token once, and less is possible only where siblings say the same. The bound is
what a cache of whole blocks allows, here of 32 tokens (see [architecture.md](../architecture.md), The ledger).

{prefill}

**At most 1.05 with long observations holds with `rollout.keep_turns=true` only.** With that the steps of a branch are
one open request of vLLM, which computes the last sampled token and the observation, and nothing twice; without it, the
part of a block before them too. Short steps gain most: with open requests the collection took {kept_s_ratio:.2f} times
the seconds.

`experiment=textworld` has it on. Elsewhere it is off, for four reasons:

- An open request does not look into the prefix cache for its later steps. Where siblings often say the same, plain
  requests find each other's blocks: on the questions above with (2, 6, 1) they compute only {questions_overhead:.2f} of
  the unique tokens.
- A push must end the open requests that wait for their environment: their keys and values can't be cleared, and vLLM
  refuses the whole pause if one is left. Their branches go on with plain requests.
- They hold memory, and one of the engine's places, while they wait: the cache must have room for all branches at their
  longest, which is checked at the start.
- It needs stop strings that are single tokens, which few models' tokenizers have; elsewhere it changes nothing.

On GPUs blocks have 16 tokens, so that there is about half as much to gain. It is meant for many short steps, and for
long, distinct observations, on CPUs. (The observations of 300 tokens are those of branches sampled at temperature
{long_temperature:g}, so that no two say the same and find each other's blocks.)

## Barriers

The same trees freely, and with every turn and every round taken together; environment calls of log-normal duration
(σ {sigma:g}: of 20 one takes over 7 times the median, of 100 over 16).

{barriers}

The goal is judged on the slower calls, those of a service such as a web search; the faster ones are those of a tool on
the same machine. What barriers waste is waiting: the busier the engine is without them, the less they can cost, and on
one CPU thread it is busy soon.
"""


def goals(result: Row) -> Row:
    """What the benchmark is meant to show, each true or false."""
    return {
        "ratios_within_5_percent": all(
            row["leaves_ratio"] >= 0.95 * row["expected_ratio"] for row in result["configs"]
        ),
        "leaves_ratio_1.5": result["leaves_ratio"] >= 1.5,
        "prefill_overhead_within_block_bound": result["prefill_overhead"] <= result["block_bound"],
        "prefill_overhead_long_1.05": result["prefill_overhead_long"] <= 1.05,
        "barriers_1.5_times_slower": result["barrier_s"] >= 1.5 * result["continuous_s"],
    }


def page(result: Row, command: str) -> str:
    """The page as Markdown."""
    settings = result["settings"]
    return PAGE.format(
        command=command,
        tasks=settings["tasks"],
        cpus=settings["cpus"],
        long_temperature=settings["long_temperature"],
        verdicts=_verdicts(result),
        configs=table(("task", "turns", "(M, N, L)", "trees", "chains", "ratio", "expected"), _configs(result)),
        prefill=table(("observations", "requests", "computed ÷ unique", "bound of whole blocks"), _prefill(result)),
        barriers=table(
            ("median call, s", "freely, s", "with barriers, s", "times as long", "engine busy freely", "with barriers"),
            _barriers(result),
        ),
        sigma=result["barriers"][0]["sigma"],
        questions_overhead=result["configs"][1]["tree_ledger"]["prefill_overhead"],
        **{key: result[key] for key in ("leaves_per_s_ratio", "engine_busy", "kept_s_ratio")},
    )


def _verdicts(result: Row) -> str:
    worst = min(row["leaves_ratio"] / row["expected_ratio"] for row in result["configs"])
    slower = result["barrier_s"] / result["continuous_s"]
    said = (
        f"Each ratio at least its expected one within 5 %: {{}} (lowest: {worst:.2f} of it).",
        f"At least 1.5 times the leaves for (2, 6, 1) at 10 turns: {{}} ({result['leaves_ratio']:.2f}).",
        f"Prefill overhead of short steps within the bound of whole blocks: {{}} ({result['prefill_overhead']:.2f} and "
        f"{result['block_bound']:.2f}).",
        f"At most 1.05 with observations of 300 tokens: {{}} with open requests "
        f"({result['prefill_overhead_long']:.2f}; {result['prefill_overhead_long_plain']:.2f} with plain ones).",
        f"Barriers at least 1.5 times as long: {{}} ({slower:.2f} times).",
    )
    held = map(verdict, goals(result).values())
    return "\n".join(f"- {line.format(word)}" for line, word in zip(said, held, strict=True))


def _configs(result: Row) -> list[list[str]]:
    names = {"questions": "questions", "textworld": "TextWorld"}
    return [
        [
            names[row["task"]],
            f"{row['turns']:g}",
            f"({', '.join(map(str, row['tree']))})",
            *(
                f"{row[key]:.2f}"
                for key in ("tree_leaves_per_1k_tokens", "chain_leaves_per_1k_tokens", "leaves_ratio", "expected_ratio")
            ),
        ]
        for row in result["configs"]
    ]


def _prefill(result: Row) -> list[list[str]]:
    kept = result["kept_ledgers"]
    found = (
        ("short (TextWorld)", "plain", result),
        ("short (TextWorld)", "open", kept["textworld"]),
        ("300 tokens", "plain", kept["long_plain"]),
        ("300 tokens", "open", kept["long"]),
    )
    return [
        [what, requests, f"{part['prefill_overhead']:.2f}", f"{part['block_bound']:.2f}"]
        for what, requests, part in found
    ]


def _barriers(result: Row) -> list[list[str]]:
    return [
        [
            f"{row['median_s']:g}",
            *(f"{row[key]:.1f}" for key in ("continuous_s", "barrier_s")),
            f"{row['ratio']:.2f}",
            *(f"{row[key]:.0%}" for key in ("engine_busy_continuous", "engine_busy_barriers")),
        ]
        for row in result["barriers"]
    ]


def main(source: str, target: str) -> None:
    """Writes the page of a JSON file."""
    result: Mapping[str, Any] = json.loads(Path(source).read_text(encoding="utf-8"))
    command = f"python -m scripts.bench.rollout --json {source} --page {target}"
    Path(target).write_text(page(dict(result), command), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
