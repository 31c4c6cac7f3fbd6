"""One branch: from a node to the end of its trajectory (generate → environment step → observation → generate …).

Knows neither Ray nor vLLM. Its broad `except` makes a value (`EndReason.ENV_ERROR`) of whatever an environment raises,
so that a faulty task can't end a run. For what a user's reward function raises, `envs.rewards` has one of its own.
"""

import asyncio
import pickle
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from envs.types import EndReason, Env, StepResult, Task
from rollout_workers.seeds import derive_seed
from rollout_workers.types import BranchResult, Completion, Ledger, NewNode, Node, Sampling, WorkItem

CUT_MARK = " [...] "
"""Stands where the middle of a long observation was left out."""
CUT_TAIL_TOKENS = 8
"""Tokens kept after the mark, so that a closing tag survives the cut."""


class Policy(Protocol):
    """What a branch needs from an engine."""

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop: Sequence[str], max_tokens: int
    ) -> Completion:
        """Samples one agent step after `prompt_ids`."""
        ...


class Codec(Protocol):
    """Text to token ids. Sampled ids are never decoded and encoded again."""

    def prompt(self, task: Task) -> list[int]:
        """Ids of the chat prompt, ready for the first agent step."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of an observation, without special tokens."""
        ...


class BranchRunner:
    """Runs work items on one engine and one environment; any number of branches at once."""

    def __init__(self, env: Env[Any], policy: Policy, codec: Codec, env_timeout_s: float) -> None:
        self._env = env
        self._policy = policy
        self._codec = codec
        self._env_timeout_s = env_timeout_s

    async def run(self, item: WorkItem) -> BranchResult:
        """Continues from `item.parent` until the trajectory ends; the last node of the result is a leaf."""
        ledger = Ledger(branches=1)
        prompt_ids = item.context_ids or tuple(self._codec.prompt(item.task))
        assert item.context_ids or len(prompt_ids) <= item.sampling.max_prompt_tokens, "the driver checks prompts"
        context = list(prompt_ids)
        state = pickle.loads(item.state) if item.state else self._env.reset(item.task)  # noqa: S301 (our own actors')
        nodes: list[NewNode] = []
        turn = item.turns_used
        while not nodes or not nodes[-1].node.is_leaf:
            state, node = await self._step(item, state, context, len(nodes) - 1, turn, ledger)
            nodes.append(NewNode(node=node, state=None if node.is_leaf else pickle.dumps(state)))
            context += [*node.token_ids, *node.observation_ids]
            turn += 1
        ledger.branches_failed = int(nodes[-1].node.end is EndReason.ENV_ERROR)
        return BranchResult(item_id=item.id, prompt_ids=prompt_ids, nodes=tuple(nodes), ledger=ledger)

    async def _step(
        self,
        item: WorkItem,
        state: Any,
        context: list[int],
        parent: int,
        turn: int,
        ledger: Ledger,
    ) -> tuple[Any, Node]:
        limits = item.sampling
        room = limits.max_context_tokens - len(context)
        sample = await self._policy.generate(
            context,
            sampling=limits,
            seed=derive_seed(item.seed, turn),
            stop=self._env.stop,
            max_tokens=min(limits.max_turn_tokens, room),
        )
        ledger.requests += 1
        ledger.sampled_tokens += len(sample.token_ids)
        ledger.prefill_tokens_cached += sample.cached_tokens
        ledger.prefill_tokens_computed += sample.prompt_tokens - sample.cached_tokens
        state, result = await self._environment(state, sample.text, limits.max_turns - turn - 1, ledger)
        if sample.finished == "length" and result.end is not EndReason.ENV_ERROR:
            end = EndReason.CONTEXT_LIMIT if room < limits.max_turn_tokens else EndReason.LENGTH_LIMIT
            state, result = await self._give_up(state, result, end, ledger)
        observation = self._observe(result, limits, ledger)
        used = len(context) + len(sample.token_ids) + len(observation)
        if result.end is None and used >= limits.max_context_tokens:
            state, result = await self._give_up(state, result, EndReason.CONTEXT_LIMIT, ledger)
        return state, Node(
            parent=parent,
            token_ids=sample.token_ids,
            logprobs=sample.logprobs,
            versions=sample.versions,
            observation_ids=() if result.end else tuple(observation),
            end=result.end,
            reward=result.reward,
            score=result.score,
            tool_calls=result.tool_calls,
            note=result.note,
            slot=item.slot,
        )

    async def _environment(
        self,
        state: Any,
        action: str,
        turns_left: int,
        ledger: Ledger,
    ) -> tuple[Any, StepResult]:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._env_timeout_s):
                state, result = await self._env.step(state, action, turns_left=max(turns_left, -1))
            if result.end is None and turns_left < 0:
                raise RuntimeError("the environment did not end the trajectory on its answer-only turn")
        except TimeoutError:
            note = f"the environment did not answer within {self._env_timeout_s:g} s"
            result = StepResult(end=EndReason.ENV_ERROR, note=note)
        except Exception as error:
            result = StepResult(end=EndReason.ENV_ERROR, note=f"{type(error).__name__}: {error}")
        ledger.env_seconds += time.perf_counter() - started
        ledger.tool_calls += result.tool_calls
        return state, result

    async def _give_up(
        self,
        state: Any,
        result: StepResult,
        end: EndReason,
        ledger: Ledger,
    ) -> tuple[Any, StepResult]:
        """Ends a trajectory that hit a limit of ours. If it was still going, an empty answer-only step rewards it."""
        if result.end is None:
            state, final = await self._environment(state, "", -1, ledger)
            result = replace(final, tool_calls=result.tool_calls)
        return state, result if result.end is EndReason.ENV_ERROR else replace(result, end=end)

    def _observe(self, result: StepResult, limits: Sampling, ledger: Ledger) -> list[int]:
        if result.end is not None:
            return []
        ids = self._codec.encode(result.observation)
        if len(ids) <= limits.max_observation_tokens:
            return ids
        ledger.observations_cut += 1
        mark = self._codec.encode(CUT_MARK)
        head = limits.max_observation_tokens - len(mark) - CUT_TAIL_TOKENS
        return [*ids[:head], *mark, *ids[-CUT_TAIL_TOKENS:]]
