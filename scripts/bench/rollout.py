"""What branching saves in rollouts, what the prefix cache saves, and what barriers cost: trees against chains.

    python -m scripts.bench.rollout --json OUT.json [--page OUT.md] [--tasks N] [--seed N] [--model FOLDER]

One engine for everything; the tiny policy samples, in worlds of a fixed number of turns (`rollout_worlds`). Needs
`python -m envs.prepare --out data/quickstart` and `python -m envs.textworld_games --out data/textworld`.

`configs`: per world and tree (roots M, nodes per round N, rounds L) leaves per 1,000 tokens (sampled, and computed
prefill) of trees and of as many chains as the trees have leaves; `expected_ratio` is the cost formula of docs/method.md
with the measured number D of turns: (1 + L·N) / (1 + L·N·(D + 1) / (2·D)). `prefill_*` and `block_bound` are of the
trees with short observations, in ten turns, each step a request of its own; `prefill_overhead_kept` of the same trees
with `rollout.keep_turns`, in `kept_s_ratio` times the seconds. `prefill_overhead_long` is of trees with observations of
300 tokens, with `rollout.keep_turns`; `prefill_overhead_long_plain` without it, where a cache of whole blocks allows
`block_bound_long` at best.
`barrier_s` and `continuous_s` are the same work, with environment calls of log-normal duration.
"""

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pydantic import TypeAdapter

from envs.corpus import read_corpus
from envs.registry import make_env
from envs.search_env import SearchEnv
from envs.settings import EnvSettings
from envs.tasks import load_tasks
from envs.textworld_env import TextWorldEnv
from rollout_workers.engine_settings import EngineSettings
from rollout_workers.growth import TreeRules
from rollout_workers.types import Sampling
from scripts.bench.result_files import print_json, say, write, write_json
from scripts.bench.rollout_page import goals, page
from scripts.bench.rollout_runs import Bench, Outcome, Work
from scripts.bench.rollout_worlds import Adventures, Questions, Reading, Slow

