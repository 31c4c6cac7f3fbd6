"""A RolloutActor: one vLLM engine, one environment, and many branches in flight.

Its loop consumes work items from the scheduler and produces branch results. It waits for free capacity (freed by its
own branches) and for work (`pull` returns after `poll_s` at the latest). A failure of the engine ends the loop with
that error: the driver sees it, and the scheduler gives the branches to others.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from envs.registry import make_env
from envs.settings import EnvSettings
from envs.types import Task
from rollout_workers.branch import BranchRunner
from rollout_workers.engine import EngineSettings, GenerationEngine
from rollout_workers.types import BranchResult, Completion, Sampling, WorkItem


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSettings:
    """What one rollout actor needs to start."""

    engine: EngineSettings
    env: EnvSettings
    env_timeout_s: float
    turn_timeout_s: float
    """Longest wait for one agent step of the engine."""
    poll_s: float = 2.0


class TokenizerCodec:
    """Prompts through the model's chat template, observations as plain text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def prompt(self, task: Task) -> list[int]:
        """Ids of the chat prompt with the generation prompt added."""
        messages = [{"role": message.role, "content": message.content} for message in task.prompt]
        encoded = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return [int(token) for token in encoded["input_ids"]]

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]


class TimedPolicy:
    """An engine whose every answer has a time limit."""

    def __init__(self, engine: GenerationEngine, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop: Sequence[str], max_tokens: int
    ) -> Completion:
        """Samples one agent step. Raises RuntimeError when the engine does not answer in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._engine.generate(
                    prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens
                )
        except TimeoutError:
            raise RuntimeError(
                f"the vLLM engine did not finish one agent step within rollout.turn_timeout_s={self._timeout_s:g} s"
            ) from None


class RolloutActor:
    """Runs on its own Ray worker; see the module docstring for its loop."""

    def __init__(self, name: str, settings: ActorSettings) -> None:
        self._name = name
        self._settings = settings
        self._running: set[asyncio.Task[None]] = set()
        self._finished: asyncio.Queue[BranchResult] = asyncio.Queue()

    async def start(self) -> int:
        """Loads the model and the environment (10-70 s); returns the process id.

        One sampled token warms the engine up, since its first request compiles kernels.
        """
        self._engine = GenerationEngine(self._settings.engine)
        await self.probe([[0]], tokens=1, seed=0, temperature=1.0)
        self._codec = TokenizerCodec(self._engine.tokenizer)
        policy = TimedPolicy(self._engine, self._settings.turn_timeout_s)
        self._runner = BranchRunner(make_env(self._settings.env), policy, self._codec, self._settings.env_timeout_s)
        return os.getpid()

    async def work(self, scheduler: Any) -> None:
        """Runs branches until the actor is killed; raises the first error of the engine or the scheduler."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pull(scheduler, group))
            group.create_task(self._push(scheduler))

    async def _pull(self, scheduler: Any, group: asyncio.TaskGroup) -> None:
        while True:
            free = self._settings.engine.max_branches - len(self._running)
            if free <= 0:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                continue
            for item in await scheduler.pull.remote(self._name, free, self._settings.poll_s):
                task = group.create_task(self._run(item))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _run(self, item: WorkItem) -> None:
        await self._finished.put(await self._runner.run(item))

    async def _push(self, scheduler: Any) -> None:
        while True:
            results = [await self._finished.get()]
            while not self._finished.empty():
                results.append(self._finished.get_nowait())
            await scheduler.push.remote(results)

    async def probe(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int, temperature: float
    ) -> list[Completion]:
        """Samples at most `tokens` tokens after each prompt, for the check against the learner."""
        sampling = Sampling(temperature=temperature)
        requests = [
            self._engine.generate(
                prompt,
                sampling=sampling,
                seed=seed + index,
                stop=(),
                max_tokens=min(tokens, self._settings.engine.max_context_tokens - len(prompt)),
            )
            for index, prompt in enumerate(prompts)
        ]
        return list(await asyncio.gather(*requests))

    async def pause(self) -> None:
        """Freezes branches in flight and clears the caches."""
        await self._engine.pause()

    async def resume(self, version: int) -> None:
        """Labels the weights now loaded and lets branches run on."""
        await self._engine.resume(version)

    async def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Joins the learner's transfer group."""
        await self._engine.init_weight_transfer_engine(init_info)

    async def start_weight_update(self) -> None:
        """Opens one push."""
        await self._engine.start_weight_update()

    async def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives the weights of one push."""
        await self._engine.update_weights(update_info)

    async def finish_weight_update(self) -> None:
        """Closes one push."""
        await self._engine.finish_weight_update()

    async def shutdown(self) -> None:
        """Stops the engine's processes."""
        self._engine.shutdown()


RemoteRolloutActor = ray.remote(RolloutActor)
