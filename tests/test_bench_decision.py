"""The comparison of typed and flat policies: its arithmetic on runs that fit on paper, and memory of real processes."""

import dataclasses
import json
import sys

import pytest

from envs.types import EndReason, Message, Task
from rollout_workers.types import Node, Tree
from scripts.bench import decision, peak_memory
from scripts.bench.decision_page import page
from scripts.bench.decision_readings import (
    Answers,
    Measured,
    answers_in,
    at_tokens,
    common_target,
    read_run,
    seconds_to,
    training_seconds,
)
from scripts.bench.decision_report import STATED, report
from scripts.bench.learning_curves import Curve, Point
from trainer.forest_file import NodeText, TreeRecord, forest_text

FACTS = {"status": "shipped", "date": "2026-04-02", "amount": "39.90"}
INTENT = {"intent": "where", "order": "5821"}
GATE = {"precision": 0.9, "recall": 0.95, "f1": 0.924, "spared": 0.75, "f1_of_running_all": 0.881}


def a_curve(arm="typed", seed=0, successes=(0.2, 0.6, 0.8), tokens=100):
    points = tuple(
        Point(step=2 * place, optimizer_steps=2 * place, ledger_tokens=place * tokens, success=success)
        for place, success in enumerate(successes)
    )
    return Curve(arm=arm, seed=seed, points=points, steps=({"tokens": tokens / 2},) * (2 * len(successes) - 2))


def counted(wrong, roots_right=9):
    return Answers(tickets=10, answered=8, wrong=wrong, roots_right=roots_right, tokens=1000)


def measured(
    arm="typed", successes=(0.2, 0.6, 0.8), *, seed=0, tokens=100, wrong=(12, 8, 4), roots=(5, 7, 9), peak=800.0,
    seconds=(0.0, 10.0, 30.0),
):  # fmt: skip
    return Measured(
        curve=a_curve(arm, seed, successes, tokens),
        seconds=seconds,
        eval_seconds=5.0,
        answers=tuple(map(counted, wrong, roots)),
        peak_mib=peak,
        shares={} if arm == "flat" else {"backbone_share": 0.9, "memory_saved": 0.64},
    )


def test_training_seconds_are_those_of_the_steps_before_each_evaluation():
    step = {"time/collect_s": 2.0, "time/learn_s": 1.5, "time/push_s": 0.5, "time/eval_s": 99.0}
    metrics = {0: {"time/push_s": 7.0}, 1: step, 2: step, 3: {**step, "time/push_s": None}, 4: step}
    assert training_seconds(a_curve(), metrics) == (0.0, 8.0, 15.5)


def test_seconds_to_a_success_are_linear_between_evaluations_and_null_if_never():
    run = measured()
    assert seconds_to(run, 0.1) == 0.0
    assert seconds_to(run, 0.4) == pytest.approx(5.0)
    assert seconds_to(run, 0.7) == pytest.approx(20.0)
    assert seconds_to(run, 0.9) is None


def test_readings_are_linear_between_the_evaluations_that_have_them():
    run = measured()
    assert at_tokens(run, run.wrong_per_answer, 50) == pytest.approx((1.5 + 1.0) / 2)
    assert at_tokens(run, [None, 1.0, 0.0], 150) == pytest.approx(0.5)
    assert at_tokens(run, [None, 1.0, 0.0], 50) is None
    assert at_tokens(run, [None, None, None], 50) is None


def test_the_common_target_is_the_least_of_the_best():
    assert common_target([measured(), measured("flat", (0.2, 0.65, 0.5))]) == 0.65


