"""How like two texts are by a sentence encoder from a local folder: the reward `similarity_model` of decision nodes.

Here and not in `envs`, which stays without torch. Nothing is downloaded.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.decisions.similarity import Likeness

if TYPE_CHECKING:
    from torch import Tensor

MOST_TOLD = 200
"""Characters of what a library says of a folder that it cannot load."""
KEPT = 4_096
"""Texts whose vectors are kept per encoder: references come again and again."""


@cache
def text_likeness(folder: Path) -> Likeness:
    """(1 + cosine) / 2 of two texts' vectors, from 0 to 1; equal texts have 1. Loaded once per process, on the CPU.

    A text's vector is the mean of the last hidden states over its tokens, cut at the encoder's longest input. A text
    without tokens is at 0.5 to every other. Raises ValueError (one sentence) for a folder that holds no such model.
    """
    vector = lru_cache(maxsize=KEPT)(_encoder(folder))

    def likeness(text: str, reference: str) -> float:
        if text == reference:
            return 1.0
        cosine = float(vector(text) @ vector(reference))
        return min(max((1 + cosine) / 2, 0.0), 1.0)

    return likeness


def _encoder(folder: Path) -> Callable[[str], "Tensor"]:
    """Gives a text's vector (H,), of length 1, or 0 for a text without tokens."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; accepted: the folder of a Hugging Face text encoder")
    import torch
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    except Exception as error:  # transformers, safetensors and JSON have errors of their own
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{folder} cannot be loaded as a text encoder: {told[:MOST_TOLD].rstrip('.')}") from None
    longest = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))

    @torch.inference_mode()
    def vector(text: str) -> "Tensor":
        ids_1T = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")["input_ids"].long()
        if not ids_1T.numel():
            return torch.zeros(model.config.hidden_size)
        hidden_TH = model(input_ids=ids_1T).last_hidden_state[0]
        return torch.nn.functional.normalize(hidden_TH.mean(dim=0), dim=0)

    return vector
