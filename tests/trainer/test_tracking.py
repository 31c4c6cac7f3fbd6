import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from example_run import CONFIG, Grower, Words

from trainer.advantages import advantages
from trainer.forest_file import record_forest
from trainer.run_folder import RunFolder
from trainer.tracking import PATH_COLUMNS, TREES_WAITING, Tracker, choose_mode, path_rows, system_metrics


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def records():
    words = Words()
    forest = [Grower(words, 3, 0.5).group(0, 4, expansions=2)]
    return record_forest("step", 4, forest, words.decode, [advantages(group) for group in forest])


def test_auto_is_online_only_with_credentials(monkeypatch, tmp_path):
    assert choose_mode("auto") == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password x\n")
    assert choose_mode("auto") == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.example:8080")
    assert choose_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert choose_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert choose_mode("auto") == "disabled"


def test_online_without_credentials_is_offline_with_a_warning(capsys):
    assert choose_mode("online") == "offline"
    assert "WANDB_API_KEY" in capsys.readouterr().out


def test_disabled_does_nothing_and_does_not_import_wandb(tmp_path):
    code = (
        "import sys; from trainer.run_folder import RunFolder; from trainer.tracking import Tracker\n"
        f"t = Tracker(RunFolder({str(tmp_path)!r}), {{}}, mode='disabled')\n"
        "t.log(1, {'a/b': 1.0}); t.log_trees(1, []); t.summary({}); t.finish()\n"
        "assert t.run_id is None and t.files is None and 'wandb' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_rows_have_one_path_each():
    rows = path_rows(records())
    assert len(rows) == 6
    first = dict(zip(PATH_COLUMNS, rows[0], strict=True))
    assert first["task"] == "city_capital/ulm-0"
    assert str(first["path"]).startswith("<think>I need the country of Ulm.</think><search>Ulm</search><information>")
    assert first["truth"] == "Berlin"


def test_system_metrics():
    found = system_metrics()
    assert found["system/load_per_core"] >= 0
    assert found["system/driver_rss_mib"] > 10


def run_offline(folder: RunFolder) -> Tracker:
    tracker = Tracker(folder, CONFIG)
    tracker.log(1, {"rollout/success": 0.5, "other/thing": 1})
    tracker.log_trees(1, records())
    tracker.log(2, {"rollout/success": 0.625, "decision/intent/reward": 0.375})
    tracker.summary({"eval": {"after": {"success": 0.7}}})
    return tracker


@pytest.mark.slow
def test_an_offline_run_is_written_and_resumed_under_its_id(tmp_path):
    folder = RunFolder(tmp_path / "quickstart-1")
    tracker = run_offline(folder)
    assert tracker.mode == "offline"
    assert tracker.url is None
    files = tracker.files
    tracker.finish()
    logs = list(files.glob("run-*.wandb"))
    assert [log.stem for log in logs] == [f"run-{tracker.run_id}"]
    assert files.parent == folder.wandb
    command = [sys.executable, "-m", "wandb", "leet", "inspect", str(logs[0])]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for text in ("rollout/success", "0.625", "decision/intent/reward", "0.375", "tree/explorer", "tree/paths", "***"):
        assert text in told
    assert "secret@" not in told
    page = next(files.rglob("*.html")).read_text(encoding="utf-8")
    assert "city_capital/ulm-0" in page
    table = json.loads(next(files.rglob("*.table.json")).read_text(encoding="utf-8"))
    assert len(table["data"]) == 6

    again = Tracker(folder, CONFIG)
    assert again.run_id == tracker.run_id
    again.finish()


@pytest.mark.slow
def test_a_server_that_does_not_answer_leaves_the_run_offline(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    tracker = Tracker(RunFolder(tmp_path / "run"), CONFIG)
    tracker.log(1, {"rollout/success": 0.5})
    tracker.finish()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning:")]
    assert tracker.mode == "offline"
    assert len(lines) == 1
    assert "Weights & Biases could not start" in lines[0]


def test_a_failure_while_logging_is_one_line_and_no_error(tmp_path, capsys):
    class Broken:
        def log(self, values):
            raise RuntimeError("connection lost\nmore")

    tracker = Tracker(RunFolder(tmp_path), {}, mode="disabled")
    tracker._run = Broken()
    tracker.log(1, {})
    tracker.log(2, {})
    tracker.finish()
    assert capsys.readouterr().out.count("warning: Weights & Biases logging failed: connection lost;") == 1
    assert tracker.metrics()["system/tracking_failed"] == 1.0


@pytest.mark.slow
def test_metrics_do_not_wait_for_trees_that_a_server_is_asked_about(tmp_path, capsys):
    class Asking:
        dir = "run/files"

        def __init__(self):
            self.asked, self.answered = threading.Event(), threading.Event()
            self.rows = []

        def log(self, values):
            if "tree/paths" in values:
                self.asked.set()
                self.answered.wait()
            self.rows.append(values["step"])

    tracker = Tracker(RunFolder(tmp_path), {}, mode="disabled", timeout_s=20)
    tracker._run = run = Asking()
    tracker._thread.start()
    for step in range(1, 20):
        tracker.log_trees(step, records())
        tracker.log(step, {})
        assert run.asked.wait(60)
    assert run.rows == list(range(1, 20))
    run.answered.set()
    run.finish = lambda exit_code: None
    tracker.finish()
    found_room = TREES_WAITING + 1  # one more was on its way to the server
    assert run.rows[19:] == list(range(1, found_room + 1))
    assert tracker.metrics()["system/tracking_trees_left_out"] == 19 - found_room
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1, "one line for all of them"
    assert "those of step 10 are left out" in warnings[0]


def test_trees_that_come_after_the_end_say_nothing_more(tmp_path, capsys):
    class Late:
        dir = "run/files"
        ended = threading.Event()

        def log(self, values):
            self.ended.wait()
            raise RuntimeError("the run is finished")

        def finish(self, exit_code):
            raise TimeoutError("timed out")

    tracker = Tracker(RunFolder(tmp_path), {}, mode="disabled", timeout_s=0.1)
    tracker._run = run = Late()
    tracker._thread.start()
    tracker.log_trees(1, records())
    tracker.finish()
    run.ended.set()
    tracker._thread.join()
    (warning,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("warning"))
    assert "did not take everything: timed out; `wandb sync run` uploads it later" in warning
