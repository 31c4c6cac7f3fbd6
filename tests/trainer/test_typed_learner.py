"""A typed policy's adapters through Ray and DeepSpeed: stages, ranks, packs, checkpoints, exports, references."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from learner_runs import EVERYTHING, SPLIT, Run, largest_difference, save, start
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typed_runs import FOUR, typed_config, typed_packs

from trainer.config import LossConfig, RunConfig
from trainer.forward import to_tensors
from trainer.learner import LearnerGroup

if TYPE_CHECKING:
    from trainer.engine import LearnerEngine

pytestmark = pytest.mark.slow

VOICES = (0, 3, -1, 2, 0)
"""Voices of the trees: two of the root, one each of the last child, of the backbone, and of the frozen adapter."""
TRAINED = ("intent", "response")


def digests(group: LearnerGroup) -> dict[str, str]:
    return {name: file.digest for name, file in group.adapters({}).items()}


def two_phases(group: LearnerGroup, config: RunConfig, capacity: int, folder: Path) -> list[float]:
    """Two phases, a checkpoint between them, an export after them; returns the gradient norms."""
    first = group.train(typed_packs(config, 1, capacity, VOICES))
    save(group, folder / "checkpoint")
    second = group.train(typed_packs(config, 2, capacity, VOICES))
    group.export(folder / "export")
    return [first["learner/grad_norm"], second["learner/grad_norm"]]


def adapter(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "export" / "adapters" / name / "adapter_model.safetensors")


def apart(one: Path, other: Path, name: str) -> float:
    ours, theirs = adapter(one, name), adapter(other, name)
    assert ours.keys() == theirs.keys()
    return max((ours[key] - theirs[key]).abs().max().item() for key in ours)


@pytest.fixture(scope="module")
def expected(
    ranks: dict[int, list[Any]], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[float]]:
    """One rank, stage 0, one large pack: what every other set-up is compared with."""
    folder = tmp_path_factory.mktemp("one_rank")
    config = typed_config(model, FOUR, zero_stage=0, **EVERYTHING)
    group = start(ranks, config)
    before = digests(group)
    norms = two_phases(group, config, 4096, folder)
    assert {name for name, digest in digests(group).items() if before[name] != digest} == set(TRAINED), (
        "a frozen adapter does not change while others train"
    )
    return folder, norms


def test_an_export_has_the_backbone_once_and_a_folder_per_node(
    expected: tuple[Path, list[float]], ranks: dict[int, list[Any]], model: Path
) -> None:
    """PEFT loads each, and computes what the learner does."""
    export = expected[0] / "export"
    assert largest_difference(export, model) == 0.0
    assert sorted(path.name for path in (export / "adapters").iterdir()) == ["check", "intent", "response"]
    assert not any(factor.any() for name, factor in adapter(expected[0], "check").items() if "lora_B" in name)
    config = typed_config(export, FOUR)
    group = start(ranks, config)
    assert set(group.shares) >= {"decision/backbone_share", "decision/adapter_share", "decision/memory_saved"}
    ids = [5, 9, 14, 3, 8, 21]
    for name in (*TRAINED, None):
        lm = AutoModelForCausalLM.from_pretrained(export)
        lm = lm if name is None else PeftModel.from_pretrained(lm, export / "adapters" / name)
        logprobs = lm(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        theirs = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[-4:, 0].tolist()
        assert group.logprobs([(ids, 4)], name)[0] == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_neither_packs_nor_ranks_nor_stages_change_the_adapters_of_nodes(
    expected: tuple[Path, list[float]],
    ranks: dict[int, list[Any]],
    model: Path,
    tmp_path: Path,
    stage: int,
    count: int,
) -> None:
    """And a run that goes on from a checkpoint makes them bit for bit the same."""
    settings = {"ranks": count, "zero_stage": stage, "gradient_checkpointing": stage == 3}
    config = typed_config(model, FOUR, **settings, **EVERYTHING)
    group = start(ranks, config)
    norms = two_phases(group, config, SPLIT, tmp_path)
    folder, expected_norms = expected
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert max(apart(folder, tmp_path, name) for name in (*TRAINED, "check")) < 1e-5
    straight = digests(group)
    group.load(tmp_path / "checkpoint")
    assert digests(group) != straight
    group.train(typed_packs(config, 2, SPLIT, VOICES))
    assert digests(group) == straight


def test_over_a_trained_backbone_both_move_whatever_the_stage(
    ranks: dict[int, list[Any]], model: Path, tmp_path: Path
) -> None:
    for count, stage, capacity in ((1, 0, 4096), (2, 3, SPLIT)):
        config = typed_config(model, FOUR, backbone="trained", ranks=count, zero_stage=stage, **EVERYTHING)
        group = start(ranks, config)
        two_phases(group, config, capacity, tmp_path / str(stage))
        straight = digests(group)
        group.load(tmp_path / str(stage) / "checkpoint")
        group.train(typed_packs(config, 2, capacity, VOICES))
        assert digests(group) == straight
    one, other = tmp_path / "0", tmp_path / "3"
    assert largest_difference(one / "export", model) > 1e-4
    assert largest_difference(one / "export", other / "export") < 1e-5
    assert max(apart(one, other, name) for name in TRAINED) < 1e-5


def engine(config: RunConfig, index: int, port: int) -> "LearnerEngine":
    from trainer.engine import LearnerEngine, Rank

    rank = Rank(index=index, count=config.learner.ranks, address="127.0.0.1", port=port, timeout_s=120)
    return LearnerEngine(config, rank, 4)


def references(index: int, port: int, model: Path, folder: Path, backbone: str) -> dict[str, Any]:
    from trainer.checkpoint_shards import write_shard
    from trainer.phase import Phase

    config = typed_config(model, FOUR, LossConfig(kl_coef=0.05), backbone=backbone, zero_stage=1)
    learner = engine(config, index, port)
    batches = typed_packs(config, 1, 4096, VOICES)
    batch = to_tensors(batches[0][0][0], learner.device)
    start = learner.reference(batch, 1)
    unchanged = learner.score(batch)[0].detach()
    Phase(learner, config).run([members[0] for members in batches])
    write_shard(folder, learner.share())
    refusals = []
    for adapters, mode in (
        (FOUR | {"intent": {"rank": 4, "alpha": 6.0}}, backbone),
        ({name: spec for name, spec in FOUR.items() if name != "check"}, backbone),
        (FOUR, "trained" if backbone == "frozen" else "frozen"),
    ):
        with pytest.raises(ValueError, match="but this run has") as refusal:
            engine(typed_config(model, adapters, backbone=mode, zero_stage=1), index, port).load(folder)
        refusals.append(str(refusal.value))
    return {
        "start is the backbone": torch.equal(start, unchanged),
        "reference moved": float((learner.reference(batch, 1) - start).abs().max()),
        "policy moved": float((learner.score(batch)[0].detach() - start).abs().max()),
        "copy": learner._reference is not None,
        "trained": {name for name, p in learner._engine.module.lm.named_parameters() if p.requires_grad},
        "refusals": refusals,
        "sent": [name for name, _, _ in learner.parameter_info()],
    }


def late_copy(index: int, port: int, model: Path) -> dict[str, Any]:
    """A run without a KL term whose weights have moved when a live change asks for one."""
    from trainer.phase import Phase

    config = typed_config(model, FOUR, LossConfig(kl_coef=0.0), backbone="trained", zero_stage=3, ranks=2)
    learner = engine(config, index, port)
    batches = typed_packs(config, 1, 4096, VOICES)
    batch = to_tensors(batches[0][0][0], learner.device)
    start = learner.score(batch)[0].detach()
    Phase(learner, config).run([members[index] for members in batches])
    before, late = learner._reference, learner.reference(batch, 1)
    node, *others = config.decision.nodes
    own = node.model_copy(update={"coefficients": node.coefficients.model_copy(update={"kl_coef": 0.1})})
    decision = config.decision.model_copy(update={"nodes": (own, *others)})
    with_own = engine(config.model_copy(update={"decision": decision}), index, port)
    return {
        "before": before,
        "late is the start": float((late - start).abs().max()),
        "kept": learner._reference is not None,
        "policy moved": float((learner.score(batch)[0].detach() - start).abs().max()),
        "with a node's own": with_own._reference is not None,
    }


def test_a_copy_of_the_start_is_made_when_a_divergence_is_first_measured(two: Run, model: Path) -> None:
    for found in two(late_copy, model):
        assert found["before"] is None, "no term, no copy"
        assert found["late is the start"] < 1e-5
        assert found["kept"]
        assert found["policy moved"] > 1e-3
        assert found["with a node's own"]


@pytest.mark.parametrize("backbone", ["frozen", "trained"])
def test_the_reference_is_the_backbone_of_the_start(one: Run, model: Path, tmp_path: Path, backbone: str) -> None:
    found = one(references, model, tmp_path, backbone)[0]
    assert found["start is the backbone"]
    assert found["reference moved"] == 0.0
    assert found["policy moved"] > 1e-3
    assert found["copy"] == (backbone == "trained"), "over a frozen backbone the adapters are switched off instead"
    assert any(".lora_" not in name for name in found["trained"]) == (backbone == "trained")
    assert not any("node_check" in name for name in found["trained"])
    assert found["sent"] == [*AutoModelForCausalLM.from_pretrained(model).state_dict()]
    rank, missing, mode = found["refusals"]
    assert "decision.nodes.intent.adapter={rank: 2, alpha: 6, head: false}" in rank
    assert "but this run has" in rank
    assert "decision.nodes.intent.adapter={rank: 4" in rank
    assert missing.count("decision.nodes.check.adapter={rank: 2, alpha: 16, head: false, frozen: ") == 1
    assert f"decision.backbone={backbone}" in mode
