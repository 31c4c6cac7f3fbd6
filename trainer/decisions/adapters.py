"""The adapters of a typed decision policy in the learner: one LoRA (PEFT) per node over one backbone.

A row of a pack holds tokens of several nodes. Each adapted layer computes y = W x for all tokens, and adds
(alpha / rank) B A x to those of each adapter, with the A and B of that adapter. The modules of every adapter are called
in every pass, with no tokens if need be, so that the collectives of ZeRO are the same on every rank.

The adapter of the output layer leaves a weight that the layer shares with the embedding as it is: it adds a path beside
it, and is never merged.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from envs.types import Json
from rollout_workers.adapters import FOLDER, WEIGHTS, AdapterSpec, adapters_of
from rollout_workers.seeds import derive_seed
from trainer import lora
from trainer.config import RunConfig
from trainer.decisions.route import Route
from trainer.decisions.shares import ParameterCounts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FACTORS = (".lora_A.", ".lora_B.")


class RoutedLinear(Linear):
    """PEFT's layer with adapters, in which each token goes through the one of its own node."""

    route: Route

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The base layer's output, with the product of an adapter added where the route says so."""
        found: Tensor = self.base_layer(x, *args, **kwargs)
        names = tuple(self.lora_A)
        places_N, counts = self.route.share(names, x.device)
        chosen_NI = x.reshape(-1, x.shape[-1]).index_select(0, places_N)
        split = chosen_NI.split(counts)  # type: ignore[no-untyped-call]
        parts = [self._product(name, part_NI) for name, part_NI in zip(names, split, strict=True)]
        rows = found.reshape(-1, found.shape[-1]).index_add(0, places_N, torch.cat(parts).to(found.dtype))
        return rows.view_as(found)

    def _product(self, name: str, part_NI: Tensor) -> Tensor:
        down, up = self.lora_A[name], self.lora_B[name]
        product: Tensor = up(down(part_NI)) * self.scaling[name]
        return product


