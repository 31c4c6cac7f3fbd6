"""A learning phase: which log-probabilities are old, which forward passes that takes, and which steps are dropped."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learner_runs import EVERYTHING, SPLIT, largest_difference, packs, run_config, start
from micro_models import micro_qwen2
from torch import Tensor

from trainer.config import GuardsConfig, LossConfig
from trainer.forward import PackedPolicy, PackTensors, to_tensors
from trainer.guards import GuardError, breach, check_guards, larger
from trainer.loss import pack_loss
from trainer.loss_inputs import loss_inputs
from trainer.phase import Phase
from trainer.types import TreePack

CPU = torch.device("cpu")
RECOMPUTE = LossConfig(kl_coef=0.0, old_logprobs="recompute", tis_cap=2.0, ratio_level="sequence")


class PlainEngine:
    """One rank with plain gradient descent in place of DeepSpeed."""

    device = CPU

    def __init__(self, lr: float = 0.05, *, other_rank_is_bad: bool = False, nan_pack: int | None = None) -> None:
        self.policy = PackedPolicy(micro_qwen2(), 1.0)
        self.start = PackedPolicy(micro_qwen2(), 1.0)
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=lr)
        self.with_gradient: list[bool] = []
        self.other_rank_is_bad = other_rank_is_bad
        self.nan_pack = nan_pack
        """Which of the packs scored first gets log-probabilities of NaN."""

    def chunks(self, scored_tokens: Sequence[int]) -> list[int]:
        return [1 for _ in scored_tokens]

    def tensors(self, pack: TreePack) -> PackTensors:
        return to_tensors(pack, CPU)

    def score(self, batch: PackTensors, chunks: int) -> tuple[Tensor, Tensor]:
        broken = len(self.with_gradient) == self.nan_pack
        self.with_gradient.append(torch.is_grad_enabled())
        logprobs_R, entropy_R = self._scores(self.policy, batch)
        return logprobs_R * float("nan") if broken else logprobs_R, entropy_R

    def reference(self, batch: PackTensors, chunks: int) -> Tensor:
        with torch.no_grad():
            return self._scores(self.start, batch)[0]

    def _scores(self, policy: PackedPolicy, batch: PackTensors) -> tuple[Tensor, Tensor]:
        return policy(batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, 1)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()

    def step(self) -> SimpleNamespace:
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in self.policy.parameters()]))
        applied = norm < float("inf")
        if applied:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return SimpleNamespace(applied=applied, grad_norm=norm, lr=0.0)

    def skip_step(self) -> None:
        pass

    def reduce(self, values: Sequence[float], how: str) -> list[float]:
        return [1.0] if self.other_rank_is_bad and how == "max" and len(values) == 1 else list(values)

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.policy.parameters()])


def mini_batches(loss: LossConfig, **learner: object) -> list[list[TreePack]]:
    return [one[0] for one in packs(run_config(Path("unused"), loss, **learner), 1, SPLIT)]


def run(engine: PlainEngine, loss: LossConfig, batches: list[list[TreePack]], **learner: object) -> dict[str, float]:
    return Phase(engine, run_config(Path("unused"), loss, **learner)).run(batches)


@pytest.mark.parametrize(("batches", "epochs"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_only_packs_after_the_first_step_need_another_forward_pass(batches: int, epochs: int) -> None:
    parts = mini_batches(RECOMPUTE, mini_batches=batches)
    engine = PlainEngine()
    run(engine, RECOMPUTE, parts, mini_batches=batches, epochs=epochs)
    later = sum(len(part) for part in parts[1:])
    assert engine.with_gradient == [False] * later + [True] * epochs * sum(map(len, parts))


def test_rollout_logprobs_need_no_other_forward_pass() -> None:
    loss = LossConfig(kl_coef=0.0)
    parts = mini_batches(loss, mini_batches=2)
    engine = PlainEngine()
    run(engine, loss, parts, mini_batches=2)
    assert all(engine.with_gradient)


def test_old_logprobs_are_those_before_the_first_update() -> None:
    """Two mini-batches, two epochs: the same updates as with all old log-probabilities taken beforehand."""
    parts = mini_batches(RECOMPUTE, mini_batches=2)
    engine, by_hand = PlainEngine(), PlainEngine()
    run(engine, RECOMPUTE, parts, mini_batches=2, epochs=2)
    with torch.no_grad():
        old = [[by_hand.score(to_tensors(pack, CPU), 1)[0] for pack in part] for part in parts]
    for part, fixed in [*zip(parts, old, strict=True)] * 2:
        for pack, old_R in zip(part, fixed, strict=True):
            inputs = replace(loss_inputs(pack, CPU), old_logprobs_R=old_R)
            pack_loss(*by_hand.score(to_tensors(pack, CPU), 1), None, inputs, RECOMPUTE).loss.backward()
        by_hand.step()
    assert (engine.weights() - PlainEngine().weights()).abs().max() > 1e-3
    torch.testing.assert_close(engine.weights(), by_hand.weights(), rtol=0, atol=1e-6)


def test_metrics_of_the_first_step_are_on_policy_and_compare_with_the_engine() -> None:
    parts = mini_batches(RECOMPUTE)
    metrics = run(PlainEngine(), RECOMPUTE, parts)
    assert metrics["learner/approx_kl"] == 0
    assert metrics["learner/ratio_max"] == 1
    assert metrics["learner/mismatch_kl"] > 0.1
    assert 0 < metrics["learner/tis_weight"] <= 2
    assert 0 <= metrics["learner/tis_capped_share"] <= 1
    rollout = RECOMPUTE.model_copy(update={"old_logprobs": "rollout", "tis_cap": None})
    plain = run(PlainEngine(), rollout, parts)
    assert plain["learner/mismatch_kl"] == pytest.approx(metrics["learner/mismatch_kl"])
    assert plain["learner/approx_kl"] == pytest.approx(metrics["learner/mismatch_kl"])
    assert "learner/tis_weight" not in plain


def test_the_larger_number_keeps_nan() -> None:
    assert larger(1.0, 2.0) == larger(2.0, 1.0) == 2.0
    assert math.isnan(larger(1.0, math.nan))
    assert math.isnan(larger(math.nan, 1.0))
    assert larger(math.inf, 1.0) == math.inf


@pytest.mark.parametrize("place", [0, 1])
def test_a_nan_from_the_learner_shows_in_the_comparison_with_the_engine(place: int) -> None:
    loss = LossConfig(kl_coef=0.0)
    metrics = run(PlainEngine(nan_pack=place), loss, mini_batches(loss))
    assert metrics["learner/skipped_steps"] == 1
    assert math.isnan(metrics["learner/mismatch_max_abs_logprob_diff"])
    assert math.isnan(metrics["learner/mismatch_kl"])


def test_the_divergence_is_logged_only_where_there_is_a_reference() -> None:
    with_kl, without = LossConfig(kl_coef=0.1), LossConfig(kl_coef=0.0)
    found = run(PlainEngine(), with_kl, mini_batches(with_kl), epochs=2)
    assert found["learner/kl_reference"] > 0
    assert "learner/kl_reference" not in run(PlainEngine(), without, mini_batches(without), epochs=2)


@pytest.mark.parametrize("other_rank", [False, True])
def test_a_loss_that_is_not_finite_drops_the_step_on_every_rank(other_rank: bool) -> None:
    """Here or on another rank; the pack at fault is not the last one."""
    parts = mini_batches(RECOMPUTE)
    assert len(parts[0]) > 1
    if not other_rank:
        units = parts[0][0].units
        assert units is not None
        units.positive[0] = float("nan")
    engine = PlainEngine(other_rank_is_bad=other_rank)
    before = engine.weights()
    metrics = run(engine, RECOMPUTE, parts)
    assert metrics["learner/skipped_steps"] == 1
    assert metrics["learner/optimizer_steps"] == 0
    assert torch.equal(engine.weights(), before)
    with pytest.raises(RuntimeError, match=r"^2 optimizer steps in a row had a loss .* \(learner\.max_bad_steps=2\)$"):
        run(engine, RECOMPUTE, parts, epochs=3, max_bad_steps=2)
    with pytest.raises(RuntimeError, match=r"^1 optimizer step in a row had"):
        run(engine, RECOMPUTE, parts, max_bad_steps=1)


TIGHT = {"max_kl": GuardsConfig(max_kl=1e-12), "max_ratio": GuardsConfig(max_ratio=1.0 + 1e-6)}


def guarded(bounds: GuardsConfig, loss: LossConfig = RECOMPUTE, **learner: object) -> Phase:
    config = run_config(Path("unused"), loss, epochs=3, **learner).model_copy(update={"guards": bounds})
    return Phase(PlainEngine(), config)


@pytest.mark.parametrize("how", ["stop", "skip"])
@pytest.mark.parametrize("name", list(TIGHT))
def test_a_step_beyond_a_bound_is_not_applied(name: str, how: str) -> None:
    """Old log-probabilities are the learner's own, so the first step is exactly on policy and no later one is."""
    once = PlainEngine()
    run(once, RECOMPUTE, mini_batches(RECOMPUTE))
    phase = guarded(TIGHT[name].model_copy(update={"on_breach": how}), max_bad_steps=1)
    metrics = phase.run(mini_batches(RECOMPUTE))
    assert torch.equal(phase._engine.weights(), once.weights())
    assert metrics["learner/optimizer_steps"] == 1
    assert metrics["learner/skipped_by_guard"] == (1 if how == "stop" else 2), "of two that would follow"
    assert metrics["learner/bad_steps"] == 0, "they count by themselves"
    assert metrics["learner/ratio_max"] == 1, "of the applied ones"
    assert metrics["learner/guard_ratio"] > 1


