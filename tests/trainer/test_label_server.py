"""The page that people label steps on: what it serves, what it refuses, and two labels given in a browser."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, opened
from fastapi.testclient import TestClient
from typed_by_hand import queued

from trainer.decisions.feedback_files import append_lines, queue_line
from trainer.label_page import render
from trainer.label_server import MAX_BODY_BYTES, accepts_host, main, make_app
from trainer.label_store import LabelStore

ROOT = Path(__file__).parents[2]
HOME = "http://127.0.0.1:8010"
ATTACK = "document.documentElement.dataset.hacked=1"
HOSTILE = f'</script><script>{ATTACK}</script><img src=x onerror="{ATTACK}">\u2028&amp;'


@pytest.fixture
def run(tmp_path):
    """Four steps: three of training step 3, one of step 4."""
    folder = tmp_path / "runs" / "shop"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("decision: {feedback: {max_age: 0}}\n")
    steps = [queued(f"train-3/t/0/{i}", 3, node) for i, node in ((1, "intent"), (2, "reply"), (3, "intent"))]
    queue(folder, *steps, queued("train-4/t/0/1", 4, "reply"))
    return folder


def queue(folder, *steps):
    append_lines(folder / "feedback" / "queue.jsonl", [queue_line(step) for step in steps])


def labels(folder):
    path = folder / "feedback" / "labels.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def client(run):
    with TestClient(make_app(LabelStore(run)), base_url=HOME) as found:
        yield found


def following(client, **query):
    found = client.get("/api/next", params=query).json()
    return found["step"] and found["step"]["id"]


def test_newest_steps_come_first_and_labelled_ones_no_more(client, run):
    assert following(client) == "train-4/t/0/1"
    assert following(client, skip="train-4/t/0/1") == "train-3/t/0/1"
    assert following(client, node="intent") == "train-3/t/0/1"
    assert following(client, node="intent", skip=["train-3/t/0/1", "train-3/t/0/3"]) is None
    saved = client.post("/api/label", json={"id": "train-4/t/0/1", "label": 0.75, "note": "polite"})
    assert (saved.status_code, saved.json()) == (200, {"saved": "train-4/t/0/1"})
    assert labels(run) == [{"id": "train-4/t/0/1", "label": 0.75, "note": "polite"}]
    assert following(client) == "train-3/t/0/1"
    progress = client.get("/api/next").json()["progress"]
    assert progress == {
        "queued": 4,
        "labelled": 1,
        "nodes": [
            {"name": "intent", "queued": 2, "labelled": 0},
            {"name": "reply", "queued": 2, "labelled": 1},
        ],
    }


def test_a_step_is_shown_with_what_people_need_and_no_more(client):
    step = client.get("/api/step", params={"id": "train-3/t/0/2"}).json()["step"]
    assert (step["node"], step["instruction"], step["input"]) == ("reply", "Do reply.", '{"message": "hi"}')
    assert json.loads(step["output"]) == {"of": "reply"}
    assert (step["age"], step["max_age"], step["label"]) == (1, 0, None)
    assert not {"token_ids", "logprobs", "prompt_ids"} & set(step)


def test_what_others_write_counts_at_once_and_nothing_is_lost_by_a_restart(client, run):
    append_lines(run / "feedback" / "labels.jsonl", ['{"id": "train-4/t/0/1", "label": 0}', "nonsense"])
    assert following(client) == "train-3/t/0/1"
    queue(run, queued("train-5/t/0/1", 5))
    assert following(client) == "train-5/t/0/1"
    client.post("/api/label", json={"id": "train-5/t/0/1", "label": 1})
    client.post("/api/label", json={"id": "train-5/t/0/1", "label": 0.5})
    again = LabelStore(run)
    assert again.next()["id"] == "train-3/t/0/1"
    assert again.step("train-5/t/0/1")["label"] == 0.5, "the last label counts"
    assert again.progress()["labelled"] == 2


def test_a_folder_without_a_queue_waits_for_one(tmp_path):
    (tmp_path / "new").mkdir()
    store = LabelStore(tmp_path / "new")
    assert (store.next(), store.progress()) == (None, {"queued": 0, "labelled": 0, "nodes": []})
    queue(tmp_path / "new", queued())
    assert store.next()["id"] == "train-3/t/0/1"
    assert store.next()["max_age"] is None


# What is refused


def post(client, body=b'{"id": "train-4/t/0/1", "label": 1}', **headers):
    given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return client.post("/api/label", content=body, headers=given)


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b'{"id": "train-9/t/0/1", "label": 1}', {}, 404, "no step with this id"),
        (b'{"id": "../../etc/passwd", "label": 1}', {}, 404, "no step with this id"),
        (b'{"id": "train-4/t/0/1", "label": 2}', {}, 400, "label must be a number from 0 to 1"),
        (b'{"id": "train-4/t/0/1", "label": NaN}', {}, 400, "label must be a number from 0 to 1"),
        (b'{"id": "train-4/t/0/1", "label": 1, "path": "x"}', {}, 400, "accepted is an object"),
        (b"no", {}, 400, "must be JSON"),
        (b"[" * 20_000, {}, 400, "must be JSON"),
        (b"x" * (MAX_BODY_BYTES + 1), {}, 413, "larger than"),
        (b"{}", {"content_length": "9" * 400}, 413, "larger than"),
        (b"{}", {"content_length": "-1"}, 411, "content-length"),
        (b"{}", {"transfer_encoding": "chunked"}, 411, "content-length"),
        (b"{}", {"content_type": "text/plain"}, 415, "application/json"),
        (b"{}", {"origin": "https://evil.example"}, 403, "not from other pages"),
        (b"{}", {"origin": "null"}, 403, "not from other pages"),
        (b"{}", {"origin": "http://127.0.0.1:9999"}, 403, "not from other pages"),
        (b"{}", {"sec_fetch_site": "cross-site"}, 403, "not from other pages"),
        (b"{}", {"host": "evil.example"}, 403, "this server is not 'evil.example'"),
    ],
)
def test_posts_that_are_refused_write_nothing(client, run, body, headers, status, message):
    answer = post(client, body, **headers)
    assert (answer.status_code, answer.json().keys()) == (status, {"error"})
    assert message in answer.json()["error"]
    assert labels(run) == []


def test_its_own_page_and_programs_may_post(client, run):
    assert post(client, origin=HOME, sec_fetch_site="same-origin").status_code == 200
    assert post(client, host="localhost:8010", origin="http://localhost:8010").status_code == 200
    assert post(client).status_code == 200
    assert len(labels(run)) == 3


@pytest.mark.parametrize(
    ("host", "bound", "accepted"),
    [
        ("127.0.0.1:8010", "127.0.0.1", True),
        ("localhost:9000", "127.0.0.1", True),  # through a tunnel
        ("[::1]:8010", "::1", True),
        ("evil.example", "127.0.0.1", False),
        ("192.168.1.5:8010", "127.0.0.1", False),
        ("192.168.1.5:8010", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("desk.lan:8010", "desk.lan", True),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("[::1", "127.0.0.1", False),
        ("", "127.0.0.1", False),
    ],
)
def test_names_that_others_may_point_here_are_not_served(host, bound, accepted):
    assert accepts_host(host, bound) is accepted


def test_other_addresses_are_unknown_and_every_answer_is_guarded(client):
    for path in ("/docs", "/openapi.json", "/../config.yaml", "/feedback/queue.jsonl", "/api/label"):
        answer = client.get(path)
        assert answer.status_code in (404, 405)
        assert answer.json()["error"].startswith("unknown address")
    assert client.get("/api/next", params={"node": "n" * 65}).status_code == 400
    assert client.get("/api/step").status_code == 400
    for answer in (client.get("/"), client.get("/nowhere"), post(client, origin="null")):
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_feedback_stays_inside_the_run_folder(tmp_path, run, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    led = tmp_path / "led"
    led.mkdir()
    (led / "feedback").symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of the run folder"):
        LabelStore(led)
    store = LabelStore(run)
    (run / "feedback" / "labels.jsonl").symlink_to(outside / "labels.jsonl")
    with pytest.raises(ValueError, match="leads out of the run folder"):
        store.next()
    assert list(outside.iterdir()) == []
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_the_page_runs_its_own_script_alone():
    page = render(HOSTILE)
    assert (page.count("<script"), page.count("</script>")) == (2, 2)
    assert "connect-src 'self'" in page
    script = (ROOT / "trainer/label_page/label.js").read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?:", script)


# In a browser


@pytest.fixture
def served(run):
    command = [sys.executable, "-m", "trainer.label_server", str(run), "--port", "0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        line = server.stdout.readline()
        yield re.search(r"http://\S+", line)[0]
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH")
def test_two_steps_labelled_in_a_browser(run, served):
    wild = queued("train-9/t/0/1", 9, "reply")
    queue(run, replace(wild, instruction=HOSTILE, record=replace(wild.record, output=json.dumps({"text": HOSTILE}))))
    shown = "document.getElementById('step')?.dataset.id"
    with opened(served) as page:
        page.wait(f"{shown} === 'train-9/t/0/1'")
        assert HOSTILE.split("\u2028")[0] in page.run("document.querySelector('.part-of.output').innerText")
        assert page.run("document.querySelectorAll('img').length + document.querySelectorAll('script').length") == 2
        assert page.run("document.activeElement.tagName") == "H1"
        page.press("c")
        page.type("y and n are only letters here")
        page.press("Escape")
        page.press("4")
        page.wait(f"{shown} === 'train-4/t/0/1'")
        assert labels(run) == [{"id": "train-9/t/0/1", "label": 0.75, "note": "y and n are only letters here"}]
        page.press("s")
        page.wait(f"{shown} === 'train-3/t/0/1'")
        page.press("y")
        page.wait(f"{shown} === 'train-3/t/0/2'")
        assert labels(run)[1:] == [{"id": "train-3/t/0/1", "label": 1.0}]
        assert page.run("document.querySelector('.count').innerText") == "2 of 5 labelled"
        page.press("b")
        page.wait(f"{shown} === 'train-3/t/0/1'")
        assert page.run("document.querySelector('.grade[aria-pressed=true]').dataset.label") == "1"
        page.run(
            "const f = document.getElementById('filter'); f.value = 'intent'; f.dispatchEvent(new Event('change'))"
        )
        page.wait(f"{shown} === 'train-3/t/0/3'")
        page.press("n")
        page.wait("document.querySelector('.nothing')")
        assert page.run("document.documentElement.dataset.hacked ?? 'safe'") == "safe"
    assert [one["label"] for one in labels(run)] == [0.75, 1.0, 0.0]