class NodeAdapters:
    """All adapters of one model. Making it puts them into the model, and says which of its weights are trained."""

    def __init__(self, lm: "PreTrainedModel", config: RunConfig) -> None:
        """Each adapter is that of `<model.path>/adapters/<node>` if the model has it; else it starts with B = 0, which
        changes nothing, and an A drawn from the run's seed and the node's name.

        Raises ValueError, one sentence, for target layers that are not there, and for weights in the model's folder
        that have another shape.
        """
        decision = config.decision
        assert decision is not None, "adapters of nodes go with a decision policy"
        self.specs = adapters_of(decision)
        self._lm = lm
        self._model = config.model.path
        self.is_backbone_frozen = decision.backbone == "frozen"
        self._frozen = {node.name for node in decision.nodes if node.adapter is not None and node.adapter.freeze}
        self._voices = {node.name: index for index, node in enumerate(decision.nodes)}
        self.route = Route({_inside(spec.name): self._voices[spec.name] for spec in self.specs})
        self._base = lora.digest(backbone(lm)) if self.is_backbone_frozen else ""
        self._inject(config)
        self._stays = {name: self._digest(name) for name in self._frozen}
        """Adapters that are not trained, which checkpoints leave out, by the first values of their weights."""
        self._set_trained()

    def _inject(self, config: RunConfig) -> None:
        layers = lora.adapted_layers(self._lm, config.learner.lora.targets, self._model)
        names = {id(layer): name for name, layer in self._lm.named_modules()}
        head = names[id(self._lm.get_output_embeddings())]  # type: ignore[no-untyped-call]
        body = sorted({names[id(layer)].rpartition(".")[2] for layer in layers} - {head})
        self._settings = {
            spec.name: LoraConfig(
                base_model_name_or_path=self._model,
                task_type="CAUSAL_LM",
                r=spec.rank,
                lora_alpha=spec.alpha,  # type: ignore[arg-type]  # declared as int, but only divided by the rank
                lora_dropout=0.0,
                target_modules=[*body, head] if spec.head else body,
                fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers),
            )
            for spec in self.specs
        }
        for spec in self.specs:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                # PEFT warns of adapting a layer whose weight is the embedding's, which is about merging.
                warnings.simplefilter("ignore")
                torch.manual_seed(derive_seed(config.seed, "adapter", spec.name))
                inject_adapter_in_model(self._settings[spec.name], self._lm, adapter_name=_inside(spec.name))
        for layer in self._layers().values():
            layer.__class__ = RoutedLinear
            vars(layer)["route"] = self.route  # no parameter and no module, of which nn.Module keeps lists
        for spec in self.specs:
            self._start(spec)

    def _start(self, spec: AdapterSpec) -> None:
        """Takes over the weights that the model's folder has for a node."""
        file = Path(self._model) / FOLDER / spec.name / WEIGHTS
        if not file.is_file():
            return
        try:
            stored = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"the adapter {file} cannot be read ({error})") from None
        here = dict(self.factors(spec.name))
        for name in sorted(here.keys() | stored.keys()):
            shapes = [list(tensors[name].shape) if name in tensors else "missing" for tensors in (stored, here)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"the adapter {file} is of another shape than node {spec.name} declares (rank={spec.rank}, "
                    f"head={str(spec.head).lower()}): {name} is {shapes[0]} in it and {shapes[1]} in this run"
                )
        with torch.no_grad():
            for name, factor in here.items():
                factor.copy_(stored[name])

    def _set_trained(self) -> None:
        for name, parameter in self._lm.named_parameters():
            if not _is_factor(name):
                parameter.requires_grad_(not self.is_backbone_frozen)
        for spec in self.specs:
            for _, factor in self.factors(spec.name):
                factor.requires_grad_(spec.name not in self._frozen)

    def _layers(self) -> dict[str, Linear]:
        return {name: layer for name, layer in self._lm.named_modules() if isinstance(layer, Linear)}

    def factors(self, name: str) -> Iterator[tuple[str, nn.Parameter]]:
        """(name as PEFT stores it, parameter) of every A and B of a node's adapter."""
        for layer_name, layer in self._layers().items():
            if _inside(name) in layer.lora_A:
                a_RI, b_OR = lora.factor_pair(layer, _inside(name))
                yield f"base_model.model.{layer_name}.lora_A.weight", a_RI
                yield f"base_model.model.{layer_name}.lora_B.weight", b_OR

    def _digest(self, name: str) -> str:
        return lora.digest(lora.Weight(name=key, parameter=factor) for key, factor in self.factors(name))

    def voice(self, name: str) -> int:
        """The number of a node's tokens: its place in the declaration."""
        return self._voices[name]

    def write(self, name: str, state: dict[str, Tensor], export: Path) -> None:
        """Writes one adapter, `state` with the names of `factors`, as a PEFT folder over the backbone at `export`."""
        settings = self._settings[name]
        settings.base_model_name_or_path = str(export)
        lora.write_folder(settings, state, export / FOLDER / name)

    def facts(self) -> dict[str, Json]:
        """What must be the same where a checkpoint is loaded."""
        shapes: dict[str, Json] = {f"decision.nodes.{spec.name}.adapter": self._shape(spec) for spec in self.specs}
        if not self.is_backbone_frozen:
            return {"decision.backbone": "trained"} | shapes
        return {"decision.backbone": "frozen"} | shapes | {"the base model": self._base}

    def _shape(self, spec: AdapterSpec) -> str:
        frozen = f", frozen: {self._stays[spec.name]}" if spec.name in self._stays else ""
        return f"{{rank: {spec.rank}, alpha: {spec.alpha:g}, head: {str(spec.head).lower()}{frozen}}}"


def backbone(lm: "PreTrainedModel") -> Iterator[lora.Weight]:
    """Every weight below the adapters, under its Hugging Face name, as it is."""
    for name, parameter in lm.named_parameters():
        if not _is_factor(name):
            yield lora.Weight(name=name.replace(".base_layer.", "."), parameter=parameter)


def parameter_counts(lm: "PreTrainedModel") -> ParameterCounts:
    """How many weights are whose, before ZeRO splits them."""
    counts = dict.fromkeys([(part, trained) for part in (False, True) for trained in (False, True)], 0)
    for name, parameter in lm.named_parameters():
        counts[_is_factor(name), parameter.requires_grad] += parameter.numel()
    return ParameterCounts(
        backbone=counts[False, False] + counts[False, True],
        adapters=counts[True, False] + counts[True, True],
        trained_backbone=counts[False, True],
        trained_adapters=counts[True, True],
    )


def _is_factor(name: str) -> bool:
    return any(part in name for part in _FACTORS)


def _inside(name: str) -> str:
    """A node's adapter inside PEFT's module dictionaries, whose keys may not be names of their methods."""
    return f"node_{name}"