def test_arms_are_matched_on_tokens_and_have_the_same_keys():
    flat = measured("flat", (0.2, 0.4, 0.6), tokens=80, wrong=(16, 16, 8), peak=1000.0, seconds=(0.0, 20.0, 40.0))
    gated = measured("gated", (0.2, 0.6, 0.7), tokens=75, seconds=(0.0, 10.0, 24.0))
    found = report({"typed": [measured()], "flat": [flat], "gated": [gated]}, [0.5], GATE)
    json.dumps(found, allow_nan=False)
    assert (found["budget_tokens"], found["common_success"]) == (160, 0.6)
    assert found["typed"].keys() == found["flat"].keys()
    assert found["typed"]["success"] == pytest.approx(0.72)  # at 160 of 200 tokens
    assert found["flat"]["success"] == pytest.approx(0.6)
    assert found["typed"]["wrong_per_answer"] == pytest.approx(1.0 - 0.6 * 0.5)  # 1.0 at 100 tokens, 0.5 at 200
    assert found["typed"]["wrong_per_answer_at_end"] == 0.5
    assert found["typed"]["root_accuracy"] == pytest.approx(0.7 + 0.6 * 0.2)
    assert (found["typed"]["seconds_to_0.5"], found["flat"]["seconds_to_0.5"]) == (7.5, 30.0)
    assert found["gated"]["success"] == pytest.approx(0.7), "it spent fewer tokens, and is read at its end"
    assert found["gate"]["saved_token_share"] == pytest.approx(0.25)
    assert found["gate"]["saved_seconds_share"] == pytest.approx(0.2)
    assert found["gate"]["success_change"] == pytest.approx(-0.1)
    rows = {row["measure"]: row for row in found["beside_stated"]}
    assert list(rows) == list(STATED)
    assert rows["success"]["change"] == pytest.approx(0.2)
    assert rows["wrong_per_answer"] == {
        "measure": "wrong_per_answer",
        "stated": "hallucination -23.4 %",
        "value": pytest.approx(0.7),
        "against": "flat",
        "base": 1.0,
        "change": pytest.approx(-0.3),
    }
    assert (rows["seconds_to_common"]["value"], rows["seconds_to_common"]["base"]) == (10.0, 40.0)
    assert rows["peak_memory_mib"]["change"] == pytest.approx(-0.2)
    assert (rows["backbone_share"]["value"], rows["memory_saved"]["change"]) == (0.9, -0.64)
    assert (rows["gate_f1"]["value"], rows["gate_f1"]["base"]) == (0.924, 0.881)
    assert rows["gate_training"]["change"] == pytest.approx(30 / 24 - 1)
    assert {rows[name]["against"] for name in ("convergence", "coefficients", "root_accuracy")} == {
        "no_normalise not run", "coefficients not run", "credit_own not run"
    }  # fmt: skip


def test_each_part_of_the_method_has_an_arm_that_lacks_it():
    slow, blind = measured(successes=(0.2, 0.4, 0.6)), measured(roots=(5, 5, 7))
    wide = measured(successes=(0.2, 0.6, 0.88))
    arms = {"typed": [measured()], "no_normalise": [slow], "credit_own": [blind], "coefficients": [wide]}
    rows = {row["measure"]: row for row in report(arms, [0.5], {})["beside_stated"]}
    assert (rows["convergence"]["value"], rows["convergence"]["base"]) == (100, 200), "tokens to 0.6"
    assert rows["convergence"]["change"] == pytest.approx(-0.5)
    assert rows["root_accuracy"]["change"] == pytest.approx(0.7 / 0.9 - 1)
    assert rows["coefficients"]["change"] == pytest.approx(0.1)
    assert (rows["success"]["against"], rows["gate_latency"]["against"]) == ("flat not run", "not run")


def test_a_target_that_one_seed_misses_is_not_reached():
    late = measured(successes=(0.2, 0.3, 0.4), seed=1)
    found = report({"typed": [measured(), late], "flat": [measured("flat")]}, [0.5], {})
    assert found["typed"]["seconds_to_0.5"] is None
    assert [run["seconds_to_0.5"] for run in found["typed"]["runs"]] == [7.5, None]
    assert found["typed"]["seconds_to_common"] == pytest.approx((5.0 + 30.0) / 2), "all reach 0.4"
    assert found["gate"] is None


def a_tree(task, response):
    """One greedy answer: a prompt of 3 tokens and one step of 2; without a response only its intent is there."""
    result = json.dumps({"intent": INTENT, "response": response} if response else {"intent": {**INTENT, "order": ""}})
    end = EndReason.ANSWERED if response else EndReason.INVALID_ACTION
    ids = {"token_ids": (4, 5), "logprobs": (0.0, 0.0), "versions": (1, 1)}
    leaf = Node(parent=0, **ids, end=end, reward=0.0, score=0.0, result=result)
    nodes = [Node(parent=-1, observation_ids=(1, 2, 3)), leaf]
    tree = Tree(task_id=task.id, index=0, nodes=nodes)
    return TreeRecord(kind="eval", step=4, task=task, tree=tree, texts=(NodeText(), NodeText()))


