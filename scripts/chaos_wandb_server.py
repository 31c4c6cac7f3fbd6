"""A W&B server on this machine, as far as a run needs one: it takes everything, keeps nothing, and can fall silent."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

ENTITY, PROJECT = "chaos", "espalier"


class WandbServer:
    """Answers on a free port. Use as a context manager."""

    def __init__(self) -> None:
        self.asked = 0
        """Requests answered."""
        self._is_silent = threading.Event()
        self._ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self._answer()

            def do_GET(self) -> None:
                self._answer()

            def do_PUT(self) -> None:
                self._answer()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if server._is_silent.is_set():
                    server._ended.wait()
                    return
                answer = json.dumps(answer_to(self.path, body)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                server.asked += 1

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        address = f"http://127.0.0.1:{self._http.server_port}"
        self.environment = {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online"}
        """With which a run reaches it."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._http.shutdown()
        self._http.server_close()

    def fall_silent(self) -> None:
        """From now on requests are taken and not answered."""
        self._is_silent.set()


def answer_to(path: str, body: bytes) -> dict[str, Any]:
    """What W&B's client needs to go on: the run that it asked for, and nothing in it."""
    if path != "/graphql":
        return {"exitcode": None, "limits": {}}
    asked = json.loads(body)
    query, variables = str(asked["query"]), asked.get("variables") or {}
    entity = {"id": "entity", "name": ENTITY}
    project = {"id": "project", "name": variables.get("project") or PROJECT, "entity": entity}
    name = variables.get("name") or "run"
    bucket = {"id": "bucket", "name": name, "displayName": name, "description": "", "config": "{}", "sweepName": None}
    bucket |= {"project": project, "historyLineCount": 0}
    answers: dict[str, Any] = {
        "query RunResumeStatus": {"model": {**project, "bucket": None}},
        "mutation UpsertBucket": {"upsertBucket": {"bucket": bucket, "inserted": True}},
        "mutation CreateRunFiles": {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": []}},
        "query Viewer": {"viewer": {"id": "viewer", "entity": ENTITY, "username": ENTITY, "flags": "{}"}},
        "query ArtifactType": {"project": None},
    }
    known = next((answer for begin, answer in answers.items() if begin in query), None)
    return {"data": known} if known else {"errors": [{"message": "this server knows no such thing"}]}
