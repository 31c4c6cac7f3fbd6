"""The signal benchmark's arithmetic, on gradients whose expectation and covariance are known; no engine is started."""

import math

import numpy as np
import pytest

from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, TaskGroup, Tree
from scripts.bench import signal
from scripts.bench.signal_arms import joined, minus
from scripts.bench.signal_gradients import Sketch, adam_scale
from scripts.bench.signal_math import (
    Draws,
    batch_cosine,
    even_worth,
    halves_cosine,
    interval,
    paired,
    products,
    ratios,
    reading,
    resampled,
    sharing,
    worth_of_leaves,
)
from scripts.bench.signal_page import page
from scripts.bench.signal_rollouts import Shape, differences, noise_correlation, task_means


def draws(vectors, tokens=100.0):
    """Groups with these gradients; the yardstick is the first axis."""
    vectors = np.array(vectors, np.float32)
    along = vectors[:, :, 0].astype(np.float64)
    return Draws(vectors_TRD=vectors, along_TR=along, aim_TR=along, tokens_TR=np.full(vectors.shape[:2], tokens))


def noisy(mean, *, std, tasks=1500, repeats=1, tokens=100.0, seed=0):
    """Groups with a known expectation and covariance std²·I."""
    rng = np.random.default_rng(seed)
    return draws(np.array(mean) + std * rng.standard_normal((tasks, repeats, len(mean))), tokens)


def test_only_pairs_of_different_tasks_count_as_signal():
    one = draws([[[1, 1]], [[1, -1]]])
    found = reading(products(one, one))
    # <(1,1),(1,-1)> = 0, though the mean gradient (1, 0) has length 1; E|g|² = 2 is all noise.
    assert (found.signal, found.noise, found.snr) == (0, 2, 0)
    assert paired(np.array([[5.0, 1.0], [3.0, 7.0]]), np.ones(2)) == 2
    assert paired(np.array([[5.0, 1.0], [3.0, 7.0]]), np.array([3.0, 1.0])) == 2  # a task never meets itself


def test_a_known_expectation_and_covariance_give_their_signal_to_noise_ratio():
    mean = [3.0, 4.0, 0, 0, 0, 0, 0, 0]  # |E g|² = 25, trace = 8 · 2² = 32
    found = reading(products(noisy(mean, std=2.0), noisy(mean, std=1.0, seed=1)))
    assert found.signal == pytest.approx(25, rel=0.05)
    assert found.noise == pytest.approx(32, rel=0.05)
    assert found.snr == pytest.approx(1e6 * 25 / (32 * 100), rel=0.08)
    assert found.cosine == pytest.approx(1, abs=0.02)
    assert found.useful == pytest.approx(found.snr, rel=0.05)
    assert batch_cosine(found, 100) == pytest.approx(1 / math.sqrt(1 + 32 / 25), rel=0.03)
    assert batch_cosine(found, 1e9) == pytest.approx(1, abs=0.02)


def test_a_calm_gradient_in_the_wrong_direction_is_of_no_use():
    reference = noisy([1.0, 0.0], std=0.1, seed=1)
    right, wrong = noisy([1.0, 0.0], std=1.0), noisy([0.0, 1.0], std=0.01, seed=2)
    useful = [reading(products(arm, reference)) for arm in (right, wrong)]
    assert useful[1].snr > 1000 * useful[0].snr
    assert useful[1].useful < 0.1 * useful[0].useful
    assert useful[1].cosine == pytest.approx(0, abs=0.01)


def test_noise_is_split_into_tasks_and_groups_of_a_task():
    rng = np.random.default_rng(0)
    between, within = 3 * rng.standard_normal((3000, 1, 2)), rng.standard_normal((3000, 2, 2))
    found = reading(products(draws(between + within), draws(between + within)))
    assert found.noise_within == pytest.approx(2, rel=0.05)  # 2 dimensions of variance 1
    assert found.noise == pytest.approx(2 * (9 + 1), rel=0.05)
    assert math.isnan(reading(products(draws(between), draws(between))).noise_within)


