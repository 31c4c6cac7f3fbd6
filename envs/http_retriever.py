"""A retriever behind HTTP, with the Search-R1 protocol.

Request: `POST URL {"queries": ["Ulm"], "topk": 3, "return_scores": true}`. Reply: `{"result": [[{"document": {"id",
"contents"}, "score"}, ...]]}`, one list per query; the first line of `contents` is the title, in quotes or not.
"""

import asyncio
import json
from collections import OrderedDict
from typing import Any

import httpx

from envs.corpus import Passage
from envs.masking import masked_text
from envs.retriever import RetrieverError

CACHE_SIZE = 10_000
"""Queries remembered per process."""
CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=64)
"""Open connections of one process; further searches wait for one of them."""
MAX_REPLY_BYTES = 2**24
"""A longer reply is not read to its end: 16 MiB, for at most 100 passages."""
FIRST_PAUSE_S = 0.1
"""Pause before the first retry; each further one doubles it."""


class HttpRetriever:
    """Asks a retrieval server; each attempt takes at most `timeout_s`, and there are at most `retries` more.

    Connection errors, timeouts and replies 429 and 5xx are tried again; any other bad reply is final.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0, retries: int = 2) -> None:
        self.url = url
        self._shown = masked_text(url)
        self._timeout_s = timeout_s
        self._retries = retries
        self._cache: OrderedDict[tuple[str, int], list[Passage]] = OrderedDict()
        self._client: httpx.AsyncClient | None = None

    async def search(self, query: str, topk: int) -> list[Passage]:
        """Up to `topk` passages. Raises RetrieverError naming the address and what was wrong."""
        key = (query, topk)
        if key in self._cache:
            self._cache.move_to_end(key)
            return list(self._cache[key])
        passages = await self._ask(query, topk)
        self._cache[key] = passages
        if len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return list(passages)

    async def aclose(self) -> None:
        """Closes the connections; a later search opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _ask(self, query: str, topk: int) -> list[Passage]:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._timeout_s, limits=CONNECTIONS)
        body = json.dumps({"queries": [query], "topk": topk, "return_scores": True}).encode()
        problem = ""
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                async with asyncio.timeout(self._timeout_s):  # httpx limits each wait, this the whole attempt
                    status, kind, reply = await self._post(body)
            except (httpx.TimeoutException, TimeoutError):
                problem = f"no answer within {self._timeout_s:g} s"
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = masked_text(f"{type(error).__name__}: {error}")
                continue
            if status != 429 and status < 500:
                return self._read(status, kind, reply, topk)
            problem = f"it answered with status {status}"
        raise RetrieverError(f"retriever {self._shown} failed {self._retries + 1} times; the last time: {problem}")

    async def _post(self, body: bytes) -> tuple[int, str, bytes]:
        """(status, content type, body) of one attempt; the body as far as it may be read, and one byte more."""
        assert self._client is not None
        headers = {"content-type": "application/json"}
        async with self._client.stream("POST", self.url, content=body, headers=headers) as response:
            reply = bytearray()
            async for chunk in response.aiter_bytes():
                reply += chunk
                if len(reply) > MAX_REPLY_BYTES:
                    break
            kind = response.headers.get("content-type", "no content type")
            return response.status_code, kind, bytes(reply[: MAX_REPLY_BYTES + 1])

    def _read(self, status: int, kind: str, body: bytes, topk: int) -> list[Passage]:
        if status != 200:
            raise RetrieverError(f"retriever {self._shown} answered with status {status}, expected 200")
        if len(body) > MAX_REPLY_BYTES:
            raise RetrieverError(f"retriever {self._shown} answered with more than {MAX_REPLY_BYTES:,} bytes")
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError):
            raise RetrieverError(f"retriever {self._shown} answered with {kind} that is not JSON") from None
        try:
            (hits,) = reply["result"]
            return [_passage(hit) for hit in hits[:topk]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RetrieverError(
                f'retriever {self._shown} sent JSON that is not {{"result": [[{{"document": {{"contents"}}}}]]}}'
            ) from None


def _passage(hit: Any) -> Passage:
    document = hit.get("document", hit)
    contents = document["contents"].encode("utf-8", "replace").decode()  # JSON can hold half a character, text can't
    title, _, text = contents.partition("\n")
    return Passage(id=str(document.get("id", "")), title=title.strip().strip('"'), text=text.strip())
