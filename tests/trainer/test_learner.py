"""The learner through Ray and DeepSpeed on a micro model: splits, stages and ranks must not change the update."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from learner_runs import EVERYTHING, LORA, SPLIT, largest_difference, packs, run_config, save, start, weights
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from trainer.config import LearnerConfig, LossConfig, RunConfig
from trainer.learner import LearnerGroup
from trainer.packing import pack_forest
from trainer.schedule import learning_rate


def two_phases(group: LearnerGroup, config: RunConfig, capacity: int, folder: Path) -> list[float]:
    """Two phases, a checkpoint between them, an export after them; returns the gradient norms."""
    first = group.train(packs(config, 1, capacity))
    save(group, folder / "checkpoint")
    second = group.train(packs(config, 2, capacity))
    group.export(folder / "export")
    return [first["learner/grad_norm"], second["learner/grad_norm"]]


def check_resuming(group: LearnerGroup, config: RunConfig, capacity: int, folder: Path) -> None:
    """The second phase from the checkpoint gives the export once more."""
    group.load(folder / "checkpoint")
    group.train(packs(config, 2, capacity))
    group.export(folder / "again")
    assert largest_difference(folder / "export", folder / "again") < 1e-7


@pytest.fixture(scope="module")
def expected(
    ranks: dict[int, list[Any]], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[float]]:
    """One rank, stage 0, one large pack: what every other set-up is compared with."""
    folder = tmp_path_factory.mktemp("one_rank")
    config = run_config(model, zero_stage=0, **EVERYTHING)
    return folder, two_phases(start(ranks, config), config, 4096, folder)


@pytest.mark.slow
def test_training_moves_the_weights_and_the_export_loads(expected: tuple[Path, list[float]], model: Path) -> None:
    folder, norms = expected
    assert min(norms) > EVERYTHING["grad_clip"]
    assert largest_difference(folder / "export", model) > 1e-4
    assert (folder / "export" / "model.safetensors").is_file()
    assert (folder / "export" / "tokenizer.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "count", "layout"),
    [
        *((stage, count, "level") for stage in (0, 1, 2, 3) for count in (1, 2)),
        *((stage, 2, layout) for stage in (1, 3) for layout in ("packed", "flat")),
    ],
)
def test_neither_packs_nor_ranks_nor_stages_nor_layouts_change_the_update(
    expected: tuple[Path, list[float]],
    ranks: dict[int, list[Any]],
    model: Path,
    tmp_path: Path,
    stage: int,
    count: int,
    layout: str,
) -> None:
    split = {"ranks": count, "zero_stage": stage, "layout": layout}
    config = run_config(model, **split, gradient_checkpointing=stage == 3, **EVERYTHING)
    group = start(ranks, config)
    norms = two_phases(group, config, SPLIT, tmp_path)
    folder, expected_norms = expected
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert largest_difference(folder / "export", tmp_path / "export") < 1e-5
    check_resuming(group, config, SPLIT, tmp_path)


@pytest.fixture(scope="module")
def expected_adapters(ranks: dict[int, list[Any]], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with adapters in place of full weights."""
    folder = tmp_path_factory.mktemp("adapters")
    config = run_config(model, zero_stage=0, lora=LORA, **EVERYTHING)
    two_phases(start(ranks, config), config, 4096, folder)
    return folder


@pytest.mark.slow
def test_an_export_holds_the_merged_weights_and_the_adapter(expected_adapters: Path, model: Path) -> None:
    export = expected_adapters / "export"
    base, merged, adapter = weights(model), weights(export), load_file(export / "adapter" / "adapter_model.safetensors")
    adapted = {name.removesuffix("lora_A.weight") for name in adapter if name.endswith("lora_A.weight")}
    assert len(adapted) == 14  # seven linear layers in each of two blocks
    for prefix in adapted:
        name = prefix.removeprefix("base_model.model.") + "weight"
        delta = adapter[f"{prefix}lora_B.weight"] @ adapter[f"{prefix}lora_A.weight"] * (8.0 / 4)
        assert delta.abs().max() > 1e-4
        torch.testing.assert_close(merged.pop(name), base.pop(name) + delta, rtol=0, atol=1e-6)
    assert all(torch.equal(merged[name], base[name]) for name in base)
    ids = torch.tensor([[1, 2, 3, 4]])
    with_adapter = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), export / "adapter")
    as_one = AutoModelForCausalLM.from_pretrained(export)
    torch.testing.assert_close(with_adapter(input_ids=ids).logits, as_one(input_ids=ids).logits, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_neither_packs_nor_ranks_nor_stages_change_the_adapters(
    expected_adapters: Path, ranks: dict[int, list[Any]], model: Path, tmp_path: Path, stage: int
) -> None:
    checkpointing = {"gradient_checkpointing": stage != 1}
    config = run_config(model, ranks=2, zero_stage=stage, lora=LORA, **checkpointing, **EVERYTHING)
    group = start(ranks, config)
    two_phases(group, config, SPLIT, tmp_path)
    ours, theirs = (
        load_file(folder / "export" / "adapter" / "adapter_model.safetensors")
        for folder in (tmp_path, expected_adapters)
    )
    assert ours.keys() == theirs.keys()
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) < 1e-5
    assert largest_difference(expected_adapters / "export", tmp_path / "export") < 1e-5
    check_resuming(group, config, SPLIT, tmp_path)


