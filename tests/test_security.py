"""What docs/security.md promises: nothing runs that came in a file or from a model, and nothing secret goes out."""

import ast
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from dangerous_code import FORBIDDEN, IMPORTING, UNPICKLING, uses

from envs.dotted_path import imported
from envs.masking import MaskedFormatter, masked, masked_text
from envs.types import EndReason, Message, Task
from rollout_workers.branch import MAX_NOTE, shown_note
from rollout_workers.engine_settings import EngineSettings, engine_arguments
from rollout_workers.types import Node, TaskGroup, Tree
from trainer.config import ModelConfig
from trainer.main import main
from trainer.report import trees_page, write_report
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
SECRETS = {
    "WANDB_API_KEY": "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c",
    "HF_TOKEN": "hf_QmFkIGtleSwgZ29vZCB0ZXN0",
    "SEARCH_API_KEY": "search-9d8c7b6a",
    "DB_SECRET": "db-1a2b3c4d5e",
}
OWN = ("own-5e6f7a8b", "own-9c0d1e2f", "own-3a4b5c6d")
"""Secrets that stand in settings."""
ATTACK = "document.documentElement.dataset.hacked=1"
HOSTILE = f"</script><script>{ATTACK}</script><img src=x onerror='{ATTACK}'>\u2028\"&amp;"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Code that came with data

UNPICKLERS = {
    "envs/pickling.py": "our own types, between our own processes",
    "envs/check_clauses.py": "states that the check itself pickled a moment before",
    "rollout_workers/branch.py": "states that another rollout actor of the same run sent",
}
"""The only files that may unpickle, and what."""


def calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call, by the words that it is written with."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def sources() -> list[Path]:
    return [file for part in ("envs", "rollout_workers", "trainer", "scripts") for file in (ROOT / part).rglob("*.py")]


def test_what_could_run_code_from_a_file_is_used_nowhere() -> None:
    assert len(sources()) > 100
    assert users_of(FORBIDDEN) == {}
    shells = [
        f"{file}: {name}" for file in sources() for name, call in calls(file) for w in call.keywords if w.arg == "shell"
    ]
    assert shells == []


def users_of(names: set[str]) -> dict[str, list[str]]:
    """The files that use any of these, and which."""
    found = {str(file.relative_to(ROOT)): uses(file.read_text(encoding="utf-8"), names) for file in sources()}
    return {file: used for file, used in found.items() if used}


def test_only_what_our_own_processes_sent_is_unpickled() -> None:
    assert users_of(UNPICKLING).keys() == UNPICKLERS.keys()


def test_code_is_imported_by_name_in_one_place() -> None:
    assert list(users_of(IMPORTING)) == ["envs/dotted_path.py"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("eval(x)", "eval"),
        ("import os\nos.system(x)", "os.system"),
        ("from os import system as run\nrun(x)", "os.system"),
        ("import os as o\nf = o.execvp", "os.execvp"),
        ("import os\ngetattr(os, 'popen')(x)", "os.popen"),
        ("def f():\n    from builtins import exec\n", "exec"),
        ("import builtins\nbuiltins.eval(x)", "eval"),
        ("__import__('os').system(x)", "__import__"),
        ("import runpy", "runpy"),
        ("from runpy import run_path", "runpy.run_path"),
        ("import numpy as np\nnp.load(x)", "numpy.load"),
        ("import yaml\nyaml.load_all(x)", "yaml.load_all"),
        ("import torch\ntorch.load(x)", "torch.load"),
        ("from torch import load", "torch.load"),
        ("import torch.serialization\ntorch.serialization.load(x)", "torch.serialization.load"),
    ],
)
def test_the_search_finds_what_is_forbidden_by_any_name(source: str, found: str) -> None:
    assert uses(source) == [found]


def test_the_search_finds_unpickling_and_nothing_harmless() -> None:
    for source in ("from pickle import loads", "import pickle as p\np.Unpickler(f)", "import pickle\nf = pickle.load"):
        assert len(uses(source, UNPICKLING)) == 1
    harmless = "import os, re, pickle, yaml\nmodel.eval()\nre.compile('x')\npickle.dumps(x)\nyaml.safe_load(x)\nos.path"
    harmless += "\nimport torch\ntorch.load(x, weights_only=True)"
    assert uses(harmless, FORBIDDEN | UNPICKLING) == []


def test_code_of_a_model_runs_only_when_asked() -> None:
    assert ModelConfig(path="m").trust_remote_code is False
    assert engine_arguments(EngineSettings(model="m", max_context_tokens=512))["trust_remote_code"] is False
    literal = [
        file
        for file in sources()
        for _, call in calls(file)
        for word in call.keywords
        if word.arg == "trust_remote_code" and isinstance(word.value, ast.Constant) and word.value.value is not False
    ]
    assert literal == []


