"""What is laid out of typed trees: prompts with their answers, voices, weights per node; numbers on paper."""

import random

import numpy as np
import pytest
from typed_forests import DONE, FAN, LINE, decision, group, random_typed_forest, step, tree

from envs.decisions.settings import DecisionSettings
from rollout_workers.types import Forest
from trainer.advantages import TreeAdvantages
from trainer.config import LearnerConfig, LossConfig
from trainer.decisions.coefficients import all_coefficients
from trainer.decisions.packing import TypedPlan
from trainer.decisions.routing import factors, routing_shares
from trainer.packing import pack_forest
from trainer.types import Answer, TreePack

PLAIN = LossConfig(kl_coef=0.0)


def plan_of(decided: DecisionSettings, loss: LossConfig = PLAIN) -> TypedPlan:
    routed = routing_shares(decided, {})
    return TypedPlan(
        coefficients=all_coefficients(decided, loss),
        factors=factors(decided, routed),
        shares=routed,
        has_adapter=tuple(node.adapter is not None for node in decided.nodes),
    )


def packs_of(
    forest: Forest,
    values: list[list[dict[int, float]]],
    decided: DecisionSettings,
    loss: LossConfig = PLAIN,
    **learner: object,
) -> list[TreePack]:
    """Of the first mini-batch, rank after rank."""
    adv = [[TreeAdvantages(level="node", values=of, leaves=()) for of in per_tree] for per_tree in values]
    packed = pack_forest(forest, adv, loss, LearnerConfig(**learner), 64, typed=plan_of(decided, loss))
    return [pack for packs in packed.mini_batches[0] for pack in packs]


def drawn() -> Forest:
    """Prompt (1, 2) - intent (5, 6) - prompt (7, 8, 9) - retrieval (10) or (11, 12)."""
    return [
        group(
            tree(
                step(0, "intent", ids=(5, 6), prompt=(7, 8, 9)),
                step(1, "retrieval", ids=(10,), end=DONE),
                step(1, "retrieval", ids=(11, 12), end=DONE),
            )
        )
    ]


VALUES = [[{1: 2.0, 2: -1.0, 3: 3.0}]]


def test_each_prompt_with_its_answers_is_a_tree_of_its_own() -> None:
    """The second prompt begins at position 0: nothing before it is seen."""
    (pack,) = packs_of(drawn(), VALUES, decision(), layout="packed")
    at = {int(token): place for place, token in enumerate(pack.ids)}
    assert sorted(at) == [1, 2, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [pack.positions[at[token]] for token in (1, 2, 5, 6)] == [0, 1, 2, 3]
    assert [pack.positions[at[token]] for token in (7, 8, 9, 10, 11, 12)] == [0, 1, 2, 3, 3, 4]
    assert pack.source[at[11]] == at[9], "an answer is predicted by the end of its prompt"
    assert pack.end[at[10]] == at[10] + 1, "answers to one prompt do not see each other"
    assert [pack.voice[at[token]] for token in (1, 2, 5, 6)] == [0] * 4
    assert [pack.voice[at[token]] for token in (7, 8, 9, 10, 11, 12)] == [1] * 6
    assert set(pack.answers) == {
        Answer(start=at[5], stop=at[6] + 1, node=0),
        Answer(start=at[10], stop=at[10] + 1, node=1),
        Answer(start=at[11], stop=at[12] + 1, node=1),
    }


def test_weights_are_the_factor_over_steps_and_tokens_of_the_node() -> None:
    """seq_mean: intent 0.92/(1*2), retrieval 0.782/(2*1) and 0.782/(2*2); P and N are that times the advantage."""
    (pack,) = packs_of(drawn(), VALUES, decision(), layout="packed")
    at = {int(token): place for place, token in enumerate(pack.ids)}
    assert [pack.weight[at[token]] for token in (5, 10, 11, 1)] == pytest.approx([0.46, 0.391, 0.1955, 0])
    assert [pack.positive[at[token]] for token in (5, 10, 12)] == pytest.approx([0.92, 0, 0.5865])
    assert [pack.negative[at[token]] for token in (5, 10, 12)] == pytest.approx([0, -0.391, 0])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({"aggregation": "token_mean"}, (0.92 / 2, 0.782 / 3, 0.782 / 3)),
        ({"aggregation": "dr_grpo", "dr_grpo_length": 10}, (0.92 / 10, 0.782 / 20, 0.782 / 20)),
    ],
)
def test_other_aggregations(loss: dict, expected: tuple) -> None:
    (pack,) = packs_of(drawn(), VALUES, decision(), LossConfig(kl_coef=0.0, **loss), layout="packed")
    at = {int(token): place for place, token in enumerate(pack.ids)}
    assert [pack.weight[at[token]] for token in (5, 10, 11)] == pytest.approx(expected)


def test_frozen_nodes_are_not_laid_out_while_their_children_train() -> None:
    (pack,) = packs_of(drawn(), VALUES, decision(of={"intent": {"freeze": True}}), layout="packed")
    assert sorted(pack.ids) == [7, 8, 9, 10, 11, 12]
    assert {answer.node for answer in pack.answers} == {1}
    (other,) = packs_of(drawn(), VALUES, decision(of={"retrieval": {"adapter": False}}), layout="packed")
    assert sorted(other.ids) == [1, 2, 5, 6]


def test_without_an_adapter_a_trained_backbone_speaks_for_itself() -> None:
    decided = decision(of={"retrieval": {"adapter": False}}, backbone="trained")
    (pack,) = packs_of(drawn(), VALUES, decided, layout="packed")
    assert [int(voice) for voice in pack.voice[pack.weight > 0]].count(-1) == 3
    assert {answer.node for answer in pack.answers} == {0, 1}, "masks and coefficients are still of the node"


