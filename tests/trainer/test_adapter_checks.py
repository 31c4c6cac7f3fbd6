"""Adapters of nodes against those of a checkpoint, and against the folder of a policy that is to be evaluated."""

from pathlib import Path

import pytest
from learner_runs import run_config
from typed_runs import THREE, decision, typed_config

from trainer.checkpoint_state import settings_of
from trainer.config import RunConfig
from trainer.decisions.adapter_checks import adapter_contradictions, missing_adapters

CHECKPOINT = Path("step-000004")


def contradictions(then: RunConfig, now: RunConfig) -> list[str]:
    return list(adapter_contradictions(CHECKPOINT, settings_of(then), now))


def test_the_same_adapters_go_on(tmp_path: Path) -> None:
    config = typed_config(tmp_path)
    assert contradictions(config, config) == []
    coefficients = config.model_copy(update={"decision": decision(decay=0.5)})
    assert contradictions(config, coefficients) == []
    flat = run_config(tmp_path)
    assert contradictions(flat, flat) == []


def test_a_changed_adapter_is_refused_with_a_sentence(tmp_path: Path) -> None:
    then = typed_config(tmp_path)
    now = typed_config(tmp_path, THREE | {"intent": {"rank": 8, "alpha": 6.0}})
    assert contradictions(then, now) == [
        "decision.nodes.intent.adapter={rank: 8, alpha: 6.0, head: false, freeze: false} contradicts the checkpoint "
        "step-000004, which was saved with decision.nodes.intent.adapter={rank: 2, alpha: 6.0, head: false, freeze: "
        "false}: set it back, or start anew with resume=never."
    ]
    frozen = typed_config(tmp_path, THREE | {"intent": {"rank": 2, "alpha": 6.0, "freeze": True}})
    assert "freeze: true} contradicts" in contradictions(then, frozen)[0]
    fewer = typed_config(tmp_path, {"intent": THREE["intent"], "policy": None})
    assert ["decision.nodes.response.adapter=null contradicts" in text for text in contradictions(then, fewer)] == [
        True
    ]
    assert contradictions(then, typed_config(tmp_path, backbone="trained"))[0].startswith("decision.backbone=trained")
    assert contradictions(then, run_config(tmp_path))[0].startswith("decision.policy=null contradicts")
    flat = then.model_copy(update={"decision": decision(policy="flat")})
    assert contradictions(flat, then)[0].startswith("decision.policy=typed contradicts")
    targets = typed_config(tmp_path, lora={"targets": ["q_proj"]})
    assert contradictions(then, targets)[0].startswith("learner.lora.targets=[q_proj] contradicts")


def test_a_policy_without_its_adapters_cannot_be_evaluated(tmp_path: Path) -> None:
    config = typed_config(tmp_path)
    assert len(list(missing_adapters(config))) == 2
    for name in ("intent", "response"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
    (tmp_path / "adapters/intent/adapter_model.safetensors").write_bytes(b"")
    assert list(missing_adapters(config)) == [
        f"model.path={tmp_path} has no adapter of node 'response': "
        f"{tmp_path / 'adapters/response/adapter_model.safetensors'} is missing."
    ]
    assert list(missing_adapters(run_config(tmp_path))) == []


def test_merged_adapters_go_with_flat_policies_only(tmp_path: Path) -> None:
    config = typed_config(tmp_path, lora={"rank": 4})
    with pytest.raises(ValueError, match=r"learner\.lora\.rank=4 must be 0 with decision\.policy=typed"):
        RunConfig.model_validate(config.model_dump())
