"""One rank's model, optimizer and reference model under DeepSpeed; the only file that imports deepspeed.

Gradients: the loss of an optimizer step is a sum over all packs of all ranks, already normalised over the whole batch.
DeepSpeed averages over ranks and knows micro-batches; so the accumulation boundary is set by hand, its own division by
accumulation steps stays 1, and the loss is multiplied by the number of ranks to undo the average.

Collectives: `score`, `reference`, `backward`, `step`, `full_parameters`, `load` and `export` must be called by
every rank in the same order; under ZeRO-3 each forward pass is a collective too.
"""

import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import deepspeed  # type: ignore[import-untyped]
import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from envs.types import Json
from rollout_workers.adapters import adapters_of
from trainer import lora
from trainer.checkpoint_parts import difference, in_words, own_parts, refresh, shapes_of
from trainer.checkpoint_shards import Shard, Shards, copy_shard
from trainer.config import RunConfig
from trainer.decisions.adapters import NodeAdapters, backbone, parameter_counts
from trainer.decisions.coefficients import all_coefficients
from trainer.decisions.masks import masks_of
from trainer.decisions.shares import shares
from trainer.deepspeed_settings import inference_settings, training_settings
from trainer.forward import PackedPolicy, PackTensors, to_tensors
from trainer.layout import chosen_layout
from trainer.layout_check import check_layout
from trainer.packing import flat_pack
from trainer.pretrained import load_model, write_folder
from trainer.schedule import learning_rate
from trainer.types import TreePack

LOGITS_AT_ONCE = 1 << 26
"""Most logits that a forward pass computes at a time: 256 MiB in float32. A pack with fewer is not cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The place of a process among the learner's ranks."""

    index: int
    count: int
    address: str
    """Host of rank 0."""
    port: int
    timeout_s: float
    """Longest wait inside one collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimizer step did."""

    applied: bool
    """False if a gradient was not finite; weights and optimizer state are then unchanged."""
    grad_norm: float
    """Global gradient norm before clipping; NaN if not applied."""
    lr: float


