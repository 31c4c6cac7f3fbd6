"""Sampled ids are what is trained, id by id: chat template, engine, branches, trees, packs, and the learner's scores.

A random model at temperature 1.3 with a byte-level BPE samples broken characters by itself; prompts and observations
have emoji and Chinese; steps end at a stop string that is one token, at one inside a longer token, at the end-of-text
token, and at the length limit.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from settling import settled

from envs.types import EndReason, Message, StepResult, Task
from rollout_workers import trees
from rollout_workers.actor import TokenizerCodec
from rollout_workers.audit import Audit
from rollout_workers.branch import BranchRunner
from rollout_workers.collection import Collection, CollectionSpec
from rollout_workers.engine import GenerationEngine
from rollout_workers.engine_settings import EngineSettings
from rollout_workers.growth import TreeRules
from rollout_workers.types import Completion, Forest, Sampling, Tree
from trainer.advantages import advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.packing import pack_forest
from trainer.types import TreePack

pytestmark = pytest.mark.slow

TEMPERATURE = 1.3
QUESTIONS = ("Wo liegt Ulm? 🏰", "世界上最高的山是什么？", "naïve café 👩‍👩‍👧: où?", "plain words")
OBSERVATION = "<information> 山🏔️ é </information>"
SAMPLING = Sampling(temperature=TEMPERATURE, max_turn_tokens=24, max_context_tokens=256, max_turns=3)


class Chatter:
    """Answers with a line of emoji and Chinese, ends after three turns, and rewards by the length of what was said."""

    stop = ("</search>", "e")

    def reset(self, task: Task) -> int:
        return 0

    async def step(self, state: int, action: str, *, turns_left: int) -> tuple[int, StepResult]:
        if turns_left < 0 or not action:
            score = len(action) % 3 / 2
            return state, StepResult(end=EndReason.ANSWERED, reward=score, score=score)
        return state + 1, StepResult(observation=OBSERVATION, tool_calls=1)


class Recorder:
    """The engine (or one conversation with it), and everything it was asked and answered."""

    def __init__(self, engine: Any, answers: dict[tuple[int, ...], list[Completion]] | None = None) -> None:
        self.engine = engine
        self.answers = defaultdict(list) if answers is None else answers

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator["Recorder"]:
        async with self.engine.conversation() as talk:
            yield Recorder(talk, self.answers)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: object = None,
    ) -> Completion:
        sample = await self.engine.generate(prompt_ids, sampling=sampling, seed=seed, stop=stop, max_tokens=max_tokens)
        self.answers[tuple(prompt_ids)].append(sample)
        return sample


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Qwen2 with the tiny model's kind of tokenizer, learned from a few lines."""
    from trainer.tiny_model import tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("bytes")
    tokenizer = tiny_tokenizer([*QUESTIONS, OBSERVATION, "the sea, these shells, here 山 山 🏔️ 🏔️"] * 3)
    torch.manual_seed(3)
    lm = tiny_model(tokenizer, hidden=64, layers=2)
    tokenizer.save_pretrained(folder)
    lm.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("keep_turns", [False, True])
def test_sampled_ids_are_the_trained_ids(model: Path, keep_turns: bool) -> None:
    asyncio.run(_whole_way(model, keep_turns))


async def _whole_way(model: Path, keep_turns: bool) -> None:
    settings = EngineSettings(model=str(model), max_context_tokens=256, max_branches=32, keep_turns=keep_turns)
    engine = GenerationEngine(settings)
    try:
        recorder = Recorder(engine)
        audit = Audit(lambda: engine.counts, keeps_turns=settings.keep_turns)
        forest = await _grow(recorder, audit)
        await settled(engine)
        assert audit.mismatch == 0, "the branches' ledgers and the engine's counters"
        kept = [sample.kept_tokens > 0 for found in recorder.answers.values() for sample in found]
        assert any(kept) is keep_turns
    finally:
        engine.shutdown()
    _check_nodes(forest, recorder, engine.tokenizer)
    _check_hard_cases(forest, recorder, engine.tokenizer)
    await asyncio.to_thread(_check_learner, forest, model)


async def _grow(recorder: Recorder, audit: Audit) -> Forest:
    tasks = tuple(
        Task(id=str(place), prompt=(Message(role="user", content=text),), truth=("x",))
        for place, text in enumerate(QUESTIONS)
    )
    rules = TreeRules(roots=3, nodes_per_round=3, rounds=2)
    collection = Collection(CollectionSpec(phase="p", tasks=tasks, rules=rules, sampling=SAMPLING, seed=5))
    runner = BranchRunner(Chatter(), recorder, TokenizerCodec(recorder.engine.tokenizer), 5.0)
    while not collection.is_complete:
        items = collection.assign("a", 1000, now=0.0)
        for result in await asyncio.gather(*map(runner.run, items)):
            audit.book(result.ledger)
            assert collection.complete(result)
    return collection.forest()


def _nodes(forest: Forest) -> list[tuple[Tree, int]]:
    return [(tree, i) for group in forest for tree in group.trees for i in range(1, len(tree.nodes))]


