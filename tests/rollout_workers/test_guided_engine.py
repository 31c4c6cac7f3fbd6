"""A real AsyncLLM whose answers are held to schemas: valid, seeded, with log-probabilities that the learner has too."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator

from envs.decisions.odds import root_odds, sampled_texts
from envs.decisions.types import Ask
from rollout_workers.engine import EngineSettings, GenerationEngine
from rollout_workers.types import Completion, Sampling
from trainer.decisions.masks import Masks, stop_ids
from trainer.forward import PackedPolicy, to_tensors
from trainer.packing import flat_pack
from trainer.tiny_model import tiny_model, tiny_tokenizer
from trainer.types import Answer

pytestmark = pytest.mark.slow

PROMPT = "<|user|> Where is order A17? Äpfel, 東京, Ελλάδα <|end|><|assistant|>"
SCHEMAS = {
    "intent": {
        "type": "object",
        "properties": {"intent": {"enum": ["refund", "status", "früher"]}, "sure": {"type": "boolean"}},
        "required": ["intent", "sure"],
    },
    "words": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 6},
            "id": {"type": "string", "pattern": "^[A-Z][0-9]{2}$"},
            "n": {"type": "integer", "minimum": 0, "maximum": 40},
            "more": {"type": "array", "items": {"type": ["string", "null"], "maxLength": 2}, "maxItems": 2},
        },
        "required": ["text", "id", "n", "more"],
    },
}
NODES = tuple(SCHEMAS)


def ask(node: str, alternatives: int = 0) -> Ask:
    return Ask(node=node, messages=(), schema=json.dumps(SCHEMAS[node]), alternatives=alternatives)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with random weights, and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    text = f'{PROMPT} {{"intent":"refund","sure":true}} status früher {{"text":"東京","id":"A17","n":3,"more":[null]}}'
    tokenizer = tiny_tokenizer([text, "order refund status text more sure intent"] * 3)
    torch.manual_seed(0)
    lm = tiny_model(tokenizer, hidden=64, layers=2)
    with torch.no_grad():
        lm.lm_head.weight.mul_(2)
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_schemas_hold_the_engine_and_the_learner_agrees(model: Path) -> None:
    asyncio.run(_exercise(model))


async def _exercise(model: Path) -> None:
    engine = GenerationEngine(EngineSettings(model=str(model), max_context_tokens=512, max_branches=16))
    try:
        both = Both(engine, model)
        await _check_answers(both)
        await _check_seeds(both)
        await _check_alternatives(both)
        await _check_cut_answers(both)
        await _check_greedy_answers(both)
    finally:
        engine.shutdown()


class Both:
    """The engine, and the learner's library on the same weights."""

    def __init__(self, engine: GenerationEngine, model: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        self.prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
        self.end = tokenizer.eos_token_id
        self.lm = AutoModelForCausalLM.from_pretrained(model)
        ends = stop_ids(str(model), tokenizer, trust_remote_code=False)
        assert ends == (self.end,)
        vocabulary = self.lm.config.vocab_size
        self.masks = Masks(tokenizer, vocabulary, [json.dumps(SCHEMAS[node]) for node in NODES], ends)
        self.engine = engine

    def scores(self, node: str, ids: tuple[int, ...], temperature: float) -> tuple[list[float], list[float]]:
        """Log-probabilities and entropies of an answer under its masks."""
        pack = flat_pack([((*self.prompt, *ids), len(ids))])
        start = len(self.prompt)
        answer = Answer(start=start, stop=start + len(ids), node=NODES.index(node))
        pack = replace(pack, answers=(answer,))
        batch = to_tensors(pack, torch.device("cpu"), self.masks.of_pack(pack))
        with torch.no_grad():
            found = PackedPolicy(self.lm, temperature)(
                batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, 2, batch.mask_RW
            )
        return found[0].tolist(), found[1].tolist()

    async def say(
        self, wanted: Ask | None, seed: int, *, max_tokens: int = 200, temperature: float = 1.0, topk: int = 0
    ) -> Completion:
        """One answer after the prompt; the stop strings are for answers without a schema."""
        sampling = Sampling(temperature=temperature, entropy_topk=topk)
        return await self.engine.generate(
            self.prompt, sampling=sampling, seed=seed, stop=("}", "e"), max_tokens=max_tokens, ask=wanted
        )


async def _check_answers(both: Both) -> None:
    texts: set[str] = set()
    for node in NODES:
        for temperature in (1.0, 0.7):
            samples = await asyncio.gather(
                *(both.say(ask(node), s, temperature=temperature, topk=100) for s in range(12))
            )
            assert len({sample.token_ids for sample in samples}) > 2, "different seeds give different answers"
            texts |= {sample.text for sample in samples}
            for sample in samples:
                assert sample.finished == "stop"
                assert sample.token_ids[-1] == both.end, "the token that ends the answer is kept"
                value = json.loads(sample.text.removesuffix("<|end|>"))
                Draft202012Validator(SCHEMAS[node]).validate(value)
                logprobs, entropies = both.scores(node, sample.token_ids, temperature)
                assert sample.logprobs == pytest.approx(logprobs, abs=1e-3)
                assert sample.logprobs[-1] == pytest.approx(0.0, abs=1e-6), "the end was the only token allowed"
                assert min(sample.logprobs) < -0.01
                assert all(ours <= true + 1e-3 for ours, true in zip(sample.entropies, entropies, strict=True))
    assert any(ord(mark) > 127 for text in texts for mark in text), "characters of several bytes were among them"


async def _check_seeds(both: Both) -> None:
    plain = await both.say(None, 5)
    alone = [await both.say(ask("words"), seed) for seed in range(4)]
    mixed = await asyncio.gather(both.say(None, 5), *(both.say(ask("words"), seed) for seed in reversed(range(4))))
    assert mixed[0].token_ids == plain.token_ids, "a request without a schema is as it is alone"
    assert mixed[0].logprobs == pytest.approx(plain.logprobs, abs=1e-5)
    for one, other in zip(alone, reversed(mixed[1:]), strict=True):
        assert one.token_ids == other.token_ids, "a seed fixes an answer, whatever runs beside it"


async def _check_alternatives(both: Both) -> None:
    sample = await both.say(ask("intent", alternatives=20), 3)
    assert len(sample.alternatives) == len(sample.token_ids)
    assert "".join(sampled_texts(sample.alternatives)) == sample.text
    for at, logprob in zip(sample.alternatives, sample.logprobs, strict=True):
        assert at[0][1] == logprob
        assert math.fsum(math.exp(value) for _, value in at) < 1 + 1e-4
    assert len(sample.alternatives[-1]) == 1, "what the grammar does not allow is no alternative"
    odds = dict(root_odds(SCHEMAS["intent"], sampled_texts(sample.alternatives), sample.alternatives))
    for field in ("intent=", "sure="):
        assert math.fsum(value for name, value in odds.items() if name.startswith(field)) == pytest.approx(1.0)
    intents = [value for name, value in odds.items() if name.startswith("intent=")]
    assert min(intents) > 0
    assert (await both.say(ask("intent"), 3)).alternatives == ()


async def _check_cut_answers(both: Both) -> None:
    sample = await both.say(ask("words"), 1, max_tokens=7)
    assert (sample.finished, len(sample.token_ids)) == ("length", 7)
    logprobs, _ = both.scores("words", sample.token_ids, 1.0)
    assert sample.logprobs == pytest.approx(logprobs, abs=1e-3)


async def _check_greedy_answers(both: Both) -> None:
    """Greedy decoding, which is what evaluations use."""
    one, two = await asyncio.gather(*(both.say(ask("intent"), seed, temperature=0.0) for seed in (1, 2)))
    assert one.token_ids == two.token_ids
    assert one.logprobs == pytest.approx(both.scores("intent", one.token_ids, 1.0)[0], abs=1e-3)
