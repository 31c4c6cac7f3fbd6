"""Command: a small web page on which people label the steps that a run has queued.

`python -m trainer.label_server runs/<name>` serves one run folder while the run goes on or afterwards. Knows GET /,
/api/next, /api/step, and POST /api/label. There is no login: it binds to this machine only unless `--host` says
otherwise. Other web pages in the same browser cannot use it: a request must name this server as its host (which keeps
out names that are made to point here), and a label must come from its own page or from no page at all.
"""

import argparse
import asyncio
import ipaddress
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from envs.retrieval_server import is_loopback
from trainer.decisions.feedback_files import MAX_ID, parsed_label
from trainer.label_page import render
from trainer.label_store import LabelStore

MAX_BODY_BYTES = 2**15
BODY_S = 10.0
"""Longest time for a body to arrive."""
MAX_SKIP = 100
UNKNOWN = "unknown address; accepted: GET /, GET /api/next, GET /api/step, POST /api/label"
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
Handler = Callable[[Request], Awaitable[Response]]


class Refused(Exception):
    """A request that is not served: status and one sentence for the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def make_app(store: LabelStore, host: str = "127.0.0.1") -> FastAPI:
    """The web application for one run folder; `host` is the address it is bound to."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    page = render(store.run.name)

    @app.middleware("http")
    async def guard(request: Request, call: Handler) -> Response:
        try:
            check_origin(request, host)
            answer = await call(request)
        except Refused as error:
            answer = JSONResponse({"error": str(error)}, status_code=error.status)
        answer.headers.update(_HEADERS)
        return answer

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": UNKNOWN}, status_code=error.status_code)

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> Response:
        return JSONResponse(
            {"error": f"node, id and at most {MAX_SKIP} skip are texts, of usual length"}, status_code=400
        )

    @app.get("/", response_class=HTMLResponse)
    async def index() -> str:
        return page

    @app.get("/api/next")
    def next_step(
        node: str = Query("", max_length=64),
        skip: list[str] = Query((), max_length=MAX_SKIP),  # noqa: B008
    ) -> dict[str, Any]:
        return {"step": store.next(node, set(skip)), "progress": store.progress()}

    @app.get("/api/step")
    def one_step(id: str = Query(max_length=MAX_ID)) -> dict[str, Any]:
        if (step := store.step(id)) is None:
            raise Refused(404, "no step with this id is queued")
        return {"step": step, "progress": store.progress()}

    @app.post("/api/label")
    async def label(request: Request) -> dict[str, Any]:
        value = await read_json(request)
        try:
            found = parsed_label(value)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        try:
            await run_in_threadpool(store.add, found)
        except KeyError:
            raise Refused(404, "no step with this id is queued") from None
        return {"saved": found.id}

    return app


def check_origin(request: Request, bound: str) -> None:
    """Raises Refused unless the request names this server as its host, and a post comes from no other page."""
    host = request.headers.get("host", "")
    if not accepts_host(host, bound):
        raise Refused(403, f"this server is not {host[:100]!r}; open it by its address or as localhost")
    if request.method in ("GET", "HEAD"):
        return
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Refused(403, "labels come from the page of this server, not from other pages")
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Refused(403, "labels come from the page of this server, not from other pages")


def accepts_host(host: str, bound: str) -> bool:
    """Whether a `Host` header may mean this server, bound to the address `bound`.

    Names can be made to point anywhere by whoever owns them, addresses cannot. So accepted are localhost, loopback
    addresses, and what `--host` says; behind 0.0.0.0 or :: any address that is written as a number.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == bound.lower() or name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or bound in ("0.0.0.0", "::")


async def read_json(request: Request) -> object:
    """The body of a post. Raises Refused for one that is too long, too slow or not JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the header content-type must be application/json")
    length = request.headers.get("content-length", "")
    if "transfer-encoding" in request.headers or not (length.isascii() and length.isdigit()):
        raise Refused(411, "one header content-length is needed, and no transfer-encoding")
    if len(length) > len(str(MAX_BODY_BYTES)) or int(length) > MAX_BODY_BYTES:
        raise Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        async with asyncio.timeout(BODY_S):
            return json.loads(await request.body())
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {BODY_S:g} s") from None
    except (ValueError, RecursionError):
        raise Refused(400, "the body must be JSON") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until interrupted; returns the exit code (2 for a wrong setting)."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.label_server", description="A page to label a run's steps."
    )
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER", help="such as runs/<name>")
    parser.add_argument("--port", type=int, default=8010, help="0 takes a free port (default 8010)")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    options = parser.parse_args(arguments)
    try:
        app = make_app(LabelStore(options.run), options.host)
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listening = socket.create_server((options.host, options.port), family=family)
    except (ValueError, OSError, OverflowError) as error:
        print(f"error: cannot serve {options.run} on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 2
    if not is_loopback(options.host):
        print(
            f"note: --host {options.host} lets everyone who reaches the port read the queued steps and label them; "
            "there is no login",
            file=sys.stderr,
        )
    shown = f"[{options.host}]" if ":" in options.host else options.host
    print(f"label steps of {options.run} on http://{shown}:{listening.getsockname()[1]}/", flush=True)
    config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=3)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        print("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
