"""The check at first use: does this model compute trees in the chosen layout as it computes plain rows?

Plain rows are the library's own forward pass, one path at a time, without any attention of ours. Log-probabilities and
gradients of a small forest are compared: a trunk, two branches, a branch of a branch, and a second tree.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import RunConfig
from trainer.forward import PackedPolicy
from trainer.layout import Layout

LOGPROB_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest difference in nats that rounding explains."""
GRADIENT_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""Largest relative difference of a parameter's gradient, by norm, that rounding explains."""
PARENTS = (-1, 0, 1, 2, 3, 4, 3, 6, 7, 7, 9, 1, 11, -1, 13, 14)
"""The small forest: for each token the one before it on its path."""
LEAVES = (5, 8, 10, 12, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far a layout is from plain rows."""

    nats: float
    """Largest difference of log-probabilities."""
    gradient: float
    """Relative difference of the gradient of the first layer, by norm."""


def check_layout(policy: PackedPolicy, config: RunConfig) -> None:
    """Raises ValueError, one sentence, if this architecture cannot be trained in the policy's layout.

    Some change logits after the output layer, attend in windows shorter than a path, cap their scores, or carry a
    recurrent state. Windows and caps are read from the configuration, the rest shows in the comparison.
    """
    subject = f"model.path={config.model.path} cannot be trained with learner.layout={policy.layout}"
    text = policy.lm.config.get_text_config()
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    if window is not None and window < config.limits.max_context_tokens:
        raise ValueError(
            f"{subject}: it attends in windows of {window} tokens, which trees in packs do not support; "
            f"set limits.max_context_tokens to at most {window} or use a model with full attention"
        )
    if getattr(text, "attn_logit_softcapping", None) is not None:
        raise ValueError(f"{subject}: its attention caps its scores, which trees in packs do not support")
    try:
        found = difference(policy)
    except ValueError as error:
        raise ValueError(f"{subject}: {error}") from error
    dtype = config.model.dtype
    if not (found.nats <= LOGPROB_TOLERANCE[dtype] and found.gradient <= GRADIENT_TOLERANCE[dtype]):
        raise ValueError(
            f"{subject}: on a small tree its log-probabilities differ from those of plain rows by {found.nats:.3g} "
            f"nats and its gradients by {found.gradient:.3g} of their size (its logits or its attention depend on more "
            "than mask and positions)"
        )


def difference(policy: PackedPolicy) -> Difference:
    """Compares the policy, as it stands, with the library's attention on plain rows."""
    vocabulary = policy.lm.config.get_text_config().vocab_size
    device = next(policy.parameters()).device
    ids_T = (torch.arange(len(PARENTS), device=device) * 7 + 1) % vocabulary
    found, gradient = _as_trained(policy, ids_T)
    attention = policy.lm.config._attn_implementation
    policy.lm.set_attn_implementation("sdpa")
    expected, expected_gradient = _plain(policy, ids_T)
    policy.lm.set_attn_implementation(str(attention))
    return Difference(
        nats=float((found - expected).abs().max()),
        gradient=float((gradient - expected_gradient).norm() / expected_gradient.norm().clamp(min=1e-30)),
    )


def _paths() -> list[list[int]]:
    """Indices of the forest's tokens along each path."""
    paths = []
    for leaf in LEAVES:
        path = [leaf]
        while PARENTS[path[0]] >= 0:
            path.insert(0, PARENTS[path[0]])
        paths.append(path)
    return paths


def _row(layout: Layout) -> tuple[list[int], list[int]]:
    """The forest laid out: which token of it stands at each place, and the place of the one before it on its path."""
    if layout != "flat":
        return list(range(len(PARENTS))), list(PARENTS)
    origins = [token for path in _paths() for token in path]
    return origins, [-1 if PARENTS[token] < 0 else place - 1 for place, token in enumerate(origins)]


def _as_trained(policy: PackedPolicy, ids_T: Tensor) -> tuple[Tensor, Tensor]:
    """The forest as a pack in the policy's layout; results as of `_plain`."""
    origins, parents = _row(policy.layout)
    positions, end = [0] * len(parents), list(range(1, len(parents) + 1))
    for place, parent in enumerate(parents):
        positions[place] = positions[parent] + 1 if parent >= 0 else 0
    for place in reversed(range(len(parents))):
        if parents[place] >= 0:
            end[parents[place]] = max(end[parents[place]], end[place])
    flat = [token for path in _paths() for token in path]
    scored = [place if policy.layout == "flat" else token for place, token in enumerate(flat) if PARENTS[token] >= 0]
    sources = [parents[place] for place in scored]
    index = [torch.tensor(values, device=ids_T.device) for values in (origins, positions, end, sources, scored)]
    row_T = ids_T[index[0]]
    logprobs_R, _ = policy(row_T, index[1], index[2], index[3], row_T[index[4]], 1)
    return logprobs_R.detach(), _gradient(policy, logprobs_R)


def _plain(policy: PackedPolicy, ids_T: Tensor) -> tuple[Tensor, Tensor]:
    """One path after the other through the library's model: log-probabilities of all its tokens, and a gradient."""
    found = []
    for path in _paths():
        row_T = ids_T[torch.tensor(path, device=ids_T.device)]
        logits_TV: Tensor = policy.lm(input_ids=row_T[None], use_cache=False).logits[0, :-1].float()
        logprobs_TV = (logits_TV / policy.temperature).log_softmax(-1)
        found.append(logprobs_TV.gather(-1, row_T[1:, None])[:, 0])
    logprobs_R = torch.cat(found)
    return logprobs_R.detach(), _gradient(policy, logprobs_R)


def _gradient(policy: PackedPolicy, logprobs_R: Tensor) -> Tensor:
    """Of a sum that weighs neighbours differently, for the trained parameters of the first layer as one vector.

    These gradients pass through all layers, and one layer's gradients take little memory.
    """
    trained = {name: p for name, p in policy.lm.named_parameters() if p.requires_grad}
    first = [p for name, p in trained.items() if ".0." in name] or list(trained.values())[:1]
    weights_R = torch.arange(len(logprobs_R), device=logprobs_R.device) % 3 + 1.0
    gradients = torch.autograd.grad((weights_R * logprobs_R).sum(), first, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.float().flatten() for gradient in gradients])