@pytest.mark.slow
def test_logprobs_are_the_models_own(ranks: dict[int, list[Any]], model: Path) -> None:
    group = start(ranks, run_config(model, zero_stage=3, ranks=2))
    found = group.logprobs([([1, 2, 3, 4], 2), ([5, 6], 1)])
    lm = AutoModelForCausalLM.from_pretrained(model)
    table = lm(input_ids=torch.tensor([[1, 2, 3, 4]])).logits[0].log_softmax(-1)
    assert found[0] == pytest.approx([table[1, 3].item(), table[2, 4].item()], abs=1e-5)
    assert len(found[1]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "count"), [(0, 1), (0, 2), (1, 2), (2, 2), (3, 1), (3, 2)])
def test_a_step_with_an_infinite_gradient_on_one_rank_is_dropped_on_all(
    ranks: dict[int, list[Any]], model: Path, tmp_path: Path, stage: int, count: int
) -> None:
    config = run_config(model, LossConfig(kl_coef=0.0), zero_stage=stage, ranks=count)
    group = start(ranks, config)
    bad = packs(config, 1, 128)
    bad[0][count - 1][0].positive[:] = float("nan")
    metrics = group.train(bad)
    assert metrics["learner/skipped_steps"] == 1
    group.export(tmp_path / "same")
    assert largest_difference(tmp_path / "same", model) == 0
    assert group.train(packs(config, 1, 128))["learner/skipped_steps"] == 0
    group.export(tmp_path / "moved")
    assert largest_difference(tmp_path / "moved", model) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "count"), [(0, 1), (2, 2), (3, 2)])
def test_a_phase_without_packs_changes_nothing(
    ranks: dict[int, list[Any]], model: Path, tmp_path: Path, stage: int, count: int
) -> None:
    """What a step does whose groups are all dropped: no update on any rank, and the next phase trains as ever."""
    config = run_config(model, LossConfig(kl_coef=0.05, old_logprobs="recompute"), zero_stage=stage, ranks=count)
    group = start(ranks, config)
    metrics = group.train(pack_forest([], [], config.loss, config.learner, 64).mini_batches)
    assert metrics["learner/optimizer_steps"] == metrics["learner/skipped_steps"] == metrics["learner/lr"] == 0
    assert all(value == value for value in metrics.values())
    group.export(tmp_path / "same")
    assert largest_difference(tmp_path / "same", model) == 0
    assert group.train(packs(config, 1, 128))["learner/optimizer_steps"] == 1
    group.export(tmp_path / "moved")
    assert largest_difference(tmp_path / "moved", model) > 1e-5


@pytest.mark.slow
def test_a_share_that_cannot_be_written_is_told_and_the_learner_lives(
    ranks: dict[int, list[Any]], model: Path, tmp_path: Path
) -> None:
    config = run_config(model, LossConfig(kl_coef=0.0))
    group = start(ranks, config)
    group.begin_save(tmp_path / "missing")
    with pytest.raises(RuntimeError, match=r"learner-00000-of-00001\.safetensors: No such file or directory"):
        group.wait_saved(tmp_path / "missing", 60.0)
    group.train(packs(config, 1, 4096))
    save(group, tmp_path / "there")


@pytest.mark.slow
def test_too_many_dropped_steps_stop_the_run(cluster: None, model: Path) -> None:
    config = run_config(model, LossConfig(kl_coef=0.0), max_bad_steps=2)
    group = LearnerGroup.start(config, 4)
    bad = packs(config, 1, 4096)
    bad[0][0][0].positive[:] = float("nan")
    group.train(bad)
    with pytest.raises(RuntimeError, match=r"2 optimizer steps in a row .* \(learner\.max_bad_steps=2\)"):
        group.train(bad)


@pytest.mark.slow
def test_a_dead_rank_ends_the_wait(ranks: dict[int, list[Any]], model: Path) -> None:
    """Keep this test the last one that uses the two shared ranks."""
    config = run_config(model, ranks=2)
    group = start(ranks, config)
    ray.kill(group._ranks[1])
    with pytest.raises(RuntimeError, match=r"learner rank \d.* died while the learner waited for the learning phase: "):
        group.train(packs(config, 1, SPLIT))


def partner(dies: bool) -> Any:
    """Stands in for a rank: its connection breaks, or its process ends a second after that of the other one broke."""

    class Partner:  # in here, so that it travels by value
        def train(self, *arguments: object) -> None:
            if dies:
                time.sleep(1.0)
                os._exit(1)
            raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711")

    return ray.remote(Partner).remote()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "sentence"),
    [(True, r"learner rank 1 died while .* phase: its process ended"), (False, "Connection closed by peer")],
)
def test_a_rank_that_died_is_named_and_not_the_connection_that_broke(
    cluster: None, model: Path, dies: bool, sentence: str
) -> None:
    config = run_config(model, ranks=2)
    group = LearnerGroup(config, [partner(False), partner(dies)])
    with pytest.raises(RuntimeError, match=sentence):
        group.train(packs(config, 1, SPLIT))


def test_schedule() -> None:
    learner = LearnerConfig(lr=1.0, warmup_share=0.4, schedule="linear")
    found = [learning_rate(step, 10, learner) for step in range(10)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    constant = LearnerConfig(lr=1.0, warmup_share=0.0)
    assert [learning_rate(step, 3, constant) for step in range(3)] == [1.0, 1.0, 1.0]
    cosine = LearnerConfig(lr=1.0, warmup_share=0.0, schedule="cosine")
    assert learning_rate(1, 2, cosine) == pytest.approx(0.5)
