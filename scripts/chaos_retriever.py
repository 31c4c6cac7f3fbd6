"""A retrieval server in a thread, which can be told to be slow, to fail, to answer nonsense, or to be gone."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from envs.retrieval_server import Handler, RetrievalServer
from envs.retriever import LocalRetriever

SLOW_S = 4.0
"""So long takes a search of a slow server; clients wait 3 s (`scripts/chaos_worlds.py`)."""


class _Server(RetrievalServer):
    mood = ""
    spoiled = 0
    """Searches that were not answered as they should be."""


class _Handler(Handler):
    def do_POST(self) -> None:
        """As ever, but in the server's mood."""
        server = self.server
        assert isinstance(server, _Server)
        if not server.mood:
            super().do_POST()
            return
        server.spoiled += 1
        self.close_connection = True
        if server.mood == "retriever_500":
            self._send(500, {"error": "the search failed on purpose"})
        elif server.mood == "retriever_invalid_json":
            self._send_text(b'{"result": [[{"document": ')
        elif server.mood == "retriever_slow":
            time.sleep(SLOW_S)
            super().do_POST()

    def _send_text(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class MoodyRetriever:
    """Serves a corpus on a free port of this machine. Use as a context manager."""

    def __init__(self, corpus: Path) -> None:
        self._retriever = LocalRetriever.from_file(corpus)
        self._server = self._open(0)
        self.port: int = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/retrieve"

    def _open(self, port: int) -> _Server:
        server = _Server("127.0.0.1", port, self._retriever)
        server.RequestHandlerClass = _Handler
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "MoodyRetriever":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    @property
    def spoiled(self) -> int:
        """Searches spoiled in the present mood; a server that is gone counts none."""
        return self._server.spoiled

    @contextlib.contextmanager
    def mood(self, fault: str) -> Iterator[None]:
        """Inside the block every search meets the `fault`, a name such as `"retriever_500"`."""
        self._server.spoiled, self._server.mood = 0, fault
        if fault == "retriever_down":
            self._close()
        try:
            yield
        finally:
            if fault == "retriever_down":
                self._server = self._open(self.port)
            self._server.mood = ""
