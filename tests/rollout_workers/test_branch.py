"""Branches on a scripted policy: what is sampled is stored, what is observed is appended, limits end a branch."""

import asyncio
import pickle
import re
import sys
from dataclasses import replace

import pytest
from echo_world import CharCodec, CountingEnv, Script, task

from envs.types import EndReason, StepResult
from rollout_workers.actor import TokenizerCodec
from rollout_workers.branch import CUT_MARK, MAX_NOTE, TOKEN_CHARACTERS, BranchRunner
from rollout_workers.types import BranchResult, Sampling, WorkItem


def item(
    sampling: Sampling,
    *,
    context: str = "",
    state: bytes | None = None,
    turns: int = 0,
    avoid: tuple[str, ...] = (),
    resamples: int = 0,
) -> WorkItem:
    return WorkItem(
        id="t/q/0/0", task=task("q?"), tree=0, parent=0, slot=0, context_ids=tuple(map(ord, context)),
        state=state, turns_used=turns, seed=7, avoid=avoid, resamples=resamples, sampling=sampling,
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


@pytest.mark.parametrize("broken", [float("nan"), float("-inf"), float("inf")])
async def test_a_log_probability_that_is_not_finite_ends_the_actor_and_gives_no_branch(broken):
    class Damaged(Script):
        async def generate(self, *args, **kwargs):
            sample = await super().generate(*args, **kwargs)
            return replace(sample, logprobs=(*sample.logprobs[:-1], broken))

    with pytest.raises(RuntimeError, match=rf"log-probability of {broken} for a token .* in branch t/q/0/0"):
        await run(Damaged(["a;"]), item(SHORT))


async def test_branch_continues_from_state_and_context():
    script = Script(["c!;"])
    result = await run(script, item(SHORT, context="q?a;<1>", state=pickle.dumps(1), turns=1))
    assert script.contexts == ["q?a;<1>"]
    assert result.prompt_ids == (), "only the first branch of a tree tells the prompt"
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


async def test_a_first_step_that_a_sibling_had_is_sampled_again_before_the_world_sees_it():
    script = Script([" a;", "a;", "b;", "a!;"])
    work = item(SHORT, context="q?", state=pickle.dumps(0), avoid=("a;", "c;"), resamples=2)
    result = await run(script, work)
    assert script.contexts == ["q?", "q?", "q?", "q?b;<1>"], "later steps may repeat an earlier action"
    assert [new.action for new in result.nodes] == ["b;", "a!;"]
    ledger = result.ledger
    assert (ledger.siblings_equal, ledger.siblings_resampled, ledger.discarded_tokens) == (1, 2, 5)
    assert (ledger.requests, ledger.sampled_tokens, ledger.tool_calls) == (4, 5 + 2 + 3, 1)


async def test_a_duplicate_after_the_last_attempt_is_kept_and_counted():
    kept = await run(Script(["a;", "a;", "!;"]), item(SHORT, context="q?", avoid=("a;",), resamples=1))
    assert [new.action for new in kept.nodes] == ["a;", "!;"]
    ledger = kept.ledger
    assert (ledger.siblings_equal, ledger.siblings_resampled, ledger.discarded_tokens) == (1, 1, 2)
    new = await run(Script(["b;", "!;"]), item(SHORT, context="q?", avoid=("a;",), resamples=1))
    assert (new.ledger.siblings_equal, new.ledger.siblings_resampled) == (0, 0)


async def test_each_attempt_has_a_seed_of_its_own():
    class Seeds(Script):
        async def generate(self, prompt_ids, *, seed, **rest):
            seeds.append(seed)
            return await super().generate(prompt_ids, seed=seed, **rest)

    seeds: list[int] = []
    work = item(SHORT, context="q?", avoid=("a;",), resamples=2)
    await run(Seeds(["a;", "a;", "a;", "!;"]), work)
    await run(Seeds(["a;", "a;", "a;", "!;"]), work)
    assert len(set(seeds)) == 4
    assert seeds[:4] == seeds[4:]


async def test_a_node_has_the_mean_entropy_of_its_tokens():
    class Sure(Script):
        async def generate(self, prompt_ids, **rest):
            return replace(await super().generate(prompt_ids, **rest), entropies=(0.5, 1.0))

    assert (await run(Sure(["!;"]), item(SHORT))).nodes[0].node.entropy == 0.75
    assert (await run(Script(["!;"]), item(SHORT))).nodes[0].node.entropy is None


async def test_an_observation_that_does_not_fit_ends_the_branch_with_a_reward():
    limits = replace(SHORT, max_context_tokens=7)
    result = await run(Script(["a;", "b!;"]), item(limits))
    leaf = result.nodes[-1].node
    assert len(result.nodes) == 1
    assert (leaf.end, leaf.reward, leaf.observation_ids) == (EndReason.CONTEXT_LIMIT, 0.0, ()), (
        "2 + 2 + 3 leave no room"
    )


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
    assert (result.ledger.observations_cut, result.ledger.observations_repaired) == (1, 0)


@pytest.mark.parametrize("text", ["caf\udce9", "\ud800" + "x" * 9000, "x" * 9000 + "\ud800"])
async def test_halves_of_surrogate_pairs_are_counted_where_they_are_read(text):
    class Mumbler(CountingEnv):
        async def step(self, state, action, *, turns_left):
            if "!" in action:
                return await super().step(state, action, turns_left=turns_left)
            return state, StepResult(observation=text)

    assert (await run(Script(["a;", "!;"]), item(SHORT), Mumbler())).ledger.observations_repaired == 1


@pytest.mark.parametrize(
    ("limit", "seen"),
    [
        (1, " "),
        (7, " [...] "),
        (8, "< [...] "),
        (10, "<i [...] >"),
        (14, "<inf [...] fo>"),
        (23, "<info>xx [...] x</info>"),
        (64, "<info>" + "x" * 50 + "</info>"),
    ],
)
async def test_a_cut_observation_is_never_longer_than_the_limit(limit, seen):
    class Talker(CountingEnv):
        async def step(self, state, action, *, turns_left):
            if "!" in action:
                return await super().step(state, action, turns_left=turns_left)
            return state, StepResult(observation="<info>" + "x" * 50 + "</info>")

    limits = replace(SHORT, max_observation_tokens=limit, max_context_tokens=100)
    result = await run(Script(["a;", "!;"]), item(limits), Talker())
    assert "".join(map(chr, result.nodes[0].node.observation_ids)) == seen
    assert len(seen) <= limit


async def test_a_huge_observation_is_not_encoded_as_a_whole():
    asked = []

    class Measured(CharCodec):
        def encode(self, text):
            asked.append(len(text))
            return super().encode(text)

    class Flood(CountingEnv):
        async def step(self, state, action, *, turns_left):
            if "!" in action:
                return await super().step(state, action, turns_left=turns_left)
            return state, StepResult(observation="<info>" + "x" * 10**7 + "</info>")

    runner = BranchRunner(Flood(), Script(["a;", "!;"]), Measured(), env_timeout_s=0.2)
    result = await runner.run(item(SHORT))
    assert "".join(map(chr, result.nodes[0].node.observation_ids)) == "<info>xxxxxxxxx [...] x</info>"
    assert max(asked) == 30 * TOKEN_CHARACTERS


def test_half_a_surrogate_pair_reaches_no_tokenizer():
    class Strict:
        def encode(self, text, add_special_tokens):
            return list(text.encode())

    assert TokenizerCodec(Strict()).encode("a\udce9b") == [97, 63, 98]


class Ending(CountingEnv):
    def reset(self, task):
        sys.exit("no licence")


class Unbegun(CountingEnv):
    def reset(self, task):
        raise ValueError("its game is missing")


class Unpickled(CountingEnv):
    async def step(self, state, action, *, turns_left):
        return (lambda: state), StepResult(observation="seen")


class Untokenised(CountingEnv):
    async def step(self, state, action, *, turns_left):
        return state, StepResult(observation=None)


@pytest.mark.parametrize(
    ("env", "note"),
    [
        (Unbegun(), "ValueError: its game is missing"),
        (Ending(), "SystemExit: no licence"),
        (Unpickled(), "Can't pickle local object|Can't get local object"),
        (Untokenised(), "TypeError: object of type 'NoneType' has no len"),
    ],
)
async def test_a_task_that_cannot_begin_or_go_on_fails_its_branch_and_nothing_else(env, note):
    failed = await run(Script(["a;"]), item(SHORT), env)
    (leaf,) = failed.nodes
    assert (leaf.node.end, leaf.node.reward, leaf.state) == (EndReason.ENV_ERROR, None, None)
    assert re.search(note, leaf.node.note)
    assert failed.ledger.branches_failed == 1


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


class Mute(Exception):
    def __str__(self):
        raise KeyError("no text")


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (TimeoutError("the game server"), "TimeoutError: the game server"),
        (SystemExit(3), "SystemExit: 3"),
        (Mute(), "Mute: it has no text"),
        (ValueError("x" * 10**7), "ValueError: " + "x" * (MAX_NOTE - 12) + CUT_MARK),
        (ValueError("at http://me:pw@host/?token=abc"), "ValueError: at http://***@host/?token=***"),
    ],
)
async def test_what_an_environment_raises_is_the_note(error, note):
    class Raises(CountingEnv):
        async def step(self, state, action, *, turns_left):
            raise error

    leaf = (await run(Script(["a;"]), item(SHORT), Raises())).nodes[-1].node
    assert (leaf.end, leaf.note) == (EndReason.ENV_ERROR, note)


async def test_a_note_of_the_environments_own_is_masked_and_cut_too():
    class Notes(CountingEnv):
        async def step(self, state, action, *, turns_left):
            return state, StepResult(end=EndReason.ENV_ERROR, note=notes.pop())

    notes = [7, "http://me:pw@host/ " + "y" * 10**5]
    long = (await run(Script(["a;"]), item(SHORT), Notes())).nodes[-1].node.note
    assert long == "http://***@host/ " + "y" * (MAX_NOTE - 17) + CUT_MARK
    assert (await run(Script(["a;"]), item(SHORT), Notes())).nodes[-1].node.end is EndReason.ENV_ERROR
