"""One adapter per decision node on micro models: routes, starts, files, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from micro_models import micro_gpt2, micro_qwen2, save_micro
from peft import PeftModel
from transformers import PreTrainedModel
from typed_runs import THREE, Adapters, decision, typed_config

from rollout_workers.adapters import AdapterFiles, AdapterSpec, adapters_of
from trainer.decisions.adapters import NodeAdapters, RoutedLinear, backbone, parameter_counts
from trainer.decisions.route import Route
from trainer.decisions.shares import ParameterCounts, shares
from trainer.forward import PackedPolicy, PackTensors, to_tensors
from trainer.packing import flat_pack

STEPS = (
    ([3, 9, 4, 1, 7], 2, "response"),
    ([5, 5, 8], 2, "intent"),
    ([2, 6, 9, 9], 1, None),
    ([7, 3, 1, 4], 3, "intent"),
)
"""(ids, how many of the last are sampled, adapter) of four steps."""


def adapted(lm: PreTrainedModel, path: Path, adapters: Adapters = THREE, **more: object) -> NodeAdapters:
    return NodeAdapters(lm, typed_config(path, adapters, **more))


def shake(lm: PreTrainedModel) -> None:
    """Adapters that change something."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if ".lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)


def policy_of(lm: PreTrainedModel, nodes: NodeAdapters, layout: str = "level") -> PackedPolicy:
    policy = PackedPolicy(lm, 1.0, layout)
    policy.route = nodes.route
    return policy


def mixed(nodes: NodeAdapters) -> PackTensors:
    """All of `STEPS` in one row."""
    pack = flat_pack([(ids, scored) for ids, scored, _ in STEPS])
    voices = [-1 if name is None else nodes.voice(name) for ids, _, name in STEPS for _ in ids]
    return to_tensors(replace(pack, voice=np.array(voices)), torch.device("cpu"))


def scores(policy: PackedPolicy, batch: PackTensors, chunks: int = 1) -> torch.Tensor:
    parts = (batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R)
    return policy(*parts, chunks, None, batch.voice_T)[0]


def weighted(logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs * (torch.arange(len(logprobs)) % 3 + 1.0)).sum()


def export(nodes: NodeAdapters, lm: PreTrainedModel, folder: Path) -> None:
    for spec in nodes.specs:
        nodes.write(spec.name, {name: factor.detach().clone() for name, factor in nodes.factors(spec.name)}, folder)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("layout", ["level", "packed"])
