"""One learning phase on one rank: passes over the packs, one optimizer step per mini-batch, numbers for the log."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trainer.config import LossConfig, RunConfig
from trainer.forward import to_tensors
from trainer.loss import LossParts, pack_loss
from trainer.loss_inputs import loss_inputs
from trainer.types import TreePack

if TYPE_CHECKING:
    from trainer.engine import LearnerEngine, StepResult

_SUMS = ("tokens", "ratios", "clipped", "kl_old", "kl_engine", "entropy", "kl_reference", "tis_weight", "tis_capped")
_MAXIMA = ("ratio_max", "logprob_diff_max")


def larger(one: float, other: float) -> float:
    """The larger one; NaN if either is NaN, which Python's `max` keeps only in first place."""
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


@dataclass(slots=True, kw_only=True)
class Meter:
    """Adds up what the packs of one or more optimizer steps report."""

    loss: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    maxima: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_MAXIMA, 0.0))

    def add(self, parts: LossParts) -> None:
        """Takes in one pack."""
        self.loss += float(parts.loss.detach())
        for name, value in parts.sums.items():
            self.sums[name] += float(value)
        for name, value in parts.largest.items():
            self.maxima[name] = larger(self.maxima[name], float(value))

    def reduced(self, engine: "LearnerEngine") -> "Meter":
        """The same over all ranks (a collective)."""
        loss, *sums = engine.reduce([self.loss, *self.sums.values()], "sum")
        maxima = engine.reduce(list(self.maxima.values()), "max")
        return Meter(
            loss=loss, sums=dict(zip(_SUMS, sums, strict=True)), maxima=dict(zip(_MAXIMA, maxima, strict=True))
        )

    def mean(self, name: str, over: str = "tokens") -> float:
        """Mean of a sum over the trained tokens, or over the `ratios`."""
        return self.sums[name] / max(self.sums[over], 1.0)


@dataclass(slots=True, kw_only=True)
class Job:
    """One pack of the phase, with what is computed about it once and used in every epoch."""

    pack: TreePack
    chunks: int
    """Parts in which its logits are computed."""
    reference_R: Tensor | None = None
    """Log-probabilities under the starting policy; None without a KL term."""
    old_R: Tensor | None = None
    """The learner's own log-probabilities before its first update; None if not asked for or not known yet."""


