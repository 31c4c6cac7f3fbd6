import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from example_run import HOSTILE, Grower, Words, build, hostile_group

from trainer.forest_file import record_forest
from trainer.report import _spread, main, run_data, trees_page, write_report
from trainer.report_page import embedded_json, render
from trainer.run_folder import RunFolder

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH to render the page")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("runs") / "quickstart-1").path


def data_in(page: str) -> dict:
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_the_run(run):
    page = write_report(run).read_text(encoding="utf-8")
    data = data_in(page)
    assert data["title"] == "quickstart-1"
    assert data["model"] == "models/tiny"
    assert data["steps"] == list(range(31))
    assert data["series"]["eval/success"][0] == 0.38
    assert data["series"]["rollout/success"][0] is None
    assert data["summary"]["eval"]["after"] == {"success": 0.72, "n": 200, "step": 30}
    assert data["problems"] == []
    assert "secret@" not in page
    assert data["config"]["env"]["retriever"]["api_key"] == "***"


def test_the_page_asks_for_nothing_outside_itself(run):
    page = write_report(run).read_text(encoding="utf-8")
    frame = page.replace(embedded_json(data_in(page)), "")
    assert "default-src 'none'" in frame
    assert not re.findall(r"""(?:src|href)=["']?(?!data:,)[^"'> ]+|@import|url\(|fetch\(|XMLHttp|import\(""", frame)
    assert re.findall(r"https?://[^\"'\s]+", frame) == ["http://www.w3.org/2000/svg"]


def test_text_from_models_cannot_leave_the_data_block(run):
    page = write_report(run).read_text(encoding="utf-8")
    assert len(re.findall("<script", page)) == 2
    assert page.count("</script>") == 2
    assert "\u2028" not in page
    texts = [node["action"] for task in data_in(page)["forests"][-1]["tasks"] for node in task["trees"][0]["nodes"]]
    assert HOSTILE in texts
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in render({"title": "</title><script>"})


def test_script_is_the_one_the_policy_names(run):
    import base64
    import hashlib

    page = write_report(run).read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_scripts_never_build_html_from_text():
    folder = Path(__file__).parents[2] / "trainer" / "report_page"
    for path in folder.glob("*.js"):
        assert not re.findall("innerHTML|outerHTML|insertAdjacentHTML|document.write|eval\\(", path.read_text()), path


def test_trees_that_do_not_fit_are_left_out_and_counted(run):
    data = run_data(run, max_nodes=200)
    newest = max(data["forests"], key=lambda forest: (forest["step"], forest["kind"] == "step"))
    assert newest["id"] == "step-000030"
    assert 0 < newest["trees"] < newest["trees_in_file"] == 25
    assert data["left_out"]["files"] == 9 - len(data["forests"]) > 0
    everything = run_data(run, max_nodes=100_000)
    assert everything["left_out"]["files"] == 0
    assert all(forest["trees"] == forest["trees_in_file"] for forest in everything["forests"])


def test_each_task_has_what_it_cost(run):
    for forest in run_data(run, max_nodes=100_000)["forests"]:
        for task in forest["tasks"]:
            if task["id"].startswith("hostile"):
                assert task["ledger"] == {}
            else:
                assert task["ledger"]["trees"] == len(task["trees"])
                assert task["ledger"]["env_seconds"] == 0.25


def test_kept_files_span_the_run():
    paths = [Path(str(i)) for i in range(5)]
    assert [str(path) for path in _spread(paths)] == ["4", "0", "2", "1", "3"]
    assert _spread([]) == []
    assert _spread(paths[:1]) == paths[:1]


def test_an_empty_folder_gives_a_page_that_says_so(tmp_path):
    data = data_in(write_report(tmp_path).read_text(encoding="utf-8"))
    assert [problem.split(":")[0] for problem in data["problems"]] == [
        "config.yaml",
        "summary.json",
        "metrics.jsonl",
        "forest/",
    ]


def test_damaged_files_do_not_stop_the_page(tmp_path):
    folder = RunFolder(tmp_path / "broken")
    folder.config_file.write_text("a: [1,")
    folder.summary_file.write_text('{"steps": 3')
    folder.append_metrics(1, {"rollout/success": 0.5})
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 2, "rollout/succ')
    folder.forest_path("step", 1).write_text('{"kind": "step"}\n{"half')
    problems = data_in(write_report(folder.path).read_text(encoding="utf-8"))["problems"]
    assert [problem.split(":")[0] for problem in problems] == [
        "config.yaml",
        "summary.json",
        "forest/step-000001.jsonl, line 1",
    ]


