"""What went wrong in the reference code of Tree-GRPO, one test each, from the rollout to the learner's packs.

Defects that have their test where the code is are not repeated here: stop strings and prefix cache of the real engine
in test_generation_engine, one push per optimizer phase in test_push, no barrier in test_collection, seeded picking and
the root as a candidate in test_growing, resuming in test_checkpoint and test_training, an optimizer that lives on in
test_optimizer_state.
"""

from collections import Counter

import numpy as np
import pytest
from echo_world import CharCodec, CountingEnv, Wanderer, grow, task

from envs.rewards import CheckedReward, Outcome, RewardError
from envs.types import EndReason, StepResult
from rollout_workers import trees
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.growth import TreeRules
from rollout_workers.types import Forest, Node, Sampling, TaskGroup, Tree
from trainer.advantages import TreeAdvantages, advantages
from trainer.config import LearnerConfig, LimitsConfig, LossConfig
from trainer.config.sentences import ConfigError
from trainer.credit import tree_credit
from trainer.failures import check_failures
from trainer.packing import pack_forest
from trainer.types import TreePack

RULES = TreeRules(roots=2, nodes_per_round=2, branches_per_node=2, rounds=2)


def spec(names: tuple[str, ...] = ("q0", "q1"), rules: TreeRules = RULES) -> CollectionSpec:
    limits = Sampling(max_turn_tokens=8, max_context_tokens=400, max_turns=4)
    tasks = tuple(task(name) for name in names)
    return CollectionSpec(phase="train-1", tasks=tasks, rules=rules, sampling=limits, seed=3)


async def grown(policy: Wanderer | None = None, env: object = None) -> Collection:
    return await grow(spec(), policy or Wanderer(), env)


def packs_of(forest: Forest, credit: list[list[TreeAdvantages]] | None = None) -> list[TreePack]:
    credit = credit or [advantages(group) for group in forest]
    loss = LossConfig(kl_coef=0.001)
    packed = pack_forest(forest, credit, loss, LearnerConfig(max_tokens_per_pack=400), 64)
    return [pack for ranks in packed.mini_batches for packs in ranks for pack in packs]


def nodes_of(forest: Forest) -> list[Node]:
    return [node for group in forest for tree in group.trees for node in tree.nodes]


async def test_trained_ids_are_the_sampled_ids_with_the_one_that_ended_the_step():
    forest = (await grown()).forest()
    trained = Counter(
        (int(number), round(float(logprob), 5))
        for pack in packs_of(forest)
        for number, logprob in zip(
            pack.ids[pack.weight > 0].tolist(), pack.old_logprobs[pack.weight > 0].tolist(), strict=True
        )
    )
    sampled = [pair for node in nodes_of(forest) for pair in zip(node.token_ids, node.logprobs, strict=True)]
    assert trained == Counter((number, round(float(np.float32(logprob)), 5)) for number, logprob in sampled)
    assert any(number >= 1000 for number, _ in trained), "ids that no encoding of the text would give"
    assert {node.token_ids[-1] % 1000 for node in nodes_of(forest) if node.token_ids} == {ord(";")}


async def test_every_request_has_the_stop_strings_and_no_sampled_token_is_thrown_away():
    policy = Wanderer()
    collection = await grown(policy)
    sampled = [node for node in nodes_of(collection.forest()) if node.token_ids]
    assert {stop for _, stop in policy.requests} == {CountingEnv.stop}
    assert len(policy.requests) == len(sampled) == collection.ledger.requests
    assert collection.ledger.sampled_tokens == sum(len(node.token_ids) for node in sampled)


async def test_every_context_is_the_exact_path_so_that_its_cached_prefix_serves():
    policy = Wanderer()
    forest = (await grown(policy)).forest()
    paths = Counter(
        tuple(trees.path_ids(tree, node.parent)) for group in forest for tree in group.trees for node in tree.nodes[1:]
    )
    assert Counter(context for context, _ in policy.requests) == paths
    prompts = [tuple(CharCodec().prompt(group.task)) for group in forest]
    assert all(context[:2] in prompts for context, _ in policy.requests), "the prompt is never cut away"


def test_a_prompt_that_is_too_long_is_refused_not_cut():
    from trainer.prompts import check_prompts

    check_prompts(CharCodec(), [task("abcd")], LimitsConfig(max_prompt_tokens=4))
    with pytest.raises(ConfigError, match=r"^The prompt of task 'abcde' has 5 tokens, .* prompts are never cut"):
        check_prompts(CharCodec(), [task("abcd"), task("abcde")], LimitsConfig(max_prompt_tokens=4))


async def test_groups_are_tasks_by_id_whatever_else_is_equal():
    forest = (await grown()).forest()
    assert [group.task.id for group in forest] == ["q0", "q1"]
    assert all(tree.task_id == group.task.id for group in forest for tree in group.trees)
    with pytest.raises(ValueError, match="task id 'q0' appears twice"):
        Collection(spec(("q0", "q0")))


