"""The learner through Ray and DeepSpeed on a micro model: splits, stages and ranks must not change the update."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch
from micro_models import save_micro
from pydantic import TypeAdapter
from random_forests import random_forest
from transformers import AutoModelForCausalLM

from envs.settings import EnvSettings
from trainer.advantages import advantages
from trainer.config import LearnerConfig, LossConfig, ModelConfig, RunConfig
from trainer.learner import LearnerGroup
from trainer.packing import pack_forest
from trainer.schedule import learning_rate
from trainer.types import RankPacks


def run_config(model: Path, loss: LossConfig | None = None, **learner: object) -> RunConfig:
    settings: dict[str, object] = {
        "lr": 1e-3,
        "warmup_share": 0.0,
        "eps": 1e-4,
        "grad_clip": 1e6,
        "start_timeout_s": 300.0,
    }
    env = {
        "name": "search",
        "train_tasks": "train.jsonl",
        "eval_tasks": "eval.jsonl",
        "retriever": {"kind": "local", "corpus": "corpus.jsonl"},
    }
    return RunConfig(
        name="test",
        steps=4,
        model=ModelConfig(path=str(model)),
        env=TypeAdapter(EnvSettings).validate_python(env),
        loss=loss or LossConfig(kl_coef=0.05),
        learner=LearnerConfig.model_validate(settings | learner),
    )


def packs(config: RunConfig, seed: int, capacity: int) -> list[RankPacks]:
    forest = random_forest(seed)
    learner = config.learner.model_copy(update={"max_tokens_per_pack": capacity})
    return pack_forest(forest, [advantages(group) for group in forest], config.loss, learner).mini_batches


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def largest_difference(one: Path, other: Path) -> float:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    here = str(Path(__file__).parents[2])
    ray.init(address="local", num_cpus=8, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": here}})
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    save_micro(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return folder


def two_phases(config: RunConfig, capacity: int, folder: Path) -> tuple[LearnerGroup, list[float]]:
    """Two phases, a checkpoint between them, an export after them; returns the gradient norms too."""
    group = LearnerGroup.start(config, 4)
    first = group.train(packs(config, 1, capacity))
    group.save(folder / "checkpoint")
    second = group.train(packs(config, 2, capacity))
    group.export(folder / "export")
    return group, [first["learner/grad_norm"], second["learner/grad_norm"]]


@pytest.fixture(scope="module")
def expected(cluster: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """One rank, stage 0, one large pack: what every other set-up is compared with."""
    folder = tmp_path_factory.mktemp("one_rank")
    group, norms = two_phases(run_config(model, zero_stage=0), 4096, folder)
    group.shutdown()
    return folder, norms


@pytest.mark.slow
def test_training_moves_the_weights_and_the_export_loads(expected: tuple[Path, list[float]], model: Path) -> None:
    folder, _ = expected
    assert largest_difference(folder / "export", model) > 1e-4
    assert (folder / "export" / "model.safetensors").is_file()
    assert (folder / "export" / "tokenizer.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "capacity"),
    [
        ({"zero_stage": 0}, 64),
        ({"zero_stage": 1}, 128),
        ({"zero_stage": 2, "ranks": 2}, 64),
        ({"zero_stage": 3, "ranks": 2, "gradient_checkpointing": True}, 64),
    ],
)
def test_neither_packs_nor_ranks_nor_stages_change_the_update(
    expected: tuple[Path, list[float]], model: Path, tmp_path: Path, learner: dict[str, object], capacity: int
) -> None:
    group, norms = two_phases(run_config(model, **learner), capacity, tmp_path)
    folder, expected_norms = expected
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert largest_difference(folder / "export", tmp_path / "export") < 1e-5
    group.load(tmp_path / "checkpoint")
    group.train(packs(run_config(model, **learner), 2, capacity))
    group.export(tmp_path / "again")
    assert largest_difference(tmp_path / "export", tmp_path / "again") < 1e-7
    if learner["zero_stage"] != 0:
        with pytest.raises(ValueError, match=r"learner.ranks=1 learner.zero_stage=0, but this run has"):
            group.load(folder / "checkpoint")
    group.shutdown()


@pytest.mark.slow
def test_logprobs_are_the_models_own(cluster: None, model: Path) -> None:
    group = LearnerGroup.start(run_config(model, zero_stage=3, ranks=2), 4)
    found = group.logprobs([([1, 2, 3, 4], 2), ([5, 6], 1)])
    group.shutdown()
    lm = AutoModelForCausalLM.from_pretrained(model)
    table = lm(input_ids=torch.tensor([[1, 2, 3, 4]])).logits[0].log_softmax(-1)
    assert found[0] == pytest.approx([table[1, 3].item(), table[2, 4].item()], abs=1e-5)
    assert len(found[1]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_step_with_an_infinite_gradient_is_dropped(cluster: None, model: Path, tmp_path: Path, stage: int) -> None:
    config = run_config(model, LossConfig(kl_coef=0.0), zero_stage=stage, max_bad_steps=1)
    group = LearnerGroup.start(config, 4)
    bad = packs(config, 1, 4096)
    bad[0][0][0].positive[:] = float("nan")
    metrics = group.train(bad)
    assert metrics["learner/skipped_steps"] == 1
    group.export(tmp_path / "same")
    assert largest_difference(tmp_path / "same", model) == 0
    group.train(packs(config, 1, 4096))
    group.export(tmp_path / "moved")
    assert largest_difference(tmp_path / "moved", model) > 1e-5
    group.train(bad)
    with pytest.raises(RuntimeError, match=r"more than learner\.max_bad_steps=1"):
        group.train(bad)


@pytest.mark.slow
def test_a_dead_rank_ends_the_wait(cluster: None, model: Path) -> None:
    config = run_config(model, ranks=2)
    group = LearnerGroup.start(config, 4)
    ray.kill(group._ranks[1])
    with pytest.raises(RuntimeError, match="rank died while the learner waited for the learning phase"):
        group.train(packs(config, 1, 64))


def test_schedule() -> None:
    learner = LearnerConfig(lr=1.0, warmup_share=0.4, schedule="linear")
    found = [learning_rate(step, 10, learner) for step in range(10)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    constant = LearnerConfig(lr=1.0, warmup_share=0.0)
    assert [learning_rate(step, 3, constant) for step in range(3)] == [1.0, 1.0, 1.0]
    cosine = LearnerConfig(lr=1.0, warmup_share=0.0, schedule="cosine")
    assert learning_rate(1, 2, cosine) == pytest.approx(0.5)
