from dataclasses import replace

import numpy as np
import pytest
from random_forests import random_forest

from envs.types import EndReason, Message, Task
from rollout_workers import trees
from rollout_workers.types import Forest, Node, TaskGroup, Tree
from trainer.advantages import TreeAdvantages, advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.credit import path_credit, tree_credit
from trainer.leaf_weights import leaf_weights
from trainer.packing import flat_pack, pack_forest
from trainer.pieces import CreditedTree, Piece, fill, rows, split
from trainer.types import RatioLevel, RatioUnits, TreePack


def node(parent: int, ids: tuple[int, ...], obs: tuple[int, ...] = (), reward: float | None = None) -> Node:
    end = None if reward is None else EndReason.ANSWERED
    lps = tuple(-0.1 * i for i in ids)
    return Node(
        parent=parent,
        token_ids=ids,
        logprobs=lps,
        versions=(0,) * len(ids),
        observation_ids=obs,
        end=end,
        reward=reward,
    )


def drawn() -> Forest:
    """Prompt (90 91); step 1 = (10 11 | 20) with leaves 2 = (12) and 4 = (15); leaf 3 = (13 14) from the prompt."""
    nodes = [Node(parent=-1, observation_ids=(90, 91)), node(0, (10, 11), (20,)), node(1, (12,), reward=1.0)]
    nodes += [node(0, (13, 14), reward=0.0), node(1, (15,), reward=0.5)]
    task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
    return [TaskGroup(task=task, trees=(Tree(task_id="t", index=0, nodes=nodes),))]


LEAVES = TreeAdvantages.of_leaves
ADVANTAGES = [[LEAVES({2: 3.0, 3: -1.0, 4: -2.0})]]


def pack_one(forest: Forest = drawn(), **learner: object) -> TreePack:  # noqa: B008
    packed = pack_forest(forest, ADVANTAGES, LossConfig(), LearnerConfig(max_tokens_per_pack=64, **learner), 64)
    return packed.mini_batches[0][0][0]


def test_layout_of_the_drawn_tree() -> None:
    pack = pack_one()
    assert pack.ids.tolist() == [90, 91, 10, 11, 20, 12, 15, 13, 14]
    assert pack.positions.tolist() == [0, 1, 2, 3, 4, 5, 5, 2, 3]
    assert pack.end.tolist() == [9, 9, 7, 7, 7, 6, 7, 9, 9]
    assert pack.source.tolist() == [-1, 0, 1, 2, 3, 4, 4, 1, 7]
    assert pack.old_logprobs.tolist() == pytest.approx([0, 0, -1.0, -1.1, 0, -1.2, -1.5, -1.3, -1.4])


def test_weights_of_the_drawn_tree() -> None:
    """seq_mean: one task, three leaves with 3, 2 and 3 sampled tokens, so w = 1/9, 1/6, 1/9."""
    pack = pack_one()
    shared_p, shared_n, shared_w = 3 / 9, -2 / 9, 2 / 9
    assert pack.positive.tolist() == pytest.approx([0, 0, shared_p, shared_p, 0, 3 / 9, 0, 0, 0])
    assert pack.negative.tolist() == pytest.approx([0, 0, shared_n, shared_n, 0, 0, -2 / 9, -1 / 6, -1 / 6])
    assert pack.weight.tolist() == pytest.approx([0, 0, shared_w, shared_w, 0, 1 / 9, 1 / 9, 1 / 6, 1 / 6])
    assert pack.trained_tokens == 6


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (LossConfig(), [1 / 9, 1 / 6, 1 / 9]),
        (LossConfig(aggregation="token_mean"), [1 / 8] * 3),
        (LossConfig(aggregation="dr_grpo", dr_grpo_length=10), [1 / 30] * 3),
    ],
)
def test_leaf_weights(loss: LossConfig, expected: list[float]) -> None:
    assert list(leaf_weights(drawn(), ADVANTAGES, loss)[0][0].values()) == pytest.approx(expected)


def test_a_leaf_without_a_sampled_token_counts_among_the_leaves() -> None:
    """Leaf 3 becomes empty: G stays 3, so the others keep 1/9."""
    forest = drawn()
    forest[0].trees[0].nodes[3] = node(0, (), reward=0.0)
    assert leaf_weights(forest, ADVANTAGES, LossConfig())[0][0] == pytest.approx({2: 1 / 9, 3: 0.0, 4: 1 / 9})


