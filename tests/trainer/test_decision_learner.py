"""Typed forests through the learner's ranks: masks, adapters, coefficients and metrics per node in one phase."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner_runs import start
from micro_models import save_micro
from test_decision_packing import plan_of
from typed_forests import DONE, group, random_typed_forest
from typed_runs import typed_config

from rollout_workers.types import Forest
from trainer.config import LossConfig, RunConfig
from trainer.decisions.credit import typed_credit
from trainer.packing import pack_forest
from trainer.tiny_model import tiny_tokenizer
from trainer.types import PackedForest

pytestmark = pytest.mark.slow

NODES = {
    "intent": {"rank": 2, "alpha": 6.0},
    "check": {"rank": 2, "freeze": True},
    "response": {"rank": 4, "alpha": 4.0, "head": True},
}
LOSS = LossConfig(kl_coef=0.05, entropy_coef=0.01)


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Forest]:
    """A micro model with a byte-level tokenizer, and a forest whose every answer is one of the two allowed ones."""
    folder = tmp_path_factory.mktemp("guided")
    tokenizer = tiny_tokenizer(['{"kind":"a"} {"kind":"b"}'] * 4)
    save_micro(folder, vocab=len(tokenizer))
    tokenizer.save_pretrained(folder)
    texts = ('{"kind":"a"}', '{"kind":"b"}')
    said = [(*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id) for text in texts]
    return folder, random_typed_forest(4, tuple(NODES), tasks=4, vocab=len(tokenizer), said=said)


def packed(config: RunConfig, forest: Forest, capacity: int) -> PackedForest:
    advantages = typed_credit(forest, config.typed, {}).advantages
    learner = config.learner.model_copy(update={"max_tokens_per_pack": capacity})
    plan = plan_of(config.typed, config.loss)
    return pack_forest(forest, advantages, config.loss, learner, 64, typed=plan)


def settings(model: Path, **learner: object) -> RunConfig:
    return typed_config(model, NODES, LOSS, mini_batches=2, epochs=2, **learner)


def test_ranks_and_packs_change_no_node(ranks: dict[int, list[Any]], guided: tuple[Path, Forest]) -> None:
    """Gradient norms and every node's numbers: one large pack on one rank, small ones on two under stages 2 and 3."""
    model, forest = guided
    found = {}
    for count, stage, capacity in ((1, 0, 4096), (2, 2, 40), (2, 3, 40)):
        config = settings(model, ranks=count, zero_stage=stage)
        group = start(ranks, config)
        before = {name: file.digest for name, file in group.adapters({}).items()}
        found[count, stage] = group.train(packed(config, forest, capacity).mini_batches)
        after = {name: file.digest for name, file in group.adapters({}).items()}
        assert {name for name in NODES if before[name] != after[name]} == {"intent", "response"}, "check is frozen"
    one = found[1, 0]
    assert one["learner/optimizer_steps"] == 4
    assert {name.split("/")[1] for name in one if name.startswith("decision/")} == {"intent", "response"}
    assert one["decision/response/kl"] > 0
    assert 0 < one["decision/intent/entropy"] < 0.2, "only the one token that differs between the answers is free"
    for other in (found[2, 2], found[2, 3]):
        for name in [name for name in one if name.startswith("decision/")] + ["learner/grad_norm", "learner/loss"]:
            assert other[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name


def test_a_rank_without_a_step_takes_part(ranks: dict[int, list[Any]], guided: tuple[Path, Forest]) -> None:
    model, forest = guided
    config = settings(model, ranks=2, zero_stage=3)
    grown = forest[0].trees[0]
    only = replace(grown, nodes=[grown.nodes[0], replace(grown.nodes[1], end=DONE)])
    packs = packed(config, [group(only)], 4096)
    assert any(not pack.answers for batch in packs.mini_batches for rank in batch for pack in rank)
    metrics = start(ranks, config).train(packs.mini_batches)
    assert metrics["decision/intent/tokens"] > 0
