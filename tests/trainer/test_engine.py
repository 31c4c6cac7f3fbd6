"""The engine without Ray: settings, and logits in parts while ZeRO-3 gathers the output layer for each."""

import multiprocessing
import socket
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
from micro_models import save_micro
from test_learner import packs, run_config

from trainer.config import ModelConfig
from trainer.deepspeed_settings import inference_settings, training_settings


def test_settings(tmp_path: Path) -> None:
    config = run_config(tmp_path, ranks=2, zero_stage=3)
    settings = training_settings(config, 1000)
    assert settings["train_batch_size"] == 2
    assert settings["gradient_accumulation_steps"] == 1
    assert settings["zero_optimization"]["reduce_bucket_size"] == 1000
    assert not settings["bf16"]["enabled"]
    assert "data_types" not in settings
    assert "optimizer" not in inference_settings(config)
    half = config.model_copy(update={"model": ModelConfig(path=str(tmp_path), dtype="bfloat16")})
    assert training_settings(half, 1000)["data_types"] == {"grad_accum_dtype": "fp32"}


def one_phase(model: Path, index: int, port: int, logits_at_once: int, answers: "Queue[object]") -> None:
    """What one rank process does: a phase, then every parameter's name, reported shape and norm."""
    from trainer.engine import LearnerEngine, Rank
    from trainer.phase import Phase

    config = run_config(model, zero_stage=3, ranks=2)
    rank = Rank(index=index, count=2, address="127.0.0.1", port=port, timeout_s=120)
    engine = LearnerEngine(config, rank, 4, logits_at_once)
    metrics = Phase(engine, config).run([batch[index] for batch in packs(config, 1, 128)])
    shapes = [(name, shape) for name, _, shape in engine.parameter_info()]
    parameters = [(name, list(full.shape), float(full.norm())) for name, full in engine.full_parameters()]
    if index == 0:
        answers.put((metrics["learner/grad_norm"], shapes, parameters))


def two_ranks(model: Path, logits_at_once: int) -> tuple[float, list[object], list[tuple[str, list[int], float]]]:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers: Queue[object] = context.Queue()
    ranks = [context.Process(target=one_phase, args=(model, i, port, logits_at_once, answers)) for i in range(2)]
    for rank in ranks:
        rank.start()
    answer = answers.get(timeout=240)
    for rank in ranks:
        rank.join(timeout=30)
    return answer


@pytest.mark.slow
def test_logits_in_parts_under_stage_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    save_micro(tmp_path)
    norm, shapes, parameters = two_ranks(tmp_path, 1 << 26)
    norm_in_parts, _, parameters_in_parts = two_ranks(tmp_path, 64 * 5)
    assert norm_in_parts == pytest.approx(norm, rel=1e-5)
    assert [(name, shape) for name, shape, _ in parameters] == shapes
    assert shapes[0] == ("model.embed_tokens.weight", [64, 64])
    assert shapes[-1] == ("lm_head.weight", [64, 64])
    assert [p[2] for p in parameters_in_parts] == pytest.approx([p[2] for p in parameters], rel=1e-5)
