"""Watching a typed run: curves per node, and the path and the node at fault of a failed task."""

import html
import json
import re
from dataclasses import replace
from urllib.parse import quote

import pytest
from example_run import HOSTILE
from example_typed_run import NODES, build_typed
from test_report import needs_chromium, rendered
from typed_by_hand import chain, group, queued, record

from envs.decisions.types import Gating
from trainer.decisions.feedback_files import Label, append_lines, label_line, queue_line
from trainer.forest_file import forest_text, read_forest, record_forest
from trainer.report import run_data, trees_page, write_report
from trainer.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return build_typed(tmp_path_factory.mktemp("runs") / "shop-1").path


def tasks_of(data):
    return [(forest["id"], task) for forest in data["forests"] for task in forest["tasks"]]


def failed_task(data):
    """The first task without a right path."""
    return next(
        (forest, task)
        for forest, task in tasks_of(data)
        if all((node["score"] or 0) < 1 for tree in task["trees"] for node in tree["nodes"])
    )


def test_forest_files_keep_what_typed_steps_did(tmp_path):
    gating = (Gating(node="reply", probability=0.75, runs=True),)
    first = record("intent", 0.5, human=1.0, penalty=-10.0)
    tree = chain("t", first, record("reply", fault="text: missing"), reward=0.0)
    odds, parts = (("refund", 0.7), ("x", 0.3)), (("schema", 1.0), ("own", -10.0))
    tree.nodes[1] = replace(tree.nodes[1], record=replace(first, odds=odds, gating=gating, parts=parts))
    tree.nodes[2] = replace(tree.nodes[2], result='{"intent":{}}')
    records = record_forest("step", 1, [group("t", tree)], lambda ids: f"{list(ids)}")
    path = tmp_path / "forest.jsonl"
    path.write_text(forest_text(records))
    assert read_forest(path) == records
    flat = json.loads(forest_text(record_forest("step", 1, [group("t", chain("t", first))], str)))
    assert "odds" not in flat["nodes"][1]["record"]


def test_failed_paths_name_the_node_at_fault(run):
    data = run_data(run, 100_000)
    assert data["problems"] == []
    for _, task in tasks_of(data):
        for tree in task["trees"]:
            ends = {str(i): node for i, node in enumerate(tree["nodes"]) if node["end"]}
            assert set(tree["blames"]) == {i for i, node in ends.items() if node["score"] < 1}
            for leaf, blame in tree["blames"].items():
                guilty = tree["nodes"][blame["index"]]["typed"]
                on_path, step = [], int(leaf)
                while step:
                    on_path.insert(0, tree["nodes"][step]["typed"])
                    step = tree["nodes"][step]["parent"]
                right = task["meta"]["expected"]
                first = next((one for one in on_path if one["fault"]), None) or next(
                    one for one in on_path if json.loads(one["output"]) != right[one["node"]]
                )
                assert guilty == first


def test_a_label_is_shown_with_the_step_that_it_names(tmp_path):
    """Of two steps at one place, before and after a resume, the tokens tell which one the forest file has."""
    folder = RunFolder(tmp_path / "labelled")
    tree = chain("t", record("intent", 0.5), record("retrieval", 0.5), record("reply", 0.5), reward=0.0)
    folder.write_forest("step", 3, [group("t", tree)], lambda ids: f"{list(ids)}")
    feedback = folder.path / "feedback"
    other = queued("train-3/t/0/2", node="retrieval", token_ids=(9,))
    again, reply = replace(other, id="train-3/t/0/2~2", token_ids=(7, 8)), queued("train-3/t/0/3", node="reply")
    append_lines(feedback / "queue.jsonl", [queue_line(step) for step in (other, again, reply)])
    labels = [(other.id, 0.0, ""), (again.id, 0.25, "curt"), (again.id, 0.75, "right"), ("train-3/t/0/1", 1.0, "")]
    append_lines(feedback / "labels.jsonl", [label_line(Label(id=id, label=v, note=n)) for id, v, n in labels])
    _, first, second, last = run_data(folder.path, 1000)["forests"][0]["tasks"][0]["trees"][0]["nodes"]
    assert second["typed"]["reward"] == {"automatic": 0.5, "human": 0.75}
    assert second["label_note"] == "right"
    assert first["typed"]["reward"] == last["typed"]["reward"] == {"automatic": 0.5}, (
        "one was not queued, one not labelled"
    )
    assert "label_note" not in first