class Phase:
    """The optimizer steps of one phase; `bad_steps` in a row outlives it and is carried from phase to phase."""

    def __init__(self, engine: "LearnerEngine", config: RunConfig) -> None:
        self._engine = engine
        self._config = config
        self.bad_steps = 0
        """Optimizer steps in a row that were dropped for a loss or a gradient that is not finite."""

    def run(self, mini_batches: Sequence[Sequence[TreePack]]) -> dict[str, float]:
        """Trains `learner.epochs` passes over this rank's packs, one optimizer step per mini-batch.

        Returns `learner/*` metrics over all ranks. Mini-batches without packs are skipped. Raises RuntimeError after
        more than `learner.max_bad_steps` dropped steps in a row.
        """
        started = time.perf_counter()
        jobs = self._jobs(mini_batches)
        self._score_references(jobs)
        self._recompute(jobs)
        total, first = Meter(), None
        results = []
        for _ in range(self._config.learner.epochs):
            for members in jobs:
                if not members:
                    self._engine.skip_step()
                    continue
                meter, result = self._step(members)
                first = first or meter
                results.append(result)
                if result.applied:
                    _merge(total, meter)
        tokens = sum(pack.tokens for packs in mini_batches for pack in packs) * self._config.learner.epochs
        all_tokens = self._engine.reduce([float(tokens)], "sum")[0]
        return _metrics(total, first or Meter(), results, self._config.loss) | {
            "learner/bad_steps": float(self.bad_steps),
            "learner/seconds": time.perf_counter() - started,
            "learner/tokens_per_s": all_tokens / (time.perf_counter() - started),
        }

    def _jobs(self, mini_batches: Sequence[Sequence[TreePack]]) -> list[list[Job]]:
        rows = [int(np.count_nonzero(pack.scored)) for packs in mini_batches for pack in packs]
        chunks = iter(self._engine.chunks(rows))
        return [[Job(pack=pack, chunks=next(chunks)) for pack in packs] for packs in mini_batches]

    def _score_references(self, jobs: Sequence[Sequence[Job]]) -> None:
        if self._config.loss.kl_coef == 0:
            return
        for job in (job for members in jobs for job in members):
            job.reference_R = self._engine.reference(to_tensors(job.pack, self._engine.device), job.chunks)

    def _recompute(self, jobs: Sequence[Sequence[Job]]) -> None:
        """The learner's own log-probabilities of all packs that are trained after the first optimizer step.

        The first step's packs are all scored before any update anyway, so `_step` keeps those log-probabilities. Every
        rank has equally many packs in every mini-batch, and so makes equally many forward passes here.
        """
        if self._config.loss.old_logprobs != "recompute":
            return
        later = [members for members in jobs if members][1:]
        with torch.no_grad():
            for job in (job for members in later for job in members):
                job.old_R = self._engine.score(to_tensors(job.pack, self._engine.device), job.chunks)[0]

    def _step(self, jobs: Sequence[Job]) -> tuple[Meter, "StepResult"]:
        meter = Meter()
        for job in jobs:
            parts = self._forward(job)
            meter.add(parts)
            last = job is jobs[-1]
            self._engine.backward(self._poisoned(parts.loss, meter.loss) if last else parts.loss, last=last)
        result = self._engine.step()
        self.bad_steps = 0 if result.applied else self.bad_steps + 1
        if self.bad_steps > self._config.learner.max_bad_steps:
            raise RuntimeError(
                f"{self.bad_steps} optimizer steps in a row had a loss or a gradient that is not finite, "
                f"more than learner.max_bad_steps={self._config.learner.max_bad_steps}"
            )
        return meter.reduced(self._engine), result

    def _forward(self, job: Job) -> LossParts:
        device = self._engine.device
        logprobs_R, entropy_R = self._engine.score(to_tensors(job.pack, device), job.chunks)
        inputs = loss_inputs(job.pack, device)
        if self._config.loss.old_logprobs == "recompute":
            job.old_R = logprobs_R.detach() if job.old_R is None else job.old_R
            inputs = replace(inputs, old_logprobs_R=job.old_R)
        return pack_loss(logprobs_R, entropy_R, job.reference_R, inputs, self._config.loss)

    def _poisoned(self, loss: Tensor, so_far: float) -> Tensor:
        """The step's last loss, or NaN if the loss of any rank is not finite (a collective).

        A loss can be infinite with a finite gradient. With a gradient of NaN the step is dropped by the check that
        every ZeRO stage makes anyway. Rank 0's last pack always has scored tokens, so the NaN reaches every rank.
        """
        bad = self._engine.reduce([0.0 if math.isfinite(so_far) else 1.0], "max")[0]
        return loss * math.nan if bad else loss


def _merge(total: Meter, meter: Meter) -> None:
    total.loss += meter.loss
    for name, value in meter.sums.items():
        total.sums[name] += value
    for name, value in meter.maxima.items():
        total.maxima[name] = larger(total.maxima[name], value)


def _metrics(total: Meter, first: Meter, results: "Sequence[StepResult]", loss: LossConfig) -> dict[str, float]:
    """Means over the applied steps; `mismatch_*` only over the first step, where engine and learner still hold the same
    weights, so that any difference comes from the two implementations and not from an update.
    """
    norms = [result.grad_norm for result in results if result.applied]
    metrics = {"learner/grad_norm": sum(norms) / len(norms)} if norms else {}
    if loss.tis_cap is not None:
        metrics["learner/tis_weight"] = total.mean("tis_weight", "ratios")
        metrics["learner/tis_capped_share"] = total.mean("tis_capped", "ratios")
    if loss.kl_coef > 0:
        metrics["learner/kl_reference"] = total.mean("kl_reference")
    return metrics | {
        "learner/loss": total.loss / max(len(norms), 1),
        "learner/trained_tokens": total.sums["tokens"],
        "learner/clip_share": total.mean("clipped", "ratios"),
        "learner/approx_kl": total.mean("kl_old"),
        "learner/entropy": total.mean("entropy"),
        "learner/ratio_max": total.maxima["ratio_max"],
        "learner/mismatch_kl": first.mean("kl_engine"),
        "learner/mismatch_max_abs_logprob_diff": first.maxima["logprob_diff_max"],
        "learner/lr": results[-1].lr if results else 0.0,
        "learner/optimizer_steps": float(len(norms)),
        "learner/skipped_steps": float(len(results) - len(norms)),
    }