def test_leaves_without_advantage_count_nowhere() -> None:
    weights = leaf_weights(drawn(), [[LEAVES({2: 1.0, 3: -1.0})]], LossConfig())[0][0]
    assert weights == pytest.approx({2: 1 / 6, 3: 1 / 4})


def test_zero_advantages_are_laid_out_only_for_kl_or_entropy() -> None:
    credit = [[LEAVES({2: 1.0, 3: 0.0, 4: 0.0})]]
    learner = LearnerConfig(max_tokens_per_pack=64)
    plain = pack_forest(drawn(), credit, LossConfig(kl_coef=0.0), learner, 64).mini_batches[0][0][0]
    assert plain.ids.tolist() == [90, 91, 10, 11, 20, 12]
    assert plain.positive[5] == pytest.approx(1 / 9)
    with_kl = pack_forest(drawn(), credit, LossConfig(kl_coef=0.1), learner, 64).mini_batches[0][0][0]
    assert with_kl.tokens == 9
    dead = pack_forest(drawn(), [[LEAVES({2: 0.0, 3: 0.0, 4: 0.0})]], LossConfig(kl_coef=0.0), learner, 64)
    assert dead.mini_batches == [[[]]]


def visible(pack: TreePack) -> np.ndarray:
    query, key = np.arange(pack.tokens)[:, None], np.arange(pack.tokens)[None]
    return (key <= query) & (query < pack.end[None])


def test_every_token_sees_exactly_its_path() -> None:
    """Read back through the mask, each trained token's context is a prefix of a path of some leaf, in order."""
    forest = random_forest(1)
    adv = [advantages(group) for group in forest]
    paths = {
        tuple(trees.path_ids(tree, leaf)) for group in forest for tree in group.trees for leaf in trees.leaves(tree)
    }
    prefixes = {path[:n] for path in paths for n in range(1, len(path) + 1)}
    for pack in pack_forest(forest, adv, LossConfig(), LearnerConfig(max_tokens_per_pack=70), 64).mini_batches[0][0]:
        mask = visible(pack)
        for i in range(pack.tokens):
            seen = np.flatnonzero(mask[i])
            assert tuple(pack.ids[seen].tolist()) in prefixes
            assert pack.positions[seen].tolist() == list(range(len(seen)))
            assert pack.source[i] == (seen[-2] if len(seen) > 1 else -1)


def credited(forest: Forest = drawn(), found: TreeAdvantages = ADVANTAGES[0][0]) -> CreditedTree:  # noqa: B008
    tree, at_leaf = forest[0].trees[0], dict.fromkeys((2, 3, 4), 1.0)
    paths = {leaf: path_credit(tree, leaf, found, 1.0) for leaf in (2, 3, 4)}
    return CreditedTree(tree=tree, leaves=(2, 3, 4), credit=tree_credit(tree, found, at_leaf), paths=paths)


def test_split_trains_every_node_once_and_repeats_prefixes() -> None:
    pieces = list(split(credited(), capacity=6))
    assert [piece.nodes for piece in pieces] == [(0, 1, 2), (0, 1, 4), (0, 3)]
    assert [sorted(piece.context) for piece in pieces] == [[], [0, 1], [0]]
    assert [piece.tokens for piece in pieces] == [6, 6, 4]
    assert [piece.repeated_tokens for piece in pieces] == [0, 5, 2]
    assert [list(piece.paths) for piece in pieces] == [[2], [4], [3]]
    assert [piece.nodes for piece in split(credited(), capacity=7)] == [(0, 1, 2, 4), (0, 3)]
    assert len(list(split(credited(), capacity=9))) == 1


def test_rows_hold_one_path_each() -> None:
    pieces = list(rows(credited(), capacity=6))
    assert [piece.nodes for piece in pieces] == [(0, 1, 2), (0, 3), (0, 1, 4)]
    assert [sorted(piece.context) for piece in pieces] == [[], [], []]
    assert [piece.repeated_tokens for piece in pieces] == [0, 2, 5]
    assert [piece.credit.positive for piece in pieces] == [[3, 3, 3, 0, 0], [0] * 5, [0] * 5]


def test_attention_pairs_and_cost_on_paper() -> None:
    """Tokens see 1, 2 | 3, 4, 5 | 6 | 6 | 3, 4 tokens: 34 pairs, of which 6*H cost as much as a token."""
    (piece,) = split(credited(), capacity=9)
    assert piece.pairs == 34
    assert piece.cost(hidden_size=1) == pytest.approx(9 + 34 / 6)
    assert [piece.pairs for piece in rows(credited(), capacity=9)] == [21, 10, 21]