def test_bounds_that_hold_change_nothing_and_show_how_far_the_steps_went() -> None:
    free, bound = guarded(GuardsConfig()), guarded(GuardsConfig(max_kl=1e6, max_ratio=1e6))
    plain, metrics = free.run(mini_batches(RECOMPUTE)), bound.run(mini_batches(RECOMPUTE))
    assert torch.equal(free._engine.weights(), bound._engine.weights())
    assert not any("guard" in name for name in plain)
    assert metrics["learner/skipped_by_guard"] == 0
    assert metrics["learner/guard_ratio"] == metrics["learner/ratio_max"] == plain["learner/ratio_max"]
    assert metrics["learner/guard_kl"] >= metrics["learner/approx_kl"]


def test_a_loss_that_is_not_finite_is_no_breach_of_a_bound() -> None:
    config = run_config(Path("unused"), LossConfig(kl_coef=0.0)).model_copy(update={"guards": TIGHT["max_kl"]})
    metrics = Phase(PlainEngine(nan_pack=0), config).run(mini_batches(config.loss))
    assert (metrics["learner/skipped_by_guard"], metrics["learner/bad_steps"]) == (0, 1)


def test_the_sentence_names_key_value_and_bound() -> None:
    bounds = GuardsConfig(max_kl=0.1, max_ratio=8.0)
    assert breach(bounds, 0.1, 8.0) is None
    assert breach(GuardsConfig(), math.inf, math.inf) is None
    assert "was 0.25 nats per token, more than guards.max_kl=0.1" in str(breach(bounds, 0.25, 1.0))
    assert "was 9.5, more than guards.max_ratio=8" in str(breach(bounds, 0.0, 9.5))
    assert breach(bounds, math.nan, 1.0) is not None
    metrics = {"learner/skipped_by_guard": 1.0, "learner/guard_kl": 0.0, "learner/guard_ratio": 9.5}
    with pytest.raises(GuardError, match=r"guards\.max_ratio=8, in an optimizer step of step 3, which was not applied"):
        check_guards(bounds, 3, metrics)
    check_guards(bounds.model_copy(update={"on_breach": "skip"}), 3, metrics)
    check_guards(bounds, 3, metrics | {"learner/skipped_by_guard": 0.0})
    check_guards(GuardsConfig(), 3, {})


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "count"), [(1, 1), (2, 2), (3, 2)])
def test_recomputed_ratios_of_paths_under_ranks_and_stages(
    ranks: dict[int, list[Any]],
    model: Path,
    tmp_path: Path,
    stage: int,
    count: int,
) -> None:
    """The updates of one rank with one large pack, from small packs on several ranks."""
    exports = []
    for name, zero, number, capacity in (("one", 0, 1, 4096), ("many", stage, count, SPLIT)):
        loss = RECOMPUTE.model_copy(update={"kl_coef": 0.05})
        config = run_config(model, loss, zero_stage=zero, ranks=number, **EVERYTHING)
        group = start(ranks, config)
        metrics = group.train(packs(config, 1, capacity))
        assert metrics["learner/optimizer_steps"] == 4
        group.export(tmp_path / name)
        exports.append(tmp_path / name)
    assert largest_difference(*exports) < 1e-5
    assert largest_difference(exports[0], model) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_beyond_a_bound_is_dropped_on_every_rank(
    ranks: dict[int, list[Any]], model: Path, tmp_path: Path, stage: int
) -> None:
    """Two epochs, of which the second is beyond the bound: the weights of one epoch."""
    bounded = run_config(model, RECOMPUTE, zero_stage=stage, ranks=2, epochs=2)
    bounded = bounded.model_copy(update={"guards": TIGHT["max_ratio"]})
    for name, config in (("one", run_config(model, RECOMPUTE, zero_stage=stage, ranks=2)), ("two", bounded)):
        group = start(ranks, config)
        metrics = group.train(packs(config, 1, SPLIT))
        assert metrics["learner/optimizer_steps"] == 1
        group.export(tmp_path / name)
    assert metrics["learner/skipped_by_guard"] == metrics["learner/skipped_steps"] == 1
    assert largest_difference(tmp_path / "one", tmp_path / "two") < 1e-7
    assert largest_difference(tmp_path / "one", model) > 1e-4
