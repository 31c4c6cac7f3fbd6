"""A RolloutActor: one vLLM engine, one environment, and many branches in flight.

It consumes work items from the scheduler and produces branch results (see `work_loop.py`). A failure of the engine ends
`work` with that error: the driver sees it, and the scheduler gives the branches to others.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from envs.decisions.contracts import ContractError
from envs.decisions.settings import DecisionSettings
from envs.decisions.types import Ask
from envs.registry import make_env, opening_of
from envs.settings import EnvSettings
from envs.types import Message, Task
from rollout_workers.audit import Audit
from rollout_workers.branch import BranchRunner
from rollout_workers.engine import GenerationEngine
from rollout_workers.engine_settings import EngineSettings
from rollout_workers.places import Place
from rollout_workers.text_likeness import text_likeness
from rollout_workers.timed_policy import TimedPolicy
from rollout_workers.types import Completion, Ledger, Sampling, WorkItem
from rollout_workers.work_loop import PROGRESS_S, WorkLoop

AUDIT_LOOKS = 100
AUDIT_LOOK_S = 0.02
"""An audit looks so often, so many seconds apart, whether the engine is idle and its last statistics have come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSettings:
    """What one rollout actor needs to start."""

    engine: EngineSettings
    env: EnvSettings
    decision: DecisionSettings | None = None
    """With `env.name: decision`."""
    env_timeout_s: float
    turn_timeout_s: float
    """Longest wait for one agent step of the engine, without the time in which a push has it frozen."""
    progress_s: float = PROGRESS_S
    """So often the scheduler is told which branches have made a step."""


class TokenizerCodec:
    """Prompts through the model's chat template, observations as plain text."""

    def __init__(self, tokenizer: Any, opening: Callable[[Task], Sequence[Message]] = lambda task: task.prompt) -> None:
        """`opening`: what a task begins with (see `envs.registry.opening_of`)."""
        self._tokenizer = tokenizer
        self._opening = opening

    def prompt(self, task: Task) -> list[int]:
        """Ids of the chat prompt that a task begins with."""
        return self.chat(self._opening(task))

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat prompt with the generation prompt added."""
        said = [{"role": message.role, "content": message.content} for message in messages]
        encoded = self._tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=True)
        return [int(token) for token in encoded["input_ids"]]

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone; half of a surrogate pair, which no tokenizer takes, is read as "?"."""
        whole = text.encode("utf-8", "replace").decode()
        return [int(token) for token in self._tokenizer.encode(whole, add_special_tokens=False)]


class RolloutActor:
    """Runs on its own Ray worker; see the module docstring for its loop."""

    def __init__(self, name: str, settings: ActorSettings) -> None:
        self._name = name
        self._settings = settings
        self._running: dict[asyncio.Task[None], str] = {}
        """The branches in flight, each with its item's id."""
        self._work_loop = WorkLoop(
            name,
            free=lambda: settings.engine.max_branches - len(self._running),
            begin=self._begin,
            progress_s=settings.progress_s,
        )
        self._probes = 0

    async def start(self) -> Place:
        """Loads the model and the environment (10-70 s); returns where that is.

        One sampled token warms the engine up, since its first request compiles kernels.
        """
        settings = self._settings
        self._engine = GenerationEngine(settings.engine)
        self._audit = Audit(lambda: self._engine.counts, keeps_turns=settings.engine.keep_turns)
        await self._engine.load_adapters({})  # those that the model has
        await self.probe([[0]], tokens=1, seed=0, temperature=1.0)
        self._policy = TimedPolicy(self._engine, settings.turn_timeout_s)
        env = make_env(settings.env, settings.decision, text_likeness)
        self._runner = BranchRunner(
            env,
            self._policy,
            TokenizerCodec(self._engine.tokenizer, opening_of(env)),
            settings.env_timeout_s,
            block_size=settings.engine.block_size,
            on_step=self._work_loop.stepped,
        )
        return Place.here()

    async def work(self, scheduler: Any) -> None:
        """Runs branches until the actor is killed; raises the first error of the engine or the scheduler."""
        self._scheduler = scheduler
        async with asyncio.TaskGroup() as self._group:
            self._work_loop.start(scheduler, self._group)

    def _begin(self, items: Sequence[WorkItem]) -> None:
        for item in items:
            self._running[self._group.create_task(self._run(item))] = item.id

    async def _run(self, item: WorkItem) -> None:
        task = asyncio.current_task()
        assert task is not None, "branches run as tasks"
        try:
            result = await self._runner.run(item)
        except ContractError as error:
            await self._scheduler.refuse.remote(str(error))
            return
        finally:
            del self._running[task]
        self._audit.book(result.ledger)
        self._work_loop.ended(result)

    async def audit(self) -> Ledger:
        """What the engine's own counters add to the ledgers of the branches since the last audit.

        Call it between collections. Waits up to `AUDIT_LOOKS` · `AUDIT_LOOK_S` until no request runs and the engine's
        last statistics have come. While one runs (a branch given to another actor too, a probe) the books can't be
        compared, and a mismatch is told another time.
        """
        for _ in range(AUDIT_LOOKS):
            await asyncio.sleep(AUDIT_LOOK_S)
            if not self._in_flight and self._audit.mismatch == 0:
                break
        return self._audit.take(0 if self._in_flight else self._audit.mismatch)

    @property
    def _in_flight(self) -> int:
        return len(self._running) + self._probes

    async def probe(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        seed: int,
        temperature: float,
        adapter: str | None = None,
    ) -> list[Completion]:
        """Samples at most `tokens` tokens after each prompt, for the check against the learner.

        With the adapter of a node where one is named; without a schema.
        """
        sampling = Sampling(temperature=temperature)
        ask = Ask(node=adapter, messages=(), adapter=adapter) if adapter is not None else None
        requests = [
            self._engine.generate(
                prompt,
                sampling=sampling,
                seed=seed + index,
                stop=(),
                max_tokens=min(tokens, self._settings.engine.max_context_tokens - len(prompt)),
                ask=ask,
            )
            for index, prompt in enumerate(prompts)
        ]
        self._probes += 1
        try:
            samples = await asyncio.gather(*requests)
        finally:
            self._probes -= 1
        for sample in samples:
            self._audit.book_probe(sample)
        return list(samples)

    async def pause(self) -> None:
        """Freezes branches in flight and clears the caches."""
        self._policy.freeze()
        await self._engine.pause()

    async def resume(self, version: int) -> None:
        """Labels the weights now loaded and lets branches run on. That they stood still was the push's doing."""
        await self._engine.resume(version)
        self._policy.thaw()
        self._work_loop.stepped(*self._running.values())

    async def load_adapters(self, weights: dict[str, bytes]) -> None:
        """Takes new weights of some adapters; see `GenerationEngine.load_adapters`."""
        await self._engine.load_adapters(weights)

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
