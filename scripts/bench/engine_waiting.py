"""What it costs and gains that the processes of a CPU engine sleep while they wait (`rollout_workers/vllm_waiting.py`).

    python -m scripts.bench.engine_waiting --json OUT.json [--page OUT.md] [--rounds N]

Real engines run the tiny model: two whose processes sleep, and two whose processes wait as vLLM does by itself, in a
loop. The two kinds take turns, and each round samples the same number of tokens. `tokens_per_s` is of all engines at
work; `cores_after` is the CPU time that their processes use in the second after the last token, when another process
wants to learn from what was sampled. Figures are medians over the rounds; `speed` is sleeping by looping, round by
round. The exit code is 1 if sleeping costs more than a twentieth of the speed anywhere.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from rollout_workers.engine_settings import EngineSettings, set_environment
from rollout_workers.types import Sampling
from rollout_workers.weight_names import SLEEPING
from scripts.bench import markdown
from scripts.bench.result_files import write, write_json

MODEL = Path("conf/model/tiny")
PROMPT = tuple(range(5, 65))
MODES = ("looping", "sleeping")
START_S, ROUND_S = 300.0, 120.0
MIN_SPEED = 0.95


class Engine:
    """An engine in a process of its own. Use `close` at the end."""

    def __init__(self, mode: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, mode))
        self._process.start()

    def wait_ready(self) -> None:
        """Returns when the engine has warmed up. Raises TimeoutError after `START_S` seconds."""
        self._answer(START_S, "start")

    def sample(self, requests: int, tokens: int) -> None:
        """Samples `requests` answers of `tokens` tokens side by side."""
        self._pipe.send((requests, tokens))
        self._answer(ROUND_S, "finish a round")

    def stand_by(self) -> float:
        """Does nothing for a second; gives the CPU seconds that its processes use in it."""
        self._pipe.send(())
        return self._answer(ROUND_S, "do nothing for a second")

    def close(self) -> None:
        """Ends the engine and its processes."""
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join(30)
        self._process.kill()

    def _answer(self, seconds: float, what: str) -> float:
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"an engine did not {what} within {seconds:g} s")
        answer: float = self._pipe.recv()
        return answer


def _serve(pipe: Connection, mode: str) -> None:
    asyncio.run(_work(pipe, mode))


async def _work(pipe: Connection, mode: str) -> None:
    from rollout_workers import engine as engines

    def without_sleep(settings: EngineSettings) -> None:
        set_environment(settings)
        del os.environ[SLEEPING]

    if mode == "looping":
        vars(engines)["set_environment"] = without_sleep
    engine = engines.GenerationEngine(EngineSettings(model=str(MODEL), kv_cache_gib=0.25))
    await _sampled(engine, 8, 16)
    pipe.send(0.0)
    try:
        while (wanted := await asyncio.to_thread(pipe.recv)) is not None:
            before = _cpu_seconds()
            await (_sampled(engine, *wanted) if wanted else asyncio.sleep(1.0))
            pipe.send(_cpu_seconds() - before)
    finally:
        engine.shutdown()


async def _sampled(engine: Any, requests: int, tokens: int) -> None:
    """No stop string, and an end-of-sequence token is as unlikely as any: a request that meets it is asked again."""

    async def one(seed: int) -> None:
        left = tokens
        while left > 0:
            found = await engine.generate(
                PROMPT, sampling=Sampling(temperature=1.0), seed=seed + left, stop=(), max_tokens=left
            )
            left -= len(found.token_ids)

    await asyncio.gather(*(one(1000 * place) for place in range(requests)))


def _cpu_seconds() -> float:
    family = psutil.Process()
    times = [process.cpu_times() for process in (family, *family.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def measured(engines: Sequence[Engine], requests: int, tokens: int) -> dict[str, float]:
    """One round of all `engines` at once."""
    with ThreadPoolExecutor(len(engines)) as pool:
        started = time.perf_counter()
        list(pool.map(lambda engine: engine.sample(requests, tokens), engines))
        seconds = time.perf_counter() - started
        after = list(pool.map(Engine.stand_by, engines))
    return {"tokens_per_s": len(engines) * requests * tokens / seconds, "cores_after": sum(after)}


def row(engines: int, requests: int, rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Medians of one setting, e.g. of two engines with 16 requests each."""
    found: dict[str, float] = {"engines": engines, "requests": requests}
    for mode in MODES:
        for key in ("tokens_per_s", "cores_after"):
            found[f"{mode}_{key}"] = statistics.median(one[mode][key] for one in rounds)
    speeds = [one["sleeping"]["tokens_per_s"] / one["looping"]["tokens_per_s"] for one in rounds]
    return found | {"speed": statistics.median(speeds)}


def page(rows: Sequence[Mapping[str, float]], command: str, settings: Mapping[str, object]) -> str:
    """The result as Markdown."""
    columns = tuple(rows[0])
    is_free = all(one["speed"] >= MIN_SPEED for one in rows)
    return PAGE.format(
        **settings,
        command=command,
        verdict=markdown.verdict(is_free),
        table=markdown.table(columns, [[f"{one[column]:.3g}" for column in columns] for one in rows]),
    )


PAGE = """# How an engine's processes wait

    {command}

Engines of the tiny model on {cores} cores; {rounds} rounds of {tokens} tokens per request, medians.

- Sleeping costs at most a twentieth of the speed: {verdict}.

{table}

- `looping`: an engine's core and its worker wait for each other as vLLM does by itself. `sleeping`: as ours do.
- `cores_after`: cores that they use in the second after the last token. On a small machine the learner needs them.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table and writes the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file for the result")
    parser.add_argument("--page", type=Path, help="also write the result as Markdown")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each setting (default 9)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each request (default 100)")
    options = parser.parse_args(arguments)
    engines: dict[str, list[Engine]] = {mode: [] for mode in MODES}
    rows = []
    try:
        for mode in (*MODES, *MODES):
            engines[mode].append(Engine(mode))
            engines[mode][-1].wait_ready()
        for count, requests in ((1, 1), (1, 16), (2, 1), (2, 16)):
            rounds = []
            for _ in range(options.rounds):
                one = {}
                for mode in MODES:
                    one[mode] = measured(engines[mode][:count], requests, options.tokens)
                rounds.append(one)
            rows.append(row(count, requests, rounds))
    finally:
        for engine in (*engines["looping"], *engines["sleeping"]):
            engine.close()
    settings = {"cores": os.cpu_count(), "rounds": options.rounds, "tokens": options.tokens}
    write_json(options.json, {"rows": rows, "settings": settings})
    command = " ".join(["python -m scripts.bench.engine_waiting", *(sys.argv[1:] if arguments is None else arguments)])
    text = page(rows, command, settings)
    if options.page is not None:
        write(options.page, text)
    print(text)
    return 0 if all(one["speed"] >= MIN_SPEED for one in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