@pytest.mark.parametrize(
    "path",
    ["../evil.run", "/tmp/evil.run", ".evil.run", "evil..run", "evil.run()", "evil;run", "run", "evil/run.py", ""],
)
def test_code_by_a_dotted_path_comes_from_the_import_path_only(path: str, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(ValueError, match=r"is not a dotted path such as a\.b"):
        imported("env.path", path, example="a.b", what="a function")


# Secrets


@pytest.fixture
def secrets_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("secrets_in_environment")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pw@host:8000/retrieve", "http://***@host:8000/retrieve"),
        ("https://token@host and ftp://a:b@c", "https://***@host and ftp://***@c"),
        ("http://host/?q=ulm&api_key=abc&k=3", "http://host/?q=ulm&api_key=***&k=3"),
        (f"refused: {SECRETS['HF_TOKEN']}!", "refused: ***!"),
        ("http://host/a@b", "http://host/a@b"),
        ("max_turn_tokens=64", "max_turn_tokens=64"),
    ],
)
def test_secrets_in_text(text: str, shown: str) -> None:
    assert masked_text(text) == shown


@pytest.mark.usefixtures("secrets_in_environment")
def test_secrets_in_settings() -> None:
    settings = {
        "api_key": "abc",
        "tokens": 64,
        "max_turn_tokens": 64,
        "deep": [{"password": "x", "note": SECRETS["DB_SECRET"]}],
    }
    assert masked(settings) == {
        "api_key": "***",
        "tokens": 64,
        "max_turn_tokens": 64,
        "deep": [{"password": "***", "note": "***"}],
    }


WRITE_A_RUN = """
import sys
from pathlib import Path
from trainer.compose import compose
from trainer.main import _keep_traceback
from trainer.report import write_report
from trainer.run_folder import RunFolder
from trainer.tracking import Tracker

config = compose(sys.argv[1:])
folder = RunFolder(Path(config.runs_dir) / config.name)
settings = config.model_dump(mode="json")
folder.write_config(settings)
tracker = Tracker(folder, settings, mode="offline")
assert tracker.mode == "offline"
folder.append_metrics(1, {"rollout/success": 0.5})
tracker.log(1, {"rollout/success": 0.5})
tracker.summary({"eval": {"after": {"success": 0.5}}})
tracker.finish()
try:
    raise RuntimeError(f"no answer from {config.env.options['url']}; {config.env.options['note']}")
except RuntimeError:
    print(_keep_traceback(config))
write_report(folder.path)
"""


def test_a_run_folder_and_what_is_printed_hold_no_secret(tmp_path: Path) -> None:
    """Of the environment, of the settings, and of the command line, which W&B would keep."""
    own = {
        "api_key": "own-5e6f7a8b",
        "url": "http://me:own-9c0d1e2f@host/?token=own-3a4b5c6d",
        "note": SECRETS["DB_SECRET"],
    }
    arguments = [
        *("env=custom", "env.path=a.b", "env.train_tasks=t.jsonl", "env.eval_tasks=e.jsonl", "name=r"),
        f"runs_dir={tmp_path}/runs",
        *(f"+env.options.{name}='{value}'" for name, value in own.items()),
    ]
    for command in (["-c", WRITE_A_RUN], ["-m", "trainer.main", "--cfg", "job"]):
        done = subprocess.run(
            [sys.executable, *command, *arguments],
            cwd=ROOT,
            env=os.environ | SECRETS,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        for secret in [*SECRETS.values(), *OWN]:
            assert secret not in done.stdout + done.stderr
    written = [file for file in (tmp_path / "runs" / "r").rglob("*") if file.is_file()]
    names = {file.name for file in written}
    assert names >= {"config.yaml", "metrics.jsonl", "report.html", "traceback.txt", "debug.log"}
    assert any(name.endswith(".wandb") for name in names)
    leaks = [f.name for f in written for s in [*SECRETS.values(), *OWN] if s.encode() in f.read_bytes()]
    assert leaks == []


def test_a_refused_secret_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [
        "env.options.api_key=[own-5e6f7a8b",
        "env.retriever.url=ftp://me:own-9c0d1e2f@host/",
        "lr='http://a:own-1@b'",
    ]
    assert main(wrong) == 2
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) >= 3
    assert "own-" not in shown


