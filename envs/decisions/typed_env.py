"""A decision policy whose nodes are typed: each is asked by a prompt of its own, held to its schema, judged alone."""

from typing import Protocol, TypeAlias

from envs.decisions.contracts import ContractError, compact
from envs.decisions.odds import root_odds, sampled_texts
from envs.decisions.settings import DecisionSettings
from envs.decisions.types import Alternatives, Ask, DecisionWorld, Gating, NodeReward, StepRecord, Values
from envs.decisions.walk import Course, Taken, Walk
from envs.types import EndReason, Json, StepResult, Task

ALTERNATIVES = 20
"""Likeliest tokens per position that the root is asked for where its output distribution is wanted."""
Odds: TypeAlias = tuple[tuple[str, float], ...]
"""Probability of each value of the root's enumerated outputs, e.g. `(("intent=refund", 0.7), ...)`."""


class StepJudge(Protocol):
    """What an environment needs of `envs.decisions.rewards.Judge`."""

    def judge(
        self, node: str, *, input: Json, output: Json, fault: str, task: Task, values: Values
    ) -> tuple[NodeReward, tuple[tuple[str, float], ...]]:
        """The raw reward of one step and its parts."""
        ...


class RootGate(Protocol):
    """What an environment needs of `envs.decisions.gate.Gate`."""

    def decide(self, odds: Odds) -> tuple[Gating, ...]:
        """Which children of the root run."""
        ...


class TypedDecisionEnv:
    """A `TypedEnv`. An answer that is not valid ends the trajectory with reward 0, or the run (`contracts: strict`)."""

    stop: tuple[str, ...] = ()
    """Answers end with their schema."""

    def __init__(
        self, settings: DecisionSettings, world: DecisionWorld, judge: StepJudge, gate: RootGate | None = None
    ) -> None:
        self._course = Course(settings, world)
        self._judge = judge
        self._gate = gate
        self._wants_odds = gate is not None or settings.gate.record_odds
        self._is_strict = settings.contracts == "strict"

    def reset(self, task: Task) -> Walk:
        """Before the root. Raises ContractError for a request that the root does not accept, under `strict` only."""
        walk, root = Walk(task=task), self._course.declared.root
        if self._is_strict and (fault := self._course.contracts[root].input_fault(self._course.input(walk, root))):
            raise self._broken(root, task, f"input of node {root!r}: {fault}")
        return walk

    def ask(self, state: Walk) -> Ask:
        """See `TypedEnv`."""
        name = self._course.current(state)
        assert name is not None, "the last node has answered"
        contract = self._course.contracts[name]
        wants_odds = self._wants_odds and name == self._course.declared.root
        return Ask(
            node=name,
            messages=contract.messages(self._course.input(state, name)),
            adapter=None if contract.node.adapter is None else name,
            schema=contract.schema,
            max_tokens=contract.node.max_tokens,
            alternatives=ALTERNATIVES if wants_odds else 0,
        )

    async def answer(
        self, state: Walk, action: str, alternatives: tuple[Alternatives, ...] = ()
    ) -> tuple[Walk, StepResult]:
        """See `TypedEnv`. Raises ContractError under `strict`, and whatever world and judge raise."""
        odds: Odds = ()

        def decide() -> tuple[Gating, ...]:
            nonlocal odds
            odds = self._odds(alternatives)
            return self._gate.decide(odds) if self._gate is not None and odds else ()

        taken = await self._course.take(state, action, decide)
        if taken.fault and self._is_strict:
            raise self._broken(taken.node, state.task, taken.fault)
        record = self._record(taken, odds)
        calls = int(taken.found is not None)
        if taken.fault or self._course.current(taken.after) is None:
            return taken.after, self._ended(taken, record, calls)
        return taken.after, StepResult(record=record, tool_calls=calls)

    def give_up(self, state: Walk) -> StepResult:
        """See `TypedEnv`."""
        return StepResult(end=EndReason.CONTEXT_LIMIT, reward=0.0, score=0.0, result=self._course.result(state))

    def _odds(self, alternatives: tuple[Alternatives, ...]) -> Odds:
        """The root's output distribution; empty where no alternatives were asked for."""
        root = self._course.declared.node(self._course.declared.root)
        return root_odds(root.output_schema, sampled_texts(alternatives), alternatives) if alternatives else ()

    def _record(self, taken: Taken, odds: Odds) -> StepRecord:
        reward, parts = self._judge.judge(
            taken.node,
            input=taken.input,
            output=taken.output,
            fault=taken.fault,
            task=taken.after.task,
            values=taken.after.values,
        )
        is_root = taken.node == self._course.declared.root
        return StepRecord(
            node=taken.node,
            input=compact(taken.input),
            output="" if taken.output is None else compact(taken.output),
            fault=taken.fault,
            found="" if taken.found is None else compact(taken.found),
            reward=reward,
            parts=parts,
            odds=odds,
            gating=taken.after.gating if is_root else (),
        )

    def _ended(self, taken: Taken, record: StepRecord, calls: int) -> StepResult:
        score = 0.0 if taken.fault else self._course.score(taken.after)
        return StepResult(
            end=EndReason.INVALID_ACTION if taken.fault else EndReason.ANSWERED,
            reward=score,
            score=score,
            tool_calls=calls,
            record=record,
            result=self._course.result(taken.after),
        )

    @staticmethod
    def _broken(node: str, task: Task, fault: str) -> ContractError:
        return ContractError(f"node {node!r} broke its contract in sample {task.id!r}: {fault} (contracts=strict)")
