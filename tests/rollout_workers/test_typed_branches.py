"""Branches of typed nodes: each step's context is its own prompt, in tree and ledger, and when a branch goes on."""

import json
import pickle
import random
from dataclasses import replace

import pytest
from echo_world import CharCodec, Script, grow, task
from typed_world import letters_env, say

from envs.decisions.contracts import ContractError
from envs.types import EndReason
from rollout_workers import trees
from rollout_workers.branch import BranchRunner
from rollout_workers.collection import CollectionSpec
from rollout_workers.growth import TreeRules
from rollout_workers.scheduler import TreeScheduler
from rollout_workers.types import Completion, Node, Sampling, Tree, WorkItem

LIMITS = Sampling(
    max_turn_tokens=20, max_context_tokens=80, max_prompt_tokens=50, max_observation_tokens=3, max_turns=0
)
PROMPTS = ('a?\n{"q":"hi"}', 'b?\n{"a":"x"}', 'c?\n{"b":"y","found":"Y"}')
RIGHT = (say(a="x"), say(b="y"), say(c="z"))


class Said(Script):
    """Also remembers what it was asked, and of how many tokens at most."""

    def __init__(self, actions):
        super().__init__(actions)
        self.asks = []

    async def generate(self, prompt_ids, *, max_tokens, ask=None, **rest):
        self.asks.append((ask.node, ask.adapter, ask.max_tokens, max_tokens))
        sample = await super().generate(prompt_ids, max_tokens=max_tokens, **rest)
        return replace(sample, finished="length" if len(sample.token_ids) == max_tokens else "stop")


def item(**changes) -> WorkItem:
    plain = WorkItem(
        id="t/q/0/0", task=task("hi"), tree=0, parent=0, slot=0, context_ids=(), state=None, turns_used=0, seed=7,
        sampling=LIMITS,
    )  # fmt: skip
    return replace(plain, **changes)


async def run(script, work, **changes):
    return await BranchRunner(letters_env(**changes), script, CharCodec(), 1.0, block_size=4).run(work)


def text(ids):
    return "".join(map(chr, ids))


async def test_each_step_sees_its_own_prompt_only_and_turns_are_not_counted():
    script = Said(RIGHT)
    result = await run(script, item())
    assert tuple(script.contexts) == PROMPTS
    assert script.asks == [("a", "a", 9, 9), ("b", "b", None, 20), ("c", None, None, 20)]
    assert text(result.prompt_ids) == PROMPTS[0]
    nodes = [new.node for new in result.nodes]
    assert [text(node.observation_ids) for node in nodes] == [PROMPTS[1], PROMPTS[2], ""], "prompts are never cut"
    assert [node.record.node for node in nodes] == ["a", "b", "c"]
    assert [node.record.reward.automatic for node in nodes] == [0.5] * 3
    leaf = nodes[-1]
    assert (leaf.end, leaf.reward, leaf.score) == (EndReason.ANSWERED, 1.0, 1.0)
    assert json.loads(leaf.result) == {"a": {"a": "x"}, "b": {"b": "y", "found": "Y"}, "c": {"c": "z"}}
    ledger = result.ledger
    assert ledger.prefill_tokens_computed == sum(map(len, PROMPTS))
    assert (ledger.prefill_tokens_block_bound, ledger.tool_calls, ledger.requests) == (0, 1, 3)


async def test_a_branch_from_the_middle_goes_on_from_exactly_the_stored_state():
    whole = await run(Said(RIGHT), item())
    stored = whole.nodes[0]
    script = Said([say(b="w"), say(c="z")])
    prompt = stored.node.observation_ids
    branch = await run(script, item(parent=1, context_ids=prompt, state=stored.state, turns_used=1, slot=1))
    assert script.contexts == [PROMPTS[1], 'c?\n{"b":"w","found":"W"}']
    assert [new.node.record.node for new in branch.nodes] == ["b", "c"]
    assert json.loads(branch.nodes[-1].node.result)["a"] == {"a": "x"}
    assert branch.prompt_ids == ()
    assert branch.ledger.prefill_tokens_block_bound == len(prompt) - (len(prompt) - 1) // 4 * 4 == 4, (
        "the first prompt ran before, in whole blocks of 4; the second one is new"
    )
    assert len(pickle.loads(stored.state).values) == 1


