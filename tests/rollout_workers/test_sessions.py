"""Sessions on a fake stream: what is sent again, what is kept, and when a session ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from echo_world import CharCodec, CountingEnv, Script, task

from rollout_workers.branch import BranchRunner
from rollout_workers.conversation import Conversation
from rollout_workers.session import Answer, Session
from rollout_workers.types import Completion, Sampling, WorkItem


def token(letter: str, finish: str | None = None) -> Any:
    sample = SimpleNamespace(
        token_ids=[ord(letter)], text=letter, logprobs=[{ord(letter): None}], finish_reason=finish, weight_versions=()
    )
    return SimpleNamespace(outputs=[sample], num_cached_tokens=7)


class Letters:
    """An engine that answers each chunk with the next of `answers`, letter by letter; ";" ends one inside of it."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.chunks: list[str] = []
        self.plain: list[str] = []
        self.opened = 0
        self.may = True
        self.session: Session | None = None

    async def stream(self, chunks: AsyncIterator[str]) -> AsyncIterator[Any]:
        async for chunk in chunks:
            self.chunks.append(chunk)
            answer = self.answers.pop(0)
            for place, letter in enumerate(answer):
                yield token(letter, "stop" if letter == ";" else "length" if place == 7 else None)

    async def generate(self, prompt_ids: Any, **rest: Any) -> Completion:
        self.plain.append("".join(map(chr, prompt_ids)))
        return await Script([self.answers.pop(0)]).generate(prompt_ids, **rest)

    def may_keep(self, stop: Any) -> bool:
        return self.may

    def open_session(self) -> Session:
        self.opened += 1
        self.session = Session(self.stream, lambda: 3, lambda ids: "".join(map(chr, ids)))
        return self.session

    def chunk(self, ids: Any, *rest: Any) -> str:
        return "".join(map(chr, ids))

    def completion(self, answer: Answer, before: int, topk: int, prompt: int, kept: int) -> Completion:
        return Completion(
            token_ids=tuple(answer.token_ids), logprobs=(-0.5,) * len(answer.token_ids), versions=tuple(answer.arrived),
            text=answer.text, finished=answer.finished, prompt_tokens=prompt,
            cached_tokens=kept or answer.cached_tokens, kept_tokens=kept,
            cut_tokens=answer.cut_tokens,
        )  # fmt: skip

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Conversation]:
        talk = Conversation(self)
        yield talk
        await talk.close()


async def ask(talk: Conversation, context: str, stop: tuple[str, ...] = (";",)) -> Completion:
    return await talk.generate(list(map(ord, context)), sampling=Sampling(), seed=1, stop=stop, max_tokens=8)


async def test_a_later_step_sends_the_last_sampled_token_and_what_is_new() -> None:
    engine = Letters("ab;", "c;", "d;")
    async with engine.conversation() as talk:
        first = await ask(talk, "question")
        second = await ask(talk, "questionab;<1>")
        await ask(talk, "questionab;<1>c;")
    assert engine.chunks == ["question", ";<1>", ";"]
    assert (first.cached_tokens, first.kept_tokens) == (7, 0), "the first chunk may find a prefix in the cache"
    assert (second.prompt_tokens, second.cached_tokens, second.kept_tokens) == (14, 10, 10)
    assert second.versions == (3, 3)
    assert engine.session.is_over, "the branch's end frees what was kept"


async def test_another_context_opens_another_session() -> None:
    engine = Letters("ab;", "c;")
    async with engine.conversation() as talk:
        await ask(talk, "question")
        before = engine.session
        await ask(talk, "question")  # the same step sampled again
    assert (engine.opened, engine.chunks, before.is_over) == (2, ["question", "question"], True)


async def test_where_no_session_may_be_the_step_is_a_plain_request() -> None:
    engine = Letters("ab;", "c;", "d;")
    async with engine.conversation() as talk:
        await ask(talk, "q")
        engine.may = False
        await ask(talk, "qab;<1>")
        engine.may = True
        await ask(talk, "qab;<1>c;<2>")
    assert engine.plain == ["qab;<1>"]
    assert engine.chunks == ["q", "qab;<1>c;<2>"], "a new session has the whole context again"


async def test_a_stop_string_in_several_tokens_ends_the_answer_and_the_session() -> None:
    engine = Letters("abcd;", "e;")
    async with engine.conversation() as talk:
        first = await ask(talk, "q", stop=("bc", ";"))
        assert (first.text, first.finished, engine.session.is_over) == ("abc", "stop", True)
        await ask(talk, "qabc<1>")
    assert engine.chunks == ["q", "qabc<1>"]


async def test_tokens_that_come_together_with_a_stop_string_are_cut_behind_it() -> None:
    class Late(Letters):
        async def stream(self, chunks: AsyncIterator[str]) -> AsyncIterator[Any]:
            async for _ in chunks:
                yield token("a")
                output = token("b")
                sample = output.outputs[0]
                sample.token_ids, sample.text, sample.logprobs = [ord(letter) for letter in "bcde"], "bcde", [{}] * 4
                yield output

    engine = Late()
    async with engine.conversation() as talk:
        sample = await ask(talk, "q", stop=("bc", ";"))
    assert (sample.text, "".join(map(chr, sample.token_ids)), sample.cut_tokens) == ("abc", "abc", 2)
    assert len(sample.versions) == 3


async def test_a_stop_string_inside_the_last_token_is_a_stop_with_the_text_cut_behind_it() -> None:
    class Pairs(Letters):
        async def stream(self, chunks: AsyncIterator[str]) -> AsyncIterator[Any]:
            async for _ in chunks:
                output = token("b", "length")
                output.outputs[0].text = "bex"
                yield output

    engine = Pairs()
    async with engine.conversation() as talk:
        sample = await ask(talk, "q", stop=("e",))
        assert (sample.text, sample.finished, sample.token_ids) == ("be", "stop", (ord("b"),))
        assert not engine.session.is_over, "the engine ended it by itself, so it can go on"


async def test_a_session_that_an_engine_ended_is_replaced() -> None:
    engine = Letters("a;", "b;")
    async with engine.conversation() as talk:
        await ask(talk, "q")
        await engine.session.close()
        await ask(talk, "qa;<1>")
    assert engine.chunks == ["q", "qa;<1>"]


async def test_a_branch_is_one_conversation_and_its_ledger_has_what_was_kept() -> None:
    """Prompt "q?" (7 found in the cache by the fake), then the chunk ";<1>"."""
    engine = Letters("a;", "b!;")
    item = WorkItem(
        id="t/q/0/0", task=task("q?"), tree=0, parent=0, slot=0, context_ids=(), state=None, turns_used=0, seed=7,
        sampling=Sampling(),
    )  # fmt: skip
    result = await BranchRunner(CountingEnv(), engine, CharCodec(), 1.0).run(item)
    assert [new.action for new in result.nodes] == ["a;", "b!;"]
    assert (engine.chunks, engine.opened, engine.session.is_over) == (["q?", ";<1>"], 1, True)
    assert (result.ledger.prefill_tokens_kept, result.ledger.requests) == (3, 2)
