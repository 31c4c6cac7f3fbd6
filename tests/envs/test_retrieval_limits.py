"""What a retrieval server and its client read at most, and what they keep to themselves."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from envs.corpus import Passage
from envs.http_retriever import MAX_REPLY_BYTES, HttpRetriever
from envs.retrieval_server import Handler, RetrievalServer, is_loopback
from envs.retriever import LocalRetriever, RetrieverError

ROOT = Path(__file__).parents[2]


class Broken(LocalRetriever):
    """An index whose every search fails."""

    def find(self, query: str, topk: int) -> list[tuple[Passage, float]]:
        raise ValueError(f"secret of the server: {query}")


@contextmanager
def serving(retriever: LocalRetriever) -> Iterator[str]:
    with RetrievalServer("127.0.0.1", 0, retriever) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


POST = "POST /retrieve HTTP/1.1\r\n"
ULM = [Passage(id="1", title="Ulm", text="Ulm is a city.")]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(LocalRetriever(ULM)) as address:
        yield address


def raw(address: str, request: str) -> str:
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


@pytest.mark.parametrize(
    ("request_text", "status", "sentence"),
    [
        ("GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404, "unknown address"),
        ("GET //etc/passwd HTTP/1.1\r\n\r\n", 404, "unknown address"),
        (POST + "\r\n{}", 411, "one header content-length is needed"),
        (
            POST + "content-length: 2\r\ncontent-length: 9\r\n\r\n{}",
            411,
            "one header content-length",
        ),
        (
            POST + "content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
            411,
            "no transfer-encod",
        ),
        (POST + "content-length: -2\r\n\r\n{}", 411, "one header content-length is needed"),
        (
            POST + "content-length: 9999999999\r\n\r\n{}",
            413,
            "the body is larger than 1048576 bytes",
        ),
        (POST + "content-length: 10\r\n\r\n{}", 408, "the body did not arrive within 10 s"),
        ("PUT /<script> HTTP/1.1\r\n\r\n", 501, "Unsupported method"),
        (f"GET /{'a' * 70_000} HTTP/1.1\r\n\r\n", 414, "Too Long"),
    ],
)
def test_odd_requests_get_a_sentence_and_no_more(server: str, request_text: str, status: int, sentence: str) -> None:
    head, _, body = raw(server, request_text).partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert "python" not in head.lower()
    assert "content-type: application/json" in head.lower()
    assert sentence in json.loads(body)["error"]


def test_a_failed_search_says_nothing_of_the_inside(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(Broken(ULM)) as address:
        answer = httpx.post(f"{address}/retrieve", json={"queries": ["Ulm"]})
    assert (answer.status_code, answer.json()) == (500, {"error": "the search failed; the server's log says why"})
    assert "secret of the server" in capfd.readouterr().err


def test_half_a_surrogate_pair_is_a_query_like_any_other(server: str) -> None:
    answer = httpx.post(f"{server}/retrieve", content=b'{"queries": ["\\ud83d Ulm"]}')
    assert answer.status_code == 200
    assert len(answer.json()["result"][0]) == 1


def test_the_server_listens_to_this_machine_unless_told_otherwise() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [True] * 4
    assert [is_loopback(host) for host in ("", "0.0.0.0", "::", "10.0.0.5", "myhost")] == [False] * 5
    help_text = subprocess.run(
        [sys.executable, "-m", "envs.retrieval_server", "--help"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert "this machine only" in help_text


class Flood(Handler):
    """Answers with more than a client should read."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        for _ in range(MAX_REPLY_BYTES // 2**16 + 2):
            self.wfile.write(b" " * 2**16)
        self.close_connection = True


async def test_the_client_stops_reading_and_keeps_the_login_to_itself() -> None:
    with RetrievalServer("127.0.0.1", 0, LocalRetriever(ULM)) as made:
        made.RequestHandlerClass = Flood
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        client = HttpRetriever(f"http://me:pw@127.0.0.1:{made.server_port}/", timeout_s=60, retries=0)
        with pytest.raises(RetrieverError) as raised:
            await client.search("Ulm", 1)
        await client.aclose()
        made.shutdown()
        thread.join()
    assert str(raised.value) == (
        f"retriever http://***@127.0.0.1:{made.server_port}/ answered with more than 16,777,216 bytes"
    )
