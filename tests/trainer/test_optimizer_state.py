"""The optimizer lives as long as the run: from phase to phase, and through a checkpoint into other ranks and stages."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from learner_runs import LORA, Run, packs, run_config
from micro_models import save_micro

from trainer.checkpoint_parts import KINDS, Part
from trainer.checkpoint_shards import Shard, Shards, ShardWriter, Stretch, write_shard
from trainer.config import LossConfig, ModelConfig, RunConfig
from trainer.phase import Phase

if TYPE_CHECKING:
    from trainer.engine import LearnerEngine

State = dict[str, torch.Tensor]
"""Full tensors by kind and name, e.g. `exp_avg:model.norm.weight`."""


def engine(config: RunConfig, index: int, port: int) -> "LearnerEngine":
    from trainer.engine import LearnerEngine, Rank

    rank = Rank(index=index, count=config.learner.ranks, address="127.0.0.1", port=port, timeout_s=120)
    return LearnerEngine(config, rank, 4)


def two_phases(index: int, port: int, model: Path) -> tuple[float, float, float]:
    """What the rank's process does: a phase of training, then one in which every advantage is zero."""
    config = run_config(model, LossConfig(kl_coef=0.0))
    learner = engine(config, index, port)
    phase = Phase(learner, config)

    def weights() -> torch.Tensor:
        return torch.cat([full.flatten().clone() for _, full in learner.full_parameters()])

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


def setting(model: Path, dtype: str, **learner: object) -> RunConfig:
    config = run_config(model, LossConfig(kl_coef=0.0), **learner)
    return config.model_copy(update={"model": ModelConfig(path=str(model), dtype=dtype)})


def whole(folder: Path) -> State:
    """What a checkpoint holds, put together."""
    found: State = {}
    with Shards(folder) as shards:
        for name, shape in shards.shapes.items():
            size, nothing = math.prod(shape), torch.empty(0)
            part = Part(name=name, shape=shape, start=0, count=size, owner=nothing, at=0)
            found |= {f"{kind}:{name}": shards.read(kind, part) for kind in KINDS}
            found[f"step:{name}"] = torch.tensor(shards.step(name))
    return found


def begun(index: int, port: int, config: RunConfig, folder: Path) -> dict[str, torch.Tensor]:
    """A phase, a checkpoint, and a second phase; returns the weights after it."""
    learner = engine(config, index, port)
    return go_on(learner, config, index, folder)


def loaded(index: int, port: int, config: RunConfig, source: Path, folder: Path) -> dict[str, torch.Tensor]:
    """From that checkpoint: another one at once, and then a phase."""
    learner = engine(config, index, port)
    facts = learner.load(source)
    assert (facts["updates"], facts["bad_steps"]) == (learner.updates, 2) == (1, 2)
    return go_on(learner, config, index, folder, first=False)


def go_on(
    learner: "LearnerEngine", config: RunConfig, index: int, folder: Path, *, first: bool = True
) -> dict[str, torch.Tensor]:
    phase = Phase(learner, config)
    if first:
        phase.run([batch[index] for batch in packs(config, 1, 128)])
    folder.mkdir(exist_ok=True)
    write_shard(folder, learner.share(bad_steps=2))
    phase.run([batch[index] for batch in packs(config, 2, 128)])
    return {name: full.clone() for name, full in learner.full_parameters()}


def largest(one: State, other: State) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


SHAPES = {1: {"ranks": 1, "zero_stage": 1}, 2: {"ranks": 2, "zero_stage": 3}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "more"), [("float32", {}), ("bfloat16", {}), ("float32", {"lora": LORA})], ids=["full", "half", "lora"]
)
def test_other_ranks_and_stages_go_on(
    one: Run, two: Run, model: Path, tmp_path: Path, dtype: str, more: dict[str, object]
) -> None:
    """1 rank in stage 1 → 2 ranks in stage 3 → 1 rank in stage 2, and from there into stage 0 (or 1 in bfloat16).

    The checkpoint that the second writes at once is the first's, bit for bit, and so on; and each next update is the
    same up to the order in which the ranks' gradients are added up.
    """
    bound = 1e-5 if dtype == "float32" else 1e-2  # weights in bfloat16 near 1 are 0.008 apart
    first = one(begun, setting(model, dtype, **SHAPES[1], **more), tmp_path / "a")[0]
    moved = two(loaded, setting(model, dtype, **SHAPES[2], **more), tmp_path / "a", tmp_path / "b")
    back = one(loaded, setting(model, dtype, zero_stage=2, **more), tmp_path / "b", tmp_path / "c")[0]
    plain = one(loaded, setting(model, dtype, zero_stage=0, **more), tmp_path / "c", tmp_path / "d")[0]
    saved = [whole(tmp_path / name) for name in "abcd"]
    assert float(saved[0]["step:" + next(iter(saved[0])).partition(":")[2]]) == 1.0
    assert max(float(row.abs().max()) for name, row in saved[0].items() if name.startswith("exp_avg:")) > 1e-4
    assert [largest(saved[0], other) for other in saved[1:]] == [0.0, 0.0, 0.0]
    assert [largest(first, other) < bound for other in (*moved, back, plain)] == [True] * 4
    assert largest(moved[0], moved[1]) == 0.0


