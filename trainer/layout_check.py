"""The check at first use: does this model compute trees in the chosen layout as it computes plain rows?

Plain rows are the library's own forward pass, one path at a time, without any attention of ours. Log-probabilities and
gradients of a small forest are compared: a trunk, two branches, a branch of a branch, and a second tree.

What is compared is the model's first layers in float32, whatever `model.dtype` is: in bfloat16 two correct passes of a
trained model differ by as much as a wrong mask would make (SmolLM2-135M: 0.4 nats, and 4e-5 in float32).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import RunConfig
from trainer.forward import PackedPolicy
from trainer.layout import Layout

LOGPROB_TOLERANCE = 1e-3
"""Largest difference in nats that rounding to float32 explains."""
GRADIENT_TOLERANCE = 1e-3
"""Largest relative difference of a gradient, by norm, that rounding to float32 explains."""
LAYERS = 2
"""Layers that are compared: later ones see what earlier ones computed for other tokens."""
TOKENS = 128
"""Tokens of the vocabulary that are compared, spread over all of it."""
FOREST = (-1, 0, 1, 2, 3, 4, 3, 6, 7, 7, 9, 1, 11, -1, 13, 14)
"""The small forest: for each token the one before it on its path."""
CUDA_COPIES = 24
"""How often it stands in the pack on CUDA, where attention works on blocks of 128 tokens and has to skip some."""


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
        found = difference(first_layers(policy))
    except ValueError as error:
        raise ValueError(f"{subject}: {error}") from error
    if not (found.nats <= LOGPROB_TOLERANCE and found.gradient <= GRADIENT_TOLERANCE):
        raise ValueError(
            f"{subject}: on a small tree its log-probabilities differ from those of plain rows by {found.nats:.3g} "
            f"nats and its gradients by {found.gradient:.3g} of their size (its logits or its attention depend on more "
            "than mask and positions)"
        )


def first_layers(policy: PackedPolicy) -> PackedPolicy:
    """The policy's first `LAYERS` layers over `TOKENS` of its tokens, in float32, with its weights and attention."""
    lm = policy.lm
    config = copy.deepcopy(lm.config)
    text = config.get_text_config()
    rows = torch.arange(TOKENS) * text.vocab_size // TOKENS
    text.num_hidden_layers = min(LAYERS, text.num_hidden_layers)
    if getattr(text, "layer_types", None) is not None:
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    text.vocab_size, config.dtype = TOKENS, torch.float32
    config.pad_token_id = text.pad_token_id = None  # it may lie behind the vocabulary
    small = type(lm)(config)
    torch.nn.Module.to(small, torch.float32)
    small.train(False)
    theirs = dict(lm.named_parameters())
    with torch.no_grad():
        for name, parameter in small.named_parameters():
            same = parameter.shape == theirs[name].shape
            parameter.copy_(theirs[name] if same else theirs[name][rows.to(theirs[name].device)])
    found = PackedPolicy(small, policy.temperature, policy.layout).to(next(lm.parameters()).device)
    small.set_attn_implementation(str(lm.config._attn_implementation))
    return found


def difference(policy: PackedPolicy) -> Difference:
    """Compares the policy, as it stands, with the library's attention on plain rows."""
    vocabulary = policy.lm.config.get_text_config().vocab_size
    device = next(policy.parameters()).device
    parents = _forest(CUDA_COPIES if device.type == "cuda" else 1)
    ids_T = (torch.arange(len(parents), device=device) * 7 + 1) % vocabulary
    found, gradient = _as_trained(policy, ids_T, parents)
    attention = policy.lm.config._attn_implementation
    policy.lm.set_attn_implementation("sdpa")
    expected, expected_gradient = _plain(policy, ids_T, parents)
    policy.lm.set_attn_implementation(str(attention))
    return Difference(
        nats=float((found - expected).abs().max()),
        gradient=float((gradient - expected_gradient).norm() / expected_gradient.norm().clamp(min=1e-30)),
    )


def _forest(copies: int) -> list[int]:
    """`FOREST` several times over."""
    size = len(FOREST)
    return [parent + size * place if parent >= 0 else -1 for place in range(copies) for parent in FOREST]


def _paths(parents: Sequence[int]) -> list[list[int]]:
    """Indices of a forest's tokens along each path to a leaf."""
    paths = []
    for leaf in sorted(set(range(len(parents))).difference(parents)):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        paths.append(path)
    return paths


def _row(layout: Layout, parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """A forest laid out: which token of it stands at each place, and the place of the one before it on its path."""
    if layout != "flat":
        return list(range(len(parents))), list(parents)
    origins = [token for path in _paths(parents) for token in path]
    return origins, [-1 if parents[token] < 0 else place - 1 for place, token in enumerate(origins)]


def _as_trained(policy: PackedPolicy, ids_T: Tensor, forest: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The forest as a pack in the policy's layout; results as of `_plain`."""
    origins, parents = _row(policy.layout, forest)
    positions, end = [0] * len(parents), list(range(1, len(parents) + 1))
    for place, parent in enumerate(parents):
        positions[place] = positions[parent] + 1 if parent >= 0 else 0
    for place in reversed(range(len(parents))):
        if parents[place] >= 0:
            end[parents[place]] = max(end[parents[place]], end[place])
    flat = [token for path in _paths(forest) for token in path]
    scored = [place if policy.layout == "flat" else token for place, token in enumerate(flat) if forest[token] >= 0]
    sources = [parents[place] for place in scored]
    index = [torch.tensor(values, device=ids_T.device) for values in (origins, positions, end, sources, scored)]
    row_T = ids_T[index[0]]
    logprobs_R, _ = policy(row_T, index[1], index[2], index[3], row_T[index[4]], 1)
    return logprobs_R.detach(), _gradient(policy, logprobs_R)


def _plain(policy: PackedPolicy, ids_T: Tensor, forest: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One path after the other through the library's model: log-probabilities of all its tokens, and a gradient."""
    found = []
    for path in _paths(forest):
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
