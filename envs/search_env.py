"""The question answering environment: the agent searches, reads, and answers."""

import asyncio
from dataclasses import dataclass, replace

from envs.actions import SEARCH, Action, neutralise, parse_action
from envs.corpus import Passage
from envs.retriever import Retriever, RetrieverError
from envs.rewards import Outcome, RewardError, RewardFn
from envs.scoring import Score
from envs.types import EndReason, StepResult, Task

LAST_MARK = "<last/>"
"""Ends an observation after which the agent must answer."""
NOTHING_FOUND = "nothing found"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """Where a trajectory is: a value, small enough to be sent with every branch."""

    task_id: str
    truths: tuple[str, ...]
    format_ok: bool = True
    """False once a step broke the format."""
    searches: int = 0
    """Searches made so far."""


class SearchEnv:
    """Steps are `<think>…</think><search>…</search>` or `<think>…</think><answer>…</answer>` (see `envs.actions`).

    - A search gives `<information> Title: text </information>`; the last allowed one adds `<last/>`.
    - An answer ends the trajectory with its score and reward.
    - A step without a complete action ends with INVALID_ACTION, a search in the answer-only turn with TURN_LIMIT; both
      have score 0 and count as format wrong, so the paper's reward is −penalty.
    - A sloppy step with a complete action still acts, but the format counts as wrong from then on.
    - A failed or slow search, and a reward that cannot be used, end with ENV_ERROR: no reward, and a note.
    """

    stop: tuple[str, ...] = SEARCH.stop

    def __init__(
        self, retriever: Retriever, *, score: Score, reward: RewardFn, topk: int = 1, max_tool_seconds: float = 30.0
    ) -> None:
        """`reward` may raise `RewardError`; anything but our own functions comes as a `CheckedReward`, which does."""
        self._retriever = retriever
        self._score = score
        self._reward = reward
        self._topk = topk
        self._max_tool_seconds = max_tool_seconds

    def reset(self, task: Task) -> SearchState:
        """No search made, format still right."""
        return SearchState(task_id=task.id, truths=task.truth)

    async def step(self, state: SearchState, action: str, *, turns_left: int) -> tuple[SearchState, StepResult]:
        """See `envs.types.Env`. Never raises for any action text."""
        assert turns_left >= -1
        parsed = parse_action(action)
        state = replace(state, format_ok=state.format_ok and parsed.well_formed)
        if parsed.kind is None:
            return state, self._end(state, EndReason.INVALID_ACTION, None)
        if parsed.kind == "answer":
            return state, self._end(state, EndReason.ANSWERED, parsed.content)
        if turns_left == -1:
            return state, self._end(state, EndReason.TURN_LIMIT, None)
        state = replace(state, searches=state.searches + 1)
        return state, await self._search(parsed, turns_left)

    async def _search(self, action: Action, turns_left: int) -> StepResult:
        try:
            search = self._retriever.search(action.content, self._topk)
            passages = await asyncio.wait_for(search, self._max_tool_seconds)
        except RetrieverError as error:
            return StepResult(end=EndReason.ENV_ERROR, tool_calls=1, note=str(error))
        except TimeoutError:
            note = f"the search took longer than env.max_tool_seconds={self._max_tool_seconds:g}"
            return StepResult(end=EndReason.ENV_ERROR, tool_calls=1, note=note)
        return StepResult(observation=render(passages) + (LAST_MARK if turns_left == 0 else ""), tool_calls=1)

    def _end(self, state: SearchState, end: EndReason, answer: str | None) -> StepResult:
        score = 0.0 if answer is None else self._score(answer, state.truths)
        outcome = Outcome(
            task_id=state.task_id,
            truths=state.truths,
            answer=answer,
            score=score,
            format_ok=state.format_ok and answer is not None,
            end=end,
            tool_calls=state.searches,
        )
        try:
            return StepResult(end=end, score=score, reward=self._reward(outcome))
        except RewardError as error:
            return StepResult(end=EndReason.ENV_ERROR, note=str(error))


def render(passages: list[Passage]) -> str:
    """`"<information> Ulm: Ulm is a city in Germany. </information>"`, one line per passage, tags in it neutralised."""
    lines = [f"{neutralise(passage.title)}: {neutralise(passage.text)}" for passage in passages]
    return f"<information> {chr(10).join(lines) or NOTHING_FOUND} </information>"
