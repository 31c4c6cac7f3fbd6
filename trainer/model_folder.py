"""Whether `model.path` can be trained, judged from the small files of a Hugging Face folder; loads no weights."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.config import RunConfig
from trainer.model_weights import Shapes, shapes
from trainer.paths import is_file, is_folder

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
)
_GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")
"""A tag of transformers' own in chat templates."""
_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The small files that describe a model; empty where one is missing."""

    folder: Path
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    """`tokenizer_config.json`."""
    vocabulary: dict[str, Any]
    """`tokenizer.json`."""
    shapes: Shapes

    def size(self, *names: str) -> int | None:
        """The first of these numbers that config.json has, e.g. `size("num_hidden_layers", "n_layer")`."""
        nested = self.config.get("text_config")
        places = [self.config, nested] if isinstance(nested, dict) else [self.config]
        found = [place.get(name) for place in places for name in names]
        return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def check_model(config: RunConfig) -> tuple[list[str], list[str]]:
    """(problems, notes), each a sentence. A hub id is not looked up, except in the cache when the hub is off."""
    path = Path(config.model.path)
    if is_folder(path):
        try:
            return list(_folder_problems(config, _read(path))), []
        except ValueError as error:
            return [f"model.path={path} cannot be used: {error}."], []
    if _is_hub_id(config.model.path):
        return _hub_id(config.model.path)
    kind = "is a file" if is_file(path) else f"does not exist (relative paths count from {Path.cwd()})"
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
        folder=folder,
        config=_json(folder / "config.json"),
        tokenizer=_json(folder / "tokenizer_config.json"),
        vocabulary=_json(folder / "tokenizer.json"),
        shapes=shapes(folder),
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file.name} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file.name} is not UTF-8 text") from None


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    text = _text(file)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} does not hold a JSON object")
    return content


def _folder_problems(config: RunConfig, files: ModelFiles) -> Iterator[str]:
    says = f"model.path={files.folder} cannot be used"
    if not files.config:
        yield f"{says}: it has no config.json, so it is not a Hugging Face model folder."
        return
    yield from _architecture_problems(says, files, config.model.trust_remote_code)
    if not any(next(files.folder.glob(pattern), None) for pattern in _WEIGHTS):
        yield f"{says}: it has no weights ({' or '.join(_WEIGHTS)})."
    yield from _length_problems(config, files)
    yield from _rollout_problems(config, files)
    if config.learner.lora.rank:
        yield from _target_problems(config, files)
    yield from _tokenizer_problems(says, files)


def _architecture_problems(says: str, files: ModelFiles, remote_code: bool) -> Iterator[str]:
    named = files.config.get("architectures")
    architectures = [str(name) for name in named] if isinstance(named, list) else []
    causal = [name for name in architectures if name.endswith(_CAUSAL)]
    if not causal:
        shown = ", ".join(architectures) or "nothing"
        yield f"{says}: its architectures are {shown}, and a causal language model (...ForCausalLM) is needed."
    elif not isinstance(files.config.get("model_type"), str):
        yield f"{says}: its config.json has no model_type, e.g. qwen2."
    elif not remote_code and not any(map(_is_known, causal)):
        brings = "auto_map" in files.config
        remedy = "; it comes with code of its own, which runs only with model.trust_remote_code=true" if brings else ""
        yield f"{says}: the installed transformers does not know its architecture {causal[0]}{remedy}."


def _is_known(architecture: str) -> bool:
    """Whether transformers has a class of that name, found in its source without importing it."""
    spec = find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return True
    models, wanted = Path(spec.submodule_search_locations[0]) / "models", f"class {architecture}("
    start = architecture.lower()[:3]
    likely = sorted(models.glob("*/modeling_*.py"), key=lambda file: not file.parent.name.startswith(start))
    return any(wanted in file.read_text(encoding="utf-8", errors="replace") for file in likely)


def _length_problems(config: RunConfig, files: ModelFiles) -> Iterator[str]:
    longest, wanted = _longest_context(files), config.limits.max_context_tokens
    if longest is not None and longest < wanted:
        yield f"limits.max_context_tokens={wanted} must be at most {longest}, the longest context of {files.folder}."


def _longest_context(files: ModelFiles) -> int | None:
    """In tokens; None where config.json does not say, or stretches positions by a factor."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = files.config.get(key)
        if isinstance(rope, dict) and rope.get("factor", 1) != 1:
            return None
    return files.size("max_position_embeddings", "n_positions")