def test_steps_without_gradient_are_left_out_but_counted() -> None:
    """Advantage 0 and neither KL nor entropy term: not laid out; the other step keeps its weight 0.782/(2*2)."""
    values = [[{1: 0.0, 2: 0.0, 3: 3.0}]]
    (pack,) = packs_of(drawn(), values, decision(), layout="packed")
    assert list(pack.ids) == [7, 8, 9, 11, 12]
    assert pack.weight[3] == pytest.approx(0.1955)
    writer = decision(of={"retrieval": {"entropy_coef": 0.35}})
    (both,) = packs_of(drawn(), values, writer, layout="packed")
    assert sorted(both.ids) == [7, 8, 9, 10, 11, 12], "the node that has an entropy term; intent has none"


def test_steps_after_which_all_failed_are_not_laid_out() -> None:
    (pack,) = packs_of(drawn(), [[{1: 2.0, 3: 3.0}]], decision(), layout="packed")
    assert 10 not in pack.ids
    assert pack.weight[list(pack.ids).index(11)] == pytest.approx(0.782 / 2), "nor counted"


def test_equal_prompts_of_a_task_are_laid_out_once() -> None:
    """Two trees of one task share the root's prompt."""
    trees = [tree(step(0, "intent", ids=(5 + i,), end=DONE), index=i) for i in range(2)]
    (pack,) = packs_of([group(*trees)], [[{1: 1.0}, {1: -1.0}]], decision(), layout="packed")
    assert list(pack.ids) == [1, 2, 5, 6]
    assert list(pack.weight) == pytest.approx([0, 0, 0.46, 0.46])


def random_values(forest: Forest, seed: int) -> list[list[dict[int, float]]]:
    rng = random.Random(seed)
    return [
        [{i: rng.choice((0.0, 1.5, -0.7)) for i in range(1, len(one.nodes))} for one in each.trees] for each in forest
    ]


@pytest.mark.parametrize("layout", ["level", "packed", "flat"])
@pytest.mark.parametrize("ratio_level", ["token", "turn", "sequence"])
def test_every_way_of_packing_trains_the_same(layout: str, ratio_level: str) -> None:
    """Sums of P, N and W per node are those of one large pack, whatever the layout, the packs and the ranks."""
    decided, forest = decision(FAN), random_typed_forest(2, tuple(FAN))
    loss = LossConfig(kl_coef=0.01, ratio_level=ratio_level)
    values = random_values(forest, 2)

    def sums(**learner: object) -> np.ndarray:
        found = np.zeros((3, len(FAN)))
        for pack in packs_of(forest, values, decided, loss, **learner):
            assert pack.coefficients == all_coefficients(decided, loss), "of empty packs too"
            trained = np.zeros(pack.tokens, bool)
            for answer in pack.answers:
                part = slice(answer.start, answer.stop)
                assert not trained[part].any()
                trained[part] = True
                found[:, answer.node] += [a[part].sum() for a in (pack.positive, pack.negative, pack.weight)]
            assert (trained == (pack.weight != 0)).all(), "answers are exactly the trained tokens"
        return found

    whole = sums(layout="packed")
    assert np.allclose(sums(layout=layout, max_tokens_per_pack=16, ranks=3), whole, atol=1e-6)
    assert whole[2] == pytest.approx([0.92, 0.782, 0.782, 0.6647], abs=1e-5), "each node's weights sum to its factor"


def test_ranks_without_steps_still_know_the_coefficients() -> None:
    """All ranks must agree on whether a reference forward pass is made."""
    packs = packs_of(drawn(), VALUES, decision(), ranks=3)
    assert len(packs) == 3
    assert all(len(pack.coefficients) == 4 and pack.voice is not None for pack in packs)
    assert sorted(len(pack.answers) for pack in packs)[0] == 0


def test_a_prompt_with_more_answers_than_fit_is_repeated() -> None:
    steps = [step(0, "intent", ids=(5, 6, 7), end=DONE) for _ in range(5)]
    values = [[dict.fromkeys(range(1, 6), 1.0)]]
    packs = packs_of([group(tree(*steps))], values, decision(), layout="level", max_tokens_per_pack=8)
    assert len(packs) == 3
    assert sum(pack.trained_tokens for pack in packs) == 15
    assert all((pack.voice == 0).all() for pack in packs)
    with pytest.raises(ValueError, match="max_tokens_per_pack=4 must be at least 5"):
        packs_of([group(tree(*steps))], values, decision(), layout="level", max_tokens_per_pack=4)


def test_flat_forests_know_nothing_of_voices() -> None:
    adv = [[TreeAdvantages.of_leaves({2: 1.0, 3: -1.0})]]
    packed = pack_forest(drawn(), adv, PLAIN, LearnerConfig(), 64)
    (pack,) = packed.mini_batches[0][0]
    assert pack.voice is None
    assert pack.answers == pack.coefficients == ()


def test_coefficients_are_the_nodes_own_or_those_of_the_loss() -> None:
    loss = LossConfig(kl_coef=0.001, entropy_coef=0.0, clip_high=0.28)
    decided = decision(LINE, {"policy": {"entropy_coef": 0.05, "clip_low": 0.1}, "response": {"entropy_coef": 0.35}})
    found = {one.name: one for one in all_coefficients(decided, loss)}
    assert [found[name].entropy_coef for name in LINE] == [0.0, 0.0, 0.05, 0.35]
    assert (found["policy"].clip_low, found["response"].clip_low, found["policy"].clip_high) == (0.1, 0.2, 0.28)