def test_twice_the_groups_for_twice_the_tokens_are_worth_the_same_and_half_the_price_twice_as_much():
    mean = [2.0, 0.0, 0.0]
    reference, single = noisy(mean, std=1.0, seed=9), noisy(mean, std=1.0, repeats=2)
    double = draws(single.vectors_TRD.mean(axis=1, keepdims=True), tokens=200.0)
    cheap = draws(single.vectors_TRD, tokens=50.0)
    one, two, half = (reading(products(arm, reference)) for arm in (single, double, cheap))
    assert two.useful == pytest.approx(one.useful, rel=0.05)
    assert half.useful == pytest.approx(2 * one.useful)
    assert half.calm == pytest.approx(2 * one.calm)


def test_the_yardstick_measures_one_direction_without_noise_of_a_reference():
    arm = draws([[[3, 1]], [[5, -1]]], tokens=10.0)
    found = reading(products(arm, arm))
    assert found.along == 4
    # Pairs of different tasks: 3·5 = 15 along the yardstick; E|g|² = 18, signal 3·5 - 1 = 14, noise 4.
    assert found.yard == pytest.approx(1e6 * 15 / (4 * 10))
    assert math.isnan(found.aim)
    assert reading(products(minus(arm, arm), arm)).along == 0
    assert joined(arm, arm).along_TR.tolist() == [[3], [5], [3], [5]]


def test_along_a_tasks_own_yardstick_only_the_noise_along_it_counts_and_that_of_its_own_groups():
    arm = draws([[[3, 9], [5, 0]], [[5, -9], [7, 0]]], tokens=10.0)
    # Means of the tasks 4 and 6, so 4·6 = 24; variance 2 in each.
    assert reading(products(arm, arm)).aim == pytest.approx(1e6 * 24 / (2 * 10))


def test_leaves_that_share_everything_are_no_gain():
    leaf = {"token_ids": (1,), "logprobs": (-1.0,), "versions": (0,), "end": EndReason.ANSWERED}

    def tree(index, reward):
        nodes = [Node(parent=-1, observation_ids=(5,))]
        nodes += [Node(parent=0, reward=reward, score=reward, **leaf) for _ in range(3)]
        return Tree(task_id="t", index=index, nodes=nodes)

    task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
    same, other = differences([[TaskGroup(task=task, trees=(tree(0, 1.0), tree(1, 0.0)))]])
    assert same == [0.0] * 6
    assert other == [1.0] * 9
    assert sharing(same, other) == 1
    assert worth_of_leaves(3.0, sharing(same, other), leaves_per_tree=3) == 1
    assert worth_of_leaves(3.0, 0.0, leaves_per_tree=3) == 3
    assert sharing([1.0, -1.0], [1.0, 1.0]) == 0
    assert math.isnan(sharing([0.0], [0.0]))


def test_where_rewards_are_decided_evenly_branches_are_no_gain():
    assert even_worth(1) == pytest.approx(1)
    # 3 leaves for 2 chains; 1/3, 1/3 and 1/6 shared by the three pairs: 1.5 / (1 + 2 · 5/18).
    assert even_worth(2) == pytest.approx(1.5 / (1 + 5 / 9))
    # The same by chance: shares of branches, and what each pair has in common.
    rng = np.random.default_rng(0)
    starts = rng.random((100_000, 6))
    first = np.concatenate([np.ones((len(starts), 1)), starts], axis=1)
    shared = [np.minimum(first[:, a], first[:, b]) for a in range(7) for b in range(a)]
    expected = (7 / (7 - starts.sum(axis=1).mean())) / (1 + 6 * np.mean([np.mean(one**2) for one in shared]))
    assert even_worth(6) == pytest.approx(expected, rel=0.01)


def test_leaves_share_noise_as_far_as_they_share_steps_and_rewards():
    def step(parent, *ids, **more):
        return Node(parent=parent, token_ids=ids, logprobs=(-1.0,) * len(ids), versions=(0,) * len(ids), **more)

    def forest(reward, other):
        nodes = [Node(parent=-1, observation_ids=(5,)), step(0, 1, 2, observation_ids=(6,))]
        nodes += [step(1, 3, 4, end=EndReason.ANSWERED, reward=r, score=r) for r in (reward, other)]
        task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
        return [TaskGroup(task=task, trees=(Tree(task_id="t", index=0, nodes=nodes),))]

    # 2 of 4 tokens shared: 1·1·2/(4·4) over 1²/4.
    assert noise_correlation([forest(1.0, 1.0)], {"t": 0.0}) == 0.5
    assert noise_correlation([forest(1.0, 0.0)], {"t": 0.5}) == -0.5
    assert noise_correlation([forest(1.0, 1.0)], {"t": 1.0}) == 0
    assert task_means([forest(1.0, 0.0), forest(0.5, 0.5)]) == {"t": 0.5}


