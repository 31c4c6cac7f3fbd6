import asyncio
import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import FACTS

from envs.corpus import Passage, corpus, read_corpus, write_corpus
from envs.http_retriever import HttpRetriever
from envs.names import name_key
from envs.retrieval_server import MAX_BODY_BYTES, RetrievalServer, main
from envs.retriever import LocalRetriever, RetrieverError

LOCAL = LocalRetriever(list(corpus(FACTS)))


def titles(query, topk=3):
    return [passage.title for passage, _ in LOCAL.find(query, topk)]


def test_name_key():
    assert name_key("Saint-Étienne") == "saint etienne"
    assert name_key("Москва_1") == "москва 1"
    assert name_key(" -!") == ""


def test_an_exact_name_wins():
    assert titles("Ulm")[0] == "Ulm"
    assert titles("  ULM?! ")[0] == "Ulm"
    assert titles("neu ulm")[0] == "Neu-Ulm"
    assert titles("Berlin")[:2] == ["Berlin", "Berlin (overview)"]
    assert titles("capital of Germany")[0] == "Germany"
    assert titles("Albert Einstein")[0] == "Albert Einstein"
    assert len(titles("Germany", 1)) == 1
    assert titles("zzz") == titles("") == titles("?!") == []


SYNTAX = ["title:", '"', "(", ")", "AND", "OR", "NOT", "*", "^3", "~", "[a TO", "}", "\\", "+", "-", "Ulm", "/", "IN ["]


@given(st.text() | st.lists(st.sampled_from(SYNTAX)).map(" ".join), st.integers(1, 20))
def test_no_query_raises(query, topk):
    found = asyncio.run(LOCAL.search(query, topk))
    assert len(found) <= topk
    assert found == [passage for passage, _ in LOCAL.find(query, topk)]


def test_long_queries():
    assert titles("Ulm " * 10_000)[0] in ("Ulm", "Neu-Ulm")
    assert titles("u" * 100_000) == []


def test_corpus_file_is_read_back_and_written_the_same(tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    assert write_corpus(one, FACTS) == write_corpus(two, FACTS) == 14
    assert one.read_bytes() == two.read_bytes()
    assert read_corpus(one) == list(corpus(FACTS))
    lines = {passage.title: passage.text for passage in read_corpus(one)}
    assert lines["Ulm"] == "Ulm is a city in Germany. Its time zone is Europe/Busingen. Population 120451."
    assert lines["Germany"] == (
        "Germany has capital Berlin; currency Euro; continent Europe; calling code 49; "
        "largest neighbour France; internet domain .de."
    )


@pytest.mark.parametrize("line", ["{", "[]", '{"id": "1", "title": "x"}', '{"text": 3}', "[" * 100_000])
def test_broken_corpus_names_the_line(tmp_path, line):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "1", "title": "x", "text": "y"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"corpus.jsonl line 2: "):
        read_corpus(path)


def test_missing_and_empty_corpus(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.jsonl cannot be read"):
        LocalRetriever.from_file(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="has no documents"):
        LocalRetriever.from_file(tmp_path / "empty.jsonl")


@pytest.fixture
def server():
    with serve(RetrievalServer("127.0.0.1", 0, LOCAL)) as made:
        yield f"http://127.0.0.1:{made.server_port}"


@contextmanager
def serve(made):
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


async def test_client_and_server_find_what_the_index_finds(server):
    client = HttpRetriever(server + "/retrieve", timeout_s=5, retries=0)
    for query in ("Ulm", 'title:"', "capital of Germany", "Ünlü 東京", "zzz"):
        assert await client.search(query, 3) == await LOCAL.search(query, 3)
    await client.aclose()


def test_the_protocol_word_by_word(server):
    ask = {"queries": ["Ulm", "zzz"], "topk": 1}
    document = {
        "id": "city/1",
        "contents": '"Ulm"\nUlm is a city in Germany. Its time zone is Europe/Busingen. Population 120451.',
    }
    assert httpx.post(server + "/retrieve", json=ask).json() == {"result": [[document], []]}
    scored = httpx.post(server + "/retrieve", json=ask | {"return_scores": True}).json()["result"][0][0]
    assert scored["document"] == document
    assert scored["score"] > 0
    assert httpx.get(server + "/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"<html>", "the body must be JSON"),
        (b"\xff", "the body must be JSON"),
        (b"[1]", "the body must be a JSON object with the field queries"),
        (b'{"queries": "Ulm"}', "queries must be a list of texts"),
        (b'{"queries": [3]}', "queries must be a list of texts"),
        (b'{"queries": []}', "queries must hold 1 to 512 texts, not 0"),
        (b'{"queries": ["a"], "topk": 0}', "topk must be a whole number from 1 to 100"),
        (b'{"queries": ["a"], "topk": true}', "topk must be a whole number from 1 to 100"),
        (b'{"queries": ["a"], "topk": 1e9}', "topk must be a whole number from 1 to 100"),
        (b'{"queries": ["a"], "return_scores": 1}', "return_scores must be true or false"),
    ],
)
def test_a_bad_request_gets_one_sentence(server, body, sentence):
    answer = httpx.post(server + "/retrieve", content=body)
    assert (answer.status_code, answer.json()) == (400, {"error": sentence})