def _check_nodes(forest: Forest, recorder: Recorder, tokenizer: Any) -> None:
    """Every node holds what the engine answered to the exact ids of its path; contexts are never encoded again."""
    codec = TokenizerCodec(tokenizer)
    observation = tuple(codec.encode(OBSERVATION))
    for group in forest:
        text = "<|user|> " + group.task.prompt[0].content + "<|end|><|assistant|>"
        for tree in group.trees:
            assert tree.nodes[0].observation_ids == tuple(tokenizer.encode(text)), "the chat template's ids"
            trees.check(tree)
    for tree, index in _nodes(forest):
        node = tree.nodes[index]
        found = {
            (sample.token_ids, sample.logprobs, sample.versions)
            for sample in recorder.answers[tuple(trees.path_ids(tree, node.parent))]
        }
        assert (node.token_ids, node.logprobs, node.versions) in found
        assert node.observation_ids == (() if node.is_leaf else observation)
    asked = sum(len(samples) for samples in recorder.answers.values())
    assert asked == len(_nodes(forest)), "one request per node"


def _check_hard_cases(forest: Forest, recorder: Recorder, tokenizer: Any) -> None:
    """The cases that the test is for occur, and each keeps its last token."""
    samples = [sample for found in recorder.answers.values() for sample in found]
    last = [sample.token_ids[-1] for sample in samples if sample.finished == "stop"]
    texts = {token: tokenizer.decode([token]) for token in set(last)}
    assert tokenizer.eos_token_id in last, "the end-of-text token is kept"
    assert any(text == "</search>" for text in texts.values()), "a stop string of one token is kept"
    assert any("e" in text and not text.endswith("e") for text in texts.values()), "and a token that goes on behind one"
    for sample in samples:
        before = tokenizer.decode(list(sample.token_ids[:-1]))
        assert "e" not in before.replace("</search>", ""), "nothing is sampled after the token that completes a stop"
        assert sample.text.endswith(("</search>", "e", "<|end|>")) is (sample.finished == "stop")
    whole = [tokenizer.decode(list(sample.token_ids)) for sample in samples]
    assert any("\ufffd" in text for text in whole), "broken characters were sampled"
    again = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in whole]
    assert any(ids != sample.token_ids for ids, sample in zip(again, samples, strict=True)), "text loses the ids"
    assert {node.end for tree, i in _nodes(forest) if (node := tree.nodes[i]).is_leaf} >= {EndReason.LENGTH_LIMIT}


def _check_learner(forest: Forest, model: Path) -> None:
    """Packs hold the ids of every path with exactly the sampled ones trained, and the learner gives their scores."""
    from transformers import AutoModelForCausalLM

    from trainer.forward import PackedPolicy, to_tensors

    learner = LearnerConfig(max_tokens_per_pack=512)
    loss = LossConfig(kl_coef=0.01)
    packed = pack_forest(forest, [advantages(group) for group in forest], loss, learner, 64, version=0)
    packs = packed.mini_batches[0][0]
    paths = {
        tuple(trees.path_ids(tree, leaf)): _trained(tree, leaf)
        for group in forest for tree in group.trees for leaf in trees.leaves(tree)
    }  # fmt: skip
    laid_out: dict[tuple[int, ...], list[bool]] = {}
    for pack in packs:
        for row in _rows(pack):
            ids = tuple(int(token) for token in pack.ids[row])
            trained = [bool(pack.weight[i]) for i in row]
            laid_out[ids] = [a or b for a, b in zip(trained, laid_out.get(ids, trained), strict=True)]
    assert laid_out == paths
    assert all(pack.is_current[pack.weight > 0].all() for pack in packs)
    policy = PackedPolicy(AutoModelForCausalLM.from_pretrained(model), TEMPERATURE)
    wrong = PackedPolicy(AutoModelForCausalLM.from_pretrained(model), 1.0)
    for pack in packs:
        batch = to_tensors(pack, torch.device("cpu"))
        told = pack.old_logprobs[pack.scored]
        with torch.no_grad():
            scored, other = (
                each(batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, 1)[0].numpy()
                for each in (policy, wrong)
            )
        assert scored == pytest.approx(told, abs=1e-4)
        assert np.abs(other - told).max() > 0.01, "the engine's log-probabilities are those after temperature"


def _trained(tree: Tree, leaf: int) -> list[bool]:
    return [
        sampled
        for index in trees.path(tree, leaf)
        for sampled in [True] * len(tree.nodes[index].token_ids) + [False] * len(tree.nodes[index].observation_ids)
    ]


def _rows(pack: TreePack) -> list[list[int]]:
    """Indices of each path of a pack from its first token to a leaf's last, by going back through `source`."""
    inner = set(pack.source.tolist())
    rows = []
    for last in range(pack.tokens):
        if last in inner:
            continue
        row = [last]
        while pack.source[row[-1]] >= 0:
            row.append(int(pack.source[row[-1]]))
        rows.append(row[::-1])
    return rows
