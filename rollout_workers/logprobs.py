"""What vLLM says of each sampled token, as plain values: log-probability, entropy, alternatives, weights version.

`steps` are vLLM's tables of one answer: per position a mapping from token id to an object with `logprob`, which holds
the sampled token and as many of the likeliest as were asked for.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from envs.decisions.types import Alternatives


def labels(spans: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """(place, version) of each token that vLLM has labelled; its label until the first push is "default"."""
    for span in spans:
        if span.version.isdigit():
            yield from ((place, int(span.version)) for place in range(span.start, span.end))


def chosen(token_ids: Sequence[int], steps: Sequence[Any]) -> tuple[float, ...]:
    """Log-probability of each sampled id."""
    return tuple(step[token].logprob for token, step in zip(token_ids, steps, strict=True))


def alternatives_at(sampled: int, step: Any, texts: Sequence[str]) -> Alternatives:
    """Text and log-probability of each token that vLLM reports for one position: the sampled one, then the likeliest.

    Tokens that a grammar does not allow have minus infinity there, and are left out.
    """
    others = sorted(
        ((-each.logprob, token) for token, each in step.items() if token != sampled and each.logprob > -math.inf)
    )
    return ((texts[sampled], step[sampled].logprob), *((texts[token], -value) for value, token in others))


def entropies(steps: Sequence[Any], topk: int) -> tuple[float, ...]:
    """Entropy of the distribution that each id was drawn from, as `entropy` has it; none if `topk` is 0."""
    return tuple(entropy([each.logprob for each in step.values()], topk) for step in steps) if topk else ()


def entropy(logprobs: Sequence[float], topk: int) -> float:
    """Entropy in nats of a distribution known by its likeliest tokens: Σ −p ln p over the `topk` and one for the rest.

    The rest as one bucket makes it a lower bound of the true entropy, equal for `topk` = vocabulary. `logprobs` may
    hold one more, the sampled token's. E.g. ln 0.5, ln 0.25 with topk 2: 0.5·0.693 + 2·0.25·1.386 = 1.04.
    """
    likeliest = sorted(logprobs, reverse=True)[:topk]
    rest = 1.0 - math.fsum(math.exp(value) for value in likeliest)
    known = math.fsum(-math.exp(value) * value for value in likeliest if value > -math.inf)
    return known - rest * math.log(rest) if rest > 0 else known