async def test_an_answer_that_a_sibling_gave_is_sampled_again_before_the_world_sees_it():
    script = Said([say(b="y"), say(b="w"), RIGHT[2]])
    whole = await run(Said(RIGHT), item())
    stored = whole.nodes[0]
    prompt = stored.node.observation_ids
    work = item(parent=1, context_ids=prompt, state=stored.state, turns_used=1, avoid=(RIGHT[1],), resamples=2)
    branch = await run(script, work)
    assert script.contexts[:2] == [PROMPTS[1]] * 2
    assert [new.action for new in branch.nodes] == [say(b="w"), RIGHT[2]]
    assert [ask[:2] for ask in script.asks] == [("b", "b"), ("b", "b"), ("c", None)], "again with the same adapter"
    ledger = branch.ledger
    assert (ledger.siblings_resampled, ledger.discarded_tokens, ledger.tool_calls) == (1, 9, 1)
    assert ledger.prefill_tokens_block_bound == 2 * (len(prompt) - (len(prompt) - 1) // 4 * 4)


CUT = {
    "an answer that lost its end": ('{"a":"long letters"}', EndReason.LENGTH_LIMIT, "output: not JSON"),
    "an answer that is not valid": ("[]", EndReason.INVALID_ACTION, "output: [] is not of type 'object'"),
}


@pytest.mark.parametrize(("said", "end", "fault"), CUT.values(), ids=CUT)
async def test_an_answer_that_is_not_valid_ends_its_branch_with_nothing(said, end, fault):
    (leaf,) = (await run(Said([said]), item())).nodes
    assert (leaf.node.end, leaf.node.reward, leaf.node.score, leaf.node.observation_ids) == (end, 0.0, 0.0, ())
    assert leaf.node.record.fault.startswith(fault)
    assert leaf.node.record.reward.automatic == -1.0


async def test_an_answer_that_is_whole_with_its_last_token_is_valid():
    result = await run(Said(RIGHT), item())
    assert len(result.nodes[0].node.token_ids) == 9, "as many as the node may say"
    assert result.nodes[0].node.end is None


async def test_a_prompt_that_is_too_long_ends_the_branch_before_it_is_asked():
    limits = replace(LIMITS, max_prompt_tokens=len(PROMPTS[1]))
    result = await run(Said(RIGHT), item(sampling=limits, context_ids=tuple(map(ord, PROMPTS[0]))))
    leaf = result.nodes[-1].node
    assert len(result.nodes) == 2
    assert (leaf.end, leaf.reward, leaf.score) == (EndReason.CONTEXT_LIMIT, 0.0, 0.0)
    assert (leaf.record.node, leaf.tool_calls) == ("b", 1)
    assert list(json.loads(leaf.result)) == ["a", "b"]


async def test_a_world_that_breaks_fails_its_branch_only():
    result = await run(Said([RIGHT[0], say(b="boom")]), item())
    leaf = result.nodes[-1].node
    assert (leaf.end, leaf.reward, leaf.record) == (EndReason.ENV_ERROR, None, None)
    assert leaf.note == "RuntimeError: the world broke"
    assert result.nodes[0].node.record.output == '{"a":"x"}', "what came before stays"


async def test_under_strict_a_broken_contract_goes_through_and_ends_the_run():
    with pytest.raises(ContractError, match=r"node 'b' broke its contract in sample 'hi': b: 3 is not of type"):
        await run(Said([RIGHT[0], '{"b":3}']), item(), contracts="strict")
    scheduler = TreeScheduler()
    await scheduler.begin(spec(1))
    await scheduler.refuse("node 'b' broke its contract")
    await scheduler.refuse("node 'c' broke its contract")
    assert (await scheduler.wait(5.0)).refused == "node 'b' broke its contract", "the first one, and at once"


def spec(tasks: int, rounds: int = 2) -> CollectionSpec:
    return CollectionSpec(
        phase="train-1", tasks=tuple(task(f"q{i}") for i in range(tasks)), sampling=LIMITS, seed=3, typed=True,
        rules=TreeRules(roots=2, nodes_per_round=2, rounds=rounds),
    )  # fmt: skip


class Talker:
    """Says a letter for whatever it is asked; sometimes one that is not valid."""

    async def generate(self, prompt_ids, *, seed, max_tokens, ask=None, **_):
        rng = random.Random(seed)
        said = json.dumps({ask.node: rng.choice("xyz")} if rng.random() < 0.9 else {}, separators=(",", ":"))
        ids = tuple(map(ord, said))
        return Completion(
            token_ids=ids, logprobs=(-0.5,) * len(ids), versions=(0,) * len(ids), text=said, finished="stop",
            prompt_tokens=len(prompt_ids), cached_tokens=0,
        )  # fmt: skip


async def test_a_typed_forest_has_short_contexts_and_counts_each_prompt_once():
    collection = await grow(spec(3), Talker(), letters_env())
    unique = 0
    for group in collection.forest():
        for number, tree in enumerate(group.trees):
            trees.check(tree)
            assert tree.typed
            unique += sum(len(node.observation_ids) for node in tree.nodes[number > 0 :])
            for index, node in enumerate(tree.nodes):
                if node.is_leaf:
                    continue
                context = text(trees.context_ids(tree, index))
                steps = [tree.nodes[i].record for i in trees.path(tree, index)[1:]]
                asked = "abc"[len(steps)]
                assert context.startswith(f"{asked}?\n"), "the prompt of the next node, and nothing before it"
                assert len(context) <= LIMITS.max_prompt_tokens
                if steps:
                    fed = {**json.loads(steps[-1].output), **json.loads(steps[-1].found or "{}")}
                    assert json.loads(context[3:]) == fed, "what the step before handed on"
                assert all(tree.nodes[child].record.node == asked for child in trees.children(tree)[index]), (
                    "siblings answer the same prompt"
                )
    assert collection.ledger.prefill_tokens_unique == unique
    again = await grow(spec(3), Talker(), letters_env())
    assert [group.trees for group in again.forest()] == [group.trees for group in collection.forest()]


def test_the_context_of_an_ordinary_tree_is_its_path():
    nodes = [
        Node(parent=-1, observation_ids=(1,)),
        Node(parent=0, token_ids=(2,), logprobs=(0.0,), versions=(0,), observation_ids=(3,)),
    ]
    assert trees.context_ids(Tree(task_id="q", index=0, nodes=nodes), 1) == [1, 2, 3]
    assert trees.context_ids(Tree(task_id="q", index=0, nodes=nodes, typed=True), 1) == [3]
