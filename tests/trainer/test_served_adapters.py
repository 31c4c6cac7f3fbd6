"""A real engine serves what the learner trains: adapters of nodes, pushed, side by side, beside the backbone.

One engine for everything, since its start takes most of the time.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from learner_runs import start
from micro_models import micro_qwen2, save_micro
from served_engine import FleetOfOne, start_engine
from typed_runs import FOUR, typed_config, typed_packs

from rollout_workers.actor import ActorSettings
from rollout_workers.adapters import adapters_of
from rollout_workers.engine_settings import EngineSettings
from rollout_workers.types import Completion
from trainer.config import PushConfig, RunConfig
from trainer.decisions.adapters import NodeAdapters
from trainer.learner import LearnerGroup
from trainer.push import WeightPusher

pytestmark = pytest.mark.slow

VOICES = (0, 3, -1, 2, 0)
NAMES = ("intent", "check", "response", None)
HIDDEN = 128
"""Four heads of 32: vLLM's attention for CPUs takes no smaller ones."""
LONG = [2 + 7 * i % 61 for i in range(100)]


@pytest.fixture(scope="module")
def typed_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The micro model with a trained adapter of the frozen node, as an export has it."""
    folder = tmp_path_factory.mktemp("typed") / "model"
    shutil.copytree(model, folder)
    save_micro(folder, hidden=HIDDEN)
    nodes = NodeAdapters(micro_qwen2(hidden=HIDDEN), typed_config(folder, FOUR))
    torch.manual_seed(5)
    state = {name: torch.randn_like(factor) * 0.1 for name, factor in nodes.factors("check")}
    nodes.write("check", state, folder)
    return folder


def config_of(model: Path, backbone: str) -> RunConfig:
    config = typed_config(model, FOUR, backbone=backbone, lr=3e-3, epochs=2)
    return config.model_copy(update={"push": PushConfig(probe_prompts=2, probe_tokens=24)})


def pusher_of(config: RunConfig, learner: LearnerGroup, actor: Any) -> WeightPusher:
    pusher = WeightPusher(config, learner, FleetOfOne(actor))
    pusher.use_probes([[3, 9, 27], LONG[:40]])
    return pusher


def test_what_the_learner_trains_is_what_the_engine_says(
    ranks: dict[int, list[Any]], typed_model: Path, tmp_path: Path
) -> None:
    config = config_of(typed_model, "frozen")
    engine = EngineSettings(
        model=str(typed_model), max_context_tokens=512, max_branches=32, adapters=adapters_of(config.typed)
    )
    actor = start_engine(ActorSettings(engine=engine, env=config.env, env_timeout_s=60.0, turn_timeout_s=300.0))
    started = actor.start.remote()
    learner = start(ranks, config)
    ray.get(started, timeout=900)
    check_before_any_push(actor, learner)
    pusher = pusher_of(config, learner, actor)
    first = pusher.push(0)
    assert first["push/adapters_sent"] == 3.0
    assert "push/send_s" not in first, "no weights of the backbone go"
    check_caches(actor)
    check_push_in_mid_request(actor, learner, pusher, config)
    check_trained_backbone(actor, ranks, typed_model)


def say(actor: Any, prompt: list[int], adapter: str | None, seed: int = 1, tokens: int = 20) -> Any:
    return actor.say.remote(prompt, seed, adapter, tokens)


def check_parity(learner: LearnerGroup, prompt: list[int], adapter: str | None, sample: Completion) -> None:
    ids = [*prompt, *sample.token_ids]
    theirs = learner.logprobs([(ids, len(sample.token_ids))], adapter)[0]
    newest = max(sample.versions)
    pairs = [pair for *pair, version in zip(sample.logprobs, theirs, sample.versions, strict=True) if version == newest]
    assert [ours for ours, _ in pairs] == pytest.approx([other for _, other in pairs], abs=1e-3)


def check_before_any_push(actor: Any, learner: LearnerGroup) -> None:
    """The adapter that lies in the model's folder is served from there; others have no weights yet."""
    check_parity(learner, LONG, "check", ray.get(say(actor, LONG, "check")))
    with pytest.raises(ray.exceptions.RayTaskError, match=r"the adapter 'intent' has no weights"):
        ray.get(say(actor, LONG, "intent"))
    with pytest.raises(
        ray.exceptions.RayTaskError, match=r"there is no adapter 'policy': the engine has intent, check"
    ):
        ray.get(say(actor, LONG, "policy"))


def check_caches(actor: Any) -> None:
    """Keys and values are shared by requests of one adapter only: three whole blocks of 32 of a prompt of 100."""
    prompt = [*LONG[1:], 2]
    for name in NAMES:
        assert [ray.get(say(actor, prompt, name)).cached_tokens for _ in range(2)] == [0, 96]


def check_push_in_mid_request(actor: Any, learner: LearnerGroup, pusher: WeightPusher, config: RunConfig) -> None:
    """Requests of all adapters and of none run in one batch when their adapters change."""
    before = {name: file.digest for name, file in learner.adapters({}).items()}
    learner.train(typed_packs(config, 1, 4096, VOICES))
    after = {name: file.digest for name, file in learner.adapters({}).items()}
    assert {name for name in before if before[name] != after[name]} == {"intent", "response"}
    asked = [(name, LONG[: 30 + seed], seed) for seed in range(4) for name in NAMES]
    running = [actor.say_across_a_push.remote(prompt, seed, name) for name, prompt, seed in asked]
    metrics = pusher.push(1)
    samples = ray.get(running, timeout=300)
    assert any(set(sample.versions) == {0, 1} for sample in samples), "some lived on across the push"
    for (name, prompt, _), sample in zip(asked, samples, strict=True):
        if max(sample.versions) == 1:
            check_parity(learner, prompt, name, sample)
    assert metrics["push/adapters_sent"] == 2.0, "the frozen adapter stays where it is"
    sizes = {name: len(file.content) for name, file in learner.adapters({}).items()}
    assert metrics["push/bytes"] == sizes["intent"] + sizes["response"]
    assert metrics["push/max_abs_logprob_diff"] < 1e-3
    assert {f"decision/{name}/max_abs_logprob_diff" for name in NAMES if name} <= metrics.keys()
    assert ray.get(say(actor, [*LONG[1:], 2], "check")).cached_tokens == 0, "a push empties every cache"
    moved = learner.logprobs([([*LONG, 5, 6], 2)], "intent")[0]
    assert moved != pytest.approx(learner.logprobs([([*LONG, 5, 6], 2)], None)[0], abs=1e-2)


def check_trained_backbone(actor: Any, ranks: dict[int, list[Any]], model: Path) -> None:
    """Another learner, whose backbone is trained too: full weights go, and adapters over them."""
    config = config_of(model, "trained")
    learner = start(ranks, config)
    pusher = pusher_of(config, learner, actor)
    pusher.push(2)
    learner.train(typed_packs(config, 1, 4096, VOICES))
    metrics = pusher.push(3)
    assert metrics["push/adapters_sent"] == 2.0
    assert metrics["push/max_abs_logprob_diff"] < 1e-3
    assert metrics["push/bytes"] > 4 * sum(p.numel() for p in micro_qwen2(hidden=HIDDEN).parameters())
    for name in NAMES:
        check_parity(learner, LONG, name, ray.get(say(actor, LONG, name, seed=7)))