def hand_drawn(*rewards: float) -> Tree:
    """Prompt, one step whose ids and observation hold padding (0) and end-of-sequence (1), then a leaf per reward."""
    nodes = [
        Node(parent=-1, observation_ids=(0, 7)),
        Node(parent=0, token_ids=(5, 0, 1), logprobs=(-1.0,) * 3, versions=(0,) * 3, observation_ids=(1, 6, 0)),
    ]
    for slot, reward in enumerate(rewards):
        ids, logprobs, versions = (slot, 1), (-1.0, -2.0), (0, 0)
        leaf = Node(parent=1, token_ids=ids, logprobs=logprobs, versions=versions, end=EndReason.ANSWERED,
                    reward=reward, score=reward, slot=slot)  # fmt: skip
        nodes.append(leaf)
    return Tree(task_id="q", index=0, nodes=nodes)


def test_masks_follow_what_was_sampled_not_padding_ids():
    (pack,) = packs_of([TaskGroup(task=task("q"), trees=(hand_drawn(1.0, 0.0),))])
    assert pack.ids.tolist() == [0, 7, 5, 0, 1, 1, 6, 0, 0, 1, 1, 1]
    assert (pack.weight > 0).tolist() == [False] * 2 + [True] * 3 + [False] * 3 + [True] * 4


async def test_branches_are_trained_and_grow_again():
    forest = (await grown(Wanderer(ends=0.1))).forest()
    inner = [(tree, node) for group in forest for tree in group.trees for node in tree.nodes[1:]]
    assert any(tree.nodes[node.parent].slot not in (0, node.slot) for tree, node in inner), "a branch on a branch"
    trained = sum(pack.trained_tokens for pack in packs_of(forest))
    assert trained == sum(len(node.token_ids) for node in nodes_of(forest)), "first chains and branches alike"


async def test_a_branch_goes_on_behind_the_picked_step_not_before_or_on_it():
    for group in (await grown(Wanderer(ends=0.1))).forest():
        for tree in group.trees:
            for index, depth in enumerate(trees.depths(tree)):
                if depth and not tree.nodes[index].is_leaf:
                    seen = "".join(map(chr, tree.nodes[index].observation_ids))
                    assert seen == f"<{depth}>", "the world counts the steps of exactly this path"


class Careless(CountingEnv):
    """Changes the state it was given in place."""

    def reset(self, task):
        return []

    async def step(self, state, action, *, turns_left):
        state.append(action)
        if "!" in action or turns_left < 0:
            return state, StepResult(end=EndReason.ANSWERED, reward=0.0, score=0.0)
        return state, StepResult(observation="|".join(state))


async def test_siblings_never_share_a_state_even_if_the_world_changes_it_in_place():
    for group in (await grown(Wanderer(ends=0.1), Careless())).forest():
        for tree in group.trees:
            for index, node in enumerate(tree.nodes[1:], start=1):
                said = ["".join(chr(n % 1000) for n in tree.nodes[i].token_ids) for i in trees.path(tree, index)[1:]]
                if not node.is_leaf:
                    assert "".join(map(chr, node.observation_ids)) == "|".join(said)


@pytest.mark.parametrize("rewards", [(1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, 1.0, 0.0)])
def test_a_step_gets_credit_from_every_child_not_only_the_first(rewards):
    tree = hand_drawn(*rewards)
    credit = tree_credit(
        tree, TreeAdvantages.of_leaves({2 + i: r - 1 / 3 for i, r in enumerate(rewards)}), {2: 0.5, 3: 0.5, 4: 0.5}
    )
    assert credit.positive[1] == pytest.approx(0.5 * 2 / 3)
    assert credit.negative[1] == pytest.approx(-0.5 * 2 / 3)
    assert credit.weight[1] == pytest.approx(1.5)


class Picky(CountingEnv):
    """Rewards through a function that has no number for task "q1"."""

    reward = CheckedReward(name="mine.f", function=lambda end: float("nan" if end.task_id == "q1" else 1), range=(0, 1))

    def reset(self, task):
        return task.id

    async def step(self, state, action, *, turns_left):
        if "!" not in action and turns_left >= 0:
            return state, StepResult(observation=".")
        end = EndReason.ANSWERED
        case = Outcome(task_id=state, truths=("x",), answer="x", score=1, format_ok=True, end=end, tool_calls=0)
        try:
            return state, StepResult(end=end, reward=self.reward(case), score=1.0)
        except RewardError as error:
            return state, StepResult(end=EndReason.ENV_ERROR, note=str(error))


async def test_a_reward_that_is_no_number_is_counted_and_never_trained_and_stops_a_run_that_has_many():
    collection = await grown(Wanderer(), Picky())
    forest, ledger = collection.forest(), collection.ledger
    assert (ledger.branches_failed, ledger.branches) == (18, 36)  # 2 trees of 9 leaves, for one task of two
    assert all(not found.leaves for found in advantages(forest[1]))
    trained = sum(pack.trained_tokens for pack in packs_of(forest))
    assert trained == sum(len(node.token_ids) for node in nodes_of(forest[:1]))
    sentence = (
        "50% of the branches of train-1 ended in an environment error, more than env.max_error_share=0.2, "
        "e.g. train-1/q1/0/0: the reward function mine.f gave nan for task 'q1'; "
        "env.reward.range accepts numbers from 0 to 1"
    )
    with pytest.raises(RuntimeError) as raised:
        check_failures("train-1", ledger, collection.failures, 0.2)
    assert str(raised.value) == sentence
    check_failures("train-1", ledger, collection.failures, 0.5)