def test_command(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main([str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()


def test_module_runs_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "trainer.report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("report: ")


def test_importing_the_report_needs_no_heavy_library():
    code = (
        "import sys, trainer.report; print([m for m in ('torch','ray','vllm','wandb','deepspeed') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]", done.stderr


def rendered(page: Path, route: str) -> str:
    """The page's DOM after its scripts ran, at `#route`."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        quiet = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            *quiet.split(),
            "--disable-sync",
            f"--user-data-dir={profile}",
        ]
        command += ["--virtual-time-budget=3000", "--window-size=1400,1000", "--dump-dom", f"{page.as_uri()}#{route}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "HOME": profile})
    return done.stdout


@pytest.mark.slow
@needs_chromium
def test_browser_draws_charts(run):
    dom = rendered(write_report(run), "overview")
    assert "+34.0 points" in dom
    assert dom.count('class="card chart') == 39
    # 31 line charts, six of them with two lines and one with three; 3 stacked ones; and five in the closed part, drawn
    # when it opens.
    assert len(re.findall(r'<path class="line[^"]*" d="M', dom)) == 39
    for title in ("Skipped steps", "Truncated importance weights", "Cost of a rank, mean over largest"):
        assert title in dom
    assert "custom/something" in dom
    assert "<td>2 hops</td>" in dom.replace(' class=""', "")


@pytest.mark.slow
@needs_chromium
def test_browser_draws_the_chosen_tree_and_opens_the_node_of_the_link(run):
    data = run_data(run, 100_000)
    task = next(task for task in data["forests"][-1]["tasks"] if task["id"] == "city_capital/nagoya-2")
    dom = rendered(write_report(run, max_nodes=100_000), "trees/step-000030/city_capital%2Fnagoya-2/1/2")
    nodes = sum(len(tree["nodes"]) for tree in task["trees"])
    assert len(re.findall(r'<g class="node[ "]', dom)) == nodes
    assert len(re.findall(r'<path class="edge[ "]', dom)) == nodes - len(task["trees"])
    selected = re.findall(r'<g class="[^"]*" id="(node-[\d-]+)"[^>]*aria-selected="true"', dom)
    assert selected == ["node-1-2"]
    assert "<h2>Step 2</h2>" in dom
    assert html.escape(task["trees"][1]["nodes"][2]["observation"], quote=False) in dom


@pytest.mark.slow
@needs_chromium
def test_browser_shows_where_a_tree_was_branched_and_what_rollouts_cost(run):
    task = run_data(run, 100_000)["forests"][-1]["tasks"][2]
    picks = task["trees"][1]["picks"]
    dom = rendered(write_report(run, max_nodes=100_000), f"trees/step-000030/{task['id'].replace('/', '%2F')}/1/0")
    block = re.search(r'<div id="picks">(.*?)</table>', dom, re.DOTALL)[1]
    assert re.findall(r"Round (\d)", block) == ["1", "2", "3"]
    assert len(re.findall('class="picked"', block)) == sum(len(pick["chosen"]) for pick in picks)
    assert len(re.findall("<tr>", block)) == 1 + len({node for pick in picks for node, _ in pick["scores"]})
    cost = re.sub("<[^>]+>", "|", re.search(r'id="task-ledger">(.*?)</table>', dom, re.DOTALL)[1])
    assert re.search(rf"Sampled tokens\|+{task['ledger']['sampled_tokens']:,}\|", cost)
    assert "of what requests of several tasks shared" in cost
    ledger = re.search(r'id="ledger">(.*?)</table>', rendered(write_report(run), "overview"), re.DOTALL)[1]
    ledger = re.sub("<[^>]+>", "|", ledger)
    assert "1.03 per token; 1.02 with whole blocks alone" in ledger
    assert "41" in ledger


@pytest.mark.slow
@needs_chromium
def test_browser_shows_hostile_text_and_does_not_run_it(run):
    words = Words()
    records = record_forest("step", 1, [hostile_group(words)], words.decode)
    page = run / "trees.html"
    page.write_text(trees_page(records, title=HOSTILE), encoding="utf-8")
    dom = rendered(page, "trees/step-000001/hostile%2F1/0/1")
    assert "data-hacked" not in re.search("<html[^>]*>", dom)[0]
    assert dom.count("<script") == 2
    assert "<img" not in dom
    assert html.escape(HOSTILE.split(" onerror")[0], quote=False) in dom
    assert len(re.findall(r'<g class="node[ "]', dom)) == 4
    # The same text in a page without walls does run, so the check above can fail.
    page.write_text(f"<html><body><script>{HOSTILE}", encoding="utf-8")
    assert "data-hacked" in re.search("<html[^>]*>", rendered(page, ""))[0]


@pytest.mark.slow
@needs_chromium
def test_browser_opens_a_page_without_anything(tmp_path):
    page = write_report(tmp_path)
    assert "No metrics yet" in rendered(page, "overview")
    assert "No trees in this run folder yet" in rendered(page, "trees")
    assert "No config.yaml" in rendered(page, "settings")


@pytest.mark.slow
@needs_chromium
def test_browser_draws_a_task_with_thousands_of_nodes(tmp_path):
    words = Words()
    records = record_forest("step", 1, [Grower(words, 1, 0.5).group(0, 1, expansions=1200)], words.decode)
    page = tmp_path / "big.html"
    page.write_text(trees_page(records, title="big"), encoding="utf-8")
    count = sum(len(record.tree.nodes) for record in records)
    assert count > 3000
    assert len(re.findall(r'<g class="node[ "]', rendered(page, "trees"))) == count
