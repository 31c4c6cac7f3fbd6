"""Which tokens each sampled token of a typed step was chosen from: the engine's masks, made again from the ids.

vLLM masks logits by the grammar before it takes log-probabilities, so a learner that took them over the whole
vocabulary would train another policy than the one that sampled. Both sides compile the same text
(`rollout_workers.grammar`) with xgrammar, for the same vocabulary size and the same tokens that end an answer.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.decisions.contracts import compact
from rollout_workers.grammar import grammar_of
from trainer.config import RunConfig
from trainer.types import TreePack

KEPT_BYTES = 64 << 20
"""Masks kept for the next time that the same answer is scored: reference, epochs."""
WORD = 32
"""Tokens per word of a mask."""


class Masks:
    """The masks of answers of typed decision nodes."""

    def __init__(
        self,
        tokenizer: Any,
        vocabulary: int,
        schemas: Sequence[str],
        stop_ids: Sequence[int],
        *,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """`vocabulary` is the model's, the width of its logits. `schemas`: per node JSON Schema text; empty: no mask.

        `stop_ids`: what ends an answer in the engine, see `stop_ids`. Raises ValueError for a schema that can't guide.
        """
        from xgrammar import GrammarCompiler, TokenizerInfo

        compiler = GrammarCompiler(TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary), max_threads=1)
        self._grammars = [compiler.compile_grammar(grammar_of(schema)) if schema else None for schema in schemas]
        self._stop_ids = list(stop_ids)
        self._words = -(-vocabulary // WORD)
        self._kept: OrderedDict[tuple[int, tuple[int, ...]], Tensor] = OrderedDict()
        self._room = max(kept_bytes // (4 * self._words), 1)
        self._rows = 0

    def rows(self, node: int, ids: Sequence[int]) -> Tensor:
        """(len(ids), ceil(vocabulary/32)) int32 on the CPU: bit b of word w says whether token 32w + b was allowed.

        Raises RuntimeError for an answer that the node's grammar does not allow: engine and learner then differ.
        """
        key = (node, tuple(ids))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        rows = self._replayed(node, key[1])
        self._kept[key] = rows
        self._rows += len(rows)
        while self._rows > self._room and len(self._kept) > 1:
            self._rows -= len(self._kept.popitem(last=False)[1])
        return rows

    def of_pack(self, pack: TreePack) -> Tensor | None:
        """(R, words) masks of the pack's scored tokens, in their order; None for a pack without typed answers."""
        if not pack.answers:
            return None
        row_of_token = np.cumsum(pack.scored) - 1
        mask_RW = torch.full((int(pack.scored.sum()), self._words), -1, dtype=torch.int32)
        for answer in pack.answers:
            inside = slice(answer.start, answer.stop)
            scored = pack.scored[inside]
            if scored.any():
                rows = self.rows(answer.node, pack.ids[inside].tolist())
                mask_RW[torch.from_numpy(row_of_token[inside][scored])] = rows[torch.from_numpy(scored)]
        return mask_RW

    def _replayed(self, node: int, ids: tuple[int, ...]) -> Tensor:
        rows = torch.full((len(ids), self._words), -1, dtype=torch.int32)
        grammar = self._grammars[node]
        if grammar is None:
            return rows
        from xgrammar import GrammarMatcher

        matcher = GrammarMatcher(grammar, override_stop_tokens=self._stop_ids)
        for place, token in enumerate(ids):
            if matcher.is_terminated():
                raise RuntimeError(f"an answer of decision node {node} goes on behind the token that ends it")
            matcher.fill_next_token_bitmask(rows, place)
            if not matcher.accept_token(token):
                raise RuntimeError(
                    f"token {token} at place {place} of an answer of decision node {node} is not allowed by the node's "
                    "schema: engine and learner hold different grammars or tokenizers"
                )
        return rows


def masks_of(config: RunConfig, vocabulary: int) -> Masks | None:
    """What a rank needs for a run's typed policy; None for a flat one. `vocabulary` is the width of the logits."""
    if config.typed is None:
        return None
    from transformers import AutoTokenizer

    path, trusted = config.model.path, config.model.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trusted)
    schemas = [compact(node.output_schema) for node in config.typed.nodes]
    return Masks(tokenizer, vocabulary, schemas, stop_ids(path, tokenizer, trust_remote_code=trusted))


def stop_ids(path: str, tokenizer: Any, *, trust_remote_code: bool) -> tuple[int, ...]:
    """The ids that end an answer in the engine: the tokenizer's, and those of the model's generation settings."""
    from transformers import AutoConfig, GenerationConfig

    try:
        found = GenerationConfig.from_pretrained(path)
    except OSError:  # a folder without them
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        found = GenerationConfig.from_model_config(config)
    named = found.eos_token_id if isinstance(found.eos_token_id, list) else [found.eos_token_id]
    return tuple(sorted({token for token in (tokenizer.eos_token_id, *named) if token is not None}))
