"""The engine without Ray, in processes of its own: settings, bfloat16, adapters, the reference model, checkpoints."""

import gc
import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from learner_runs import LORA, Run, packs, run_config
from micro_models import micro_gemma2, save_micro
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from trainer.checkpoint_shards import write_shard
from trainer.config import LossConfig, ModelConfig, RunConfig
from trainer.deepspeed_settings import inference_settings, training_settings
from trainer.forward import PackedPolicy, PackTensors, to_tensors

if TYPE_CHECKING:
    from trainer.engine import LearnerEngine

ON_POLICY = LossConfig(kl_coef=0.0)


def half(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"model": ModelConfig(path=config.model.path, dtype="bfloat16")})


def test_settings(tmp_path: Path) -> None:
    config = run_config(tmp_path, ranks=2, zero_stage=3)
    settings = training_settings(config, 1000, 400)
    assert settings["train_batch_size"] == 2
    assert settings["gradient_accumulation_steps"] == 1
    assert settings["zero_optimization"]["reduce_bucket_size"] == 400
    assert settings["zero_optimization"]["stage3_prefetch_bucket_size"] == 1000
    assert not settings["bf16"]["enabled"]
    assert "data_types" not in settings
    assert "optimizer" not in inference_settings(config, 1000)
    assert training_settings(half(config), 1000, 400)["data_types"] == {"grad_accum_dtype": "fp32"}


def test_bfloat16_is_never_added_up_in_bfloat16(tmp_path: Path) -> None:
    settings = training_settings(half(run_config(tmp_path, zero_stage=0)), 1000, 1000)
    assert settings["zero_optimization"]["stage"] == 1
    assert settings["data_types"] == {"grad_accum_dtype": "fp32"}
    assert training_settings(run_config(tmp_path, zero_stage=0), 1000, 1000)["zero_optimization"]["stage"] == 0


def engine(config: RunConfig, index: int, port: int, logits_at_once: int = 1 << 26) -> "LearnerEngine":
    from trainer.engine import LearnerEngine, Rank

    rank = Rank(index=index, count=config.learner.ranks, address="127.0.0.1", port=port, timeout_s=120)
    return LearnerEngine(config, rank, 4, logits_at_once)


def train(learner: "LearnerEngine", config: RunConfig, index: int = 0, capacity: int = 128) -> dict[str, float]:
    from trainer.phase import Phase

    return Phase(learner, config).run([batch[index] for batch in packs(config, 1, capacity)])


def started(index: int, port: int, model: Path, layout: str) -> bool:
    return engine(run_config(model, ON_POLICY, layout=layout), index, port).updates == 0


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "shown"), [("auto", "level"), ("packed", "packed"), ("flat", "flat")])
def test_a_model_that_its_layout_cannot_compute_ends_the_start(
    one: Run, model: Path, tmp_path: Path, layout: str, shown: str
) -> None:
    torch.manual_seed(0)
    micro_gemma2(final_logit_softcapping=1.0, attn_logit_softcapping=None).save_pretrained(tmp_path)
    sentence = rf"^model\.path={tmp_path} cannot be trained with learner\.layout={shown}: on a small tree .* differ"
    with pytest.raises(ValueError, match=sentence):
        one(started, tmp_path, layout)
    assert one(started, model, layout) == [True]


def smallest_product(index: int, port: int, model: Path) -> float:
    engine(run_config(model, ON_POLICY), index, port)
    return float((torch.full((64,), 1e-30) * 1e-10).max())


@pytest.mark.slow
def test_numbers_below_the_normal_range_are_zero_in_the_learner(one: Run, model: Path) -> None:
    assert one(smallest_product, model) == [0.0]


def one_phase(index: int, port: int, model: Path, logits_at_once: int) -> tuple[Any, ...]:
    config = run_config(model, zero_stage=3, ranks=2)
    learner = engine(config, index, port, logits_at_once)
    norm = train(learner, config, index)["learner/grad_norm"]
    shapes = [(name, shape) for name, _, shape in learner.parameter_info()]
    return norm, shapes, [(name, list(full.shape), float(full.norm())) for name, full in learner.full_parameters()]


