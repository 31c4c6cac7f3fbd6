"""The learner benchmark on forests that take no time: its keys, its arithmetic, and the rows that TRL is given."""

import argparse
import json
from pathlib import Path

import pytest

from envs.types import EndReason, Message, Task
from rollout_workers.types import Forest, Node, TaskGroup, Tree
from scripts.bench.learner import apart, interleaved, measure, page, result, settings_of
from scripts.bench.learner_passes import SHAPES, Pass, Shape, grow
from scripts.bench.learning import checkout
from scripts.bench.trl_side import PINS, rows
from trainer.advantages import advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.packing import pack_forest

KEYS = {"flat_tokens", "unique_tokens", "flat_s", "tree_s", "speedup", "efficiency"}
SMALL = Shape(name="small", tasks=2, roots=2, nodes_per_round=2, prompt=20, step=4, observation=6, pack=128)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of width 32."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, **heads)
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def test_the_numbers_of_a_shape(model: Path) -> None:
    tree, flat = Pass(model, SMALL, "auto"), Pass(model, SMALL, "flat")
    row = result(SMALL, tree, {"flat": 3.0, "tree": 1.5, "trl": 4.5})
    assert row.keys() >= KEYS
    assert (row["layout"], row["flat_s"], row["tree_s"], row["speedup"]) == ("level", 3.0, 1.5, 2.0)
    assert (row["trl_s"], row["speedup_vs_trl"]) == (4.5, 3.0)
    assert 0 < row["unique_tokens"] < row["flat_tokens"] == sum(pack.tokens for pack in flat._packs)
    assert row["unique_tokens"] + row["repeated_tokens"] == sum(pack.tokens for pack in tree._packs)
    assert row["efficiency"] == pytest.approx(2.0 / (row["flat_tokens"] / row["unique_tokens"]))
    assert not result(SMALL, tree, {"flat": 3.0, "tree": 1.5}).keys() & {"trl_s", "speedup_vs_trl"}


def test_both_layouts_compute_one_gradient(model: Path) -> None:
    tree, flat = Pass(model, SMALL, "auto"), Pass(model, SMALL, "flat")
    assert tree.run() > 0
    assert flat.run() > 0
    assert apart(tree.gradient(), flat.gradient()) < 1e-5
    first = tree.gradient()
    tree.run()
    assert apart(tree.gradient(), first) < 1e-6, "gradients do not add up over passes"
    with pytest.raises(AssertionError, match="differ by"):
        apart(2 * tree.gradient(), flat.gradient())


def test_all_sides_run_in_turn_and_the_first_round_does_not_count() -> None:
    order, seconds = [], {"tree": iter([99.0, 1.0, 5.0, 2.0]), "flat": iter([99.0, 3.0, 3.0, 9.0])}

    def one(name: str) -> float:
        order.append(name)
        return next(seconds[name])

    assert interleaved({"tree": lambda: one("tree"), "flat": lambda: one("flat")}, 3) == {"tree": 2.0, "flat": 3.0}
    assert order == ["tree", "flat"] * 4


def tokens(shape: Shape) -> dict[str, float]:
    forest = grow(shape, 64)
    learner = LearnerConfig(max_tokens_per_pack=shape.pack)
    return pack_forest(forest, [advantages(group) for group in forest], LossConfig(kl_coef=0.0), learner, 192).stats


def test_the_shapes_are_the_small_the_deep_the_wide_and_the_large_one() -> None:
    small, deep, wide, large = SHAPES
    assert (small.roots, small.nodes_per_round, small.rounds, small.turns) == (2, 2, 1, 4)
    assert deep.turns == large.turns == 10
    assert wide.roots * (1 + wide.rounds * wide.nodes_per_round) == 36
    assert tokens(large)["tree/unique_tokens"] > 4000
    assert tokens(large)["tree/packs"] == 1
    for shape in SHAPES:
        trees = [tree for group in grow(shape, 64) for tree in group.trees]
        assert len(trees) == shape.tasks * shape.roots
        for tree in trees:
            assert sum(node.is_leaf for node in tree.nodes) == 1 + shape.rounds * shape.nodes_per_round
        assert tokens(shape)["tree/flat_tokens"] > tokens(shape)["tree/unique_tokens"]
    assert grow(large, 64) == grow(large, 64)


def test_the_result_says_how_it_was_made() -> None:
    given = argparse.Namespace(wide=False, model=Path("conf/model/tiny"), repeats=5, no_trl=False)
    settings = settings_of(given, ["--json", "a b.json", "--repeats", "5"])
    assert settings["command"] == "python -m scripts.bench.learner --json 'a b.json' --repeats 5"
    assert settings["commit"] == checkout()
    assert (settings["threads"], settings["repeats"], settings["trl"]) == (1, 5, list(PINS))
    row = {"name": "small", "trl_gradient_difference": 2e-6} | dict.fromkeys(KEYS, 2.0)
    shown = page(settings, [row])
    assert f"    {settings['command']}\n\nCommit `{checkout()}`" in shown
    assert "at most 2.0e-06 of its size" in shown
    alone = page(settings_of(argparse.Namespace(**vars(given) | {"no_trl": True}), []), [row])
    assert "`trl_s`" not in alone


def test_trl_gets_one_row_per_leaf_with_observations_masked() -> None:
    """Prompt 1 2, a step 3 with observation 4 5, then the answers 6 and 7 8, of which the first is right."""
    leaf = {"versions": (0,), "end": EndReason.ANSWERED}
    nodes = [
        Node(parent=-1, observation_ids=(1, 2)),
        Node(parent=0, token_ids=(3,), logprobs=(0.0,), versions=(0,), observation_ids=(4, 5)),
        Node(parent=1, token_ids=(6,), logprobs=(0.0,), reward=1.0, **leaf),
        Node(parent=1, token_ids=(7, 8), logprobs=(0.0, 0.0), reward=0.0, **leaf | {"versions": (0, 0)}),
    ]
    task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
    forest: Forest = [TaskGroup(task=task, trees=(Tree(task_id="t", index=0, nodes=nodes),))]
    right, wrong = rows(forest)
    assert (right["prompt"], right["completion"], right["sampled"]) == ([1, 2], [3, 4, 5, 6], [1, 0, 0, 1])
    assert (wrong["prompt"], wrong["completion"], wrong["sampled"]) == ([1, 2], [3, 4, 5, 7, 8], [1, 0, 0, 1, 1])
    assert right["advantage"] == -wrong["advantage"] == pytest.approx(2**0.5, rel=1e-5)  # one tree: intra = inter
    assert json.loads(json.dumps([right, wrong])) == [right, wrong]


@pytest.mark.slow
def test_a_whole_measurement_without_trl(model: Path) -> None:
    (row,) = measure(model, [SMALL], 1, None)
    assert row.keys() >= KEYS | {"work_bound", "tree_peak_bytes", "flat_peak_bytes", "gradient_difference"}
    assert row["speedup"] == row["flat_s"] / row["tree_s"]
    assert 0 < row["work_bound"] <= 1.1
    assert row["gradient_difference"] < 1e-5