class LearnerEngine:
    """The policy being trained, as seen by one rank."""

    def __init__(self, config: RunConfig, rank: Rank, total_updates: int, logits_at_once: int = LOGITS_AT_ONCE) -> None:
        """Loads the model, checks that its layout computes trees exactly, and joins the other ranks.

        `total_updates` is the number of optimizer steps of the whole run, for the learning-rate schedule.
        """
        self._logits_at_once = logits_at_once
        self._config = config
        self._rank = rank
        self._total = total_updates
        self.updates = 0
        """Optimizer steps done or skipped so far."""
        self.device = _join(config.learner.device, rank)
        torch.set_num_threads(config.learner.threads)
        # Attention weights below float32's normal range make CPUs' matrix products up to twenty times slower.
        torch.set_flush_denormal(True)
        self._nodes: NodeAdapters | None = None
        """The adapters of a typed decision policy."""
        policy = self._policy(train=True)
        self._adapted = config.learner.lora.rank > 0
        self._base = lora.fingerprint(policy.lm) if self._adapted else ""
        self._tied_name = policy.tied_name()
        self.parameters = sum(p.numel() for p in policy.parameters())
        """Weights of the model, those of adapters included."""
        self.trained_parameters = sum(p.numel() for p in policy.parameters() if p.requires_grad)
        self.shares = shares(config.model.dtype, parameter_counts(policy.lm)) if config.typed is not None else {}
        """What a typed policy trains and holds, as `decision/*` metrics."""
        self._masks = masks_of(config, policy.lm.config.get_text_config().vocab_size)
        settings = training_settings(config, self.parameters, self.trained_parameters)
        self._engine = _initialize(policy, settings)
        self._reference = self._frozen() if self._needs_copy() and _has_divergence(config) else None

    def _policy(self, *, train: bool) -> PackedPolicy:
        lm = load_model(self._config, train=train)
        layout = chosen_layout(self._config.learner)
        policy = PackedPolicy(lm, self._config.rollout.temperature, layout).place(self.device)
        if train:
            check_layout(policy, self._config)
        if train and self._config.learner.lora.rank > 0:
            lora.adapt(lm, self._config)
            policy.register_state_dict_post_hook(lora.keep_adapters)  # type: ignore[no-untyped-call]
        if train and adapters_of(self._config.decision):
            self._nodes = NodeAdapters(lm, self._config)
            policy.route = self._nodes.route
        return policy

    def _needs_copy(self) -> bool:
        """Whether the weights that a divergence is measured from are themselves trained."""
        return not self._adapted and (self._nodes is None or not self._nodes.is_backbone_frozen)

    def _frozen(self) -> Any:
        """The starting policy without gradients: split over the ranks as under ZeRO-3, or a copy if nothing is split.

        Each rank loads the whole model before its part is cut out.
        """
        policy = self._policy(train=False)
        if self._rank.count == 1 or self._config.learner.zero_stage == 0:
            return policy
        return _initialize(policy, inference_settings(self._config, self.parameters))

    def chunks(self, scored_tokens: Sequence[int]) -> list[int]:
        """How many parts each pack's logits are computed in: the largest need of any rank (a collective)."""
        vocabulary = self._engine.module.lm.config.get_text_config().vocab_size
        rows = max(self._logits_at_once // vocabulary, 1)
        return [int(value) for value in self.reduce([max(-(-n // rows), 1) for n in scored_tokens], "max")]

    def tensors(self, pack: TreePack) -> PackTensors:
        """A pack on this rank's device, with the masks under which its typed answers were sampled."""
        return to_tensors(pack, self.device, None if self._masks is None else self._masks.of_pack(pack))

    def score(self, batch: PackTensors, chunks: int = 1) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the pack's trained tokens under the policy."""
        return _score(self._engine, batch, chunks)

    def reference(self, batch: PackTensors, chunks: int) -> Tensor:
        """Log-probabilities of the pack's trained tokens under the starting policy: a frozen copy, or adapters off.

        For a typed policy that is the backbone alone, also where the run began with trained adapters. A copy that the
        run began without is loaded when a live change first gives a node a divergence term.
        """
        if self._adapted:
            with torch.no_grad(), lora.adapters_off(self._engine.module.lm):
                return _score(self._engine, batch, chunks)[0]
        if self._reference is None and self._needs_copy():
            self._reference = self._frozen()
        batch = replace(batch, voice_T=None)
        with torch.no_grad():
            return _score(self._engine if self._reference is None else self._reference, batch, chunks)[0]

    def logprobs(self, sequences: Sequence[tuple[Sequence[int], int]], adapter: str | None = None) -> list[list[float]]:
        """For each (ids, n) the log-probabilities of the last n ids, at the rollout temperature.

        Of a typed policy, under the adapter of the node `adapter`, or under the backbone alone.
        """
        found = []
        with torch.no_grad():
            for one in sequences:
                pack = flat_pack([one])
                if adapter is not None:
                    assert self._nodes is not None, "only a typed policy has adapters of nodes"
                    pack = replace(pack, voice=np.full(pack.tokens, self._nodes.voice(adapter)))
                found.append(self.score(to_tensors(pack, self.device))[0].tolist())
        return found

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Adds the gradient of one pack's loss; `last` marks the step's last pack, after which ranks are summed."""
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * self._rank.count)

    def step(self) -> StepResult:
        """Clips and applies the gradient, or drops it if it is not finite."""
        lr = learning_rate(self.updates, self._total, self._config.learner)
        self.updates += 1
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        if not hasattr(self._engine.optimizer, "overflow"):
            return self._plain_step(lr)
        self._engine.step()
        applied = bool(self._engine.was_step_applied())
        norm = float(self._engine.get_global_grad_norm()) if applied else math.nan
        return StepResult(applied=applied, grad_norm=norm, lr=lr)

    def _plain_step(self, lr: float) -> StepResult:
        """A step of a bare torch optimizer (stage 0 in float32), which does not look for infinities itself."""
        gradients = [p.grad for p in self._engine.module.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            self._engine.zero_grad()
            return StepResult(applied=False, grad_norm=math.nan, lr=lr)
        self._engine.step()
        return StepResult(applied=True, grad_norm=norm, lr=lr)

    def skip_step(self) -> None:
        """Counts an optimizer step that had nothing to learn from, so that the schedule keeps its pace."""
        self.updates += 1

    def reduce(self, values: Sequence[float], how: str) -> list[float]:
        """Element-wise `sum` or `max` over the ranks (a collective); NaN where any rank has NaN."""
        if self._rank.count == 1 or not values:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        if how == "sum":
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        else:  # the maximum of NaN and a number is either, by the order of the ranks
            nan = tensor.isnan()
            both = torch.stack([tensor.masked_fill(nan, -math.inf), nan.to(tensor.dtype)])
            dist.all_reduce(both, op=dist.ReduceOp.MAX)
            tensor = both[0].masked_fill(both[1] > 0, math.nan)
        found: list[float] = tensor.tolist()
        return found

    def parameter_info(self) -> list[tuple[str, str, list[int]]]:
        """(name, dtype such as "float32", full shape) of what `full_parameters` yields, in its order."""
        return [
            (
                w.name,
                str(w.parameter.dtype).removeprefix("torch."),
                list(getattr(w.parameter, "ds_shape", w.parameter.shape)),
            )
            for w in self._weights()
        ]

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full tensor) of every parameter, one at a time; a tensor is valid until the next one.

        Adapters are merged into the weights that they change, but those of a typed policy's nodes are not. Under
        ZeRO-3 each is gathered when it is reached, so every rank must walk the iterator to its end. A tied output layer
        is yielded under its own name too: engines that keep a packed copy of it need it.
        """
        for weight in self._weights():
            with _gathered(weight.parts()):
                yield weight.name, weight.full()

    def _weights(self) -> Iterator[lora.Weight]:
        lm = self._engine.module.lm
        yield from lora.weights(lm) if self._nodes is None else backbone(lm)
        if self._tied_name is not None:
            yield lora.Weight(name=self._tied_name, parameter=lm.get_input_embeddings().weight)

    def share(self, **facts: Json) -> Shard:
        """Copies of this rank's part of the master weights and of Adam's moments, for a checkpoint; no collective.

        `facts` are kept with them. Of a policy with adapters only these are copied: its other weights are those at
        `model.path`.
        """
        rank, about = self._rank, {"updates": self.updates, "adapters": self._adapters(), **facts}
        parts = own_parts(self._engine.module.lm.named_parameters(), self._engine.optimizer)
        return copy_shard(list(parts), self._engine.optimizer, about, rank.index, rank.count)

    def load(self, path: Path) -> dict[str, Json]:
        """Goes on from the shares in the folder `path`, of however many ranks and any ZeRO stage; gives their facts.

        Raises ValueError if the model has other weights or other adapters.
        """
        named, optimizer = list(self._engine.module.lm.named_parameters()), self._engine.optimizer
        with Shards(path) as shards:
            if (saved := shards.facts["adapters"]) != (here := self._adapters()):
                raise ValueError(
                    f"the checkpoint {path} was saved with {in_words(saved)}, but this run has {in_words(here)}"
                )
            if differs := difference(shards.shapes, shapes_of(named)):
                raise ValueError(f"the checkpoint {path} is of another model: {differs}")
            shards.restore(list(own_parts(named, optimizer)), optimizer)
            refresh(optimizer)
            self.updates = int(str(shards.facts["updates"]))
            return shards.facts

    def _adapters(self) -> dict[str, Json]:
        """What must be the same where a checkpoint is loaded."""
        learner = self._config.learner
        if self._nodes is not None:
            return self._nodes.facts()
        if not self._adapted:
            return {"learner.lora.rank": 0}
        return {
            "learner.lora.rank": learner.lora.rank,
            "learner.lora.alpha": learner.lora.alpha,
            "learner.lora.targets": f"[{','.join(learner.lora.targets)}]",
            "the base model": self._base,
        }

    def export(self, path: Path) -> None:
        """Writes a Hugging Face folder (safetensors, config, tokenizer) that transformers and vLLM load.

        Adapters are merged into its weights, and written to its folder `adapter` by themselves too; those of a typed
        policy's nodes are only written, each to its folder `adapters/NODE`. Raises RuntimeError if the disk does not
        take it.
        """
        policy: PackedPolicy = self._engine.module
        state = {}
        for name, tensor in self.full_parameters():
            if self._rank.index == 0 and name != self._tied_name:
                state[name] = tensor.to("cpu", copy=True)
        if self._rank.index == 0:
            try:
                write_folder(policy.lm, state, self._config, path)
            except (OSError, SafetensorError) as error:  # a full disk is either
                raise RuntimeError(f"the policy could not be exported to {path}: {error}") from None
        if self._adapted:
            state = _copied(lora.factors(self._engine.module.lm))
            if self._rank.index == 0:
                lora.write_adapter(self._engine.module.lm, state, path / lora.ADAPTER_FOLDER)
        for spec in self._nodes.specs if self._nodes is not None else ():
            assert self._nodes is not None
            state = _copied(self._nodes.factors(spec.name))
            if self._rank.index == 0:
                self._nodes.write(spec.name, state, path)

    def adapter_files(self) -> dict[str, bytes]:
        """The adapter of each node of a typed policy as a safetensors file in PEFT's format; on rank 0 only."""
        assert self._nodes is not None, "only a typed policy has adapters of nodes"
        found = {}
        for spec in self._nodes.specs:
            state = _copied(self._nodes.factors(spec.name))
            if self._rank.index == 0:
                found[spec.name] = save(state)
        return found


def _has_divergence(config: RunConfig) -> bool:
    """Whether the loss of a run as configured has a KL term: in any node of a typed policy."""
    if config.typed is None:
        return config.loss.kl_coef > 0
    return any(node.kl_coef > 0 for node in all_coefficients(config.typed, config.loss))


def _join(device: str, rank: Rank) -> torch.device:
    """Joins the group of ranks; returns this rank's device."""
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed calls collectives by names that torch has renamed, and torch says so at every call.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    os.environ |= {"MASTER_ADDR": rank.address, "MASTER_PORT": str(rank.port), "LOCAL_RANK": "0"}
    os.environ |= {"RANK": str(rank.index), "WORLD_SIZE": str(rank.count)}
    # The shared-memory all-reduce serves inference only, and would need a C++ compiler at the first start.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        dist_backend="nccl" if device == "cuda" else "gloo",
        auto_mpi_discovery=False,
        timeout=timedelta(seconds=rank.timeout_s),
        verbose=False,
    )
    if device == "cuda":
        torch.cuda.set_device(0)  # Ray shows each rank its own GPU only
        return torch.device("cuda", 0)
    return torch.device("cpu")


def _initialize(policy: PackedPolicy, settings: dict[str, Any]) -> Any:
    trained = [p for p in policy.parameters() if p.requires_grad]
    # One of DeepSpeed's optimizers prints memory figures; its warnings go to the log, and its errors are raised.
    with redirect_stdout(StringIO()):
        engine, *_ = deepspeed.initialize(model=policy, model_parameters=trained or None, config=settings)
    return engine


def _gathered(parameters: Sequence[torch.nn.Parameter]) -> Any:
    """A context in which parameters that ZeRO-3 has split are whole."""
    return deepspeed.zero.GatheredParameters(list(parameters), enabled=hasattr(parameters[0], "ds_id"))


def _copied(named: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, Tensor]:
    """Whole parameters on the CPU, gathered one after the other where ZeRO-3 has split them."""
    state = {}
    for name, parameter in named:
        with _gathered([parameter]):
            state[name] = parameter.detach().to("cpu", copy=True).contiguous()
    return state


def _score(model: Any, batch: PackTensors, chunks: int) -> tuple[Tensor, Tensor]:
    scored: tuple[Tensor, Tensor] = model(
        batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, chunks, batch.mask_RW, batch.voice_T
    )
    return scored
