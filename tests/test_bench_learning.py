"""The learning comparison's arithmetic, on curves that fit on paper, and its refusals; no training is started."""

import json
import sys

import pytest
from omegaconf import OmegaConf

from scripts.bench import learning
from scripts.bench.learning_curves import (
    Curve,
    Point,
    common_budget,
    curve,
    differences,
    matched_roots,
    mean_success,
    spread,
    success_at,
    tokens_to,
)
from scripts.bench.learning_report import report
from scripts.bench.learning_runs import Bench, Failure


def step_metrics(sampled: int, prefill: int, **more: float) -> dict[str, float]:
    tokens = {"ledger/sampled_tokens": sampled, "ledger/prefill_tokens_computed": prefill}
    return {"learner/optimizer_steps": 2.0, "ledger/prefill_tokens_cached": 10_000.0, **tokens, **more}


def a_curve(arm: str = "tree", seed: int = 0, *successes: float, tokens: int = 100) -> Curve:
    points = tuple(
        Point(step=step, optimizer_steps=step, ledger_tokens=step * tokens, success=success)
        for step, success in enumerate(successes)
    )
    return Curve(arm=arm, seed=seed, points=points, steps=({"tokens": float(tokens)},) * (len(successes) - 1))


def test_cost_is_sampled_plus_computed_prefill_of_all_steps_before_the_evaluation():
    metrics = {
        0: {"eval/success": 0.3},
        1: step_metrics(10, 20, **{"reward/dead_groups": 0.5}),
        2: step_metrics(30, 40) | {"eval/success": 0.6, "learner/entropy": None},
    }
    found = curve("tree", 3, metrics)
    assert [(p.step, p.optimizer_steps, p.ledger_tokens, p.success) for p in found.points] == [
        (0, 0, 0, 0.3),
        (2, 4, 100, 0.6),
    ]
    assert found.tokens_per_step == 50
    assert found.steps == ({"tokens": 30, "reward/dead_groups": 0.5}, {"tokens": 70})


@pytest.mark.parametrize("metrics", [{}, {0: {"eval/success": 0.3}}, {1: step_metrics(1, 1)}])
def test_a_run_without_start_or_steps_is_refused(metrics):
    with pytest.raises(ValueError, match=r"tree, seed 3, has no evaluation before its first step or no training step"):
        curve("tree", 3, metrics)


def test_success_between_evaluations_is_linear_and_unknown_beyond():
    points = a_curve("tree", 0, 0.2, 0.6, 0.4).points
    assert success_at(points, 0) == 0.2
    assert success_at(points, 25) == pytest.approx(0.3)
    assert success_at(points, 150) == pytest.approx(0.5)
    assert success_at(points, 200) == pytest.approx(0.4)
    assert success_at(points, 201) is None


def test_tokens_to_a_success_is_the_first_crossing():
    points = a_curve("tree", 0, 0.2, 0.6, 0.4, 0.8).points
    assert tokens_to(points, 0.5) == pytest.approx(75)  # not 225, where it crosses again
    assert tokens_to(points, 0.7) == pytest.approx(275)
    assert tokens_to(points, 0.1) == 0
    assert tokens_to(points, 0.9) is None


def test_mean_success_is_the_area_over_the_budget():
    points = a_curve("tree", 0, 0.2, 0.6, 0.4).points
    assert mean_success(points, 100) == pytest.approx(0.4)
    assert mean_success(points, 200) == pytest.approx((0.4 + 0.5) / 2)
    assert mean_success(points, 50) == pytest.approx(0.3)  # from 0.2 to 0.4
    assert mean_success(points, 300) is None
    assert mean_success(points, 0) is None


def test_spread_leaves_out_what_was_not_reached():
    found = spread([1.0, None, 3.0])
    assert found is not None
    assert (found.mean, found.n) == (2.0, 2)
    assert found.std == pytest.approx(2**0.5)
    assert spread([None]) is None
    one = spread([1.0])
    assert one is not None
    assert one.std is None


@pytest.mark.parametrize(
    ("tree", "chain", "roots", "matched"), [(9_400, 12_000, 12, 9), (100, 100, 4, 4), (1, 9, 3, 2)]
)
def test_chains_are_matched_on_measured_cost(tree, chain, roots, matched):
    assert matched_roots(tree, chain, roots) == matched


def test_differences_are_between_runs_of_one_seed():
    runs = [a_curve("tree", 0, 0.5), a_curve("tree", 1, 0.7), a_curve("tree", 2, 0.9), a_curve("chain", 1, 0.6)]
    runs.append(a_curve("chain", 2, 1.0))
    read = {0: 0.5, 1: 0.7, 2: None}
    assert differences(runs, "tree", "chain", lambda one: one.points[0].success) == pytest.approx({1: 0.1, 2: -0.1})
    assert differences(runs, "tree", "chain", lambda one: read[one.seed]) == {1: 0.0}