def test_wrong_statements_are_counted_in_the_answers_of_a_forest_file(tmp_path):
    prompt = (Message(role="user", content="Where is order 5821?"),)
    task = Task(id="t", prompt=prompt, truth=("x",), meta={"facts": FACTS, "expected": {"intent": INTENT}})
    right = {"decision": "inform", "status": "shipped", "date": "2026-04-02", "amount": "", "text": "It comes."}
    answers = [right, {**right, "status": "delivered", "date": "2026-04-03"}, None]
    path = tmp_path / "eval-000004.jsonl"
    path.write_text(forest_text([a_tree(task, answer) for answer in answers]))
    found = answers_in(path)
    assert found == Answers(tickets=3, answered=2, wrong=2, roots_right=2, tokens=15)
    assert found.wrong_per_answer == 1.0


def test_a_run_is_read_at_each_of_its_evaluations(tmp_path):
    prompt = (Message(role="user", content="?"),)
    task = Task(id="t", prompt=prompt, truth=("x",), meta={"facts": FACTS, "expected": {"intent": INTENT}})
    (tmp_path / "forest").mkdir()
    for step, status in ((0, "delivered"), (2, "shipped"), (4, "shipped")):
        answer = {"decision": "inform", "status": status, "date": "", "amount": "", "text": ""}
        (tmp_path / "forest" / f"eval-{step:06d}.jsonl").write_text(forest_text([a_tree(task, answer)]))
    lines = [{"step": 0, "time/eval_s": 90.0, "decision/backbone_share": 0.9, "decision/memory_saved": 0.64}]
    lines += [{"step": step, "time/eval_s": step * 1.0, "time/learn_s": 1.5} for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(tmp_path, a_curve(), 800.0)
    assert run.wrong_per_answer == [1.0, 0.0, 0.0]
    assert run.root_accuracy == [1.0, 1.0, 1.0]
    assert (run.seconds, run.eval_seconds) == ((0.0, 3.0, 6.0), 3.0)
    assert run.shares == {"backbone_share": 0.9, "memory_saved": 0.64}
    (tmp_path / "forest" / "eval-000002.jsonl").unlink()
    with pytest.raises(ValueError, match=r"eval-000002.jsonl is not there"):
        read_run(tmp_path, a_curve(), 800.0)


def test_descendants_are_counted_and_others_are_not():
    tree = {1: 0, 2: 1, 3: 2, 4: 2, 5: 1, 6: 3}
    made = [
        peak_memory.Process(pid=pid, parent=parent, resident=pid * peak_memory.MIB, title="python")
        for pid, parent in tree.items()
    ]
    assert [process.pid for process in peak_memory.descendants(made, 2)] == [2, 3, 4, 6]
    peak = peak_memory.Peak()
    peak_memory.add(peak, peak_memory.descendants(made, 2))
    peak_memory.add(peak, peak_memory.descendants(made, 5))
    assert (peak.total_mib, peak.workers_mib) == (15.0, 0.0)


@pytest.mark.parametrize(
    ("title", "counts"),
    [
        ("ray::RolloutActor.take_work", True),
        ("ray::LearnerRank", True),
        ("VLLM::EngineCore", True),
        ("raylet", False),
    ],
)
def test_workers_are_learner_ranks_actors_and_engines(title, counts):
    assert peak_memory.Process(pid=1, parent=0, resident=1, title=title).is_worker is counts


def test_memory_of_a_command_and_of_what_it_starts():
    child = "b = bytearray(64 * 2**20); import time; time.sleep(0.6)"
    parent = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode + 3)"
    peak = peak_memory.run([sys.executable, "-c", parent], every_s=0.05)
    assert peak.exit_code == 3
    assert 64 < peak.total_mib < 300
    assert peak.seconds > 0.5