def test_other_refusals(server):
    assert httpx.get(server + "/other").status_code == 404
    assert httpx.post(server + "/other", json={}).status_code == 404
    assert httpx.post(server + "/retrieve", content=iter([b"{}"])).status_code == 411


@pytest.mark.parametrize("length", [str(MAX_BODY_BYTES + 1), "0" * 30 + "9" * 30])
def test_a_large_body_is_refused_before_it_is_read(server, length):
    with socket.create_connection(("127.0.0.1", int(server.rsplit(":")[-1])), timeout=5) as connection:
        connection.sendall(f"POST /retrieve HTTP/1.1\r\ncontent-length: {length}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_the_command_names_what_is_wrong(tmp_path, capsys):
    assert main(["--corpus", str(tmp_path / "none.jsonl"), "--port", "0"]) == 2
    assert "none.jsonl cannot be read" in capsys.readouterr().err


class Scripted(ThreadingHTTPServer):
    """Answers each request with the next (status, content type, body); counts the requests."""

    def __init__(self, *replies):
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.replies = list(replies)
        self.count = 0


class ScriptedHandler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        status, kind, body = self.server.replies[min(self.server.count, len(self.server.replies) - 1)]
        self.server.count += 1
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


GOOD = (200, "application/json", json.dumps({"result": [[{"document": {"contents": '"Ulm"\nA city.'}}]]}).encode())


async def ask(replies, *, retries=2, times=1):
    with serve(Scripted(*replies)) as made:
        url = f"http://127.0.0.1:{made.server_port}"
        client = HttpRetriever(url, timeout_s=5, retries=retries)
        try:
            found = [await client.search("Ulm", 3) for _ in range(times)][-1]
        except RetrieverError as error:
            return str(error).replace(url, "URL"), made.count
        finally:
            await client.aclose()
        return found, made.count


ULM = [Passage(id="", title="Ulm", text="A city.")]


async def test_a_busy_server_is_asked_again_and_replies_are_remembered():
    assert await ask([(503, "text/html", b"busy"), GOOD]) == (ULM, 2)
    assert await ask([GOOD], times=3) == (ULM, 1)


async def test_replies_without_scores_are_read_too():
    body = json.dumps({"result": [[{"id": 7, "contents": "Ulm\nA city."}]]}).encode()
    assert await ask([(200, "application/json", body)]) == ([Passage(id="7", title="Ulm", text="A city.")], 1)


async def test_retries_are_bounded():
    message = "retriever URL failed 2 times; the last time: it answered with status 500"
    assert await ask([(500, "text/html", b"")], retries=1) == (message, 2)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, "text/html", b"<html>busy</html>"), "retriever URL answered with text/html that is not JSON"),
        ((200, "application/json", b"[" * 100_000), "retriever URL answered with application/json that is not JSON"),
        ((404, "text/plain", b"no"), "retriever URL answered with status 404, expected 200"),
        ((302, "text/plain", b"no"), "retriever URL answered with status 302, expected 200"),
    ],
)
async def test_a_wrong_reply_is_final(reply, message):
    assert await ask([reply]) == (message, 1)


@pytest.mark.parametrize("body", [b"[]", b"3", b"null", b'{"result": 3}', b'{"result": []}', b'{"result": [[3]]}'])
async def test_malformed_json_is_final(body):
    message, count = await ask([(200, "application/json", body)])
    assert "sent JSON that is not" in message
    assert count == 1


async def test_nobody_listens():
    made = Scripted(GOOD)
    made.server_close()
    client = HttpRetriever(f"http://127.0.0.1:{made.server_port}", retries=0)
    with pytest.raises(RetrieverError, match="failed 1 times; the last time: ConnectError"):
        await client.search("Ulm", 1)


async def test_a_server_that_never_answers():
    quiet = await asyncio.start_server(lambda reader, writer: asyncio.sleep(5), "127.0.0.1", 0)
    port = quiet.sockets[0].getsockname()[1]
    client = HttpRetriever(f"http://127.0.0.1:{port}", timeout_s=0.05, retries=1)
    with pytest.raises(RetrieverError, match=r"failed 2 times; the last time: no answer within 0.05 s"):
        await client.search("Ulm", 1)
    await client.aclose()
    quiet.close()
