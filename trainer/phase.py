"""One learning phase on one rank: passes over the packs, one optimizer step per mini-batch, numbers for the log."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from trainer.config import RunConfig
from trainer.forward import to_tensors
from trainer.loss import LossParts, pack_loss
from trainer.types import TreePack

if TYPE_CHECKING:
    from trainer.engine import LearnerEngine, StepResult

_SUMS = ("tokens", "clipped", "kl_old", "entropy", "kl_reference")
_MAXIMA = ("ratio_max", "logprob_diff_max")


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
            self.maxima[name] = max(self.maxima[name], float(value))

    def reduced(self, engine: "LearnerEngine") -> "Meter":
        """The same over all ranks (a collective)."""
        loss, *sums = engine.reduce([self.loss, *self.sums.values()], "sum")
        maxima = engine.reduce(list(self.maxima.values()), "max")
        return Meter(
            loss=loss, sums=dict(zip(_SUMS, sums, strict=True)), maxima=dict(zip(_MAXIMA, maxima, strict=True))
        )

    def mean(self, name: str) -> float:
        """Mean of a sum over the trained tokens."""
        return self.sums[name] / max(self.sums["tokens"], 1.0)


class Phase:
    """The optimizer steps of one phase; `bad_steps` in a row outlives it and is carried from phase to phase."""

    def __init__(self, engine: "LearnerEngine", config: RunConfig) -> None:
        self._engine = engine
        self._config = config
        self.bad_steps = 0
        """Optimizer steps in a row that were dropped for a gradient that is not finite."""

    def run(self, mini_batches: Sequence[Sequence[TreePack]]) -> dict[str, float]:
        """Trains `learner.epochs` passes over this rank's packs, one optimizer step per mini-batch.

        Returns `learner/*` metrics over all ranks. Mini-batches without packs are skipped. Raises RuntimeError after
        more than `learner.max_bad_steps` dropped steps in a row.
        """
        started = time.perf_counter()
        chunks = self._chunks(mini_batches)
        references = self._references(mini_batches, chunks)
        total, first = Meter(), None
        results = []
        for _ in range(self._config.learner.epochs):
            for packs, parts, fixed in zip(mini_batches, chunks, references, strict=True):
                if not packs:
                    self._engine.skip_step()
                    continue
                meter, result = self._step(packs, parts, fixed)
                first = first or meter
                results.append(result)
                if result.applied:
                    _merge(total, meter)
        tokens = sum(pack.tokens for packs in mini_batches for pack in packs) * self._config.learner.epochs
        all_tokens = self._engine.reduce([float(tokens)], "sum")[0]
        return _metrics(total, first or Meter(), results) | {
            "learner/bad_steps": float(self.bad_steps),
            "learner/seconds": time.perf_counter() - started,
            "learner/tokens_per_s": all_tokens / (time.perf_counter() - started),
        }

    def _chunks(self, mini_batches: Sequence[Sequence[TreePack]]) -> list[list[int]]:
        flat = iter(self._engine.chunks([pack.trained_tokens for packs in mini_batches for pack in packs]))
        return [[next(flat) for _ in packs] for packs in mini_batches]

    def _references(
        self, mini_batches: Sequence[Sequence[TreePack]], chunks: list[list[int]]
    ) -> list[list[Tensor | None]]:
        """Log-probabilities under the starting policy, once per phase; None where no KL term asks for them."""
        if self._config.loss.kl_coef == 0:
            return [[None] * len(packs) for packs in mini_batches]
        device = self._engine.device
        return [
            [self._engine.reference(to_tensors(pack, device), n) for pack, n in zip(packs, parts, strict=True)]
            for packs, parts in zip(mini_batches, chunks, strict=True)
        ]

    def _step(
        self, packs: Sequence[TreePack], chunks: Sequence[int], references: Sequence[Tensor | None]
    ) -> tuple[Meter, "StepResult"]:
        meter = Meter()
        for index, (pack, parts, fixed) in enumerate(zip(packs, chunks, references, strict=True)):
            batch = to_tensors(pack, self._engine.device)
            scored = pack_loss(*self._engine.score(batch, parts), fixed, batch, self._config.loss)
            self._engine.backward(scored.loss, last=index == len(packs) - 1)
            meter.add(scored)
        result = self._engine.step()
        self.bad_steps = 0 if result.applied else self.bad_steps + 1
        if self.bad_steps > self._config.learner.max_bad_steps:
            raise RuntimeError(
                f"{self.bad_steps} optimizer steps in a row had a gradient that is not finite, "
                f"more than learner.max_bad_steps={self._config.learner.max_bad_steps}"
            )
        return meter.reduced(self._engine), result


def _merge(total: Meter, meter: Meter) -> None:
    total.loss += meter.loss
    for name, value in meter.sums.items():
        total.sums[name] += value
    for name, value in meter.maxima.items():
        total.maxima[name] = max(total.maxima[name], value)


def _metrics(total: Meter, first: Meter, results: "Sequence[StepResult]") -> dict[str, float]:
    """Means over the applied steps; `mismatch_*` only over the first step, where engine and learner still hold the same
    weights, so that any difference comes from the two implementations and not from an update.
    """
    norms = [result.grad_norm for result in results if result.applied]
    grad_norm = {"learner/grad_norm": sum(norms) / len(norms)} if norms else {}
    return grad_norm | {
        "learner/loss": total.loss / max(len(norms), 1),
        "learner/trained_tokens": total.sums["tokens"],
        "learner/clip_share": total.mean("clipped"),
        "learner/approx_kl": total.mean("kl_old"),
        "learner/kl_reference": total.mean("kl_reference"),
        "learner/entropy": total.mean("entropy"),
        "learner/ratio_max": total.maxima["ratio_max"],
        "learner/mismatch_kl": first.mean("kl_old"),
        "learner/mismatch_max_abs_logprob_diff": first.maxima["logprob_diff_max"],
        "learner/lr": results[-1].lr if results else 0.0,
        "learner/optimizer_steps": float(len(norms)),
        "learner/skipped_steps": float(len(results) - len(norms)),
    }
