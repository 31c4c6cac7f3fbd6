"""One learning phase on one rank: passes over the packs, one optimizer step per mini-batch, numbers for the log."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trainer.config import RunConfig
from trainer.decisions.node_meter import NodeMeter
from trainer.guards import PhaseGuard, larger
from trainer.loss import LossParts, pack_loss
from trainer.loss_inputs import loss_inputs
from trainer.types import NodeCoefficients, TreePack

if TYPE_CHECKING:
    from trainer.engine import LearnerEngine, StepResult

_SUMS = (
    "tokens", "current", "ratios", "clipped", "kl_old", "kl_engine", "entropy", "kl_reference", "tis_weight",
    "tis_capped",
)  # fmt: skip
_MAXIMA = ("ratio_max", "logprob_diff_max")


@dataclass(slots=True, kw_only=True)
class Meter:
    """Adds up what the packs of one or more optimizer steps report."""

    loss: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    maxima: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_MAXIMA, 0.0))
    of_nodes: NodeMeter = field(default_factory=NodeMeter)
    """Per decision node; without content for a flat policy."""

    def add(self, parts: LossParts) -> None:
        """Takes in one pack."""
        self.loss += float(parts.loss.detach())
        for name, value in parts.sums.items():
            self.sums[name] += float(value)
        for name, value in parts.largest.items():
            self.maxima[name] = larger(self.maxima[name], float(value))
        self.of_nodes.add({name: values.tolist() for name, values in parts.of_nodes.items()})

    def reduced(self, engine: "LearnerEngine") -> "Meter":
        """The same over all ranks (a collective)."""
        loss, *sums = engine.reduce([self.loss, *self.sums.values(), *self.of_nodes.flat()], "sum")
        maxima = engine.reduce(list(self.maxima.values()), "max")
        return Meter(
            loss=loss,
            sums=dict(zip(_SUMS, sums[: len(_SUMS)], strict=True)),
            maxima=dict(zip(_MAXIMA, maxima, strict=True)),
            of_nodes=NodeMeter.from_flat(sums[len(_SUMS) :]),
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

        Returns `learner/*` metrics over all ranks. Mini-batches without packs are skipped. So are steps beyond a bound
        of `guards`, and under `guards.on_breach: stop` all that come after one. Raises RuntimeError after
        `learner.max_bad_steps` steps in a row that were dropped for a loss or a gradient that is not finite.
        """
        started = time.perf_counter()
        jobs = self._jobs(mini_batches)
        nodes = _coefficients(mini_batches)
        has_kl = any(node.kl_coef > 0 for node in nodes) if nodes else self._config.loss.kl_coef > 0
        if has_kl:
            self._score_references(jobs)
        self._recompute(jobs)
        total, first, guard = Meter(), None, PhaseGuard(bounds=self._config.guards)
        results = []
        for _ in range(self._config.learner.epochs):
            for members in jobs:
                if not members or guard.ends_phase:
                    self._engine.skip_step()
                    continue
                meter, result = self._step(members, guard)
                first = first or meter
                results.append(result)
                if result.applied:
                    _merge(total, meter)
        tokens = sum(pack.tokens for packs in mini_batches for pack in packs) * self._config.learner.epochs
        all_tokens = self._engine.reduce([float(tokens)], "sum")[0]
        return (
            _metrics(total, first or Meter(), results, has_kl=has_kl, has_cap=self._config.loss.tis_cap is not None)
            | total.of_nodes.metrics(nodes)
            | guard.metrics
            | {
                "learner/bad_steps": float(self.bad_steps),
                "learner/seconds": time.perf_counter() - started,
                "learner/tokens_per_s": all_tokens / (time.perf_counter() - started),
            }
        )

    def _jobs(self, mini_batches: Sequence[Sequence[TreePack]]) -> list[list[Job]]:
        rows = [int(np.count_nonzero(pack.scored)) for packs in mini_batches for pack in packs]
        chunks = iter(self._engine.chunks(rows))
        return [[Job(pack=pack, chunks=next(chunks)) for pack in packs] for packs in mini_batches]

    def _score_references(self, jobs: Sequence[Sequence[Job]]) -> None:
        for job in (job for members in jobs for job in members):
            job.reference_R = self._engine.reference(self._engine.tensors(job.pack), job.chunks)

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
                job.old_R = self._engine.score(self._engine.tensors(job.pack), job.chunks)[0]

    def _step(self, jobs: Sequence[Job], guard: PhaseGuard) -> tuple[Meter, "StepResult"]:
        """All packs are scored before the last one's backward pass, so that one of them can still drop the step.

        A loss can be infinite with a finite gradient. With a gradient of NaN the step is dropped by the check that
        every ZeRO stage makes anyway. Rank 0's last pack always has scored tokens, so the NaN reaches every rank.
        """
        mine = Meter()
        for job in jobs[:-1]:
            self._engine.backward(self._scored(job, mine), last=False)
        loss = self._scored(jobs[-1], mine)
        is_bad = self._is_bad_anywhere(mine.loss)
        meter = mine.reduced(self._engine)
        is_beyond = not is_bad and not guard.passes(meter.mean("kl_old"), meter.maxima["ratio_max"])
        self._engine.backward(loss * math.nan if is_bad or is_beyond else loss, last=True)
        result = self._engine.step()
        assert not (is_beyond and result.applied), "a step beyond a bound was applied"
        if not is_beyond:
            self._count(result)
        return meter, result

    def _scored(self, job: Job, meter: Meter) -> Tensor:
        """The loss of a pack, metered."""
        parts = self._forward(job)
        meter.add(parts)
        return parts.loss

    def _is_bad_anywhere(self, loss: float) -> bool:
        """Whether the loss of any rank is not finite (a collective)."""
        return bool(self._engine.reduce([0.0 if math.isfinite(loss) else 1.0], "max")[0])

    def _count(self, result: "StepResult") -> None:
        self.bad_steps = 0 if result.applied else self.bad_steps + 1
        if self.bad_steps >= self._config.learner.max_bad_steps:
            raise RuntimeError(
                f"{self.bad_steps} optimizer step{'s' * (self.bad_steps > 1)} in a row had a loss or a gradient "
                f"that is not finite (learner.max_bad_steps={self._config.learner.max_bad_steps})"
            )

    def _forward(self, job: Job) -> LossParts:
        device = self._engine.device
        logprobs_R, entropy_R = self._engine.score(self._engine.tensors(job.pack), job.chunks)
        inputs = loss_inputs(job.pack, device)
        if self._config.loss.old_logprobs == "recompute":
            job.old_R = logprobs_R.detach() if job.old_R is None else job.old_R
            inputs = replace(inputs, old_logprobs_R=job.old_R)
        return pack_loss(logprobs_R, entropy_R, job.reference_R, inputs, self._config.loss)