def test_pack_smaller_than_a_path_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"learner.max_tokens_per_pack=5 must be at least 6, a path's length in 't'"):
        pack_forest(drawn(), ADVANTAGES, LossConfig(), LearnerConfig(max_tokens_per_pack=5), 64)


@pytest.mark.parametrize("capacity", [32, 64, 512])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_totals_do_not_depend_on_the_split(capacity: int, ranks: int) -> None:
    forest = random_forest(2)
    adv = [advantages(group) for group in forest]
    packed = pack_forest(forest, adv, LossConfig(), LearnerConfig(max_tokens_per_pack=capacity, ranks=ranks), 64)
    per_rank = packed.mini_batches[0]
    assert len(per_rank) == ranks
    assert len({len(packs) for packs in per_rank}) == 1
    packs = [pack for packs in per_rank for pack in packs]
    assert max(pack.tokens for pack in packs) <= capacity
    nodes = [node for group in forest for tree in group.trees for node in tree.nodes]
    assert sum(pack.trained_tokens for pack in packs) == sum(len(node.token_ids) for node in nodes)
    assert packed.stats["tree/trained_tokens"] == sum(len(node.token_ids) for node in nodes)
    assert sum(float(pack.weight.sum()) for pack in packs) == pytest.approx(1.0, rel=1e-5)


def test_mini_batches_split_tasks() -> None:
    forest = random_forest(3, tasks=5)
    adv = [advantages(group) for group in forest]
    packed = pack_forest(forest, adv, LossConfig(), LearnerConfig(mini_batches=2, max_tokens_per_pack=256), 64)
    for rank_packs in packed.mini_batches:
        assert sum(float(pack.weight.sum()) for packs in rank_packs for pack in packs) == pytest.approx(1.0, rel=1e-5)


def test_fill_balances() -> None:
    pieces = list(split(credited(), 6))
    members = fill(pieces, capacity=12, ranks=2, hidden_size=64)
    assert [sum(piece.tokens for piece in part) for part in members] == [10, 6]
    assert fill([], capacity=12, ranks=2, hidden_size=64) == []


def test_fill_balances_cost_within_the_limit_in_tokens() -> None:
    """One row of 40 tokens costs as much as 5 rows of 10 when attention is all that counts (820 against 275 pairs)."""

    def row(tokens: int) -> Piece:
        nodes = [Node(parent=-1, observation_ids=(1,)), node(0, (1,) * (tokens - 1), reward=1.0)]
        tree, ones = Tree(task_id="t", index=0, nodes=nodes), LEAVES({1: 1.0})
        credit = tree_credit(tree, ones, {1: 1.0})
        (piece,) = split(CreditedTree(tree=tree, leaves=(1,), credit=credit, paths={1: credit}), 64)
        return piece

    pieces = [row(10) for _ in range(5)] + [row(40)]
    by_cost = fill(pieces, capacity=60, ranks=2, hidden_size=1)
    assert sorted(sorted(piece.tokens for piece in part) for part in by_cost) == [[10] * 5, [40]]
    crowded = fill(pieces, capacity=40, ranks=2, hidden_size=1)
    assert sorted(sum(piece.tokens for piece in part) for part in crowded) == [10, 20, 20, 40]


def test_ranks_work_on_packs_of_like_cost() -> None:
    forest = random_forest(6, tasks=8)
    adv = [advantages(group) for group in forest]
    packed = pack_forest(forest, adv, LossConfig(), LearnerConfig(max_tokens_per_pack=128, ranks=2), 64)
    assert 0.85 < packed.stats["tree/rank_balance"] <= 1
    alone = pack_forest(forest, adv, LossConfig(), LearnerConfig(max_tokens_per_pack=128), 64)
    assert alone.stats["tree/rank_balance"] == 1


@pytest.mark.parametrize(
    ("learner", "repeated"),
    [
        (LearnerConfig(max_tokens_per_pack=9), 0),
        (LearnerConfig(max_tokens_per_pack=6), 7),
        (LearnerConfig(max_tokens_per_pack=9, layout="flat"), 7),
    ],
)
def test_repeated_tokens_and_token_ratio(learner: LearnerConfig, repeated: int) -> None:
    stats = pack_forest(drawn(), ADVANTAGES, LossConfig(), learner, 64).stats
    assert stats["tree/flat_tokens"] == 16
    assert stats["tree/unique_tokens"] == 9
    assert stats["tree/repeated_tokens"] == repeated
    assert stats["learner/tree_token_ratio"] == pytest.approx(16 / 9)


