"""Whole runs of declared nodes with the tiny model: a contract that breaks under `strict`, and the flat baseline."""

import json

import pytest
from order_tasks import ORDERS
from real_runs import Run, metrics_of

from trainer.forest_file import read_forest

pytestmark = pytest.mark.slow


def tasks(folder, count=6):
    """Overrides of a run with tasks over the three orders of the example."""
    rows = []
    for index in range(count):
        name, (delivery, offer) = list(ORDERS.items())[index % 3]
        expected = {"order": {"order": name}, "shipping": {"delivery": delivery}, "after_sales": {"offer": offer}}
        rows.append({"id": f"o/{index}", "prompt": f"{name}?", "truth": "-", "meta": {"expected": expected}})
    for name in ("train", "heldout"):
        lines = [json.dumps({**row, "id": f"{name}/{row['id']}"}) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    files = [f"env.train_tasks={folder}/train.jsonl", f"env.eval_tasks={folder}/heldout.jsonl"]
    return ["~env.topk", "env=decision", "decision=orders", *files]


def test_under_strict_an_answer_without_its_end_stops_the_run_with_node_field_and_sample(tmp_path):
    cut = ["decision.contracts=strict", "decision.nodes.1.max_tokens=3"]
    with Run(tmp_path, "strict", *tasks(tmp_path), *cut, "steps=1") as run:
        said = run.finish(returncode=1).splitlines()[-1]
    assert said.startswith("The run stopped: node 'shipping' broke its contract in sample 'heldout/o/")
    assert "': output: not JSON (" in said
    assert said.endswith(f" (contracts=strict). Traceback: {tmp_path}/strict/traceback.txt")


def test_under_penalty_the_same_run_goes_to_its_end_and_its_results_round_trip(tmp_path):
    with Run(tmp_path, "penalty", *tasks(tmp_path), "decision.nodes.1.max_tokens=3", "steps=1") as run:
        run.finish()
    (line,) = [line for line in metrics_of(run.folder) if "learner/loss" in line]
    assert (line["decision/order/valid_share"], line["decision/shipping/valid_share"]) == (1.0, 0.0)
    for record in read_forest(run.folder / "forest" / "step-000001.jsonl"):
        assert record.tree.typed
        for node in (node for node in record.tree.nodes if node.is_leaf):
            assert (node.record.node, node.reward, node.record.output) == ("shipping", 0.0, "")
            (found,) = json.loads(node.result).values()
            assert json.loads(json.dumps(found)) == found
            assert set(found) == {"order", "status", "days"}, "the order that was said, and what was found"


def test_the_flat_policy_is_one_key_away(tmp_path):
    with Run(tmp_path, "flat", *tasks(tmp_path), "decision.policy=flat", "steps=1") as run:
        run.finish()
    (line,) = [line for line in metrics_of(run.folder) if "learner/loss" in line]
    assert line["reward/mean"] == 0.0, "nobody taught the tiny model to write JSON"
    assert not [name for name in line if name.startswith("decision/")]
    record = read_forest(run.folder / "forest" / "step-000001.jsonl")[0]
    assert not record.tree.typed
    assert record.texts[0].observation.count('{"message":"A') == 1, "the root's prompt, with its input"
