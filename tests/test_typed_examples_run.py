"""The declared examples as real runs: the four levels of travel, and the shop with a gate trained on its own trees."""

import json
import re
import subprocess
import sys

import pytest
from real_runs import ROOT, Run, metrics_of

from envs.shop.prepare import main as make_shop
from rollout_workers.trees import path
from trainer.forest_file import read_forest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TRAVEL = {
    "To Berlin on Friday morning": {
        "intent": {"intent": "book", "wish": "Berlin, Friday morning"},
        "destination": {"city": "Berlin", "wish": "Friday morning"},
        "time": {"city": "Berlin", "day": "friday", "part": "morning"},
        "flight": {"offer": ["E12"]},
    },
    "Somewhere on Friday": {
        "intent": {"intent": "advise", "wish": "somewhere, Friday"},
        "destination": {"city": "", "wish": "Friday"},
        "time": {"city": "", "day": "friday", "part": ""},
        "flight": {"offer": ["E12", "E14", "E20"]},
    },
}


def forests(folder):
    return [record for file in sorted((folder / "forest").glob("*.jsonl")) for record in read_forest(file)]


def paths(record):
    """Per leaf the records of the steps that lead to it."""
    for leaf, node in enumerate(record.tree.nodes):
        if node.is_leaf:
            steps = [record.tree.nodes[index].record for index in path(record.tree, leaf)]
            yield node, [step for step in steps if step is not None]


def tracked(folder):
    """Names of the metrics that W&B's own file of the run holds."""
    (log,) = folder.glob("wandb/offline-run-*/run-*.wandb")  # not through the link to the latest run
    command = [sys.executable, "-m", "wandb", "leet", "inspect", str(log)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"[a-z_]+(?:/[a-z_]+)+", told))


def test_four_levels_of_travel_run_and_are_trained(tmp_path):
    lines = [
        {"id": f"trip/{number}", "prompt": message, "truth": "-", "meta": {"expected": expected}}
        for number, (message, expected) in enumerate(2 * list(TRAVEL.items()))
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = [f"env.{kind}_tasks={tmp_path}/tasks.jsonl" for kind in ("train", "eval")]
    short = [
        "decision.nodes.0.output_schema.properties.wish.maxLength=4",
        "decision.nodes.1.output_schema.properties.wish.maxLength=4",
    ]
    world = ["~env.topk", "env=decision", "decision=travel", "evaluation.tasks=4", "limits.max_prompt_tokens=256"]
    with Run(tmp_path, "travel", *tasks, *world, *short, "steps=1") as run:
        run.finish()
    (line,) = [line for line in metrics_of(run.folder) if "learner/loss" in line]
    depths = {name: 0.92 * 0.85**depth for depth, name in enumerate(TRAVEL["Somewhere on Friday"])}
    assert {name: line[f"decision/{name}/factor"] for name in depths} == pytest.approx(depths)
    assert all(line[f"decision/{name}/steps"] > 0 for name in depths)
    assert line["learner/skipped_steps"] == 0
    whole = [(node, steps) for record in forests(run.folder) for node, steps in paths(record) if len(steps) == 4]
    assert whole, "paths that reach the fourth level"
    for node, steps in whole:
        assert [step.node for step in steps] == list(depths)
        found = json.loads(steps[2].found)
        assert json.loads(steps[3].input) == json.loads(steps[2].output) | found, "with the flights of the timetable"
        values = json.loads(node.result)
        assert json.loads(json.dumps(values)) == values


def test_the_shop_records_odds_trains_a_gate_and_skips_what_it_says(tmp_path):
    assert make_shop(["--out", str(tmp_path / "shop")]) == 0
    files = [f"env.train_tasks={tmp_path}/shop/train.jsonl", f"env.eval_tasks={tmp_path}/shop/heldout.jsonl"]
    small = [*files, f"decision.options.database={tmp_path}/shop/shop.sqlite", "steps=1"]
    small += ["tasks_per_step=16", "logger.sample_trees=64"]
    with Run(tmp_path, "recorded", *small, "decision.gate.record_odds=true", experiment="shop") as run:
        run.finish()
    before = metrics_of(run.folder)[0]
    assert 0.5 < before["decision/backbone_share"] < 1
    assert before["decision/memory_saved"] > 0
    assert before["eval/success"] > 0, "the starting policy answers some tickets"
    (line,) = [line for line in metrics_of(run.folder) if "learner/loss" in line]
    assert line["decision/response/valid_share"] > 0.9
    assert not [name for name in line if name.startswith("decision/gate/")], "no gate decided"
    assert {"decision/backbone_share", "decision/intent/reward", "decision/response/kl_mean"} <= tracked(run.folder)

    gate = tmp_path / "gate.safetensors"
    command = [
        sys.executable,
        "-m",
        "trainer.gate",
        str(run.folder / "forest" / "step-000001.jsonl"),
        "--out",
        str(gate),
    ]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "run all" in told

    with Run(tmp_path, "gated", *small, f"decision.gate.path={gate}", experiment="shop") as gated:
        gated.finish()
    (line,) = [line for line in metrics_of(gated.folder) if "learner/loss" in line]
    decided = [
        ({gating.node for gating in steps[0].gating if not gating.runs}, {step.node for step in steps}, node)
        for record in forests(gated.folder)
        for node, steps in paths(record)
        if not steps[0].fault
    ]
    assert any(skipped for skipped, _, _ in decided), "some tickets need no query or no rule"
    for skipped, ran, node in decided:
        assert not skipped & (ran | set(json.loads(node.result)))
    assert 0 < line["decision/gate/run_share"] < 1
    assert line["decision/gate/saved_tokens"] > 0
    assert line["decision/gate/saved_s"] > 0
