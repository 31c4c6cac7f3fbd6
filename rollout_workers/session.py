"""A request of the engine that stays open between the steps of a branch, so that even its last, partial block is kept.

vLLM (0.32) calls this streaming input: chunks of a prompt come one by one, each is answered, and the keys and values of
everything before stay where they are. Imports nothing of vLLM; the engine opens the stream.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Chunk: TypeAlias = Any
"""A `StreamingInput` of vLLM."""
OpenStream: TypeAlias = Callable[[AsyncIterator[Chunk]], Any]
"""Begins a request on chunks to come; gives vLLM's asynchronous generator of outputs."""


@dataclass(slots=True)
class Answer:
    """What was sampled after one chunk."""

    token_ids: list[int] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)
    """Per token vLLM's table of log-probabilities."""
    text: str = ""
    finished: str = ""
    """`stop` or `length`."""
    cached_tokens: int = 0
    """Only after a session's first chunk: prompt tokens found in the prefix cache."""
    arrived: list[int] = field(default_factory=list)
    """Per token the engine's weights version when it arrived."""
    cut_tokens: int = 0
    """Tokens that came together with the end of a stop string, but after it; they are in nothing else here."""
    spans: tuple[Any, ...] = ()
    """Weight versions over all tokens of the session so far, by vLLM; empty where a stop string ended the answer."""


class Session:
    """Chunks in, answers out, one at a time. The stream ends with `close`."""

    def __init__(
        self, open_stream: OpenStream, version: Callable[[], int], decode: Callable[[Sequence[int]], str]
    ) -> None:
        """`version`: the weights that sample now, which change only while nothing is sampled. `decode`: ids to text."""
        self._version = version
        self._decode = decode
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        self._outputs = open_stream(self._inputs())
        self.ids: list[int] = []
        """Everything the engine was given and sampled so far."""
        self.sampled = 0
        """Tokens sampled in all answers so far."""
        self.is_idle = True
        """Whether it waits for a chunk."""
        self.has_begun = False
        """Whether the chunk it works on runs, so that a push can freeze it; a first chunk can be frozen at any time."""
        self.is_over = False

    async def _inputs(self) -> AsyncIterator[Chunk]:
        while (chunk := await self._chunks.get()) is not None:
            yield chunk

    async def ask(self, chunk: Chunk, ids: Sequence[int], stop: Sequence[str]) -> Answer:
        """Sends a chunk, whose ids are `ids`, and waits for its answer.

        A stop string that comes in several tokens is found here: the answer ends with it, and so does the session.
        """
        self.is_idle, self.has_begun = False, not self.ids
        self._chunks.put_nowait(chunk)
        answer = Answer()
        try:
            await self._listen(answer, stop)
        except BaseException:
            await self._abort()
            raise
        assert answer.finished in ("stop", "length"), f"a session's answer ended with {answer.finished!r}"
        self.ids += [*ids, *answer.token_ids]
        self.sampled += len(answer.token_ids)
        self.is_idle = True
        return answer

    async def _listen(self, answer: Answer, stop: Sequence[str]) -> None:
        longest = max(map(len, stop), default=0)
        async for output in self._outputs:
            sample = output.outputs[0]
            self.has_begun = True
            unread = max(len(answer.text) - longest, 0)
            answer.token_ids += sample.token_ids
            answer.arrived += [self._version()] * len(sample.token_ids)
            answer.steps += sample.logprobs or []
            answer.text += sample.text
            answer.cached_tokens = output.num_cached_tokens or 0
            found = first_end(answer.text, unread, stop)
            if found is not None:
                answer.text = answer.text[:found]
                self._cut(answer, len(sample.token_ids), stop)
            if sample.finish_reason is not None:
                answer.finished = "stop" if found is not None else sample.finish_reason
                answer.spans = tuple(sample.weight_versions or ())
            elif found is not None:
                answer.finished = "stop"
            if answer.finished and (sample.finish_reason is None or answer.cut_tokens):
                await self._abort()  # the engine is beyond the end of the step
            if answer.finished:
                return

    def _cut(self, answer: Answer, new: int, stop: Sequence[str]) -> None:
        """Drops what follows the token that completes a stop string. vLLM joins tokens for a listener that is late."""
        for length in range(len(answer.token_ids) - new + 1, len(answer.token_ids)):
            if first_end(self._decode(answer.token_ids[:length]), 0, stop) is not None:
                answer.cut_tokens = len(answer.token_ids) - length
                del answer.token_ids[length:], answer.arrived[length:], answer.steps[length:]
                return

    async def close(self) -> None:
        """Ends the session; if it is idle, its whole blocks stay in the prefix cache."""
        if not self.is_idle:
            await self._abort()
            return
        self.is_over = True
        self._chunks.put_nowait(None)
        async for _ in self._outputs:
            pass

    async def _abort(self) -> None:
        self.is_over = True
        await self._outputs.aclose()


def first_end(text: str, start: int, stop: Sequence[str]) -> int | None:
    """Where the first of the stop strings that `text` has from `start` on ends: `("see", 0, ("e",))` gives 2.

    In the order of `stop`, as vLLM looks for them in the text of a plain request.
    """
    return next((place + len(each) for each in stop if (place := text.find(each, start)) >= 0), None)
