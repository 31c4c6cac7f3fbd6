"""Hugging Face models in and out: loading for training, the check that packed trees suit a model, and the export."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from trainer.config import RunConfig
from trainer.forward import PackedPolicy, dense_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest difference in nats between a packed and a flat forward pass of the same tokens that rounding explains."""


def load_model(config: RunConfig, *, train: bool) -> "PreTrainedModel":
    """The model at `model.path` in `model.dtype` on the CPU; with `train` ready for gradients, otherwise frozen.

    It stays without dropout: a random mask would make the ratio of new to old probability random too.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]
    lm: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        config.model.path,
        dtype=getattr(torch, config.model.dtype),
        attn_implementation="sdpa",
        trust_remote_code=config.model.trust_remote_code,
    )
    lm.requires_grad_(train)
    lm.train(train)
    if train and config.learner.gradient_checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in lm.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 (typed as a submodule)
    return lm


def check_packing(policy: PackedPolicy, config: RunConfig) -> None:
    """Raises ValueError if this architecture does not compute a packed tree as it computes plain sequences.

    Some change logits after the output layer, attend in windows shorter than a path, or carry a recurrent state. A
    prompt of four tokens with two branches of three is scored both ways; windows are read from the configuration.
    """
    text = policy.lm.config.get_text_config()
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    if window is not None and window < config.limits.max_context_tokens:
        raise ValueError(
            f"model.path={config.model.path} attends in windows of {window} tokens, which trees in packs do not "
            f"support: set limits.max_context_tokens to at most {window} or use a model with full attention"
        )
    worst = packed_minus_flat(policy)
    if not worst <= TOLERANCE[config.model.dtype]:
        raise ValueError(
            f"model.path={config.model.path} cannot be trained with trees in packs: a packed and a plain forward pass "
            f"differ by {worst:.3g} nats (its logits or its attention depend on more than mask and positions)"
        )


def packed_minus_flat(policy: PackedPolicy) -> float:
    """Largest difference of log-probabilities between a small packed tree and its two paths as plain sequences."""
    vocabulary = policy.lm.config.get_text_config().vocab_size
    ids_T = torch.arange(1, 11) * (vocabulary - 1) // 11
    positions_T = torch.tensor([0, 1, 2, 3, 4, 5, 6, 4, 5, 6])
    end_T = torch.tensor([10, 10, 10, 10, 7, 7, 7, 10, 10, 10])
    rows_R = torch.tensor([0, 1, 2, 3, 4, 5, 3, 7, 8])
    targets_R = ids_T[torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9])]
    assert dense_mask(end_T).shape[-1] == len(ids_T)
    with torch.no_grad():
        packed_R, _ = policy(ids_T, positions_T, end_T, rows_R, targets_R, 1)
        flat = [_flat_logprobs(policy, ids_T[:7]), _flat_logprobs(policy, torch.cat([ids_T[:4], ids_T[7:]]))[3:]]
    return float((packed_R - torch.cat(flat)).abs().max())


def _flat_logprobs(policy: PackedPolicy, ids_T: Tensor) -> Tensor:
    logits_TV: Tensor = policy.lm(input_ids=ids_T[None], use_cache=False).logits[0, :-1].float() / policy.temperature
    return logits_TV.log_softmax(-1).gather(-1, ids_T[1:, None])[:, 0]


def write_folder(lm: "PreTrainedModel", state: dict[str, Tensor], config: RunConfig, path: Path) -> None:
    """Writes weights, configuration and the tokenizer of `model.path` as a folder that transformers and vLLM load."""
    lm.save_pretrained(path, state_dict=state)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path, trust_remote_code=config.model.trust_remote_code)
    tokenizer.save_pretrained(path)
