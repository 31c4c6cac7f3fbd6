"""One branch: from a node to the end of its trajectory (generate → environment step → observation → generate …).

Knows neither Ray nor vLLM. Its broad `except` makes a value (`EndReason.ENV_ERROR`) of whatever an environment raises,
`sys.exit()` included, so that a faulty task can't end a run; only `ContractError`, which is there to end it, goes
through. For what a user's reward function raises, `envs.rewards` has one of its own.

In an ordinary environment the context grows: sampled tokens, observation, sampled tokens. A typed one asks each step by
a prompt of its own: the next prompt takes the place of the observation in the node, and is then the whole context.
"""

import asyncio
import math
import pickle
import re
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from envs.decisions.contracts import ContractError
from envs.decisions.types import Ask, TypedEnv
from envs.masking import masked_text
from envs.types import EndReason, Env, Message, StepResult, Task
from rollout_workers.seeds import derive_seed
from rollout_workers.types import BranchResult, Completion, Ledger, NewNode, Node, Sampling, WorkItem

CUT_MARK = " [...] "
"""Stands where the middle of a long observation was left out."""
CUT_TAIL_TOKENS = 8
"""Tokens kept after the mark, so that a closing tag survives the cut; under a tight limit half of what it leaves."""
TOKEN_CHARACTERS = 64
"""Of a huge text so many characters per token that is kept are encoded: encoding all of it would stop the actor."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which the codec reads as "?"."""

MAX_NOTE = 2_000
"""Longest note of a step, in characters, without the mark of what was cut."""


class Policy(Protocol):
    """What a branch needs from an engine."""

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
        """Samples one agent step after `prompt_ids`; `ask` names adapter and schema of a typed one."""
        ...


@runtime_checkable
class Conversational(Protocol):
    """A policy that is better asked for all steps of one branch through one hold on it."""

    def conversation(self) -> AbstractAsyncContextManager[Policy]:
        """What one branch samples from; leaving the context frees what the engine kept for it."""
        ...


class Codec(Protocol):
    """Text to token ids. Sampled ids are never decoded and encoded again."""

    def prompt(self, task: Task) -> list[int]:
        """Ids of the chat prompt, ready for the first agent step."""
        ...

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of any other chat prompt."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of an observation, without special tokens."""
        ...


@dataclass(slots=True)
class _Walk:
    """One branch on its way."""

    item: WorkItem
    state: Any
    context: list[int]
    policy: Policy
    ask: Ask | None
    """What the next step is asked, in a typed environment."""
    known: int
    """Tokens at the start of `context` that the engine had in an earlier request or sampled itself."""
    ledger: Ledger
    nodes: list[NewNode] = field(default_factory=list)

    @property
    def turn(self) -> int:
        """Agent steps on the path so far."""
        return self.item.turns_used + len(self.nodes)

    @property
    def room(self) -> int:
        """Tokens that still fit into the context."""
        return self.item.sampling.max_context_tokens - len(self.context)


@dataclass(frozen=True, slots=True)
class _Broken:
    """Stands for the state of a task that its environment could not begin or restore."""

    error: BaseException