def test_a_mixed_row_is_each_step_under_its_own_adapter(
    tmp_path: Path, layout: str, chunks: int, checkpointing: bool
) -> None:
    """Against PEFT: the exported folders on the plain model, one step at a time under `set_adapter`; in float64, since
    the adapters are large enough for rounding to show."""
    lm = micro_qwen2().double()
    nodes = adapted(lm, tmp_path)
    shake(lm)
    export(nodes, lm, tmp_path)
    if checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    lm.train(checkpointing)
    found = scores(policy_of(lm, nodes, layout), mixed(nodes), chunks)
    weighted(found).backward()

    peft = PeftModel.from_pretrained(micro_qwen2().double(), tmp_path / "adapters/intent", "intent", is_trainable=True)
    peft.load_adapter(tmp_path / "adapters/response", "response", is_trainable=True)
    peft.double()
    expected = []
    for ids, scored, name in STEPS:
        peft.base_model.disable_adapter_layers() if name is None else peft.base_model.enable_adapter_layers()
        if name is not None:
            peft.base_model.set_adapter(name)
        peft.requires_grad_(True)
        logprobs = peft(input_ids=torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
        expected.append(logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[-scored:, 0])
    expected_R = torch.cat(expected)
    torch.testing.assert_close(found, expected_R, rtol=0, atol=1e-6)
    weighted(expected_R).backward()
    theirs = {name: p.grad for name, p in peft.named_parameters() if ".lora_" in name}
    for spec in nodes.specs:
        for name, factor in nodes.factors(spec.name):
            other = theirs[name.replace(".weight", f".{spec.name}.weight")]
            assert (factor.grad - other).abs().max() <= 1e-6 * other.abs().max(), "logits have float32 gradients"
    assert len(theirs) == 2 * (14 + 15)


def test_a_start_is_the_backbone_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    plain = micro_qwen2()
    with torch.no_grad():
        expected = scores(PackedPolicy(plain, 1.0, "level"), mixed(adapted(micro_qwen2(), tmp_path)))
    found = []
    for _ in range(2):
        lm = micro_qwen2()
        nodes = adapted(lm, tmp_path)
        assert torch.equal(scores(policy_of(lm, nodes), mixed(nodes)), expected)
        found.append({spec.name: dict(nodes.factors(spec.name)) for spec in nodes.specs})
    assert all(torch.equal(a, found[1][node][name]) for node in found[0] for name, a in found[0][node].items())
    down = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
    assert not torch.equal(found[0]["intent"][down], found[0]["response"][down][:2]), "each node draws its own"


def test_tokens_without_adapter_and_a_silent_route_are_the_backbone(tmp_path: Path) -> None:
    lm = micro_qwen2()
    nodes = adapted(lm, tmp_path)
    shake(lm)
    batch = mixed(nodes)
    backbone_alone = scores(PackedPolicy(micro_qwen2(), 1.0, "level"), batch)
    policy = policy_of(lm, nodes)
    with torch.no_grad():
        torch.testing.assert_close(scores(policy, replace(batch, voice_T=None)), backbone_alone, rtol=0, atol=1e-6)
    assert (scores(policy, batch) - backbone_alone).abs().max() > 0.1


def test_every_adapter_gets_a_gradient_in_every_pass(tmp_path: Path) -> None:
    """Also without any token: the collectives of ZeRO wait for it."""
    lm = micro_qwen2()
    nodes = adapted(lm, tmp_path)
    shake(lm)
    batch = to_tensors(flat_pack([([1, 2, 3], 2)]), torch.device("cpu"))
    weighted(scores(policy_of(lm, nodes), batch)).backward()
    gradients = [factor.grad for spec in nodes.specs for _, factor in nodes.factors(spec.name)]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_a_pass_without_gradients_leaves_the_route_for_layers_that_run_again(tmp_path: Path) -> None:
    lm = micro_qwen2()
    nodes = adapted(lm, tmp_path)
    shake(lm)
    lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    lm.train()
    policy, batch = policy_of(lm, nodes), mixed(nodes)

    def gradient(between: bool) -> torch.Tensor:
        lm.zero_grad()
        loss = weighted(scores(policy, batch))
        if between:
            with torch.no_grad():
                scores(policy, to_tensors(flat_pack([([1, 2, 3], 2)]), torch.device("cpu")))
        loss.backward()
        return torch.cat([f.grad.flatten() for spec in nodes.specs for _, f in nodes.factors(spec.name)])

    assert torch.equal(gradient(False), gradient(True))


def test_only_what_is_declared_is_trained(tmp_path: Path) -> None:
    adapters = {"intent": {"rank": 2, "freeze": True}, "response": {"rank": 2}}
    for mode in ("frozen", "trained"):
        lm = micro_qwen2()
        nodes = adapted(lm, tmp_path, adapters, backbone=mode)
        assert not any(factor.requires_grad for _, factor in nodes.factors("intent"))
        assert all(factor.requires_grad for _, factor in nodes.factors("response"))
        assert {weight.parameter.requires_grad for weight in backbone(lm)} == {mode == "trained"}
    assert [weight.name for weight in backbone(lm)] == [name for name, _ in micro_qwen2().named_parameters()]


def test_shares_on_paper(tmp_path: Path) -> None:
    """Per block q, o 64 to 64; k, v 64 to 32; gate, up 64 to 128; down 128 to 64; head 64 to 64: in + out per rank."""
    lm = micro_qwen2()
    adapted(lm, tmp_path)
    body, head = 2 * (2 * 128 + 2 * 96 + 3 * 192), 128
    counts = parameter_counts(lm)
    assert counts.adapters == counts.trained_adapters == 2 * body + 4 * (body + head)
    assert counts.backbone == sum(p.numel() for p in micro_qwen2().parameters())
    assert counts.trained_backbone == 0
    paper = ParameterCounts(backbone=900, adapters=100, trained_backbone=0, trained_adapters=100)
    found = shares("float32", paper)
    assert (found["decision/backbone_share"], found["decision/adapter_share"]) == (0.9, 0.1)
    assert found["decision/trained_share"] == 0.1
    assert found["decision/state_bytes"] == 900 * 4 + 100 * 16
    assert found["decision/full_state_bytes"] == 900 * 16
    assert found["decision/memory_saved"] == pytest.approx(1 - 5200 / 14400)
    half = shares("bfloat16", paper)
    assert half["decision/memory_saved"] == pytest.approx(1 - (900 * 2 + 100 * 18) / (900 * 18))
    everything = ParameterCounts(backbone=900, adapters=100, trained_backbone=900, trained_adapters=50)
    assert shares("float32", everything)["decision/state_bytes"] == 950 * 16 + 50 * 4


def test_a_model_with_adapters_starts_from_them(tmp_path: Path) -> None:
    save_micro(tmp_path)
    lm = micro_qwen2()
    first = adapted(lm, tmp_path)
    shake(lm)
    export(first, lm, tmp_path)
    second = adapted(micro_qwen2(), tmp_path)
    for spec in first.specs:
        ours, theirs = dict(first.factors(spec.name)), dict(second.factors(spec.name))
        assert all(torch.equal(factor, theirs[name]) for name, factor in ours.items())
    with pytest.raises(
        ValueError, match=r"adapters/intent/adapter_model\.safetensors is of another shape than node in"
    ):
        adapted(micro_qwen2(), tmp_path, THREE | {"intent": {"rank": 3}})
    with pytest.raises(ValueError, match=r"lm_head\.lora_A\.weight is \[4, 64\] in it and missing in this run"):
        adapted(micro_qwen2(), tmp_path, THREE | {"response": {"rank": 4, "alpha": 4.0}})


def test_names_of_nodes_may_be_names_of_methods(tmp_path: Path) -> None:
    lm = micro_qwen2()
    nodes = adapted(lm, tmp_path, {"type": {}, "keys": {}, "train": {}})
    assert scores(policy_of(lm, nodes), mixed_first(nodes, "keys")).isfinite().all()


def mixed_first(nodes: NodeAdapters, name: str) -> PackTensors:
    pack = flat_pack([([1, 2, 3], 2)])
    return to_tensors(replace(pack, voice=np.full(3, nodes.voice(name))), torch.device("cpu"))


def test_layers_of_other_kinds_and_chosen_ones(tmp_path: Path) -> None:
    lm = micro_gpt2()
    nodes = adapted(lm, tmp_path)
    shake(lm)
    found = scores(policy_of(lm, nodes, "packed"), mixed_first(nodes, "response"))
    assert found.isfinite().all()
    lm = micro_qwen2()
    config = typed_config(tmp_path, lora={"targets": ["q_proj"]})
    NodeAdapters(lm, config)
    assert sum(isinstance(layer, RoutedLinear) for layer in lm.modules()) == 2 + 1  # two blocks and a head
    with pytest.raises(ValueError, match=r"learner\.lora\.targets names 'query'"):
        NodeAdapters(micro_qwen2(), typed_config(tmp_path, lora={"targets": ["query"]}))


def test_a_route_on_paper() -> None:
    route = Route({"intent": 0, "response": 3})
    route.follow(torch.tensor([0, 0, 3, -1, 0]))
    places, counts = route.share(("intent", "response"), torch.device("cpu"))
    assert (places.tolist(), counts) == ([0, 1, 4, 2], [3, 1])
    with route.detour(torch.tensor([3])):
        assert route.share(("response",), torch.device("cpu"))[0].tolist() == [0]
        assert route.share(("intent",), torch.device("cpu"))[1] == [0]
    assert route.share(("response",), torch.device("cpu"))[0].tolist() == [2]


def test_adapters_that_an_engine_serves(tmp_path: Path) -> None:
    specs = adapters_of(decision())
    assert specs == (
        AdapterSpec(name="intent", rank=2, alpha=6.0),
        AdapterSpec(name="response", rank=4, alpha=4.0, head=True),
    )
    assert adapters_of(decision(policy="flat")) == adapters_of(None) == ()
    shipped = tmp_path / "adapters" / "response"
    shipped.mkdir(parents=True)
    (shipped / "adapter_model.safetensors").write_bytes(b"shipped")
    files = AdapterFiles(specs, tmp_path / "adapters")
    assert [files.number(name) for name in files.names] == [1, 2]
    assert (files.place("intent"), files.place("response")) == (None, shipped)
    files.write("response", b"first")
    place = files.place("response")
    files.write("response", b"second")
    assert files.place("response") == place, "a request that a push has frozen finds the new weights at the same place"
    assert (place / "adapter_model.safetensors").read_bytes() == b"second"
    assert '"r": 4' in (place / "adapter_config.json").read_text()
    with pytest.raises(ValueError, match=r"there is no adapter 'policy': the engine has intent, response"):
        files.place("policy")
    files.close()
    assert not place.exists()
    AdapterFiles((), tmp_path).close()
