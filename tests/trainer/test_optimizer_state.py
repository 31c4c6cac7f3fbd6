"""The optimizer lives as long as the learner: its moments move the weights in a step whose own gradient is zero."""

import multiprocessing
import socket
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
import torch
from micro_models import save_micro
from test_learner import packs, run_config

from trainer.config import LossConfig
from trainer.phase import Phase


def two_phases(model: Path, port: int, answers: "Queue[object]") -> None:
    """What the rank's process does: a phase of training, then one in which every advantage is zero."""
    from trainer.engine import LearnerEngine, Rank

    config = run_config(model, LossConfig(kl_coef=0.0))
    engine = LearnerEngine(config, Rank(index=0, count=1, address="127.0.0.1", port=port, timeout_s=120), 4)
    phase = Phase(engine, config)

    def weights() -> torch.Tensor:
        return torch.cat([full.flatten().clone() for _, full in engine.full_parameters()])

    batch = [ranks[0] for ranks in packs(config, 1, 4096)]
    start = weights()
    phase.run(batch)
    between = weights()
    for pack in batch[0]:
        pack.positive[:] = 0.0
        pack.negative[:] = 0.0
    norm = phase.run(batch)["learner/grad_norm"]
    answers.put((norm, float((between - start).abs().max()), float((weights() - between).abs().max())))


@pytest.mark.slow
def test_moments_of_the_step_before_are_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW with betas 0.9 and 0.999 after one gradient g and then 0: the second update is lr 0.09 g / 0.19 over
    sqrt(0.000999 g² / 0.001999) = 0.67 lr, where a fresh optimizer would not move at all.
    """
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    save_micro(tmp_path)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers: Queue[tuple[float, float, float]] = context.Queue()
    process = context.Process(target=two_phases, args=(tmp_path, port, answers))
    process.start()
    norm, first, second = answers.get(timeout=240)
    process.join(timeout=30)
    assert norm == 0.0
    assert first > 1e-4
    assert second == pytest.approx(0.67 * first, rel=0.05)
