"""One branch's hold on the engine with `keep_turns`: its steps are chunks of one session wherever that is possible.

It is not while a push pauses the engine, nor where a stop string is more than one token: then a step is a plain request
with the whole context, of which the prefix cache gives the whole blocks.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from envs.decisions.types import Ask
from rollout_workers.branch import Policy
from rollout_workers.session import Answer, Session
from rollout_workers.types import Completion, Sampling


class SessionEngine(Policy, Protocol):
    """What a conversation needs of the engine; `generate` is one step as a request of its own."""

    def may_keep(self, stop: Sequence[str]) -> bool:
        """Whether a step with these stop strings can be part of a session now."""
        ...

    def open_session(self) -> Session:
        """A session that `pause` may end whenever it is idle."""
        ...

    def chunk(self, ids: Sequence[int], sampling: Sampling, seed: int, stop: Sequence[str], max_tokens: int) -> Any:
        """What a session is asked with."""
        ...

    def completion(self, answer: Answer, before: int, topk: int, prompt: int, kept: int) -> Completion:
        """An answer in the types of branches."""
        ...


class Conversation:
    """A policy for the steps of one branch, one after the other. `close` it at the end."""

    def __init__(self, engine: SessionEngine) -> None:
        self._engine = engine
        self._session: Session | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: Ask | None = None,
    ) -> Completion:
        """Samples one agent step. A session's first step alone is seeded with `seed`; later ones go on from there.

        A typed step is a request of its own: its prompt goes on from nothing.
        """
        if ask is not None or not self._engine.may_keep(stop):
            await self.close()
            return await self._engine.generate(
                prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens, ask=ask
            )
        session = await self._open(prompt_ids)
        # The last sampled token never ran through the model: the engine forgets it, and gets it again here.
        kept = max(len(session.ids) - 1, 0)
        before = session.sampled
        del session.ids[kept:]
        ids = list(prompt_ids[kept:])
        chunk = self._engine.chunk(ids, sampling, seed, stop, max_tokens)
        answer = await session.ask(chunk, ids, stop)
        return self._engine.completion(answer, before, sampling.entropy_topk, len(prompt_ids), kept)

    async def _open(self, prompt_ids: Sequence[int]) -> Session:
        """The session so far if it is still open and `prompt_ids` goes on from it, else a new one."""
        session = self._session
        if session is not None and not session.is_over and list(prompt_ids[: len(session.ids)]) == session.ids:
            return session
        await self.close()
        self._session = self._engine.open_session()
        return self._session

    async def close(self) -> None:
        """Frees what the engine keeps for the branch."""
        session, self._session = self._session, None
        if session is not None and not session.is_over:
            await session.close()