def _rollout_problems(config: RunConfig, files: ModelFiles) -> Iterator[str]:
    heads, split = files.size("num_attention_heads", "n_head"), config.rollout.tensor_parallel
    if heads is not None and heads % split:
        yield f"rollout.tensor_parallel={split} must divide {heads}, the number of attention heads of {files.folder}."
    each, context = _cache_bytes(config, files, heads), config.limits.max_context_tokens
    gib = config.rollout.kv_cache_gib
    if each and config.rollout.device == "cpu" and gib * 2**30 < each * context:
        yield (
            f"rollout.kv_cache_gib={gib} holds {gib * 2**30 // each} tokens of {files.folder}, fewer than "
            f"limits.max_context_tokens={context}: it must be at least {-(-each * context // 2**30)}."
        )


def _cache_bytes(config: RunConfig, files: ModelFiles, heads: int | None) -> int | None:
    """Bytes of the KV cache per token; None for models whose cache is not one key and one value per layer and head."""
    layers, hidden = files.size("num_hidden_layers", "n_layer"), files.size("hidden_size", "n_embd")
    special = ("kv_lora_rank", "sliding_window", "layers_block_type")
    if not heads or not layers or not hidden or any(files.config.get(name) for name in special):
        return None
    size = files.size("head_dim") or hidden // heads
    return 2 * layers * (files.size("num_key_value_heads") or heads) * size * _BYTES[config.model.dtype]


def _target_problems(config: RunConfig, files: ModelFiles) -> Iterator[str]:
    """Names of layers that appear in no weight at all; which of the others can be adapted, the learner judges."""
    targets = config.learner.lora.targets
    layers = [name.removesuffix(".weight") for name, shape in files.shapes.items() if len(shape) == 2]
    lasts = {name.rpartition(".")[2] for name in layers}
    for target in targets if layers and targets != ("all-linear",) else ():
        if target.rpartition(".")[2] not in lasts:
            linear = sorted(last for last in lasts if f"{last}.weight" not in _EMBEDDINGS)
            yield (
                f"learner.lora.targets names {target!r}, which is no layer of model.path={files.folder}: "
                f"it has {', '.join(linear)} (or [all-linear])."
            )


def _tokenizer_problems(says: str, files: ModelFiles) -> Iterator[str]:
    if not any((files.folder / name).is_file() for name in _TOKENIZERS):
        yield f"{says}: it has no tokenizer ({', '.join(_TOKENIZERS[:-1])} or {_TOKENIZERS[-1]})."
        return
    yield from _template_problems(says, files)
    highest, rows = _highest_id(files.vocabulary), _embedding_rows(files)
    if highest is not None and rows is not None and highest >= rows:
        yield (
            f"{says}: its tokenizer has ids up to {highest} and its embedding {rows} rows (ids up to {rows - 1}): "
            "tokenizer and model do not belong together."
        )


def _template_problems(says: str, files: ModelFiles) -> Iterator[str]:
    file = files.folder / "chat_template.jinja"
    template = _text(file) if file.is_file() else files.tokenizer.get("chat_template")
    if not template:
        yield f"{says}: its tokenizer has no chat template (chat_template.jinja, or in tokenizer_config.json)."
    elif isinstance(template, str) and find_spec("jinja2") is not None:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        parser = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
        try:
            parser.parse(_GENERATION.sub("", template))
        except jinja2.TemplateSyntaxError as error:
            yield f"{says}: its chat template is not Jinja ({error.message}, in line {error.lineno})."


def _highest_id(vocabulary: dict[str, Any]) -> int | None:
    """The highest id of `tokenizer.json`, or None if it has none that can be read here."""
    model, added = vocabulary.get("model"), vocabulary.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: list[object] = list(vocab.values()) if isinstance(vocab, dict) else []
    ids += range(len(vocab)) if isinstance(vocab, list) else []
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return max((number for number in ids if isinstance(number, int)), default=None)


def _embedding_rows(files: ModelFiles) -> int | None:
    found = (shape[0] for name, shape in files.shapes.items() if name.endswith(_EMBEDDINGS) and len(shape) == 2)
    return next(found, files.size("vocab_size"))
