"""Other weights pushed into an engine of this process while it generates: the sender, and the check on what comes out.

The sender is a learner for tests, which sends a Hugging Face model's parameters over our gloo backend.
"""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from settling import settled
from transformers import AutoConfig, AutoModelForCausalLM

from rollout_workers.engine import GenerationEngine
from rollout_workers.types import Completion, Sampling
from rollout_workers.weight_names import GLOO
from rollout_workers.weight_transfer import CallbackSource, connect

TIMEOUT_S = 60.0


class EngineClient:
    """vLLM's weight-sync calls, from the sender's threads into the event loop that the engine runs in."""

    world_size = 2

    def __init__(self, engine: GenerationEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def _call(self, method: str, *arguments: object) -> None:
        called = getattr(self._engine, method)(*arguments)
        asyncio.run_coroutine_threadsafe(called, self._loop).result(TIMEOUT_S)

    def init_weight_transfer_engine(self, init_info: dict) -> None:
        self._call("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: dict) -> None:
        self._call("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update")


def source_of(lm: Any) -> CallbackSource:
    """The model's parameters; a tied output layer goes under its own name too, as the learner sends it."""
    weights = [*lm.named_parameters(), ("lm_head.weight", lm.get_input_embeddings().weight)]
    info = [(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for name, tensor in weights]
    return CallbackSource(lambda: info, lambda: ((name, tensor.detach()) for name, tensor in weights))


async def joined(engine: GenerationEngine, lm: Any) -> Any:
    """A sender of the model's weights that the engine has joined."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return await asyncio.to_thread(
        connect, backend=GLOO, rank=0, address="127.0.0.1", port=port, timeout_s=TIMEOUT_S,
        client=EngineClient(engine), source=source_of(lm),
    )  # fmt: skip


def logprobs(lm: Any, prompt: list[int], sampled: tuple[int, ...]) -> list[float]:
    with torch.no_grad():
        table = lm(input_ids=torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return [row[token].item() for row, token in zip(table, sampled, strict=True)]


async def check_new_weights_in_mid_branch(engine: GenerationEngine, model: Path) -> None:
    """Each token has the log-probability of the weights that its version names, given the whole path before it: so
    after the push neither keys nor values of the old weights are used. The engine's weights are those of `model`.
    Branches ask the engine as a rollout actor's do, through a conversation each.
    """
    torch.manual_seed(1)
    start = AutoModelForCausalLM.from_pretrained(model)
    other = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    prompts = [[2 + (i * j) % 26 for j in range(40 + i)] for i in range(1, 17)]
    weights, mixed = {engine.version: start}, 0
    for attempt in range(20):
        lm = start if attempt % 2 else other
        sender = await joined(engine, lm)
        old, new = engine.version, engine.version + 1
        weights[new] = lm
        samples = await across_a_push(engine, sender, prompts, attempt)
        sender.shutdown()
        for prompt, sample in samples:
            assert list(sample.versions) == sorted(sample.versions)
            table = {version: logprobs(weights[version], prompt, sample.token_ids) for version in (old, new)}
            expected = [table[version][place] for place, version in enumerate(sample.versions)]
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)
            if len(sample.token_ids) > 5:
                assert table[old] != pytest.approx(table[new], abs=1e-1), "the two really differ"
        mixed += sum(set(sample.versions) == {old, new} for _, sample in samples)
        if mixed and attempt % 2:
            return
    raise AssertionError("the push never came in the middle of a branch")


async def across_a_push(
    engine: GenerationEngine, sender: Any, prompts: list[list[int]], seed: int
) -> list[tuple[list[int], Completion]]:
    """Pauses as soon as branches have tokens, sends, and resumes under the next version.

    Gives (prompt, sample) of a long step of every branch, and of the two steps of branches whose environment answers
    during the push: with kept turns, those hold keys and values of the old weights when it comes.
    """
    answered = asyncio.Event()
    said = [asyncio.Event() for _ in prompts[:4]]
    waiting = [
        asyncio.create_task(two_steps(engine, prompt, seed, first, answered))
        for prompt, first in zip(prompts, said, strict=False)
    ]
    await asyncio.gather(*(first.wait() for first in said))
    sampled = (await settled(engine)).sampled
    running = [
        asyncio.create_task(one_step(engine, prompt, 100 * seed + place)) for place, prompt in enumerate(prompts)
    ]
    for _ in range(20_000):
        if engine.counts.sampled > sampled:
            break
        await asyncio.sleep(0.001)
    await engine.pause()
    answered.set()
    await asyncio.to_thread(sender.send_weights)
    await engine.resume(engine.version + 1)
    return [pair for pairs in await asyncio.gather(*waiting, *running) for pair in pairs]


async def one_step(engine: GenerationEngine, prompt: list[int], seed: int) -> list[tuple[list[int], Completion]]:
    async with engine.conversation() as hold:
        sample = await hold.generate(prompt, sampling=Sampling(), seed=seed, stop=(), max_tokens=180)
    return [(prompt, sample)]


async def two_steps(
    engine: GenerationEngine, prompt: list[int], seed: int, said: asyncio.Event, answered: asyncio.Event
) -> list[tuple[list[int], Completion]]:
    """A short step, after which `said` is set, an observation that comes when `answered` is, and a step after it."""
    async with engine.conversation() as hold:
        first = await hold.generate(prompt, sampling=Sampling(), seed=seed, stop=(), max_tokens=8)
        said.set()
        await answered.wait()
        context = [*prompt, *first.token_ids, 5, 6, 7]
        second = await hold.generate(context, sampling=Sampling(), seed=seed + 1, stop=(), max_tokens=20)
    return [(prompt, first), (context, second)]