def test_memory_is_written_under_the_name_of_the_run(tmp_path, capsys):
    assert peak_memory.main([str(tmp_path), "trainer.run_place", "name=a-run"]) == 0
    assert peak_memory.read(tmp_path, "a-run").exit_code == 0
    known = peak_memory.Peak(total_mib=9e6, workers_mib=7.0, seconds=100.0, exit_code=1)
    for goes_on in (False, True):
        if goes_on:
            (tmp_path / "a-run").mkdir()
        peak_memory.file_of(tmp_path, "a-run").write_text(json.dumps(dataclasses.asdict(known)))
        assert peak_memory.main([str(tmp_path), "trainer.run_place", "name=a-run"]) == 0
        found = peak_memory.read(tmp_path, "a-run")
        assert (found.total_mib == 9e6, found.workers_mib, found.exit_code) == (goes_on, 7.0 * goes_on, 0)
        assert (found.seconds > 100) is goes_on
    assert peak_memory.main([str(tmp_path), "trainer.run_place"]) == 2
    assert "usage" in capsys.readouterr().err


def test_the_page_holds_all_arms_beside_the_stated_figures_and_keeps_the_text_around():
    arms = {
        "typed": [measured(), measured(successes=(0.2, 0.5, 0.6), seed=1)],
        "flat": [measured("flat", (0.2, 0.4, 0.4))],
        "gated": [measured("gated", tokens=75)],
    }
    made = page(result := {"commit": "0123456789", "command": "python -m x"} | report(arms, [0.5, 0.7], GATE))
    assert "Runs: typed 2, flat 1, gated 1." in made
    assert "on 10 tickets has a standard error of up to 15.8 points" in made
    assert "| success at the same tokens | 0.7 (0.6 to 0.8) | 0.4 | 0.8 |" in made
    assert "| success at the same tokens | completion +12.7 % | 0.7 | flat | 0.4 | +75.0 % |" in made
    assert "| 0.7 | 20, in 1 of 2 runs | never | 20 |" in made
    assert "| 0.400, the highest that all typed and flat runs reach | 5.83 (5 to 6.67) | 10 | 5 |" in made
    assert "| gate: F1 | F1 0.91 | 0.924 | every node runs | 0.881 | +4.9 % |" in made
    assert "| saved: tokens of training | +25.0 % |" in made
    assert "| nodes that were not needed, and that it skipped | 75.0 % |" in made
    assert page(result, f"# Title\n\n{made}after\n").startswith("# Title")
    assert page(result, page(result, "# Title\n")) == page(result, "# Title\n")


def settings_of(arm):
    config = decision.compose([*decision.SHARED, *decision.ARMS[arm], "name=x"]).model_dump(mode="json")
    return dict(flattened(config))


def flattened(value, place=""):
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, dict | list):
            yield from flattened(part, f"{place}{name}.")
        else:
            yield f"{place}{name}", part


def test_arms_differ_in_what_they_are_named_for_and_in_nothing_else():
    """The flat policy trains the whole model, for which the adapters' learning rate is too high."""
    plain = settings_of("gated")
    for arm, changes in {
        "typed": {"decision.gate.record_odds": True},
        "flat": {"decision.policy": "flat", "learner.lr": 5e-4},
        "gated": {},
        "no_normalise": {"decision.normalise": False},
        "credit_own": {"decision.credit": "own"},
        "coefficients": {
            "decision.nodes.2.coefficients.entropy_coef": 0.05,
            "decision.nodes.3.coefficients.entropy_coef": 0.35,
        },
    }.items():
        found = settings_of(arm)
        assert {name: value for name, value in found.items() if plain[name] != value} == changes
    assert (plain["decision.nodes.2.name"], plain["decision.nodes.3.name"]) == ("policy", "response")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--arms", "flat,credit_own"], "--arms credit_own needs typed too"), (["foo=1"], "Unknown key foo")],
)
def test_settings_that_cannot_be_used_are_refused(arguments, sentence, tmp_path, capsys):
    assert decision.main(["--json", str(tmp_path / "out.json"), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_the_gates_quality_is_that_of_all_its_decisions():
    from scripts.bench.decision_gate import quality
    from trainer.decisions.gate_training import Counts
    from trainer.gate import table

    told = "\n".join(["80 answers", *table({"policy": Counts(right=3, missed=1, spared=4)}), "saved"])
    assert quality(told) == {
        "precision": 1.0, "recall": 0.75, "f1": 0.857, "spared": 1.0, "f1_of_running_all": 0.667
    }  # fmt: skip