def units_of(level: RatioLevel, **learner: object) -> list[RatioUnits]:
    packed = pack_forest(drawn(), ADVANTAGES, LossConfig(ratio_level=level), LearnerConfig.model_validate(learner), 64)
    found = [pack.units for pack in packed.mini_batches[0][0]]
    return [units for units in found if units is not None]


def test_units_of_agent_steps_on_paper() -> None:
    """Nodes 1, 2, 4, 3 in preorder; node 1 has two tokens with P = 3/9 and N = -2/9 each."""
    (units,) = units_of("turn", max_tokens_per_pack=9)
    assert units.positive.tolist() == pytest.approx([6 / 9, 3 / 9, 0, 0])
    assert units.negative.tolist() == pytest.approx([-4 / 9, 0, -2 / 9, -2 / 6])
    assert units.member_tokens.tolist() == [2, 3, 5, 6, 7, 8]
    assert units.member_units.tolist() == [0, 0, 1, 2, 3, 3]


def test_units_of_paths_on_paper() -> None:
    """Leaves 2, 4, 3 in preorder: three tokens with 3/9, three with -2/9, two with -1/6."""
    (units,) = units_of("sequence", max_tokens_per_pack=9)
    assert units.positive.tolist() == pytest.approx([1, 0, 0])
    assert units.negative.tolist() == pytest.approx([0, -2 / 3, -1 / 3])
    assert units.member_tokens.tolist() == [2, 3, 5, 2, 3, 6, 7, 8]
    assert units.member_units.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_units_of_paths_with_advantages_of_nodes() -> None:
    """Node 1 has A = 3 (two tokens), leaf 2 has A = -1 (one token): both signs in one unit, w = 1/9."""
    adv = [[TreeAdvantages(level="node", values={1: 3.0, 2: -1.0, 3: 0.0, 4: 0.0}, leaves=(2, 3, 4))]]
    loss = LossConfig(ratio_level="sequence", kl_coef=0.0)
    pack = pack_forest(drawn(), adv, loss, LearnerConfig(max_tokens_per_pack=9), 64).mini_batches[0][0][0]
    assert pack.units is not None
    assert pack.ids.tolist() == [90, 91, 10, 11, 20, 12, 15]
    assert pack.units.positive.tolist() == pytest.approx([6 / 9, 6 / 9])
    assert pack.units.negative.tolist() == pytest.approx([-1 / 9, 0])


def test_a_repeated_prefix_is_scored_for_ratios_of_paths_only() -> None:
    def second(level: RatioLevel) -> TreePack:
        learner = LearnerConfig(max_tokens_per_pack=6)
        packs = pack_forest(drawn(), ADVANTAGES, LossConfig(ratio_level=level), learner, 64).mini_batches[0][0]
        return next(pack for pack in packs if 15 in pack.ids)

    assert second("sequence").weight.tolist() == pytest.approx([0] * 5 + [1 / 9])
    assert second("sequence").old_logprobs.tolist() == pytest.approx([0, 0, -1.0, -1.1, 0, -1.5])
    assert second("sequence").scored.tolist() == [False, False, True, True, False, True]
    for level in ("token", "turn"):
        assert second(level).scored.tolist() == [False] * 5 + [True]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_logprob_that_is_not_finite_is_one_sentence(value: float) -> None:
    forest = drawn()
    nodes = forest[0].trees[0].nodes
    nodes[2] = replace(nodes[2], logprobs=(value,))
    with pytest.raises(ValueError, match=rf"token of node 2 of tree 0 of task 't' the log-probability {value}"):
        pack_forest(forest, ADVANTAGES, LossConfig(), LearnerConfig(), 64)


def test_flat_pack_scores_the_last_tokens() -> None:
    pack = flat_pack([((5, 6, 7), 2), ((8, 9), 1)])
    assert pack.end.tolist() == [3, 3, 3, 5, 5]
    assert pack.source.tolist() == [-1, 0, 1, -1, 3]
    assert pack.weight.tolist() == [0, 1, 1, 0, 1]