def test_halves_share_no_task_and_are_as_large_as_their_tokens():
    arm = draws([[[1, 0]], [[1, 0]], [[1, 0]], [[-1, 0]]])
    cosine, groups = halves_cosine(arm, 100, np.random.default_rng(0), splits=4000)
    assert groups == 1
    assert cosine == pytest.approx(0, abs=0.05)  # half of the pairs of tasks agree
    assert halves_cosine(arm, 10_000, np.random.default_rng(0))[1] == 2


def test_intervals_hold_the_truth_and_arms_share_their_resamplings():
    mean = [1.0, 1.0]
    arm, reference = noisy(mean, std=1.0, tasks=200), noisy(mean, std=1.0, tasks=200, seed=3)
    table = products(arm, reference)
    spread = resampled({"a": table, "b": table}, 200, np.random.default_rng(0))
    low, high = interval([one.signal for one in spread["a"]])
    assert low < 2 < high
    assert high - low < 1.5
    assert ratios(spread["a"], spread["b"], "useful") == [1.0] * 200
    assert interval([1.0, math.nan, math.inf]) == [1, 1]
    assert interval([math.nan]) is None


def test_arms_with_other_tasks_are_refused():
    with pytest.raises(ValueError, match="the same tasks and dimensions"):
        products(draws([[[1, 0]]]), draws([[[1, 0]], [[0, 1]]]))


def test_a_sketch_keeps_inner_products():
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, 50_000)).astype(np.float32)
    right += left
    sketch = Sketch(50_000, 8192, seed=1)
    exact = float(left @ right)
    assert float(sketch.of(left) @ sketch.of(right)) == pytest.approx(exact, rel=0.08)
    assert not sketch.of(None).any()


def test_adams_metric_makes_a_plain_step_adams():
    first, second = np.array([4.0, 0.25, 0.0], np.float32), np.array([-4.0, 0.25, 0.0], np.float32)
    scale = adam_scale([first, second])
    # g · r / rms: (4·-4)/4 + (0.25·0.25)/0.25
    assert float((first * scale) @ (second * scale)) == pytest.approx(-4 + 0.25)
    assert np.isfinite(scale).all()


@pytest.mark.parametrize("text", ["", "0", "2x6", "axbxc", "2x0x1", "-3", "2x6x1:", "2x6x1:luck", "9:ucb"])
def test_shapes_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="is no shape"):
        Shape.parse(text)


def test_shapes_have_names():
    assert [str(Shape.parse(text)) for text in ("9", "2x6x1")] == ["9 chains", "(2,6,1)"]
    assert Shape.parse("2x6x2").leaves_per_tree == 13
    assert str(Shape.parse("2x1x6:surprisal")) == "(2,1,6) surprisal"


def test_a_result_replaces_the_entry_of_its_label_and_turns():
    known = [{"label": "a", "turns": 4, "n": 1}, {"label": "a", "turns": 8, "n": 1}]
    assert [row["n"] for row in signal.merged(known, {"label": "a", "turns": 4, "n": 2})] == [2, 1]
    assert [row["n"] for row in signal.merged(known, {"label": "b", "turns": 4, "n": 3})] == [1, 1, 3]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--arms", "2x6x1"], "--arms needs at least one number of chains"),
        (["--arms", "2x6"], "'2x6' is no shape"),
        (["--arms", "4,2x6x1", "--tasks", "9999999", "env.train_tasks={tasks}"], "--tasks 9999999"),
        (["learner.lr=-1"], "learner.lr"),
    ],
)
def test_settings_that_cannot_be_used_are_one_sentence(arguments, sentence, tmp_path, capsys):
    tasks = tmp_path / "train.jsonl"
    tasks.write_text('{"id": "a", "prompt": "?", "truth": ["x"]}\n')
    arguments = [one.format(tasks=tasks) for one in arguments]
    assert signal.main(["--json", str(tmp_path / "out.json"), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_the_page_keeps_what_people_wrote():
    first = page({"configs": []}, "# Title\n\nWords.\n")
    assert first.startswith("# Title\n\nWords.\n")
    assert page({"configs": []}, first + "more\n").endswith("more\n")