@pytest.mark.slow
def test_logits_in_parts_under_stage_3(two: Run, model: Path) -> None:
    norm, shapes, parameters = two(one_phase, model, 1 << 26)[0]
    norm_in_parts, _, parameters_in_parts = two(one_phase, model, 64 * 5)[0]
    assert norm_in_parts == pytest.approx(norm, rel=1e-5)
    assert [(name, shape) for name, shape, _ in parameters] == shapes
    assert shapes[0] == ("model.embed_tokens.weight", [64, 64])
    assert shapes[-1] == ("lm_head.weight", [64, 64])
    assert [p[2] for p in parameters_in_parts] == pytest.approx([p[2] for p in parameters], rel=1e-5)


def reduced(index: int, port: int, model: Path) -> list[list[float]]:
    """The largest and the sum of four numbers over two ranks, the first two of which are NaN on one of them."""
    learner = engine(run_config(model, ON_POLICY, ranks=2), index, port)
    values = [[math.nan, 1.0, -5.0, math.inf], [1.0, math.nan, -4.0, 2.0]][index]
    return [learner.reduce(values, "max"), learner.reduce(values, "sum")]


@pytest.mark.slow
def test_a_reduction_keeps_nan_of_any_rank(two: Run, model: Path) -> None:
    for largest, total in two(reduced, model):
        assert largest == pytest.approx([math.nan, math.nan, -4.0, math.inf], nan_ok=True)
        assert total == pytest.approx([math.nan, math.nan, -9.0, math.inf], nan_ok=True)


def reference_share(index: int, port: int, model: Path, stage: int) -> tuple[float, float]:
    """(values of the reference model that this rank holds for itself, log-probability under it after a phase)."""
    config = run_config(model, zero_stage=stage, ranks=2)
    learner = engine(config, index, port)
    train(learner, config, index)
    batch = to_tensors(packs(config, 3, 4096)[0][0][0], learner.device)
    reference = learner._reference
    held = sum(p.ds_tensor.numel() if hasattr(p, "ds_id") else p.numel() for p in reference.parameters())
    return held / learner.parameters, float(learner.reference(batch, 1).sum())


@pytest.mark.slow
def test_the_reference_is_split_over_ranks_where_anything_is(two: Run, model: Path) -> None:
    shares = {stage: two(reference_share, model, stage) for stage in (0, 1, 2)}
    assert [share for share, _ in shares[0]] == [1.0, 1.0]
    assert [share for share, _ in shares[1] + shares[2]] == pytest.approx([0.5] * 4, abs=0.01)
    logprobs = [logprob for answers in shares.values() for _, logprob in answers]
    assert logprobs == pytest.approx([logprobs[0]] * 6, rel=1e-5)


def models_made(index: int, port: int, model: Path, learner: dict[str, object], loss: LossConfig) -> int:
    """How many more models the process holds with the engine than without it."""

    def count() -> int:
        gc.collect()
        return sum(isinstance(thing, PackedPolicy) for thing in gc.get_objects())

    before = count()
    made = engine(run_config(model, loss, **learner), index, port)
    return count() - before if made else 0


@pytest.mark.slow
def test_only_a_divergence_term_over_full_weights_needs_a_second_model(one: Run, model: Path) -> None:
    assert one(models_made, model, {}, LossConfig(kl_coef=0.0)) == [1]
    assert one(models_made, model, {}, LossConfig(kl_coef=0.1)) == [2]
    assert one(models_made, model, {"lora": LORA}, LossConfig(kl_coef=0.1)) == [1]


def frozen_hash(learner: "LearnerEngine") -> str:
    digest = hashlib.sha256()
    for name, parameter in learner._engine.module.named_parameters():
        if not parameter.requires_grad:
            digest.update(name.encode() + parameter.detach().float().numpy().tobytes())
    return digest.hexdigest()


