"""A retrieval server of the quickstart's corpus in a thread of this process, which answers when a test lets it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from real_runs import ROOT

from envs.retrieval_server import Handler, RetrievalServer
from envs.retriever import LocalRetriever


@contextmanager
def search(before: Callable[[], object]) -> Iterator[list[str]]:
    """The settings of a run that searches there. `before` is called before each answer, by the thread that gives it."""

    class Waiting(Handler):
        def do_POST(self) -> None:
            before()
            super().do_POST()

    retriever = LocalRetriever.from_file(ROOT / "data" / "quickstart" / "corpus.jsonl")
    with RetrievalServer("127.0.0.1", 0, retriever) as server:
        server.RequestHandlerClass = Waiting
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/retrieve"
        yield ["env=search_http", f"env.retriever.url={url}", "env.topk=1"]
        server.shutdown()
