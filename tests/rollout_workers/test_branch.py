"""Branches on a scripted policy: what is sampled is stored, what is observed is appended, limits end a branch."""

import asyncio
import pickle

import pytest
from echo_world import CharCodec, CountingEnv, Script, task

from envs.types import EndReason, StepResult
from rollout_workers.branch import BranchRunner
from rollout_workers.types import BranchResult, Sampling, WorkItem


def item(sampling: Sampling, *, context: str = "", state: bytes | None = None, turns: int = 0) -> WorkItem:
    return WorkItem(
        id="t/q/0/0", task=task("q?"), tree=0, parent=0, slot=0, context_ids=tuple(map(ord, context)),
        state=state, turns_used=turns, seed=7, sampling=sampling,
    )  # fmt: skip


async def run(script: Script, work: WorkItem, env: object = None) -> BranchResult:
    return await BranchRunner(env or CountingEnv(), script, CharCodec(), env_timeout_s=0.2).run(work)


SHORT = Sampling(max_turn_tokens=8, max_context_tokens=60, max_observation_tokens=30, max_turns=2)


async def test_chain_appends_exact_ids_and_observations():
    script = Script(["a;", "b!;"])
    result = await run(script, item(SHORT))
    assert script.contexts == ["q?", "q?a;<1>"]
    first, last = (new.node for new in result.nodes)
    assert "".join(map(chr, first.token_ids + first.observation_ids)) == "a;<1>"
    assert (first.parent, last.parent) == (-1, 0)
    assert first.versions == (3, 3)
    assert (last.end, last.reward, last.observation_ids) == (EndReason.ANSWERED, 1.0, ())
    assert pickle.loads(result.nodes[0].state) == 1
    assert result.nodes[1].state is None
    ledger = result.ledger
    assert (ledger.sampled_tokens, ledger.prefill_tokens_computed, ledger.tool_calls, ledger.requests) == (5, 9, 1, 2)


async def test_branch_continues_from_state_and_context():
    script = Script(["c!;"])
    result = await run(script, item(SHORT, context="q?a;<1>", state=pickle.dumps(1), turns=1))
    assert script.contexts == ["q?a;<1>"]
    assert result.prompt_ids == tuple(map(ord, "q?a;<1>"))
    assert len(result.nodes) == 1


async def test_out_of_turns_gives_one_answer_only_turn():
    result = await run(Script(["a;", "b;", "c;"]), item(SHORT))
    assert [new.node.end for new in result.nodes] == [None, None, EndReason.TURN_LIMIT]


@pytest.mark.parametrize(
    ("limits", "script", "end"),
    [
        (SHORT, ["abcdefghijk"], EndReason.LENGTH_LIMIT),
        (Sampling(max_turn_tokens=8, max_context_tokens=8), ["abcdefgh"], EndReason.CONTEXT_LIMIT),
        (Sampling(max_turn_tokens=4, max_context_tokens=7), ["ab;"], EndReason.CONTEXT_LIMIT),
    ],
)
async def test_limits_end_the_branch_with_a_reward(limits, script, end):
    leaf = (await run(Script(script), item(limits))).nodes[-1].node
    assert (leaf.end, leaf.reward, leaf.observation_ids) == (end, 0.0, ())


async def test_long_observation_keeps_head_and_tail_with_a_mark():
    class Talker(CountingEnv):
        async def step(self, state, action, *, turns_left):
            if "!" in action:
                return await super().step(state, action, turns_left=turns_left)
            return state, StepResult(observation="<info>" + "x" * 50 + "</info>")

    result = await run(Script(["a;", "!;"]), item(SHORT), Talker())
    seen = "".join(map(chr, result.nodes[0].node.observation_ids))
    assert seen == "<info>xxxxxxxxx [...] x</info>"
    assert len(seen) == 30
    assert result.ledger.observations_cut == 1


async def test_environment_failures_are_values():
    class Sleeper(CountingEnv):
        async def step(self, state, action, *, turns_left):
            await asyncio.sleep(5)
            return state, StepResult()

    broken = await run(Script(["boom;"]), item(SHORT))
    assert broken.nodes[-1].node.end is EndReason.ENV_ERROR
    assert broken.nodes[-1].node.reward is None
    assert broken.nodes[-1].node.note == "RuntimeError: the world broke"
    assert broken.ledger.branches_failed == 1
    slow = await run(Script(["a;"]), item(SHORT), Sleeper())
    assert slow.nodes[-1].node.note == "the environment did not answer within 0.2 s"