def test_a_damaged_record_is_told_and_does_not_stop_the_page(tmp_path):
    folder = build_typed(tmp_path / "damaged", steps=10)
    path = folder.forest_path("step", 10)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["nodes"][1]["record"]["reward"] = {"automatic": "high"}
    lines[1]["nodes"][1]["record"]["output"] = "no json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    problems = run_data(folder.path, 100_000)["problems"]
    assert [problem.split(": ")[0] for problem in problems] == ["forest/step-000010.jsonl, line 1"]


@pytest.mark.slow
@needs_chromium
def test_browser_draws_a_curve_per_node(run):
    dom = rendered(write_report(run), "overview")
    section = dom[dom.index("Decision nodes") : dom.index("Counted by the token ledger")]
    titles = [re.sub("<[^>]+>", "", title) for title in re.findall(r"<h3[^>]*>(.*?)</h3>", section)]
    assert titles == [
        *("Reward by node", "Valid outputs", "KL by node", "Entropy by node", "Share of its level", "Loss factor"),
        *("Steps with a penalty", "Clipped tokens by node", "Human feedback", "Nodes that the gate let run"),
        *("Tokens saved by the gate", "Engine time saved by the gate"),
    ]
    for card in section.split('class="card chart')[1:-4]:
        assert re.findall(r"</i>([a-z]+) <b>", card) == list(NODES)
        assert len(re.findall(r'<path class="line[^"]*" d="M', card)) == 4


@pytest.mark.slow
@needs_chromium
def test_browser_tells_the_backbones_share_and_what_was_changed_during_the_run(run):
    dom = rendered(write_report(run), "overview")
    facts = re.sub("<[^>]+>", " ", dom[: dom.index("Held-out success by")])
    assert re.search(r"Backbone\s+72.0 %\s+of all weights; adapters save 63.0 % of weights", facts)
    changes = dom[dom.index("Live changes") :]
    cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", changes)[:4]]
    assert cells == ["7", "response.rewards.weight", "1", "2"]


@pytest.mark.slow
@needs_chromium
def test_browser_shows_the_path_of_a_failed_task_and_the_node_at_fault(run):
    forest, task = failed_task(run_data(run, 100_000))
    tree = task["trees"][0]
    leaf, blame = next(iter(tree["blames"].items()))
    dom = rendered(write_report(run, max_nodes=100_000), f"trees/{forest}/{quote(task['id'], safe='')}/0/{leaf}")
    assert re.findall(r'<g class="node[^"]*at-fault[^"]*" id="(node-[\d-]+)"', dom) == [f"node-0-{blame['index']}"]
    trunk = dom[dom.index('<div id="trunk">') : dom.index("</aside>")]
    assert "failed with score 0" in trunk
    assert html.escape(blame["why"], quote=False) in trunk
    names = re.findall(r"<summary><b>([a-z]+)</b>", trunk)
    assert names == list(NODES)[: len(names)]
    (guilty,) = re.findall(r'<li class="guilty">.*?</li>', trunk, re.DOTALL)
    typed = tree["nodes"][blame["index"]]["typed"]
    assert guilty.startswith(f'<li class="guilty"><details open=""><summary><b>{typed["node"]}</b>')
    for part in ("Input", "Output", "Reward by level", "Automatic"):
        assert part in guilty
    for value in json.loads(typed["output"] or "{}").values():
        assert html.escape(str(value), quote=False) in guilty
    assert f"at fault: {typed['node']}" in re.sub("<[^>]+>", "", dom)


@pytest.mark.slow
@needs_chromium
def test_browser_shows_hostile_records_as_text(tmp_path):
    bad = record("intent", 0.0, output={HOSTILE: [HOSTILE]})
    tree = chain("t", bad, record("reply", fault=HOSTILE), reward=0.0)
    page = tmp_path / "trees.html"
    records = record_forest("step", 1, [group("t", tree)], lambda ids: HOSTILE)
    page.write_text(trees_page(records, title="x"), encoding="utf-8")
    dom = rendered(page, "trees/step-000001/t/0/1")
    assert "data-hacked" not in re.search("<html[^>]*>", dom)[0]
    assert dom.count("<script") == 2
    assert "<img" not in dom
    assert html.escape(HOSTILE.split(" onerror")[0], quote=False) in dom
