"""What every grown forest keeps to, on whole collections in the echo world: M, N, K, L, picking, seeds, turn limits."""

from itertools import product

import pytest
from echo_world import CountingEnv, Wanderer, grow, task

from envs.types import EndReason, StepResult
from rollout_workers import trees
from rollout_workers.collection import CollectionSpec
from rollout_workers.growth import TreeRules
from rollout_workers.types import ROOT, Forest, Sampling, Tree

LIMITS = Sampling(max_turn_tokens=8, max_context_tokens=400, max_turns=3)


def spec(rules: TreeRules, *, tasks: int = 2, seed: int = 5, phase: str = "train-1") -> CollectionSpec:
    return CollectionSpec(
        phase=phase, tasks=tuple(task(f"q{i}") for i in range(tasks)), rules=rules, sampling=LIMITS, seed=seed
    )


async def forest(rules: TreeRules, *, ends: float = 0.3, env: object = None, **changes) -> Forest:
    return (await grow(spec(rules, **changes), Wanderer(ends), env)).forest()


def all_trees(grown: Forest) -> list[Tree]:
    return [tree for group in grown for tree in group.trees]


def starts(tree: Tree) -> list[int]:
    """For each branch after the first chain, the node it continues from."""
    first = {node.slot: node.parent for node in reversed(tree.nodes[1:])}
    return [first[slot] for slot in sorted(first) if slot > 0]


@pytest.mark.parametrize(("roots", "nodes", "branches", "rounds"), list(product((1, 3), (1, 2, 5), (1, 2), (0, 1, 3))))
async def test_every_shape_has_its_leaves(roots, nodes, branches, rounds):
    rules = TreeRules(roots=roots, nodes_per_round=nodes, branches_per_node=branches, rounds=rounds)
    grown = await forest(rules)
    assert [len(group.trees) for group in grown] == [roots, roots]
    for tree in all_trees(grown):
        trees.check(tree)
        assert len(trees.leaves(tree)) == 1 + rounds * nodes * branches
        assert not any(tree.nodes[start].is_leaf for start in starts(tree))
        assert all(kids or tree.nodes[index].is_leaf for index, kids in enumerate(trees.children(tree)))
        for pick in range(0, rounds * nodes * branches, branches):
            assert len(set(starts(tree)[pick : pick + branches])) == 1, "the K branches of one pick start at one node"


async def test_a_tree_of_one_step_can_only_grow_from_its_root():
    rules = TreeRules(roots=1, nodes_per_round=4, rounds=1)
    for tree in all_trees(await forest(rules, ends=1.0)):
        assert starts(tree) == [ROOT] * 4, "4 picks of 1 candidate: with replacement"
        assert [node.parent for node in tree.nodes] == [-1, 0, 0, 0, 0, 0]


async def test_root_inner_nodes_and_nodes_of_branches_are_all_picked():
    rules = TreeRules(roots=4, nodes_per_round=3, rounds=3)
    grown = all_trees(await forest(rules, ends=0.1, tasks=4))
    picked = [(tree, start) for tree in grown for start in starts(tree)]
    assert any(start == ROOT and not tree.nodes[1].is_leaf for tree, start in picked), "though others could be picked"
    assert any(start != ROOT and tree.nodes[start].slot == 0 for tree, start in picked)
    assert any(start != ROOT and tree.nodes[start].slot > 0 for tree, start in picked), "branches on branches"


async def test_one_seed_one_forest_and_another_seed_phase_or_task_other_picks():
    rules = TreeRules(roots=2, nodes_per_round=4, rounds=2)
    grown = await forest(rules, ends=0.1)
    assert all_trees(grown) == all_trees(await forest(rules, ends=0.1))
    picks = [starts(tree) for tree in all_trees(grown)]
    assert len({tuple(pick) for pick in picks}) == 4, "every tree of every task draws on its own"
    for other in ({"seed": 6}, {"phase": "train-2"}):
        assert picks != [starts(tree) for tree in all_trees(await forest(rules, ends=0.1, **other))]


class Countdown(CountingEnv):
    """Observes how many turns are left; ends on the answer-only turn, which it counts."""

    def __init__(self) -> None:
        self.last_turns = 0

    async def step(self, state: int, action: str, *, turns_left: int) -> tuple[int, StepResult]:
        if turns_left < 0:
            self.last_turns += 1
            return state, StepResult(end=EndReason.TURN_LIMIT, reward=0.0, score=0.0)
        return state + 1, StepResult(observation=f"<{turns_left}>", tool_calls=1)


async def test_turn_limits_count_the_prefix_and_the_answer_only_turn_comes_once():
    env = Countdown()
    rules = TreeRules(roots=2, nodes_per_round=3, rounds=2)
    grown = all_trees(await forest(rules, ends=0.0, env=env))
    for tree in grown:
        for leaf in trees.leaves(tree):
            steps = [tree.nodes[index] for index in trees.path(tree, leaf)][1:]
            seen = "".join(chr(number) for node in steps for number in node.observation_ids)
            assert seen == "<2><1><0>", "3 tool turns on every path, wherever the branch began"
            assert [node.tool_calls for node in steps] == [1, 1, 1, 0]
            assert steps[-1].end is EndReason.TURN_LIMIT
    assert env.last_turns == sum(len(trees.leaves(tree)) for tree in grown)
    assert any(start != ROOT and trees.depths(tree)[start] == 3 for tree in grown for start in starts(tree)), (
        "a node after the last tool turn was picked too: its branch is the answer-only turn alone"
    )


async def test_chains_are_the_same_code_and_the_same_first_chains():
    tree_forest = await forest(TreeRules(roots=2, nodes_per_round=2, rounds=1))
    chains = await forest(TreeRules(roots=6, nodes_per_round=2, rounds=0))
    for group, chain_group in zip(tree_forest, chains, strict=True):
        assert [len(trees.leaves(tree)) for tree in chain_group.trees] == [1] * 6
        for tree, chain in zip(group.trees, chain_group.trees, strict=False):
            assert tree.nodes[: len(chain.nodes)] == chain.nodes