def _merge(total: Meter, meter: Meter) -> None:
    total.loss += meter.loss
    for name, value in meter.sums.items():
        total.sums[name] += value
    for name, value in meter.maxima.items():
        total.maxima[name] = larger(total.maxima[name], value)
    total.of_nodes.add(meter.of_nodes.sums)


def _coefficients(mini_batches: Sequence[Sequence[TreePack]]) -> tuple[NodeCoefficients, ...]:
    """Of a typed policy, the same in every pack and on every rank; empty for a flat one."""
    return next((pack.coefficients for packs in mini_batches for pack in packs), ())


def _metrics(
    total: Meter, first: Meter, results: "Sequence[StepResult]", *, has_kl: bool, has_cap: bool
) -> dict[str, float]:
    """Means over the applied steps; `mismatch_*` only over the first step and the tokens of the current version, where
    engine and learner hold the same weights, so that any difference comes from the two implementations.
    """
    norms = [result.grad_norm for result in results if result.applied]
    metrics = {"learner/grad_norm": sum(norms) / len(norms)} if norms else {}
    if has_cap:
        metrics["learner/tis_weight"] = total.mean("tis_weight", "ratios")
        metrics["learner/tis_capped_share"] = total.mean("tis_capped", "ratios")
    if has_kl:
        metrics["learner/kl_reference"] = total.mean("kl_reference")
    return metrics | {
        "learner/loss": total.loss / max(len(norms), 1),
        "learner/trained_tokens": total.sums["tokens"],
        "learner/clip_share": total.mean("clipped", "ratios"),
        "learner/approx_kl": total.mean("kl_old"),
        "learner/entropy": total.mean("entropy"),
        "learner/ratio_max": total.maxima["ratio_max"],
        "learner/mismatch_kl": first.mean("kl_engine", "current"),
        "learner/mismatch_tokens": first.sums["current"],
        "learner/mismatch_max_abs_logprob_diff": first.maxima["logprob_diff_max"],
        "learner/lr": results[-1].lr if results else 0.0,
        "learner/optimizer_steps": float(len(norms)),
        "learner/skipped_steps": float(len(results) - len(norms)),
    }