def test_report_compares_arms_at_the_tokens_that_all_runs_have_spent():
    curves = [
        a_curve("tree", 0, 0.2, 0.6, 0.8),
        a_curve("tree", 1, 0.2, 0.4, 0.6),
        a_curve("chain", 0, 0.2, 0.5, tokens=160),
    ]
    assert common_budget(curves) == 160
    found = report(curves)
    json.dumps(found, allow_nan=False)
    tree, chain = found["arms"]["tree"], found["arms"]["chain"]
    assert tree["tokens_per_step"] == {"mean": 100.0, "std": 0.0, "n": 2}
    assert tree["success_at_tokens"]["160"]["mean"] == pytest.approx((0.72 + 0.52) / 2)
    assert chain["success_at_tokens"]["160"] == {"mean": 0.5, "std": None, "n": 1}
    assert tree["tokens_to_success"]["0.8"] == {"mean": 200.0, "std": None, "n": 1}  # one seed of two got there
    assert chain["tokens_to_success"]["0.8"] is None
    gain = found["minus_chain"]["tree"]["success_at_budget"]
    assert gain["by_seed"] == {"0": pytest.approx(0.22)}  # there is no chain run with seed 1
    assert tree["by_step"] == {"tokens": [100.0, 100.0]}
    assert report([]) == {"budget_tokens": 0, "arms": {}, "minus_chain": {}}


def test_every_arm_is_a_valid_configuration():
    for arm, overrides in learning.ARMS.items():
        config = learning.compose(["experiment=quickstart", *overrides])
        assert (config.tree.leaves_per_tree == 1) == (arm == "chain"), arm


FAILING = (sys.executable, "-c", "print('no luck'); raise SystemExit(1)")


def test_a_failed_run_is_reported_and_not_hidden(tmp_path, capsys):
    bench = Bench(tmp_path, [], runs=1, python=FAILING)
    assert bench.curve_of("tree-seed0", "tree", 0, ()) is None
    assert bench.failures == [Failure(run="tree-seed0", exit_code=1, last_line="no luck")]
    assert "tree-seed0: FAILED with exit code 1: no luck" in capsys.readouterr().out


def finished_run(tmp_path, *overrides: str) -> None:
    """A run folder as a finished training leaves it."""
    folder = tmp_path / "tree-seed0"
    names = [f"name={folder.name}", f"runs_dir={tmp_path}", "seed=0"]
    config = learning.compose(["experiment=quickstart", "cluster=local", *overrides, *names])
    folder.mkdir()
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config.model_dump(mode="json")))
    (folder / "summary.json").write_text("{}")
    lines = [{"step": 0, "eval/success": 0.25}, {"step": 1, "eval/success": 0.5} | step_metrics(30, 20)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_finished_run_is_not_run_again(tmp_path):
    finished_run(tmp_path)
    bench = Bench(tmp_path, [], runs=1, python=FAILING)
    found = bench.curve_of("tree-seed0", "tree", 0, ())
    assert found is not None
    assert [point.success for point in found.points] == [0.25, 0.5]
    assert not bench.failures


def test_the_final_policy_is_sampled_once(tmp_path):
    finished_run(tmp_path)
    evaluator = "import json, sys; json.dump({'pass@1': 0.75}, open(sys.argv[sys.argv.index('--json') + 1], 'w'))"
    for python in ((sys.executable, "-c", evaluator), FAILING):  # the second finds the result of the first
        bench = Bench(tmp_path, [], runs=1, samples=4, python=python)
        found = bench.curve_of("tree-seed0", "tree", 0, ())
        assert found is not None
        assert found.sampled_success == 0.75
        assert not bench.failures


def test_a_finished_run_with_other_settings_is_refused(tmp_path):
    finished_run(tmp_path, "learner.lr=0.5")
    with pytest.raises(ValueError, match=r"was made with other settings \(learner\): choose another --runs-dir"):
        Bench(tmp_path, [], runs=1, python=FAILING).curve_of("tree-seed0", "tree", 0, ())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["foo=1"], "Unknown key foo"),
        (["evaluation.every=0"], "evaluation.every=0 leaves nothing between start and end"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(arguments, sentence, tmp_path, capsys):
    assert learning.main(["--json", str(tmp_path / "out.json"), *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--seeds", "a"), ("--seeds", "1,1"), ("--arms", "tree,foo")])
def test_options_that_cannot_be_used_are_refused(option, value, capsys):
    with pytest.raises(SystemExit):
        learning.main(["--json", "x.json", option, value])
    assert option in capsys.readouterr().err


def test_figure_averages_seeds_up_to_where_the_shortest_run_ends(tmp_path):
    plot = pytest.importorskip("scripts.bench.learning_plot")
    runs = [a_curve("tree", 0, 0.2, 0.6).points, a_curve("tree", 1, 0.2, 0.4, 0.8).points]
    grid, values = plot.averaged(runs, lambda point: float(point.ledger_tokens))
    assert (grid[0], grid[-1]) == (0, 100)
    assert list(values[:, -1]) == pytest.approx([0.6, 0.4])
    plot.draw([a_curve("tree", 0, 0.2, 0.6), a_curve("chain", 0, 0.2, 0.4)], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
