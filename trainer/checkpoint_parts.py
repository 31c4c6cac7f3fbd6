"""A rank's part of the trained weights and of Adam's moments, whichever way DeepSpeed has split them.

The one place that knows how DeepSpeed 0.19 lays them out. Every weight is seen as one row of numbers; a rank owns a
stretch of it, which lies somewhere in a float32 tensor that its AdamW steps:
- stage 3: each weight is cut into equal stretches by rank, the last one padded;
- stages 1 and 2: all weights lie in one row that is cut by rank, so a cut may be in the midst of a weight;
- stage 0: every rank owns everything.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from envs.types import Json

KINDS = ("weight", "exp_avg", "exp_avg_sq")
"""What is kept of a trained weight: its float32 master copy, and Adam's mean of gradients and of their squares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of one weight."""

    name: str
    """The weight's name in the model."""
    shape: tuple[int, ...]
    """Shape of the whole weight."""
    start: int
    """Where the stretch begins in the weight seen as a row."""
    count: int
    """How long it is; at least 1."""
    owner: Tensor
    """What AdamW steps: the tensor that holds the stretch."""
    at: int
    """Where the stretch begins in `owner` seen as a row."""
    shared: bool = False
    """True if every rank owns the same."""

    def of(self, tensor: Tensor) -> Tensor:
        """The stretch in `owner` or in a tensor of its shape, as a view."""
        return tensor.detach().view(-1)[self.at : self.at + self.count]


def own_parts(named: Iterable[tuple[str, nn.Parameter]], optimizer: Any) -> Iterator[Part]:
    """The rank's own stretches of the trained weights among `named`; `optimizer` is DeepSpeed's or torch's own."""
    for name, parameter in named:
        if parameter.requires_grad:
            yield from _parts(name, parameter, optimizer)


def shapes_of(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, tuple[int, ...]]:
    """Shapes of all trained weights, the same on every rank."""
    return {name: _shape(parameter) for name, parameter in named if parameter.requires_grad}


def difference(saved: Mapping[str, tuple[int, ...]], here: Mapping[str, tuple[int, ...]]) -> str:
    """The first trained weight in which two models differ, in words; empty if there is none."""
    for name in [*here, *saved]:
        if saved.get(name) != here.get(name):
            there, now = (str(list(shapes[name])) if name in shapes else "missing" for shapes in (saved, here))
            return f"{name} is {there} in it and {now} in this run"
    return ""


def in_words(facts: Json) -> str:
    """What a checkpoint says of itself, e.g. `"learner.lora.rank=0"`."""
    assert isinstance(facts, dict)
    return " ".join(f"{key}={value}" for key, value in facts.items())


def adam_state(optimizer: Any, owner: Tensor) -> dict[str, Tensor]:
    """AdamW's state of `owner`, made as for a first step if there is none yet. Writing into its tensors changes it."""
    state: dict[str, Tensor] = getattr(optimizer, "optimizer", optimizer).state[owner]
    if "step" not in state:
        state["step"] = torch.tensor(0.0, dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(owner.detach()), torch.zeros_like(owner.detach())
    return state


@torch.no_grad()
def refresh(optimizer: Any) -> None:
    """Makes the model's weights those of the master copies (a collective)."""
    if hasattr(optimizer, "update_lp_params"):  # stages 1 and 2, and bfloat16 in stage 1
        optimizer.update_lp_params()
    elif hasattr(optimizer, "fp32_partitioned_groups_flat"):  # stage 3: what its own step does at the end
        optimizer._partition_all_parameters()
        for group in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        optimizer._post_step(set())


def _parts(name: str, parameter: nn.Parameter, optimizer: Any) -> Iterator[Part]:
    shape = _shape(parameter)
    if hasattr(parameter, "ds_id"):
        group, at, stretch = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = stretch * optimizer._get_param_partition_rank(parameter)
        count = min(stretch, math.prod(shape) - start)
        if count > 0:
            owner = optimizer.fp32_partitioned_groups_flat[group]
            yield Part(name=name, shape=shape, start=start, count=count, owner=owner, at=at)
    elif hasattr(parameter, "_hp_mapping"):
        if (mapping := parameter._hp_mapping) is not None:
            inside, whole = mapping.hp_fragment_address, mapping.lp_fragment_address
            owner = optimizer.optimizer.param_groups[mapping.param_group_index]["params"][0]
            yield Part(name=name, shape=shape, start=whole.start, count=whole.numel, owner=owner, at=inside.start)
    else:
        yield Part(name=name, shape=shape, start=0, count=parameter.numel(), owner=parameter, at=0, shared=True)


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))