@pytest.mark.usefixtures("secrets_in_environment")
def test_a_note_on_a_failed_branch_is_masked_before_it_is_cut() -> None:
    """From the note logs, forests, the report and W&B have what an environment raised."""
    said = f"401 for http://me:{OWN[0]}@host/?api_key={OWN[1]} with {SECRETS['SEARCH_API_KEY']}"
    assert shown_note(said) == "401 for http://***@host/?api_key=*** with ***"
    half = "x" * (MAX_NOTE - 5) + SECRETS["HF_TOKEN"] + "y"
    assert shown_note(half) == "x" * (MAX_NOTE - 5) + "***y"


@pytest.mark.usefixtures("secrets_in_environment")
def test_log_lines_and_their_tracebacks_are_masked() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(MaskedFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("library")
    logger.addHandler(handler)
    try:
        raise ValueError(SECRETS["HF_TOKEN"])
    except ValueError:
        logger.exception("no answer from %s", f"http://me:{OWN[0]}@host")
    assert stream.getvalue().startswith("ERROR no answer from http://***@host\nTraceback")
    assert stream.getvalue().endswith("ValueError: ***\n")


# Servers


def test_the_label_server_is_for_this_machine_and_its_own_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer.label_server", str(tmp_path), "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        home = server.stdout.readline().split()[-1].rstrip("/")
        assert home.startswith("http://127.0.0.1:")
        with httpx.Client(trust_env=False, timeout=60.0) as client:
            assert client.get(home).status_code == 200
            assert client.get(home, headers={"host": "evil.example"}).status_code == 403
            label = {"id": "train-1/t/0/1", "label": 1}
            for page in ("http://evil.example", "null", "http://127.0.0.1:1"):
                assert client.post(f"{home}/api/label", json=label, headers={"origin": page}).status_code == 403
            assert client.post(f"{home}/api/label", json=label, headers={"origin": home}).status_code == 404
    finally:
        server.terminate()
        server.wait(30)
    assert list(tmp_path.iterdir()) == []


# Text of models and data in the report


def hostile_run(path: Path) -> RunFolder:
    """Hostile text wherever text can stand: names of the run and of metrics, settings, ids, meta, steps and ends."""
    folder = RunFolder(path)
    folder.write_config({"name": HOSTILE, HOSTILE: HOSTILE, "model": {"path": HOSTILE}, "env": {"options": [HOSTILE]}})
    for step in (1, 2):
        folder.append_metrics(step, {f"rollout/{HOSTILE}": step, f"{HOSTILE}/x": step, "rollout/success": 0.5})
    folder.write_summary(
        {"eval": {HOSTILE: {"success": 1}, "after": {HOSTILE: 1}}, HOSTILE: HOSTILE, "versions": {HOSTILE: HOSTILE}}
    )
    nodes = [
        Node(parent=-1, observation_ids=(1,)),
        Node(parent=0, token_ids=(1,), logprobs=(-1.0,), versions=(0,), observation_ids=(1,), tool_calls=1),
        Node(
            parent=1,
            token_ids=(1,),
            logprobs=(-1.0,),
            versions=(0,),
            end=EndReason.ENV_ERROR,
            note=HOSTILE,
            slot=0,
        ),
    ]
    task = Task(
        id=f"../../{HOSTILE}",
        prompt=(Message(role="user", content=HOSTILE),),
        truth=(HOSTILE,),
        meta={HOSTILE: HOSTILE, "source": HOSTILE, "family": HOSTILE, "hops": HOSTILE},
    )
    forest = [TaskGroup(task=task, trees=(Tree(task_id=task.id, index=0, nodes=nodes),))]
    for kind in ("step", "eval"):
        folder.write_forest(kind, 2, forest, lambda ids: HOSTILE)
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = hostile_run(tmp_path / "runs" / HOSTILE.replace("/", "|"))
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "an id is no path"
    assert sorted(path.name for path in folder.forest.iterdir()) == ["eval-000002.jsonl", "step-000002.jsonl"]
    return write_report(folder.path)


def test_hostile_text_stays_inside_the_data_block(hostile: Path) -> None:
    page = hostile.read_text(encoding="utf-8")
    assert (page.count("<script"), page.count("</script>")) == (2, 2)
    assert "<img src=x" not in page
    assert trees_page([], title=HOSTILE).count("<script") == 2


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH to render the page")
@pytest.mark.parametrize("view", ["overview", "trees", "settings", "trees/step-000002"])
def test_a_browser_runs_nothing_of_it(hostile: Path, view: str) -> None:
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        quiet = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
        command = [
            str(CHROMIUM),
            *quiet.split(),
            f"--user-data-dir={profile}",
            "--virtual-time-budget=3000",
            "--dump-dom",
        ]
        done = subprocess.run(
            [*command, f"{hostile.as_uri()}#{view}"],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | {"HOME": profile},
        )
    assert "&lt;img src=x" in done.stdout, "the text is shown"
    assert "<img" not in done.stdout
    assert "data-hacked" not in done.stdout
