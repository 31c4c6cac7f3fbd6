"""The learning rate as a pure function of the optimizer step."""

import math

from trainer.config import LearnerConfig


def learning_rate(step: int, total: int, learner: LearnerConfig) -> float:
    """Learning rate of optimizer step `step` (from 0) out of `total`.

    Linear warm-up over `warmup_share` of the steps, so that step 0 already has lr > 0, e.g. with 4 warm-up steps
    lr/4, lr/2, 3lr/4, lr. After it constant, or falling to 0 behind the last step (`linear`, `cosine`).
    """
    warmup = round(learner.warmup_share * total)
    if step < warmup:
        return learner.lr * (step + 1) / warmup
    if learner.schedule == "constant":
        return learner.lr
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    if learner.schedule == "linear":
        return learner.lr * (1 - progress)
    return learner.lr * 0.5 * (1 + math.cos(math.pi * progress))