Row = dict[str, Any]
SHAPES = ((2, 2, 1), (2, 6, 1))
"""(roots, nodes per round, rounds)."""
QUESTION_TURNS, GAME_TURNS = 4, 10
LONG_OBSERVATION = 300
LONG_TEMPERATURE = 2.0
"""Of the world with long observations."""
MEDIANS_S, SIGMA = (0.05, 0.2), 1.2
"""Of an environment call in the comparison with barriers: of 20 one takes over 7 times the median, of 100 over 16. The
first is a tool on this machine, the second a service such as a web search; the figures at the top are the second's."""
BASE = Sampling(max_turn_tokens=32, max_context_tokens=2048, max_prompt_tokens=256, max_observation_tokens=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worlds:
    """What is collected, without the tree."""

    questions: Work
    games: Work
    reading: Work
    slow: tuple[Work, ...]
    """One for each of `MEDIANS_S`."""


def rules(shape: tuple[int, int, int]) -> TreeRules:
    """A tree of the given roots, nodes per round, and rounds."""
    return TreeRules(roots=shape[0], nodes_per_round=shape[1], rounds=shape[2])


def make_worlds(data: Path, games: Path, tasks: int, seed: int) -> Worlds:
    """Raises ValueError for missing files."""
    search = make_env(_settings("search", data, {"retriever": {"kind": "local", "corpus": data / "corpus.jsonl"}}))
    assert isinstance(search, SearchEnv)
    questions = Questions(search)
    world = make_env(_settings("textworld", games, {"games": games / "games"}))
    assert isinstance(world, TextWorldEnv)
    passages = [f"{passage.title}: {passage.text}" for passage in read_corpus(data / "corpus.jsonl")]
    asked = tuple(load_tasks(data / "train.jsonl")[:tasks])
    played = tuple(load_tasks(games / "train.jsonl")[:tasks])
    four = replace(BASE, max_turns=QUESTION_TURNS - 1)  # and one turn that can only answer
    # Hot enough that no two branches say the same, and so see the same, which the cache would hold for both.
    long = replace(four, max_observation_tokens=LONG_OBSERVATION, temperature=LONG_TEMPERATURE)
    none = TreeRules()
    return Worlds(
        questions=Work(env=questions, tasks=asked, rules=none, sampling=four, seed=seed),
        games=Work(
            env=Adventures(world), tasks=played, rules=none, sampling=replace(BASE, max_turns=GAME_TURNS), seed=seed
        ),
        reading=Work(env=Reading(passages, 12), tasks=asked[: tasks // 2], rules=none, sampling=long, seed=seed),
        slow=tuple(
            Work(env=Slow(questions, median_s, SIGMA), tasks=asked[: tasks // 2], rules=none, sampling=four, seed=seed)
            for median_s in MEDIANS_S
        ),
    )


def _settings(name: str, folder: Path, more: Mapping[str, object]) -> Any:
    tasks = {"train_tasks": folder / "train.jsonl", "eval_tasks": folder / "heldout.jsonl"}
    return TypeAdapter(EnvSettings).validate_python({"name": name, **tasks, **more})


def chains_for(shape: tuple[int, int, int]) -> TreeRules:
    """As many independent chains as the tree has leaves per task."""
    leaves = shape[0] * rules(shape).leaves_per_tree
    return TreeRules(roots=leaves, nodes_per_round=0, rounds=0)


def expected_ratio(shape: tuple[int, int, int], turns: float) -> float:
    """Leaves per cost of trees over those of chains of `turns` D: a branch costs (D + 1) / (2·D) of a chain.

    E.g. (2, 6, 1) with 10 turns: 7 / (1 + 6 · 0.55) = 1.63.
    """
    branches = rules(shape).leaves_per_tree - 1
    return (1 + branches) / (1 + branches * (turns + 1) / (2 * turns))


async def compare(bench: Bench, world: str, work: Work, shape: tuple[int, int, int]) -> tuple[Row, Outcome, Outcome]:
    """Trees against chains; (row of the result, trees, chains)."""
    chains = await bench.run(replace(work, rules=chains_for(shape)))
    trees = await bench.run(replace(work, rules=rules(shape)))
    assert chains.ledger.leaves == trees.ledger.leaves
    row = {
        "task": world,
        "turns": round(chains.turns, 3),
        "tree": list(shape),
        "tree_leaves_per_1k_tokens": trees.leaves_per_1k_tokens,
        "chain_leaves_per_1k_tokens": chains.leaves_per_1k_tokens,
        "leaves_ratio": trees.leaves_per_1k_tokens / chains.leaves_per_1k_tokens,
        "expected_ratio": expected_ratio(shape, chains.turns),
        "tree_s": trees.seconds,
        "chain_s": chains.seconds,
        "tree_ledger": _ledger(trees),
        "chain_ledger": _ledger(chains),
    }
    say("  ".join(f"{key} {_text(value)}" for key, value in row.items() if "ledger" not in key))
    return row, trees, chains


def _ledger(outcome: Outcome) -> Row:
    ledger = outcome.ledger
    return {
        "leaves": ledger.leaves,
        "sampled_tokens": ledger.sampled_tokens,
        "surplus_tokens": ledger.surplus_tokens,
        "prefill_computed": ledger.prefill_tokens_computed,
        "prefill_cached": ledger.prefill_tokens_cached,
        "prefill_kept": ledger.prefill_tokens_kept,
        "prefill_unique": ledger.prefill_tokens_unique,
        "prefill_overhead": ledger.prefill_tokens_computed / ledger.prefill_tokens_unique,
        "block_bound": (ledger.prefill_tokens_unique + ledger.prefill_tokens_block_bound)
        / ledger.prefill_tokens_unique,
        "recomputed_tokens": ledger.recomputed_tokens,
    }


async def measure(bench: Bench, worlds: Worlds) -> Row:
    """Everything, one collection after the other."""
    await bench.warm_up(worlds.questions.tasks[:2], worlds.questions.sampling)
    await bench.run(replace(worlds.questions, tasks=worlds.questions.tasks[:4], rules=rules((2, 2, 1))))
    configs: list[Row] = []
    for name, work in (("questions", worlds.questions), ("textworld", worlds.games)):
        for shape in SHAPES:
            row, trees, chains = await compare(bench, name, work, shape)
            configs.append(row)
    short = configs[-1]["tree_ledger"]
    kept = await bench.run(replace(worlds.games, rules=rules(SHAPES[-1])), keep_turns=True)
    reading = replace(worlds.reading, rules=rules((2, 2, 1)))
    long, long_kept = await bench.run(reading), await bench.run(reading, keep_turns=True)
    barriers = [await against_barriers(bench, *each) for each in zip(MEDIANS_S, worlds.slow, strict=True)]
    return {
        "configs": configs,
        "leaves_ratio": configs[-1]["leaves_ratio"],
        **{key: short[key] for key in ("prefill_computed", "prefill_unique", "prefill_overhead", "block_bound")},
        "prefill_overhead_kept": _ledger(kept)["prefill_overhead"],
        "kept_s_ratio": kept.seconds / trees.seconds,
        "prefill_overhead_long": _ledger(long_kept)["prefill_overhead"],
        "prefill_overhead_long_plain": _ledger(long)["prefill_overhead"],
        "block_bound_long": _ledger(long)["block_bound"],
        "kept_ledgers": {"textworld": _ledger(kept), "long": _ledger(long_kept), "long_plain": _ledger(long)},
        "leaves_per_s_ratio": (trees.ledger.leaves / trees.seconds) / (chains.ledger.leaves / chains.seconds),
        "barriers": barriers,
        "continuous_s": barriers[-1]["continuous_s"],
        "barrier_s": barriers[-1]["barrier_s"],
        "engine_busy": trees.ledger.engine_busy_s / trees.seconds,
    }


async def against_barriers(bench: Bench, median_s: float, slow: Work) -> Row:
    """The same trees freely, and with every turn and every round taken together."""
    slow = replace(slow, rules=rules((2, 2, 1)))
    free, held = await bench.run(slow), await bench.run(slow, barriers=True)
    assert free.ledger.leaves == held.ledger.leaves
    return {
        "median_s": median_s,
        "sigma": SIGMA,
        "continuous_s": free.seconds,
        "barrier_s": held.seconds,
        "ratio": held.seconds / free.seconds,
        "engine_busy_continuous": free.ledger.engine_busy_s / free.seconds,
        "engine_busy_barriers": held.ledger.engine_busy_s / held.seconds,
    }


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


async def _run(given: argparse.Namespace, worlds: Worlds) -> Row:
    bench = Bench(
        EngineSettings(
            model=str(given.model),
            max_context_tokens=BASE.max_context_tokens,
            max_branches=given.branches,
            kv_cache_gib=2.0,
            keep_turns=True,
            seed=given.seed,
        )
    )
    try:
        return await measure(bench, worlds)
    finally:
        bench.shutdown()


def main() -> int:
    """Measures, prints, writes JSON and page; the exit code is 1 if a goal was missed, 2 if files are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--page", type=Path, help="also write the result as Markdown")
    parser.add_argument("--tasks", type=int, default=32, help="tasks per collection; half as many in the long ones")
    parser.add_argument("--branches", type=int, default=128, help="branches that run at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=Path("conf/model/tiny"), help="Hugging Face folder")
    parser.add_argument("--data", type=Path, default=Path("data/quickstart"))
    parser.add_argument("--games", type=Path, default=Path("data/textworld"))
    given = parser.parse_args()
    try:
        worlds = make_worlds(given.data, given.games, given.tasks, given.seed)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result = asyncio.run(_run(given, worlds))
    settings = {"tasks": given.tasks, "branches": given.branches, "seed": given.seed, "model": str(given.model)}
    reached = goals(result)
    settings |= {"long_temperature": LONG_TEMPERATURE, "machine": platform.machine(), "cpus": os.cpu_count()}
    result |= {"goals": reached, "settings": settings}
    print_json(result, without=("kept_ledgers",))
    write_json(given.json, result)
    if given.page is not None:
        command = " ".join(["python -m scripts.bench.rollout", *sys.argv[1:]])
        write(given.page, page(result, command))
    return 0 if all(reached.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
