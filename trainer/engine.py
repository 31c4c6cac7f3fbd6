"""One rank's model, optimizer and reference model under DeepSpeed; the only file that imports deepspeed.

Gradients: the loss of an optimizer step is a sum over all packs of all ranks, already normalised over the whole batch.
DeepSpeed averages over ranks and knows micro-batches; so the accumulation boundary is set by hand, its own division by
accumulation steps stays 1, and the loss is multiplied by the number of ranks to undo the average.

Collectives: `score`, `reference`, `backward`, `step`, `full_parameters`, `save`, `load` and `export` must be called by
every rank in the same order; under ZeRO-3 each forward pass is a collective too.
"""

import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import deepspeed  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from torch import Tensor

from envs.types import Json
from trainer import lora
from trainer.config import RunConfig
from trainer.deepspeed_settings import inference_settings, training_settings
from trainer.forward import PackedPolicy, PackTensors, to_tensors
from trainer.layout import chosen_layout
from trainer.layout_check import check_layout
from trainer.packing import flat_pack
from trainer.pretrained import load_model, write_folder
from trainer.schedule import learning_rate

LOGITS_AT_ONCE = 1 << 26
"""Most float32 logits that a forward pass computes at a time (256 MiB)."""
_TAG = "state"
_FACTS = "learner.json"


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
        policy = self._policy(train=True)
        self._adapted = config.learner.lora.rank > 0
        self._base = lora.fingerprint(policy.lm) if self._adapted else ""
        self._tied_name = policy.tied_name()
        self.parameters = sum(p.numel() for p in policy.parameters())
        """Weights of the model, those of adapters included."""
        self.trained_parameters = sum(p.numel() for p in policy.parameters() if p.requires_grad)
        settings = training_settings(config, self.parameters, self.trained_parameters)
        self._engine = _initialize(policy, settings)
        self._reference = self._frozen() if config.loss.kl_coef > 0 and not self._adapted else None

    def _policy(self, *, train: bool) -> PackedPolicy:
        lm = load_model(self._config, train=train)
        layout = chosen_layout(self._config.learner)
        policy = PackedPolicy(lm, self._config.rollout.temperature, layout).place(self.device)
        if train:
            check_layout(policy, self._config)
        if train and self._config.learner.lora.rank > 0:
            lora.adapt(lm, self._config)
            policy.register_state_dict_post_hook(lora.keep_adapters)  # type: ignore[no-untyped-call]
        return policy

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

    def score(self, batch: PackTensors, chunks: int = 1) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the pack's trained tokens under the policy."""
        return _score(self._engine, batch, chunks)

    def reference(self, batch: PackTensors, chunks: int) -> Tensor:
        """Log-probabilities of the pack's trained tokens under the starting policy: a frozen copy, or adapters off."""
        if self._adapted:
            with torch.no_grad(), lora.adapters_off(self._engine.module.lm):
                return _score(self._engine, batch, chunks)[0]
        assert self._reference is not None, "there is a reference model only with loss.kl_coef > 0"
        with torch.no_grad():
            return _score(self._reference, batch, chunks)[0]

    def logprobs(self, sequences: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """For each (ids, n) the log-probabilities of the last n ids, at the rollout temperature."""
        with torch.no_grad():
            return [self.score(to_tensors(flat_pack([one]), self.device))[0].tolist() for one in sequences]

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

        Adapters are merged into the weights that they change. Under ZeRO-3 each is gathered when it is reached, so
        every rank must walk the iterator to its end. A tied output layer is yielded under its own name too: engines
        that keep a packed copy of it need it.
        """
        for weight in self._weights():
            with _gathered(weight.parts()):
                yield weight.name, weight.full()

    def _weights(self) -> Iterator[lora.Weight]:
        lm = self._engine.module.lm
        yield from lora.weights(lm)
        if self._tied_name is not None:
            yield lora.Weight(name=self._tied_name, parameter=lm.get_input_embeddings().weight)

    def save(self, path: Path) -> None:
        """Writes weights and optimizer state into the folder `path`, which all ranks must be able to reach.

        Of a policy with adapters only these: its other weights are those at `model.path`.
        """
        self._engine.save_checkpoint(
            str(path),
            tag=_TAG,
            client_state={"updates": self.updates},
            save_latest=False,
            exclude_frozen_parameters=self._adapted,
        )
        if self._rank.index == 0:
            (path / _FACTS).write_text(json.dumps(self._facts()) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        """Restores what `save` wrote. Raises ValueError if the run has other ranks, ZeRO stage or adapters."""
        saved = json.loads((path / _FACTS).read_text(encoding="utf-8"))
        if saved != self._facts():
            raise ValueError(
                f"the checkpoint {path} was saved with {_words(saved)}, but this run has {_words(self._facts())}"
            )
        found, state = self._engine.load_checkpoint(str(path), tag=_TAG, load_module_strict=not self._adapted)
        if found is None:
            raise ValueError(f"the checkpoint {path} cannot be read")
        self.updates = int(state["updates"])

    def _facts(self) -> dict[str, Json]:
        learner = self._config.learner
        facts: dict[str, Json] = {"learner.ranks": self._rank.count, "learner.zero_stage": learner.zero_stage}
        if not self._adapted:
            return facts
        adapters: dict[str, Json] = {
            "learner.lora.rank": learner.lora.rank,
            "learner.lora.alpha": learner.lora.alpha,
            "learner.lora.targets": f"[{','.join(learner.lora.targets)}]",
            "the base model": self._base,
        }
        return facts | adapters

    def export(self, path: Path) -> None:
        """Writes a Hugging Face folder (safetensors, config, tokenizer) that transformers and vLLM load.

        Adapters are merged into its weights, and written to its folder `adapter` by themselves too.
        """
        policy: PackedPolicy = self._engine.module
        state = {}
        for name, tensor in self.full_parameters():
            if self._rank.index == 0 and name != self._tied_name:
                state[name] = tensor.to("cpu", copy=True)
        if self._rank.index == 0:
            write_folder(policy.lm, state, self._config, path)
        if self._adapted:
            self._export_adapter(path / lora.ADAPTER_FOLDER)

    def _export_adapter(self, path: Path) -> None:
        state = {}
        for name, factor in lora.factors(self._engine.module.lm):
            with _gathered([factor]):
                state[name] = factor.detach().to("cpu", copy=True)
        if self._rank.index == 0:
            lora.write_adapter(self._engine.module.lm, state, path)


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


def _score(model: Any, batch: PackTensors, chunks: int) -> tuple[Tensor, Tensor]:
    scored: tuple[Tensor, Tensor] = model(
        batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, chunks
    )
    return scored


def _words(facts: dict[str, Json]) -> str:
    return " ".join(f"{key}={value}" for key, value in facts.items())
