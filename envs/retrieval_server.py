"""Command: serves one local index to any number of processes, with the Search-R1 protocol.

`python -m envs.retrieval_server --corpus data/quickstart/corpus.jsonl --port 8000` answers `POST /retrieve`
(see `envs.http_retriever`) and `GET /health`. One thread per connection; the index is read-only, so they need no lock.
There is no authentication: it binds to this machine only unless `--host` says otherwise. It reads no file after the
start, and a client learns nothing about the process: what fails inside is one sentence outside.
"""

import argparse
import ipaddress
import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from envs.corpus import Passage
from envs.retriever import LocalRetriever
from envs.types import Json

MAX_BODY_BYTES = 2**20
MAX_QUERIES = 512
MAX_TOPK = 100
IDLE_S = 30.0
"""A connection that sends nothing for so long is closed."""
BODY_S = 10.0
"""Longest time for a body to arrive, however steadily it trickles."""
UNKNOWN = "unknown address; accepted: POST /retrieve, GET /health"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checked request body."""

    queries: tuple[str, ...]
    topk: int
    return_scores: bool


def read_request(body: bytes, default_topk: int = 3) -> Request:
    """Checks a request body. Raises ValueError with one sentence for the client."""
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body must be JSON") from None
    if not isinstance(record, dict):
        raise ValueError("the body must be a JSON object with the field queries")
    queries, topk, scores = record.get("queries"), record.get("topk"), record.get("return_scores", False)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ValueError("queries must be a list of texts")
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise ValueError(f"queries must hold 1 to {MAX_QUERIES} texts, not {len(queries)}")
    topk = default_topk if topk is None else topk
    if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= MAX_TOPK:
        raise ValueError(f"topk must be a whole number from 1 to {MAX_TOPK}")
    if not isinstance(scores, bool):
        raise ValueError("return_scores must be true or false")
    return Request(queries=tuple(queries), topk=topk, return_scores=scores)


def reply(retriever: LocalRetriever, request: Request) -> Json:
    """The reply body: `{"result": [[hit, ...] per query]}`; a hit is `{"document", "score"}` or the document alone."""
    result: list[Json] = []
    for query in request.queries:
        found = retriever.find(query, request.topk)
        documents: list[Json] = [_document(passage) for passage, _ in found]
        if request.return_scores:
            documents = [{"document": _document(passage), "score": score} for passage, score in found]
        result.append(documents)
    return {"result": result}


def _document(passage: Passage) -> Json:
    return {"id": passage.id, "contents": f'"{passage.title}"\n{passage.text}'}


class RetrievalServer(ThreadingHTTPServer):
    """An HTTP server that owns the index. Port 0 takes a free one: see `server_port`."""

    daemon_threads = True

    def __init__(self, host: str, port: int, retriever: LocalRetriever) -> None:
        super().__init__((host, port), Handler)
        self.retriever = retriever

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nothing to report; anything else is printed with its traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server_version, sys_version = "espalier", ""  # no version of Python in replies
    wbufsize = -1  # headers and body leave in one packet, so that no delayed acknowledgement holds the reply back
    disable_nagle_algorithm = True
    server: RetrievalServer

    def do_GET(self) -> None:
        """`/health` says that the index is ready."""
        if self.path == "/health":
            self._send(200, {"status": "ok"})
        else:
            self._send(404, {"error": UNKNOWN})

    def do_POST(self) -> None:
        """`/retrieve` searches."""
        lengths = self.headers.get_all("content-length", [])
        if (
            "transfer-encoding" in self.headers
            or len(lengths) != 1
            or not (lengths[0].isascii() and lengths[0].isdigit())
        ):
            self._refuse(411, "one header content-length is needed, and no transfer-encoding")
        elif len(lengths[0]) > len(str(MAX_BODY_BYTES)) or int(lengths[0]) > MAX_BODY_BYTES:
            self._refuse(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        elif (body := self._body(int(lengths[0]))) is None:
            self._refuse(408, f"the body did not arrive within {BODY_S:g} s")
        else:
            self._retrieve(body)

    def _body(self, length: int) -> bytes | None:
        """The body, or None when it comes too slowly or breaks off."""
        deadline, body = time.monotonic() + BODY_S, bytearray()
        while len(body) < length:
            part = self.rfile.read1(length - len(body))
            body += part
            if not part or time.monotonic() > deadline:
                return None
        return bytes(body)

    def _retrieve(self, body: bytes) -> None:
        if self.path.rstrip("/") != "/retrieve":
            self._send(404, {"error": UNKNOWN})
            return
        try:
            request = read_request(body)
        except ValueError as error:
            self._send(400, {"error": str(error)})
            return
        try:
            found = reply(self.server.retriever, request)
        except Exception:  # whatever the index raises: it goes to the server's own log only
            traceback.print_exc()
            self._send(500, {"error": "the search failed; the server's log says why"})
        else:
            self._send(200, found)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses (another method, a header line that is too long), as JSON like the rest."""
        self._refuse(code, message or HTTPStatus(code).phrase)

    def _refuse(self, status: int, sentence: str) -> None:
        """Answers without reading the body, so the connection cannot be used again."""
        self.close_connection = True
        self._send(status, {"error": sentence})

    def _send(self, status: int, record: Json) -> None:
        body = json.dumps(record).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: training makes thousands of requests a minute."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; of names only `localhost` is known to mean that."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until interrupted; returns the exit code (2 for a wrong setting)."""
    parser = argparse.ArgumentParser(prog="python -m envs.retrieval_server", description="Serves a search index.")
    parser.add_argument("--corpus", type=Path, required=True, help="JSONL with id, title, text")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free port (default 8000)")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    options = parser.parse_args(arguments)
    try:
        server = RetrievalServer(options.host, options.port, LocalRetriever.from_file(options.corpus))
    except (ValueError, OSError, OverflowError) as error:
        print(f"error: cannot serve {options.corpus} on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 2
    if not is_loopback(options.host):
        print(
            f"note: --host {options.host} lets every machine that reaches port {server.server_port} search; "
            "there is no authentication",
            file=sys.stderr,
        )
    print(f"serving {options.corpus} on http://{options.host}:{server.server_port}/retrieve", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
