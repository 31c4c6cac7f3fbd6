"""Whether `model.path` can be trained, judged from the small files of a Hugging Face folder; loads no weights."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import RunConfig

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_CAUSAL = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The JSON files that describe a model; empty where a file is missing."""

    folder: Path
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    """`tokenizer_config.json`."""


def check_model(config: RunConfig) -> tuple[list[str], list[str]]:
    """(problems, notes), each a sentence. A hub id is not looked up, except in the cache when the hub is off."""
    path = Path(config.model.path)
    if path.is_dir():
        try:
            return list(_folder_problems(config, _read(path))), []
        except ValueError as error:
            return [str(error)], []
    if _is_hub_id(config.model.path):
        return _hub_id(config.model.path)
    kind = "is a file" if path.exists() else f"does not exist (relative paths count from {Path.cwd()})"
    return [
        f"model.path={config.model.path} {kind}: it must be a folder with a Hugging Face causal language model "
        "or a hub id such as ORG/NAME."
    ], []


def _is_hub_id(path: str) -> bool:
    """`org/name`, unless `org` is a folder here: then the user meant a folder."""
    return _HUB_ID.fullmatch(path) is not None and not Path(path.split("/")[0]).exists()


def _hub_id(name: str) -> tuple[list[str], list[str]]:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    cached = (cache / f"models--{name.replace('/', '--')}").is_dir()
    if not cached and os.environ.get("HF_HUB_OFFLINE", "0").upper() in {"1", "ON", "YES", "TRUE"}:
        return [f"model.path={name} is neither a folder nor in the hub's cache {cache}, and HF_HUB_OFFLINE is set."], []
    return [], [f"model.path={name} is taken for a hub id; its files are not checked before the start."]


def _read(folder: Path) -> ModelFiles:
    return ModelFiles(
        folder=folder, config=_json(folder / "config.json"), tokenizer=_json(folder / "tokenizer_config.json")
    )


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"model.path={file.parent} cannot be used: {file.name} is not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ValueError(f"model.path={file.parent} cannot be used: {file.name} does not hold a JSON object.")
    return content


def _folder_problems(config: RunConfig, files: ModelFiles) -> Iterator[str]:
    says = f"model.path={files.folder} cannot be used"
    if not files.config:
        yield f"{says}: it has no config.json, so it is not a Hugging Face model folder."
        return
    architectures = files.config.get("architectures") or []
    if not any(str(name).endswith(_CAUSAL) for name in architectures):
        named = ", ".join(map(str, architectures)) or "nothing"
        yield f"{says}: its architectures are {named}, and a causal language model (...ForCausalLM) is needed."
    if not any(next(files.folder.glob(pattern), None) for pattern in _WEIGHTS):
        yield f"{says}: it has no weights ({' or '.join(_WEIGHTS)})."
    longest, wanted = files.config.get("max_position_embeddings"), config.limits.max_context_tokens
    if isinstance(longest, int) and longest < wanted:
        yield f"limits.max_context_tokens={wanted} must be at most {longest}, the longest context of {files.folder}."
    yield from _tokenizer_problems(says, files)


def _tokenizer_problems(says: str, files: ModelFiles) -> Iterator[str]:
    if not any((files.folder / name).is_file() for name in _TOKENIZERS):
        yield f"{says}: it has no tokenizer ({', '.join(_TOKENIZERS[:-1])} or {_TOKENIZERS[-1]})."
        return
    if not (files.tokenizer.get("chat_template") or (files.folder / "chat_template.jinja").is_file()):
        yield f"{says}: its tokenizer has no chat template (chat_template.jinja, or in tokenizer_config.json)."
