"""A real typed run that is labelled while it goes on."""

import pytest
from order_tasks import write_tasks
from real_runs import Run, metrics_of

from trainer.decisions.feedback_files import Label, append_lines, label_line, read_queue
from trainer.forest_file import read_forest
from trainer.label_store import LabelStore
from trainer.report import run_data


@pytest.mark.slow
def test_labels_given_during_a_run_are_trained(tmp_path):
    write_tasks(tmp_path / "tasks.jsonl")
    tasks = [f"env.{kind}_tasks={tmp_path}/tasks.jsonl" for kind in ("train", "eval")]
    small = [
        "env=decision",
        "~env.topk",
        "decision=orders",
        "steps=4",
        "tasks_per_step=2",
        "evaluation.every=0",
        "loss.kl_coef=0",
    ]
    asked = ["decision.feedback.enabled=true", "decision.feedback.shares=[1.0,0.5]", "limits.max_prompt_tokens=256"]
    with Run(tmp_path, "labelled", *tasks, *small, *asked, "evaluation.tasks=4", "logger.sample_trees=64") as run:
        run.wait_for_step(1)
        with run.standing_still():
            store = LabelStore(run.folder)
            first = store.next("order")
            store.add(Label(id=first["id"], label=1.0, note="while it runs"))
            append_lines(run.folder / "feedback" / "labels.jsonl", [label_line(Label(id="nobody", label=0.0)), "no"])
        said = run.finish()
    metrics = metrics_of(run.folder)
    steps = [line for line in metrics if "decision/feedback/queued" in line]
    assert len(steps) == 4
    total = {
        name: sum(line[f"decision/feedback/{name}"] for line in steps)
        for name in ("queued", "labelled", "late", "expired", "unknown")
    }
    queue = list(read_queue(run.folder / "feedback" / "queue.jsonl"))
    assert total == {"queued": len(queue), "labelled": 2, "late": 1, "expired": 0, "unknown": 1}
    assert "never queued, and ignored: 'nobody'" in said
    assert "labels.jsonl line 3: not JSON" in said
    for line in steps:
        of_root = [one for one in queue if one.step == line["step"] and one.record.node == "order"]
        assert len(of_root) == line["decision/order/steps"], "the root's steps are all queued"
    forest = read_forest(run.folder / "forest" / "step-000001.jsonl")
    by_place = {(one.task.id, one.tree.index): one.tree for one in forest}
    for one in (one for one in queue if one.step == 1):
        _, task, tree, index = one.id.split("/")
        node = by_place[task, int(tree)].nodes[int(index)]
        assert (node.record, node.token_ids, node.logprobs) == (one.record, one.token_ids, one.logprobs)
    data = run_data(run.folder, 6000)
    assert data["problems"] == []
    shown = [
        node for found in data["forests"] for task in found["tasks"] for tree in task["trees"] for node in tree["nodes"]
    ]
    (labelled,) = [node for node in shown if node.get("label_note") == "while it runs"]
    assert (labelled["typed"]["node"], labelled["typed"]["reward"]["human"]) == ("order", 1.0)
    assert (run.folder / "feedback" / "unknown.jsonl").read_text() == '{"id": "nobody", "label": 0.0}\n'
    assert {tree["typed"] for found in data["forests"] for task in found["tasks"] for tree in task["trees"]} == {True}
