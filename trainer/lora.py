"""Low-rank adapters (PEFT) on the policy's linear layers, and the full weights that they stand for.

PEFT puts the adapters into the model in place, so that it stays the Hugging Face class that it was. Everything outside
the learner sees merged weights under the base model's own names: W + (alpha / rank) B A.
"""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from trainer.config import RunConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER_FOLDER = "adapter"
"""Folder inside an exported policy that holds the adapter alone, as `peft.PeftModel.from_pretrained` reads it."""
ALL_LINEAR = "all-linear"
_NAME = "default"
_FINGERPRINT_VALUES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A weight of the base model, with the adapter that changes it if there is one."""

    name: str
    """Hugging Face name in the base model, e.g. `"model.layers.0.mlp.up_proj.weight"`."""
    parameter: nn.Parameter
    layer: Linear | None = None
    """The adapted layer; None if the weight is used as it is."""

    def parts(self) -> list[nn.Parameter]:
        """All parameters that `full` reads: under ZeRO-3 they must be gathered together."""
        return [self.parameter] if self.layer is None else [self.parameter, *factor_pair(self.layer)]

    def full(self) -> Tensor:
        """W, or W + (alpha / rank) B A, summed in float32 and rounded once to the dtype of W."""
        if self.layer is None:
            return self.parameter.detach()
        a_RI, b_OR = (factor.detach().float() for factor in factor_pair(self.layer))
        delta_OI = b_OR @ a_RI * self.layer.scaling[_NAME]
        weight = self.parameter.detach()
        full: Tensor = weight.float() + (delta_OI.T if self.layer.fan_in_fan_out else delta_OI)
        return full.to(weight.dtype)


def adapt(lm: "PreTrainedModel", config: RunConfig) -> None:
    """Adds adapters that change nothing yet (B = 0), the same ones for the same `seed`, and freezes all other weights.

    Raises ValueError if a name in `learner.lora.targets` matches no linear layer, or an output layer whose weight is
    the embedding's.
    """
    lora = config.learner.lora
    adapted = adapted_layers(lm, lora.targets, config.model.path)
    settings = LoraConfig(
        base_model_name_or_path=config.model.path,
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # declared as int, but only divided by the rank
        lora_dropout=0.0,
        target_modules=ALL_LINEAR if lora.targets == (ALL_LINEAR,) else list(lora.targets),
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in adapted),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        inject_adapter_in_model(settings, lm, adapter_name=_NAME)


def weights(lm: "PreTrainedModel") -> Iterator[Weight]:
    """Every weight of the base model once, in its own order, whether `lm` has adapters or not."""
    layers = dict(_layers(lm))
    factors = {id(factor) for layer in layers.values() for factor in factor_pair(layer)}
    for name, parameter in lm.named_parameters():
        if id(parameter) not in factors:
            layer = layers.get(name.removesuffix(".base_layer.weight"))
            yield Weight(name=name.replace(".base_layer.", "."), parameter=parameter, layer=layer)


def factors(lm: "PreTrainedModel") -> Iterator[tuple[str, nn.Parameter]]:
    """(name as PEFT stores it, parameter) of every A and B; nothing if `lm` has no adapters."""
    for name, layer in _layers(lm):
        a_RI, b_OR = factor_pair(layer)
        yield f"base_model.model.{name}.lora_A.weight", a_RI
        yield f"base_model.model.{name}.lora_B.weight", b_OR


@contextmanager
def adapters_off(lm: "PreTrainedModel") -> Iterator[None]:
    """Within the block `lm` computes as the base model does.

    The adapters are scaled by 0, not taken out: ZeRO-3 learns the order of the layers and expects it to stay.
    """
    layers = [layer for _, layer in _layers(lm)]
    for layer in layers:
        layer.set_scale(_NAME, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(_NAME, 1.0)


def fingerprint(lm: "PreTrainedModel") -> str:
    """Eight digits that tell base models apart by the first values of every weight; before ZeRO splits them."""
    return digest(weights(lm))


def digest(bases: Iterable[Weight]) -> str:
    """`fingerprint` of the weights of a base model."""
    found = hashlib.sha256()
    for weight in bases:
        found.update(weight.name.encode())
        found.update(weight.parameter.detach().flatten()[:_FINGERPRINT_VALUES].float().cpu().numpy().tobytes())
    return found.hexdigest()[:8]


def keep_adapters(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: object) -> None:
    """A state-dict hook that leaves only the adapters in a checkpoint, also where a tied weight has a second name."""
    for name in [name for name in state if ".lora_A." not in name and ".lora_B." not in name]:
        del state[name]


def write_adapter(lm: "PreTrainedModel", state: dict[str, Tensor], path: Path) -> None:
    """Writes the adapters, `state` with the names of `factors`, as a folder in PEFT's format."""
    settings = lm.peft_config[_NAME]
    assert isinstance(settings, LoraConfig)
    write_folder(settings, state, path)


def write_folder(settings: LoraConfig, state: dict[str, Tensor], path: Path) -> None:
    """Writes a folder in PEFT's format."""
    path.mkdir(parents=True, exist_ok=True)
    settings.save_pretrained(str(path))
    file = path / "adapter_model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)
    shutil.copymode(path / "adapter_config.json", file)  # as other users may read the rest, they may read this


def adapted_layers(lm: "PreTrainedModel", targets: tuple[str, ...], model: str) -> list[nn.Module]:
    """The linear layers that `learner.lora.targets` names; the output layer may be among those of `[all-linear]`.

    Raises ValueError if a name matches none, or an output layer whose weight is the embedding's.
    """
    linear = {name: layer for name, layer in lm.named_modules() if isinstance(layer, nn.Linear | Conv1D)}
    if targets == (ALL_LINEAR,):
        return list(linear.values())
    found: list[nn.Module] = []
    for target in targets:
        matching = [layer for name, layer in linear.items() if name == target or name.endswith(f".{target}")]
        if not matching:
            known = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in linear}))
            raise ValueError(
                f"learner.lora.targets names {target!r}, which is no linear layer of model.path={model}: "
                f"it has {known} (or [{ALL_LINEAR}])"
            )
        found += matching
    embedding = lm.get_input_embeddings().weight
    if any(layer.weight is embedding for layer in found):
        raise ValueError(
            f"learner.lora.targets names the output layer of model.path={model}, whose weight is also the embedding: "
            f"an adapter would tell them apart; leave it out"
        )
    return found


def _layers(lm: "PreTrainedModel") -> Iterator[tuple[str, Linear]]:
    return ((name, module) for name, module in lm.named_modules() if isinstance(module, Linear))


def factor_pair(layer: Linear, adapter: str = _NAME) -> tuple[nn.Parameter, nn.Parameter]:
    """A with shape (rank, inputs) and B with shape (outputs, rank)."""
    a_RI, b_OR = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    assert isinstance(a_RI, nn.Parameter)
    assert isinstance(b_OR, nn.Parameter)
    return a_RI, b_OR
