"""A retriever behind HTTP, with the Search-R1 protocol.

Request: `POST URL {"queries": ["Ulm"], "topk": 3, "return_scores": true}`. Reply: `{"result": [[{"document": {"id",
"contents"}, "score"}, ...]]}`, one list per query; the first line of `contents` is the title, in quotes or not.
"""

import asyncio
from collections import OrderedDict
from typing import Any

import httpx

from envs.corpus import Passage
from envs.retriever import RetrieverError

CACHE_SIZE = 10_000
"""Queries remembered per process."""
CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=64)
"""Open connections of one process; further searches wait for one of them."""
FIRST_PAUSE_S = 0.1
"""Pause before the first retry; each further one doubles it."""


class HttpRetriever:
    """Asks a retrieval server; each attempt takes at most `timeout_s`, and there are at most `retries` more.

    Connection errors, timeouts and replies 429 and 5xx are tried again; any other bad reply is final.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0, retries: int = 2) -> None:
        self.url = url
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
        body = {"queries": [query], "topk": topk, "return_scores": True}
        problem = ""
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                async with asyncio.timeout(self._timeout_s):  # httpx limits each wait, this the whole attempt
                    response = await self._client.post(self.url, json=body)
            except (httpx.TimeoutException, TimeoutError):
                problem = f"no answer within {self._timeout_s:g} s"
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if response.status_code != 429 and response.status_code < 500:
                return self._read(response, topk)
            problem = f"it answered with status {response.status_code}"
        raise RetrieverError(f"retriever {self.url} failed {self._retries + 1} times; the last time: {problem}")

    def _read(self, response: httpx.Response, topk: int) -> list[Passage]:
        if response.status_code != 200:
            raise RetrieverError(f"retriever {self.url} answered with status {response.status_code}, expected 200")
        kind = response.headers.get("content-type", "no content type")
        try:
            reply = response.json()
        except (ValueError, RecursionError):
            raise RetrieverError(f"retriever {self.url} answered with {kind} that is not JSON") from None
        try:
            (hits,) = reply["result"]
            return [_passage(hit) for hit in hits[:topk]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RetrieverError(
                f'retriever {self.url} sent JSON that is not {{"result": [[{{"document": {{"contents"}}}}]]}}'
            ) from None


def _passage(hit: Any) -> Passage:
    document = hit.get("document", hit)
    title, _, text = document["contents"].partition("\n")
    return Passage(id=str(document.get("id", "")), title=title.strip().strip('"'), text=text.strip())