def another_model(index: int, port: int, model: Path, folder: Path) -> str:
    with pytest.raises(ValueError, match="is of another model") as refusal:
        engine(run_config(model), index, port).load(folder)
    return str(refusal.value)


def row(name: str, numbers: list[float], start: int, shape: list[int], *, index: int = 0, count: int = 1) -> Shard:
    """A share of one weight, whose moments are ten and a hundred times the weight."""
    rows = {f"{kind}:{name}": torch.tensor(numbers) * scale for kind, scale in zip(KINDS, (1, 10, 100), strict=True)}
    stretch = Stretch(name=name, shape=shape, start=start, count=len(numbers), step=3.0)
    file = f"learner-{index:05d}-of-{count:05d}.safetensors"
    return Shard(file=file, facts={"updates": 3, "adapters": {}}, stretches=[stretch], rows=rows)


def test_stretches_are_put_together_by_hand(tmp_path: Path) -> None:
    """A weight of 2 × 3 from two ranks of 4 and 2 numbers, read by three ranks of 2 each."""
    write_shard(tmp_path, row("w", [0.0, 1.0, 2.0, 3.0], 0, [2, 3], index=0, count=2))
    write_shard(tmp_path, row("w", [4.0, 5.0], 4, [2, 3], index=1, count=2))
    with Shards(tmp_path) as shards:
        assert shards.shapes == {"w": (2, 3)}
        for start in (0, 2, 4):
            part = Part(name="w", shape=(2, 3), start=start, count=2, owner=torch.empty(0), at=0)
            assert shards.read("exp_avg", part).tolist() == [10.0 * start, 10.0 * (start + 1)]
        middle = Part(name="w", shape=(2, 3), start=3, count=2, owner=torch.empty(0), at=0)
        assert shards.read("weight", middle).tolist() == [3.0, 4.0]


def test_what_ranks_did_not_write_is_missed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not have the files of all 1 learner ranks"):
        Shards(tmp_path)
    write_shard(tmp_path, row("w", [0.0, 1.0], 0, [4], index=0, count=2))
    with pytest.raises(ValueError, match="does not have the files of all 2 learner ranks"):
        Shards(tmp_path)
    write_shard(tmp_path, row("w", [3.0], 3, [4], index=1, count=2))
    part = Part(name="w", shape=(4,), start=0, count=4, owner=torch.empty(0), at=0)
    with Shards(tmp_path) as shards, pytest.raises(ValueError, match="does not hold all of w"):
        shards.read("weight", part)
    (tmp_path / "learner-00001-of-00002.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match="cannot be read"):
        Shards(tmp_path)


def test_a_rank_says_why_its_share_is_not_written(tmp_path: Path) -> None:
    writer, share = ShardWriter(), row("w", [1.0], 0, [1])
    writer.begin(tmp_path / "missing", share)
    assert writer._thread is not None
    writer._thread.join()
    assert writer.failure == "learner-00000-of-00001.safetensors: No such file or directory"
    writer.begin(tmp_path, share)
    writer._thread.join()
    assert writer.failure is None
    assert (tmp_path / "learner-00000-of-00001.safetensors.receipt").is_file()


@pytest.mark.slow
def test_another_shape_is_refused(one: Run, model: Path, tmp_path: Path) -> None:
    save_micro(tmp_path / "small", layers=1)
    one(begun, setting(model, "float32"), tmp_path / "a")
    said = one(another_model, tmp_path / "small", tmp_path / "a")[0]
    assert said.endswith("model.layers.1.self_attn.q_proj.weight is [64, 64] in it and missing in this run")
