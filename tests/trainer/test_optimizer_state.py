"""The optimizer lives as long as the learner: its moments move the weights in a step whose own gradient is zero."""

from pathlib import Path

import pytest
import torch
from learner_runs import Run, packs, run_config

from trainer.config import LossConfig
from trainer.phase import Phase


def two_phases(index: int, port: int, model: Path) -> tuple[float, float, float]:
    """What the rank's process does: a phase of training, then one in which every advantage is zero."""
    from trainer.engine import LearnerEngine, Rank

    config = run_config(model, LossConfig(kl_coef=0.0))
    engine = LearnerEngine(config, Rank(index=index, count=1, address="127.0.0.1", port=port, timeout_s=120), 4)
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
    return norm, float((between - start).abs().max()), float((weights() - between).abs().max())


@pytest.mark.slow
def test_moments_of_the_step_before_are_still_there(one: Run, model: Path) -> None:
    """AdamW with betas 0.9 and 0.999 after one gradient g and then 0: the second update is lr 0.09 g / 0.19 over
    sqrt(0.000999 g² / 0.001999) = 0.67 lr, where a fresh optimizer would not move at all.
    """
    norm, first, second = one(two_phases, model)[0]
    assert norm == 0.0
    assert first > 1e-4
    assert second == pytest.approx(0.67 * first, rel=0.05)
