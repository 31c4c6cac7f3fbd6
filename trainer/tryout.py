"""Command: plays tasks with a Hugging Face model and no engine, actors or Ray: a quick look at a starting policy.

`python -m trainer.tryout --model conf/model/tiny --tasks T.jsonl --corpus C.jsonl` prints success by hops; with
`--games FOLDER` instead of a corpus it plays text adventures. All tasks take each turn together, in batches.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from envs.retriever import LocalRetriever
from envs.rewards import PaperReward
from envs.scoring import exact_match
from envs.search_env import SearchEnv
from envs.tasks import load_tasks
from envs.textworld_env import TextWorldEnv
from envs.types import EndReason, Env, StepResult, Task
from trainer.demonstrations import prompt_ids


@dataclass(slots=True, kw_only=True)
class Game:
    """One task being played."""

    task: Task
    ids: list[int]
    """Prompt, sampled steps and observations so far."""
    state: Any
    texts: list[str] = field(default_factory=list)
    """Agent steps and observations, for people."""
    turns: int = 0
    """Agent steps so far."""
    result: StepResult | None = None
    """Set at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How a game is played."""

    max_turns: int = 4
    """Tool turns; one answer-only turn follows."""
    max_turn_tokens: int = 48
    temperature: float = 0.0
    """0 is greedy."""
    batch: int = 50
    """Games that take a turn at once."""


async def play(model: Any, tokenizer: Any, env: Env[Any], tasks: Sequence[Task], limits: Limits) -> list[Game]:
    """Plays every task to its end."""
    games = [Game(task=task, ids=prompt_ids(tokenizer, task.prompt), state=env.reset(task)) for task in tasks]
    for turn in range(limits.max_turns + 1):
        going = sorted((game for game in games if game.result is None), key=lambda game: len(game.ids))
        for first in range(0, len(going), limits.batch):
            await _turn(model, tokenizer, env, going[first : first + limits.batch], limits, turn)
    assert all(game.result is not None for game in games), "the answer-only turn ends every game"
    return games


async def _turn(model: Any, tokenizer: Any, env: Env[Any], games: Sequence[Game], limits: Limits, turn: int) -> None:
    for game, sampled in zip(games, _sample(model, tokenizer, env.stop, games, limits), strict=True):
        text = str(tokenizer.decode(sampled, skip_special_tokens=True))
        game.state, result = await env.step(game.state, text, turns_left=limits.max_turns - turn - 1)
        game.texts += [text, result.observation] if result.observation else [text]
        game.turns += 1
        game.ids += [*sampled, *tokenizer.encode(result.observation, add_special_tokens=False)]
        if result.end is not None:
            game.result = result


@torch.no_grad()
def _sample(model: Any, tokenizer: Any, stop: Sequence[str], games: Sequence[Game], limits: Limits) -> list[list[int]]:
    """Ids of the next agent step of each game, the stop string's included."""
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    longest = max(len(game.ids) for game in games)
    ids_BT = torch.tensor([[pad] * (longest - len(game.ids)) + game.ids for game in games])
    seen_BT = torch.tensor([[0] * (longest - len(game.ids)) + [1] * len(game.ids) for game in games])
    greedy = limits.temperature == 0
    made_BT = model.generate(
        input_ids=ids_BT,
        attention_mask=seen_BT,
        max_new_tokens=limits.max_turn_tokens,
        stop_strings=list(stop),
        tokenizer=tokenizer,
        pad_token_id=pad,
        do_sample=not greedy,
        **({} if greedy else {"temperature": limits.temperature, "top_k": 0, "top_p": 1.0}),
    )
    return [_until_stop(row, tokenizer, stop) for row in made_BT[:, longest:].tolist()]


def _until_stop(row: Sequence[int], tokenizer: Any, stop: Sequence[str]) -> list[int]:
    """Cuts the padding that follows the first stop string."""
    for length in range(1, len(row) + 1):
        if any(text in tokenizer.decode(row[:length]) for text in stop):
            return list(row[:length])
    return list(row)


def report(games: Sequence[Game]) -> list[str]:
    """A line per level (hops of a question, steps of a game) and a total, e.g. `"hops 2: success 0.410 of 50"`.

    Then the mean score, reward, turns and tokens of a game, and why games ended.
    """
    right: Counter[str] = Counter()
    every: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for game in games:
        assert game.result is not None
        for key in (_level(game.task), "total"):
            every[key] += 1
            right[key] += game.result.score == 1.0
        ends[str(game.result.end or EndReason.ENV_ERROR)] += 1
    lines = [f"{key}: success {right[key] / every[key]:.3f} of {every[key]}" for key in sorted(every)]
    return [*lines, _means(games), "ended: " + ", ".join(f"{end} {count}" for end, count in ends.most_common())]


def _level(task: Task) -> str:
    return f"steps {task.meta['steps']}" if "steps" in task.meta else f"hops {task.meta.get('hops', '?')}"


def _means(games: Sequence[Game]) -> str:
    """E.g. `"means: score 0.41, reward 0.38, 9.5 turns, 412 tokens"`."""
    results = [game.result for game in games if game.result is not None]
    score = sum(result.score or 0.0 for result in results) / len(games)
    reward = sum(result.reward or 0.0 for result in results) / len(games)
    turns, tokens = sum(game.turns for game in games) / len(games), sum(len(game.ids) for game in games) / len(games)
    return f"means: score {score:.3f}, reward {reward:.3f}, {turns:.1f} turns, {tokens:.0f} tokens"


def run(options: argparse.Namespace) -> None:
    """Loads, plays, prints. Raises ValueError for wrong files."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(options.seed)
    tasks = load_tasks(options.tasks, instruction=options.instruction, limit=options.count) * options.samples
    env = _env(options)
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype="auto")
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {options.model} cannot be loaded: {str(error).splitlines()[0]}") from None
    limits = Limits(
        max_turns=options.max_turns, max_turn_tokens=options.max_turn_tokens, temperature=options.temperature
    )
    games = asyncio.run(play(model, tokenizer, env, tasks, limits))
    print("\n".join(report(games)))
    for game in games[: options.show]:
        score = game.result.score if game.result else None
        print(f"\n{game.task.prompt[-1].content}  [{' / '.join(game.task.truth)}]  score {score}")
        print("\n".join(f"    {text}" for text in game.texts))


def _env(options: argparse.Namespace) -> Env[Any]:
    if options.games:
        return TextWorldEnv(options.games, reward=PaperReward())
    return SearchEnv(
        LocalRetriever.from_file(options.corpus), score=exact_match, reward=PaperReward(), topk=options.topk
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    try:
        run(_parser().parse_args(arguments))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.tryout", description="Plays tasks with a model.")
    parser.add_argument("--model", required=True, help="Hugging Face folder or hub id")
    parser.add_argument("--tasks", type=Path, required=True, help="task file")
    world = parser.add_mutually_exclusive_group(required=True)
    world.add_argument("--corpus", type=Path, help="corpus file of questions")
    world.add_argument("--games", type=Path, help="folder of text adventures")
    parser.add_argument("--count", type=int, default=150, help="tasks, from the start of the file (default 150)")
    parser.add_argument("--samples", type=int, default=1, help="games per task (default 1)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--topk", type=int, default=1, help="passages per search (default 1)")
    parser.add_argument("--max-turns", type=int, default=4, help="tool turns (default 4)")
    parser.add_argument("--max-turn-tokens", type=int, default=48, help="tokens of a step (default 48)")
    parser.add_argument("--instruction", default="", help="text before the question, as env.instruction")
    parser.add_argument("--show", type=int, default=0, help="games to print in full")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