class BranchRunner:
    """Runs work items on one engine and one environment; any number of branches at once."""

    def __init__(
        self,
        env: Env[Any] | TypedEnv[Any],
        policy: Policy,
        codec: Codec,
        env_timeout_s: float,
        *,
        block_size: int = 32,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`block_size`: tokens per block of the engine's KV cache, for the ledger's block bound. `on_step` is called
        with the item's id whenever the engine or the environment has answered its branch.
        """
        self._env = env
        self._policy = policy
        self._codec = codec
        self._env_timeout_s = env_timeout_s
        self._block_size = block_size
        self._on_step = on_step

    async def run(self, item: WorkItem) -> BranchResult:
        """Continues from `item.parent` until the trajectory ends; the last node of the result is a leaf."""
        state, ask = self._opened(item)
        prompt_ids = item.context_ids or tuple(
            self._codec.prompt(item.task) if ask is None else self._codec.chat(ask.messages)
        )
        assert item.context_ids or len(prompt_ids) <= item.sampling.max_prompt_tokens, "the driver checks prompts"
        is_first_of_task = item.tree == 0 and not item.context_ids
        policy = self._policy
        async with policy.conversation() if isinstance(policy, Conversational) else nullcontext(policy) as hold:
            walk = _Walk(
                item=item,
                policy=hold,
                state=state,
                ask=ask,
                context=list(prompt_ids),
                known=0 if is_first_of_task else len(prompt_ids),
                ledger=Ledger(branches=1),
            )
            return await self._walk(walk, prompt_ids)

    async def _walk(self, walk: _Walk, prompt_ids: tuple[int, ...]) -> BranchResult:
        item = walk.item
        while not walk.nodes or not walk.nodes[-1].node.is_leaf:
            await self._step(walk)
        walk.ledger.branches_failed = int(walk.nodes[-1].node.end is EndReason.ENV_ERROR)
        learned = () if item.context_ids else prompt_ids
        return BranchResult(item_id=item.id, prompt_ids=learned, nodes=tuple(walk.nodes), ledger=walk.ledger)

    def _opened(self, item: WorkItem) -> tuple[Any, Ask | None]:
        """The state to continue from and what it asks; a `_Broken` one, on which the first step fails, where the task
        has none.
        """
        try:
            state = pickle.loads(item.state) if item.state else self._env.reset(item.task)  # noqa: S301 (our own actors')
            return state, self._env.ask(state) if isinstance(self._env, TypedEnv) else None
        except ContractError:
            raise
        except (Exception, SystemExit) as error:
            return _Broken(error), None

    async def _step(self, walk: _Walk) -> None:
        """One agent step: appends its node and what it adds to the context."""
        sample = await (self._sample(walk) if walk.nodes else self._first_sample(walk))
        walk.state, result = await self._answered(walk, sample)
        state, observation, result = self._kept(walk, result)
        if result.end is None and self._is_full(walk, sample, observation):
            walk.state, result = await self._give_up(walk, result, EndReason.CONTEXT_LIMIT)
        node = Node(
            parent=len(walk.nodes) - 1,
            token_ids=sample.token_ids,
            logprobs=sample.logprobs,
            versions=sample.versions,
            observation_ids=() if result.end else tuple(observation),
            end=result.end,
            reward=result.reward,
            score=result.score,
            tool_calls=result.tool_calls,
            note=result.note,
            entropy=statistics.fmean(sample.entropies) if sample.entropies else None,
            slot=walk.item.slot,
            record=result.record,
            result=result.result,
        )
        walk.nodes.append(NewNode(node=node, state=None if node.is_leaf else state, action=sample.text))
        self._on_step(walk.item.id)
        if isinstance(self._env, TypedEnv):  # nothing of the next prompt was in an earlier request of the branch
            walk.known, walk.context = 0, list(node.observation_ids)
        else:
            walk.known = len(walk.context) + len(node.token_ids)
            walk.context += [*node.token_ids, *node.observation_ids]

    async def _answered(self, walk: _Walk, sample: Completion) -> tuple[Any, StepResult]:
        """What the environment says to a step, and what becomes of one that used up its tokens."""
        limits, room = walk.item.sampling, walk.room
        state, result = await self._environment(walk, sample.text, limits.max_turns - walk.turn - 1, sample)
        if sample.finished != "length" or result.end is EndReason.ENV_ERROR:
            return state, result
        end = EndReason.CONTEXT_LIMIT if room < limits.max_turn_tokens else EndReason.LENGTH_LIMIT
        if not isinstance(self._env, TypedEnv):
            walk.state = state
            return await self._give_up(walk, result, end)
        # An answer that is valid was complete with its last token; one that is not may have lost its end.
        return state, replace(result, end=end) if result.end is EndReason.INVALID_ACTION else result

    def _is_full(self, walk: _Walk, sample: Completion, observation: Sequence[int]) -> bool:
        """Whether the next step has no room left, or is asked by a prompt longer than `limits.max_prompt_tokens`."""
        if isinstance(self._env, TypedEnv):
            return len(observation) > walk.item.sampling.max_prompt_tokens
        return len(sample.token_ids) + len(observation) >= walk.room

    async def _first_sample(self, walk: _Walk) -> Completion:
        """The branch's first step, sampled again while it says what a sibling said, as often as the item allows."""
        item, ledger = walk.item, walk.ledger
        taken = {text.strip() for text in item.avoid}
        sample = await self._sample(walk)
        for attempt in range(1, item.resamples + 1):
            if sample.text.strip() not in taken:
                break
            ledger.siblings_equal = 1
            ledger.siblings_resampled += 1
            ledger.discarded_tokens += len(sample.token_ids)
            walk.known = len(walk.context)
            sample = await self._sample(walk, "again", attempt)
        ledger.siblings_equal |= sample.text.strip() in taken
        return sample

    async def _sample(self, walk: _Walk, *attempt: str | int) -> Completion:
        """Raises RuntimeError for log-probabilities that are not finite: the engine then has damaged weights or caches,
        which would reach other branches too, so it is the actor that has to end, not this branch alone.
        """
        limits, ledger = walk.item.sampling, walk.ledger
        longest = (walk.ask and walk.ask.max_tokens) or limits.max_turn_tokens
        sample = await walk.policy.generate(
            walk.context,
            sampling=limits,
            seed=derive_seed(walk.item.seed, walk.turn, *attempt),
            stop=self._env.stop,
            max_tokens=min(longest, walk.room),
            ask=walk.ask,
        )
        if not all(map(math.isfinite, sample.logprobs)):
            worst = next(value for value in sample.logprobs if not math.isfinite(value))
            raise RuntimeError(
                f"the engine gave a log-probability of {worst} for a token that it sampled in branch {walk.item.id}: "
                "its weights or its cache are damaged"
            )
        self._on_step(walk.item.id)
        ledger.requests += 1
        ledger.engine_busy_s += sample.engine_s
        ledger.sampled_tokens += len(sample.token_ids) + sample.cut_tokens
        ledger.discarded_tokens += sample.cut_tokens
        ledger.prefill_tokens_cached += sample.cached_tokens
        computed, bound = sample.prompt_tokens - sample.cached_tokens, block_bound(walk.known, self._block_size)
        ledger.prefill_tokens_computed += computed
        ledger.prefill_tokens_kept += sample.kept_tokens
        ledger.prefill_tokens_block_bound += bound
        if walk.item.stolen:
            new = sample.prompt_tokens - walk.known
            ledger.prefill_tokens_stolen += max(computed - new - bound, 0)
        return sample

    async def _environment(
        self, walk: _Walk, action: str, turns_left: int, sample: Completion | None = None
    ) -> tuple[Any, StepResult]:
        """`sample` where the action is what was sampled. The turn limit is none of typed environments."""
        state, started = walk.state, time.perf_counter()
        limit = asyncio.timeout(self._env_timeout_s)
        try:
            if isinstance(state, _Broken):
                raise state.error
            async with limit:
                if isinstance(self._env, TypedEnv):
                    state, result = await self._env.answer(state, action, sample.alternatives if sample else ())
                else:
                    state, result = await self._env.step(state, action, turns_left=max(turns_left, -1))
                    if result.end is None and turns_left < 0:
                        raise RuntimeError("the environment did not end the trajectory on its answer-only turn")
            if result.note:
                result = replace(result, note=shown_note(result.note))
        except ContractError:
            raise
        except (Exception, SystemExit) as error:
            is_late = isinstance(error, TimeoutError) and limit.expired()  # else it is the environment's own
            late = f"the environment did not answer within {self._env_timeout_s:g} s"
            result = StepResult(end=EndReason.ENV_ERROR, note=late if is_late else _error_note(error))
        walk.ledger.env_seconds += time.perf_counter() - started
        walk.ledger.tool_calls += result.tool_calls
        return state, result

    async def _give_up(self, walk: _Walk, result: StepResult, end: EndReason) -> tuple[Any, StepResult]:
        """Ends a trajectory that hit a limit of ours. If it was still going, an empty answer-only step rewards it, or a
        typed environment itself.
        """
        state = walk.state
        if result.end is None and isinstance(self._env, TypedEnv):
            final = self._env.give_up(state)
            result = replace(final, tool_calls=result.tool_calls, record=result.record)
        elif result.end is None:
            state, final = await self._environment(walk, "", -1)
            result = replace(final, tool_calls=result.tool_calls)
        return state, result if result.end is EndReason.ENV_ERROR else replace(result, end=end)

    def _kept(self, walk: _Walk, result: StepResult) -> tuple[bytes | None, list[int], StepResult]:
        """What later steps need: the state, and the observation's ids. Where one can't be had the branch failed."""
        if result.end is not None:
            return None, [], result
        try:
            if isinstance(self._env, TypedEnv):
                walk.ask = self._env.ask(walk.state)
                return pickle.dumps(walk.state), self._codec.chat(walk.ask.messages), result
            return pickle.dumps(walk.state), self._observe(result, walk.item.sampling, walk.ledger), result
        except (Exception, SystemExit) as error:
            note = _error_note(error)
            return None, [], StepResult(end=EndReason.ENV_ERROR, tool_calls=result.tool_calls, note=note)

    def _observe(self, result: StepResult, limits: Sampling, ledger: Ledger) -> list[int]:
        text = result.observation
        reach = limits.max_observation_tokens * TOKEN_CHARACTERS
        is_huge = len(text) > 2 * reach
        first, last = (text[:reach], text[-CUT_TAIL_TOKENS * TOKEN_CHARACTERS :]) if is_huge else (text, "")
        ledger.observations_repaired += any(map(SURROGATE.search, (first, last)))
        ids = self._codec.encode(first)
        if not is_huge and len(ids) <= limits.max_observation_tokens:
            return ids
        end = self._codec.encode(last) if is_huge else ids
        ledger.observations_cut += 1
        mark = self._codec.encode(CUT_MARK)[: limits.max_observation_tokens]
        room = limits.max_observation_tokens - len(mark)
        tail = min(CUT_TAIL_TOKENS, room // 2)
        return [*ids[: room - tail], *mark, *end[max(len(end) - tail, 0) :]]


def shown_note(text: str) -> str:
    """A note as it goes into logs, forests and reports: secrets masked, the end of a long one cut off with a mark.

    Masked before it is cut, since half a secret is not recognised; what is far beyond the cut is not looked at.
    """
    shown = masked_text(text[: 50 * MAX_NOTE])
    return shown if len(shown) <= MAX_NOTE else shown[:MAX_NOTE] + CUT_MARK


def _error_note(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:  # an error of the environment's own, whose text is broken too
        said = "it has no text"
    return shown_note(f"{type(error).__name__}: {said}")


def block_bound(known: int, block_size: int) -> int:
    """Tokens that a request must compute again, because the prefix cache of vLLM (0.32) holds whole blocks only.

    `known` tokens at the start of its prompt are not new: they were in an earlier request or sampled by it. The last of
    them is never taken from the cache: where it was sampled it never ran through the model, and where the whole prompt
    is known vLLM runs the last token again for its logits (`KVCacheManager.get_computed_blocks`). So of the others the
    whole blocks are found. E.g. 81 known with blocks of 32: 80 // 32 = 2 blocks are found, 81 - 64 = 17 run again.
    """
    return known - (known - 1) // block_size * block_size if known else 0
