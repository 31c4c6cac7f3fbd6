"""The quickstart's search environment, which misbehaves where a plan says so, or when a file appears.

An environment for `env=custom env.path=scripts.chaos_worlds.make_env`; the keyword arguments of `make_env` are its
`env.options`.
"""

import asyncio
import json
import random
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from envs.registry import make_retriever
from envs.rewards import CheckedReward, PaperReward
from envs.scoring import SCORES
from envs.search_env import SearchEnv, SearchState
from envs.settings import HttpRetrieverSettings
from envs.types import EndReason, StepResult, Task

HUGE = "It is a very long story. " * 2_000_000
"""50 million characters."""
BROKEN_TEXT = "caf\udce9 \ud800 au lait"
"""What is read from bytes that are no UTF-8, with halves of surrogate pairs."""
READ_AS = "caf? ? au lait"
"""What the agent sees of it."""
BLOCKED_S = 3600.0
STRIKES = 4
"""Tasks on which each fault is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """Where the environment misbehaves: in every second of the branches that make this step of this task."""

    fault: str
    step: int
    """Training step to which the task belongs."""
    turn: int
    """Searches made before, 0 or 1."""
    parity: int
    """0: the first such branch behaves and the second does not; 1: the other way round."""


def drawn(faults: Sequence[str], tasks: Mapping[int, Sequence[str]], chance: random.Random) -> dict[str, Strike]:
    """Task id → what strikes it: for each fault `STRIKES` of the tasks (training step → ids), none of them twice."""
    places = [(step, task) for step, ids in tasks.items() for task in ids]
    return {
        task: Strike(fault=fault, step=step, turn=chance.randrange(2), parity=chance.randrange(2))
        for fault, (step, task) in zip(
            [fault for fault in faults for _ in range(STRIKES)],
            chance.sample(places, STRIKES * len(faults)),
            strict=True,
        )
    }


def write_plan(file: Path, plan: Mapping[str, Strike]) -> None:
    """For `make_env`."""
    file.write_text(json.dumps({task: asdict(strike) for task, strike in plan.items()}), encoding="utf-8")


def struck(plan: Path) -> Counter[str]:
    """Task id → how often it was struck; what `UnreliableEnv` wrote down beside its plan."""
    file = _strikes_of(plan)
    return Counter(file.read_text(encoding="utf-8").splitlines() if file.exists() else ())


def _strikes_of(plan: Path) -> Path:
    return plan.with_suffix(".struck")


def make_env(*, url: str, plan: str = "", trigger: str = "", timeout_s: float = 3.0) -> "UnreliableEnv":
    """`url`: a retrieval server, `timeout_s` for one attempt of a search; there are two. `plan`: see `write_plan`.

    `trigger`: a file that holds `reset` or `step`. The first environment that meets it there removes it and blocks.
    """
    retriever = make_retriever(HttpRetrieverSettings(kind="http", url=url, timeout_s=timeout_s, retries=1))
    made = PaperReward()
    reward = CheckedReward(name="paper", function=made, range=made.range)
    env = SearchEnv(retriever, score=SCORES["em"], reward=reward, max_tool_seconds=60.0)
    return UnreliableEnv(env, Path(plan) if plan else None, Path(trigger) if trigger else None)


class UnreliableEnv:
    """Behaves, but where the plan strikes and where the trigger blocks."""

    def __init__(self, env: SearchEnv, plan: Path | None, trigger: Path | None) -> None:
        self._env = env
        self._file = plan
        known = json.loads(plan.read_text(encoding="utf-8")) if plan else {}
        self._plan = {task: Strike(**strike) for task, strike in known.items()}
        self._visits: Counter[str] = Counter()
        self._trigger = trigger
        self.stop = env.stop

    def reset(self, task: Task) -> SearchState:
        """See `envs.types.Env`."""
        self._block("reset")
        return self._env.reset(task)

    async def step(self, state: SearchState, action: str, *, turns_left: int) -> tuple[SearchState, StepResult]:
        """See `envs.types.Env`."""
        self._block("step")
        fault = self._fault(state)
        if fault in ("env_raises", "env_hangs", "env_junk"):
            self._note(state)
        if fault == "env_raises":
            raise RuntimeError(f"the world broke on {BROKEN_TEXT}")
        if fault == "env_hangs":
            await asyncio.Event().wait()
        if fault == "env_junk":
            made: tuple[SearchState, StepResult] = self._junk(state)
            return made
        following, result = await self._env.step(state, action, turns_left=turns_left)
        text = {"env_huge_text": HUGE, "env_not_utf8": BROKEN_TEXT}.get(fault)
        if text is None or result.end is not None:
            return following, result
        self._note(state)
        return following, replace(result, observation=text)

    def _fault(self, state: SearchState) -> str:
        strike = self._plan.get(state.task_id)
        if strike is None or state.searches != strike.turn:
            return ""
        self._visits[state.task_id] += 1
        return strike.fault if self._visits[state.task_id] % 2 == strike.parity else ""

    def _note(self, state: SearchState) -> None:
        assert self._file is not None, "only a plan strikes"
        with _strikes_of(self._file).open("a", encoding="utf-8") as file:  # one short write: actors do not mix lines
            file.write(f"{state.task_id}\n")

    def _block(self, where: str) -> None:
        """Stops the whole process for an hour, as an environment does that waits without `await`."""
        if self._trigger is None or not self._trigger.exists():
            return
        try:
            if self._trigger.read_text(encoding="utf-8") != where:
                return
            self._trigger.unlink()
        except FileNotFoundError:  # another one was first
            return
        time.sleep(BLOCKED_S)

    @staticmethod
    def _junk(state: SearchState) -> Any:
        """One of the results that no environment may give, the same for every step of a task."""
        return (
            None,
            (state, {"observation": "text"}),
            (state, StepResult(observation=b"bytes")),  # type: ignore[arg-type]
            (state, StepResult(end=EndReason.ANSWERED, reward=float("nan"), score=1.0)),
            (state, StepResult(end=EndReason.ANSWERED, reward="1", score=None)),  # type: ignore[arg-type]
        )[zlib.crc32(state.task_id.encode()) % 5]
