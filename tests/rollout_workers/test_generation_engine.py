"""A real AsyncLLM on a random model: exact ids, stop strings, seeds, log-probabilities, prefix cache, versions."""

import asyncio
from pathlib import Path

import pytest
import torch

from rollout_workers.engine import EngineSettings, GenerationEngine
from rollout_workers.types import Completion, Sampling

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 whose tokens 2 to 27 are the letters; 28 is "ab" and 29 the closing tag."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    words = ["<pad>", "<eos>", *"abcdefghijklmnopqrstuvwxyz", "ab"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken("</act>", normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="a")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=30, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.2,
        eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


async def say(engine: GenerationEngine, prompt: list[int], seed: int, stop: tuple[str, ...] = ()) -> Completion:
    return await engine.generate(prompt, sampling=Sampling(), seed=seed, stop=stop, max_tokens=40)


def learner_logprobs(model: Path, prompt: list[int], sampled: tuple[int, ...]) -> list[float]:
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.tensor([[*prompt, *sampled]])
    with torch.no_grad():
        table = lm(input_ids=ids).logits[0].log_softmax(-1)
    return [table[len(prompt) - 1 + i, token].item() for i, token in enumerate(sampled)]


def test_the_engine_gives_back_exactly_what_it_sampled(model: Path) -> None:
    asyncio.run(_exercise(model))


async def _exercise(model: Path) -> None:
    engine = GenerationEngine(EngineSettings(model=str(model), max_context_tokens=256, max_branches=16))
    try:
        await _check_seeds_and_logprobs(engine, model)
        await _check_stop_string(engine)
        await _check_versions_and_cache(engine)
    finally:
        engine.shutdown()


async def _check_seeds_and_logprobs(engine: GenerationEngine, model: Path) -> None:
    prompts = [[2 + (i * j) % 26 for j in range(20 + i)] for i in range(8)]
    alone = [await say(engine, prompt, seed) for seed, prompt in enumerate(prompts)]
    together = await asyncio.gather(*(say(engine, prompt, seed) for seed, prompt in reversed(list(enumerate(prompts)))))
    pairs = list(zip(alone, reversed(together), strict=True))
    assert all(one.token_ids == other.token_ids for one, other in pairs), (
        "a seed fixes a branch, whatever runs beside it"
    )
    assert all(one.logprobs == other.logprobs for one, other in pairs)
    assert len({sample.token_ids for sample in alone}) == len(alone)
    expected = learner_logprobs(model, prompts[0], alone[0].token_ids)
    assert alone[0].logprobs == pytest.approx(expected, abs=1e-4)


async def _check_stop_string(engine: GenerationEngine) -> None:
    samples = await asyncio.gather(*(say(engine, [5, 6, 7], seed, stop=("</act>", "b")) for seed in range(24)))
    stopped = [sample for sample in samples if sample.finished == "stop"]
    assert stopped, "24 samples of 40 tokens from 30 must hit a stop"
    for sample in stopped:
        assert sample.text.endswith(("</act>", "b", "<eos>"))
        assert sample.token_ids[-1] in (29, 3, 28, 1), "the stopping token is kept"
    inside = [sample for sample in stopped if sample.token_ids[-1] == 28]
    assert all(sample.text.endswith("ab") for sample in inside), "a stop inside a token keeps the whole token's id"


async def _check_versions_and_cache(engine: GenerationEngine) -> None:
    prompt = [2 + i % 26 for i in range(100)]
    first = await say(engine, prompt, 1)
    again = await say(engine, prompt, 1)
    assert (first.cached_tokens, again.cached_tokens) == (0, 96), "three whole blocks of 32 are reused"
    assert set(first.versions) == {0}
    await engine.pause()
    await engine.resume(4)
    fresh = await say(engine, prompt, 1)
    assert (fresh.cached_tokens, set(fresh.versions)) == (0, {4}), "a push empties the cache"
    assert fresh.token_ids == first.token_ids
    running = asyncio.create_task(say(engine, prompt, 2))
    await asyncio.sleep(0)
    await engine.pause()
    await engine.resume(5)
    sample = await running
    assert len(sample.versions) == len(sample.token_ids)
    assert sample.versions[-1] == 5, "a branch in flight lives on under the new weights"