def adapters(index: int, port: int, model: Path, dtype: str) -> dict[str, Any]:
    config = run_config(model, lora=LORA)
    config = half(config) if dtype == "bfloat16" else config
    learner = engine(config, index, port)
    batch = to_tensors(packs(config, 1, 4096)[0][0][0], learner.device)
    before, start = frozen_hash(learner), learner.reference(batch, 1)
    unchanged = learner.score(batch)[0].detach()
    metrics = train(learner, config)
    trained = [name for name, p in learner._engine.module.named_parameters() if p.requires_grad]
    return {
        "base is the start": torch.equal(start, unchanged),
        "frozen": before == frozen_hash(learner),
        "reference moved": float((learner.reference(batch, 1) - start).abs().max()),
        "policy moved": float((learner.score(batch)[0].detach() - start).abs().max()),
        "only adapters": all(".lora_A." in name or ".lora_B." in name for name in trained),
        "states": len(learner._engine.optimizer.param_groups[0]["params"]),
        "trained": (len(trained), learner.trained_parameters),
        "bytes": {name: dtype for name, dtype, _ in learner.parameter_info()},
        "norm": metrics["learner/grad_norm"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_alone_are_trained_and_the_reference_is_the_base(one: Run, model: Path, dtype: str) -> None:
    found = one(adapters, model, dtype)[0]
    assert found["base is the start"]
    assert found["frozen"]
    assert found["reference moved"] == 0.0
    assert found["policy moved"] > 1e-3
    assert found["only adapters"]
    # Per block: q, o 64 to 64; k, v 64 to 32; gate, up 64 to 128; down 128 to 64; A and B of rank 4 each.
    assert found["trained"] == (2 * 7 * 2, 2 * 4 * (2 * 128 + 2 * 96 + 3 * 192))
    assert list(found["bytes"]) == [*AutoModelForCausalLM.from_pretrained(model).state_dict()]
    assert set(found["bytes"].values()) == {dtype}
    assert found["norm"] > 0


def save_and_refuse(index: int, port: int, model: Path, other: Path, folder: Path) -> tuple[list[str], set[str]]:
    """Saves with adapters; returns why other set-ups refuse the checkpoint, and the names of its tensors."""
    write_shard(folder, engine(run_config(model, zero_stage=1, lora=LORA), index, port).share())
    refusals = []
    for path, settings in (
        (model, {"zero_stage": 1, "lora": {"rank": 8, "alpha": 8.0}}),
        (model, {"zero_stage": 1, "lora": LORA | {"targets": ["q_proj"]}}),
        (model, {"zero_stage": 1}),
        (other, {"zero_stage": 1, "lora": LORA}),
    ):
        with pytest.raises(ValueError, match="but this run has") as refusal:
            engine(run_config(path, **settings), index, port).load(folder)
        refusals.append(str(refusal.value))
    return refusals, set(load_file(folder / "learner-00000-of-00001.safetensors"))


@pytest.mark.slow
def test_a_checkpoint_has_the_adapters_only_and_fits_no_other(one: Run, model: Path, tmp_path: Path) -> None:
    save_micro(tmp_path / "other", seed=1)
    refusals, names = one(save_and_refuse, model, tmp_path / "other", tmp_path)[0]
    assert len(names) == 3 * 2 * 7 * 2  # weight and two moments of A and B in seven layers of two blocks
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert "learner.lora.rank=4 learner.lora.alpha=8.0 learner.lora.targets=[all-linear] the base model=" in refusals[0]
    assert "but this run has learner.lora.rank=8" in refusals[0]
    assert "learner.lora.targets=[q_proj]" in refusals[1]
    assert refusals[2].endswith("but this run has learner.lora.rank=0")
    saved, here = refusals[3].split(", but this run has ")
    assert saved.split("the base model=")[1] != here.split("the base model=")[1]


def full_gradients(learner: "LearnerEngine") -> torch.Tensor:
    from deepspeed.utils import safe_get_full_grad

    return torch.cat([safe_get_full_grad(p).float().flatten() for p in learner._engine.module.parameters()])


def linear_loss(learner: "LearnerEngine", batch: PackTensors) -> torch.Tensor:
    """Raises the last tokens' log-probabilities and lowers the first ones': its gradient does not jump anywhere."""
    logprobs_R, _ = learner.score(batch)
    return -(torch.linspace(-1, 1, len(logprobs_R)) * logprobs_R).sum()


def gradients(index: int, port: int, model: Path, stage: int, checkpointing: bool) -> dict[str, Any]:
    """One step in bfloat16, beside the float32 gradient of the same packs."""
    from deepspeed.utils import safe_get_full_fp32_param

    plain = run_config(model, ON_POLICY, zero_stage=0)
    config = half(run_config(model, ON_POLICY, zero_stage=stage, gradient_checkpointing=checkpointing))
    found = []
    for settings in (plain, config):
        learner = engine(settings, index, port)
        batch = to_tensors(packs(plain, 1, 4096)[0][0][0], learner.device)
        learner.backward(linear_loss(learner, batch), last=True)
        found.append(full_gradients(learner))
    parameters = list(learner._engine.module.parameters())
    before = {name: tensor.clone() for name, tensor in learner.full_parameters()}
    masters = [safe_get_full_fp32_param(p).clone() for p in parameters]
    result = learner.step()
    return {
        "applied": result.applied,
        "moved": sum(not torch.equal(before[name], tensor) for name, tensor in learner.full_parameters()),
        "masters moved": sum(
            not torch.equal(old, safe_get_full_fp32_param(p)) for old, p in zip(masters, parameters, strict=True)
        ),
        "masters": {master.dtype for master in masters},
        "weights": {tensor.dtype for tensor in before.values()},
        "cosine": float(torch.cosine_similarity(found[0], found[1], dim=0)),
        "length": float(found[1].norm() / found[0].norm()),
        "loss": train(learner, config)["learner/loss"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "checkpointing"), [(0, False), (1, True), (2, False), (3, True)])
def test_bfloat16_follows_the_float32_gradient(one: Run, model: Path, stage: int, checkpointing: bool) -> None:
    found = one(gradients, model, stage, checkpointing)[0]
    assert math.isfinite(found["loss"])
    assert found["applied"]
    assert found["masters moved"] == 26
    assert found["moved"] == 22  # one step is less than bfloat16 tells apart near 1, where the five norms start
    assert found["masters"] == {torch.float32}
    assert found["weights"] == {torch.bfloat16}
    assert found["cosine"] > 0.99
    assert found["length"] == pytest.approx(1.0, abs=0.05)


def added_up(index: int, port: int, model: Path, stage: int, factors: list[float]) -> float:
    """Gradient norm of a step over one pack that comes once per factor, each time with its loss times the factor."""
    config = half(run_config(model, ON_POLICY, zero_stage=stage))
    learner = engine(config, index, port)
    batch = to_tensors(packs(config, 1, 64)[0][0][0], learner.device)
    for turn, factor in enumerate(factors, 1):
        learner.backward(factor * linear_loss(learner, batch), last=turn == len(factors))
    return float(full_gradients(learner).norm())


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_many_small_gradients_do_not_vanish_in_bfloat16(one: Run, model: Path, stage: int) -> None:
    once = one(added_up, model, stage, [1.0])[0]
    often = one(added_up, model, stage, [256.0] + [1.0] * 64)[0]
    assert often == pytest.approx(320 * once, rel=1e-4)  # in bfloat16 256 + 1 is 256, 64 times over


def dropped(index: int, port: int, model: Path, stage: int) -> tuple[float, float]:
    """How far the weights move in a bfloat16 step with a gradient of NaN, and in a good one after it."""
    config = half(run_config(model, ON_POLICY, zero_stage=stage))
    learner = engine(config, index, port)

    def moved() -> float:
        return max(float((tensor - start[name]).abs().max()) for name, tensor in learner.full_parameters())

    start = {name: tensor.clone() for name, tensor in learner.full_parameters()}
    batch = to_tensors(packs(config, 1, 4096)[0][0][0], learner.device)
    learner.backward(math.nan * linear_loss(learner, batch), last=True)
    assert not learner.step().applied
    still = moved()
    train(learner, config)
    return still, moved()


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_drops_a_gradient_that_is_not_finite(one: Run, model: Path, stage: int) -> None:
    still, moved = one(dropped, model, stage)[0]
    assert still == 0
    assert moved > 1e-4


def resumed(index: int, port: int, model: Path, folder: Path, stage: int, settings: dict[str, object]) -> list[float]:
    """Trains in bfloat16, saves, trains on, and does the second half once more in a new engine that loads."""
    config = half(run_config(model, zero_stage=stage, **settings))
    learner = engine(config, index, port)
    train(learner, config)
    write_shard(folder, learner.share())
    train(learner, config)
    straight = {name: tensor.clone() for name, tensor in learner.full_parameters()}
    again = engine(config, index, port)
    again.load(folder)
    train(again, config)
    return [float((tensor - straight[name]).abs().max()) for name, tensor in again.full_parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"lora": LORA}])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_resumes_exactly(
    one: Run, model: Path, tmp_path: Path, stage: int, settings: dict[str, object]
) -> None:
    assert one(resumed, model, tmp_path, stage, settings)[0] == [0.0] * 27
