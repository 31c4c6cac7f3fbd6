"""Worlds of the rollout benchmark: real environments whose trajectories all take the same number of turns.

The tiny policy samples its own steps; what it says is turned into a valid action, since it can neither play text
adventures nor be relied on to search four times. So the tokens, the observations and the states are real ones, and
the number of turns is fixed.
"""

import asyncio
import math
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from zlib import crc32

from envs.decisions.types import Ask
from envs.textworld_env import GameState, TextWorldEnv
from envs.types import EndReason, Env, StepResult, Task
from rollout_workers.branch import Conversational, Policy
from rollout_workers.types import Completion, Sampling

STOP: tuple[str, ...] = ("</search>", "</answer>")
"""What the tiny model ends its steps with, in any world."""
QUERY_WORDS = 8


class Unhurried:
    """A policy whose steps count as ended when they reach the token limit.

    In a world that it does not know, the tiny model often repeats a word for ever; that would end its trajectories.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: Ask | None = None,
    ) -> Completion:
        """Samples one step."""
        sample = await self._policy.generate(
            prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
        )
        return replace(sample, finished="stop")

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Policy]:
        """One branch's hold on the policy below."""
        assert isinstance(self._policy, Conversational)
        async with self._policy.conversation() as below:
            yield Unhurried(below)


class Questions:
    """A question answering environment in which the agent searches until only an answer is left to give."""

    stop: tuple[str, ...] = STOP

    def __init__(self, env: Env[Any]) -> None:
        self._env = env

    def reset(self, task: Task) -> Any:
        """The environment's own state."""
        return self._env.reset(task)

    async def step(self, state: Any, action: str, *, turns_left: int) -> tuple[Any, StepResult]:
        """Searches for the last words of whatever was said."""
        if turns_left >= 0:
            words = re.sub(r"<[^>]*>", " ", action).split()
            action = f"<think>.</think><search>{' '.join(words[-QUERY_WORDS:]) or 'city'}</search>"
        return await self._env.step(state, action, turns_left=turns_left)


class Adventures:
    """TextWorld, where what was said chooses among the commands that are possible now."""

    stop: tuple[str, ...] = STOP

    def __init__(self, env: TextWorldEnv) -> None:
        self._env = env

    def reset(self, task: Task) -> GameState:
        """The start of the game."""
        return self._env.reset(task)

    async def step(self, state: GameState, action: str, *, turns_left: int) -> tuple[GameState, StepResult]:
        """One command of the game, one after which it goes on if there is any."""
        position = self._env.position(state)
        commands = sorted(position.commands) or ["look"]
        first = crc32(action.encode()) % len(commands)
        turns = [*commands[first:], *commands[:first]]
        after = ((command, position.after(command)) for command in turns if command in position.commands)
        command = next((command for command, then in after if not (then.won or then.lost)), turns[0])
        return await self._env.step(state, f"<act>{command}</act>", turns_left=turns_left)


class Reading:
    """Answers every step with passages of a corpus, longer than the limit of observations cuts them to."""

    stop: tuple[str, ...] = STOP

    def __init__(self, passages: Sequence[str], at_once: int) -> None:
        self._passages = passages
        self._at_once = at_once

    def reset(self, task: Task) -> int:
        """The task's place in the corpus."""
        return crc32(task.id.encode()) % len(self._passages)

    async def step(self, state: int, action: str, *, turns_left: int) -> tuple[int, StepResult]:
        """The next passages; which ones depends on what was said."""
        if turns_left < 0:
            return state, StepResult(end=EndReason.ANSWERED, reward=0.0, score=0.0)
        state = crc32(f"{state} {action}".encode()) % len(self._passages)
        chosen = [self._passages[(state + i) % len(self._passages)] for i in range(self._at_once)]
        return state, StepResult(observation=f"<information> {' '.join(chosen)} </information>", tool_calls=1)


class Slow:
    """An environment whose calls take log-normal times: most are short, a few take many times as long.

    A call's time depends on the state and the action only, so that two runs of the same work wait for the same times.
    """

    def __init__(self, env: Env[Any], median_s: float, sigma: float) -> None:
        self._env = env
        self._median_s = median_s
        self._sigma = sigma
        self.stop: tuple[str, ...] = env.stop

    def reset(self, task: Task) -> Any:
        """The environment's own state."""
        return self._env.reset(task)

    async def step(self, state: Any, action: str, *, turns_left: int) -> tuple[Any, StepResult]:
        """Waits, then steps."""
        rng = random.Random(f"{state} {action}")
        await asyncio.sleep(rng.lognormvariate(math.log(self._median_s), self._sigma))
        return await self._env.step(state, action, turns_left=turns_left)
