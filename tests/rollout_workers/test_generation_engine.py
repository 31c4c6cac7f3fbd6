"""A real AsyncLLM on a random model: exact ids, stop strings, seeds, log-probabilities, prefix cache, versions."""

import asyncio
from pathlib import Path

import new_weights
import pytest
import torch
from settling import settled

from rollout_workers.engine import GenerationEngine
from rollout_workers.engine_counts import EngineCounts
from rollout_workers.engine_settings import EngineSettings
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


async def say(
    engine: GenerationEngine, prompt: list[int], seed: int, stop: tuple[str, ...] = (), topk: int = 0
) -> Completion:
    return await engine.generate(prompt, sampling=Sampling(entropy_topk=topk), seed=seed, stop=stop, max_tokens=40)


def distributions(model: Path, prompt: list[int], sampled: tuple[int, ...]) -> torch.Tensor:
    """(sampled tokens, vocabulary): the log-probabilities that each id was drawn from, by the learner's library."""
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.tensor([[*prompt, *sampled]])
    with torch.no_grad():
        return lm(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)


def learner_logprobs(model: Path, prompt: list[int], sampled: tuple[int, ...]) -> list[float]:
    return [table[token].item() for table, token in zip(distributions(model, prompt, sampled), sampled, strict=True)]


def test_the_engine_gives_back_exactly_what_it_sampled(model: Path) -> None:
    asyncio.run(_exercise(model))


async def _exercise(model: Path) -> None:
    engine = GenerationEngine(EngineSettings(model=str(model), max_context_tokens=256, max_branches=16))
    try:
        await _check_seeds_and_logprobs(engine, model)
        await _check_stop_string(engine)
        await _check_entropies(engine, model)
        await _check_counts(engine)
        await _check_versions_and_cache(engine)
        await _check_cost_of_a_push(engine)
        await _check_push_in_mid_branch(engine, model)
        await new_weights.check_new_weights_in_mid_branch(engine, model)
    finally:
        engine.shutdown()


def test_new_weights_reach_branches_whose_turns_are_kept(model: Path) -> None:
    asyncio.run(_push_into_conversations(model))


async def _push_into_conversations(model: Path) -> None:
    settings = EngineSettings(model=str(model), max_context_tokens=256, max_branches=32, keep_turns=True)
    engine = GenerationEngine(settings)
    try:
        await new_weights.check_new_weights_in_mid_branch(engine, model)
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


async def _check_entropies(engine: GenerationEngine, model: Path) -> None:
    prompt = [5, 9, 14]
    plain, full, few = await asyncio.gather(*(say(engine, prompt, 3, topk=topk) for topk in (0, 30, 4)))
    assert plain.entropies == ()
    assert plain.token_ids == full.token_ids == few.token_ids, "asking for more log-probabilities changes no sample"
    table = distributions(model, prompt, full.token_ids).double()
    assert full.entropies == pytest.approx((-(table.exp() * table).sum(-1)).tolist(), abs=1e-4)
    top = table.exp().sort(-1, descending=True).values[:, :4]
    buckets = torch.cat([top, 1 - top.sum(-1, keepdim=True)], -1)
    assert few.entropies == pytest.approx((-(buckets * buckets.log()).sum(-1)).tolist(), abs=1e-4)


async def _check_counts(engine: GenerationEngine) -> None:
    """The engine's own counters against its answers, also where stop strings end a request outside the engine."""
    before = await settled(engine)
    prompts = [[2 + (7 * i + 3 * j) % 26 for j in range(90 + i)] for i in range(8)] * 2
    for stop, has_surplus in (((), False), (("</act>", "b"), True), (("</act>",), False)):
        samples = await asyncio.gather(*(say(engine, prompt, i, stop) for i, prompt in enumerate(prompts)))
        after = await settled(engine)
        assert after.sampled - before.sampled == sum(len(sample.token_ids) for sample in samples)
        cached = sum(sample.cached_tokens for sample in samples)
        computed = sum(sample.prompt_tokens - sample.cached_tokens for sample in samples)
        assert cached > 0
        assert after.prefill_cached - before.prefill_cached == after.cache_hits - before.cache_hits == cached
        assert after.prefill_computed - before.prefill_computed == computed
        assert after.cache_queries - before.cache_queries == cached + computed
        assert after.prefill_run - before.prefill_run == computed
        outside = [sample for sample in samples if sample.finished == "stop" and sample.token_ids[-1] == 28]
        assert bool(outside) is has_surplus, "28 is 'ab', which only the text shows to hold 'b'"
        assert (after.surplus > before.surplus) is has_surplus, "what ends in the engine leaves no surplus"
        before = after


async def wait_for_samples(engine: GenerationEngine, count: int) -> None:
    for _ in range(100_000):
        if engine.counts.sampled >= count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the engine samples nothing")


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


async def across_a_push(engine: GenerationEngine, prompt: list[int]) -> tuple[Completion, EngineCounts]:
    """A request that a push froze in the middle, and the counters before it."""
    for seed in range(50):
        before, version = await settled(engine), engine.version + 1
        running = asyncio.create_task(say(engine, prompt, seed))
        await wait_for_samples(engine, before.sampled + 1)
        await engine.pause()
        await engine.resume(version)
        sample = await running
        assert len(sample.versions) == len(sample.token_ids)
        if set(sample.versions) == {version - 1, version}:
            return sample, before
    raise AssertionError("50 requests ended before the push came")


async def _check_cost_of_a_push(engine: GenerationEngine) -> None:
    """A branch in flight lives on under the new weights; its keys and values are computed again, and counted."""
    prompt = [3 + i % 20 for i in range(70)]
    sample, before = await across_a_push(engine, prompt)
    after = await settled(engine)
    frozen_at = sample.versions.index(engine.version)
    assert set(sample.versions[frozen_at:]) == {engine.version}
    assert after.sampled - before.sampled == len(sample.token_ids)
    assert after.prefill_computed - before.prefill_computed == len(prompt) == sample.prompt_tokens
    assert after.prefill_run - before.prefill_run == 2 * len(prompt) + frozen_at - 1
    assert after.preemptions == before.preemptions + 1
    assert after.surplus - before.surplus <= 1, "the step that the push interrupted"


async def _check_push_in_mid_branch(engine: GenerationEngine, model: Path) -> None:
    """Keys and values from before the push are not used: the same weights give the same log-probabilities."""
    prompt = [4 + i % 19 for i in range(80)]
    sample, _ = await across_a_push(engine, prompt)
    assert sample.logprobs == pytest.approx(learner_logprobs(model, prompt, sample.token_ids), abs=1e-4)
