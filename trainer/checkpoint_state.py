"""What a checkpoint keeps of a run beside the learner's share, and how a run with other settings goes on from it.

No random generator is kept, since none lives longer than a step: the order of the tasks, picking, sampling and the
probes of a push each draw from a generator of their own, seeded from the run's seed and a name such as
`(3, "train-7", task, tree, "pick", 2)` (`rollout_workers/seeds.py`). So the step's number stands for all of them, and
for the position in the data. The world keeps nothing between steps either. A learner rank draws no random numbers at
all once it has loaded the model: there is no dropout.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envs.types import Json
from trainer.checkpoint_manifest import Damaged
from trainer.config import RunConfig
from trainer.decisions.adapter_checks import adapter_contradictions
from trainer.model_weights import weight_files
from trainer.run_folder import library_versions, masked_config
from trainer.totals import Totals

_OWN = {"resume", "dry_run", "name", "runs_dir"}
"""Keys that may differ without anything to say."""
_SAMPLE = 256
"""Bytes of every weight that tell models apart."""
_TOKENIZER = ("tokenizer*", "chat_template*", "*vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json")
"""Files that say which ids a text becomes, the chat template among them."""
_VOLATILE = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The driver's side of a checkpoint; plain values, so that it fits into a JSON file."""

    totals: Totals
    """Steps, weights version, ledger, times and extremes so far."""
    name: str
    """The run's name."""
    config: dict[str, Json]
    """Every setting, secrets masked."""
    model: str
    """`model_id` of the model that the run started from."""
    tokenizer: str = ""
    """`tokenizer_id` of that model; empty in checkpoints from before it was kept, and where it is not known."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Finite metrics of the step, e.g. `{"eval/success": 0.5}`."""
    next_tasks: list[str] = field(default_factory=list)
    """Ids of the tasks of the next step."""
    probes: list[list[int]] = field(default_factory=list)
    """Contexts after which engines sample to be compared with the learner."""
    decision: dict[str, Json] = field(default_factory=dict)
    """`DecisionState` of a typed policy; empty for a flat one, and in checkpoints from before there were any."""
    wandb_run_id: str | None = None
    versions: dict[str, str] = field(default_factory=library_versions)
    """Of the libraries, e.g. `{"torch": "2.13.0"}`."""

    def to_json(self) -> dict[str, Json]:
        """For a checkpoint."""
        return asdict(self) | {"totals": self.totals.to_json()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "RunState":
        """From a checkpoint. Raises Damaged if it is not what `to_json` gives."""
        try:
            return cls(**{**saved, "totals": Totals.from_json(saved["totals"])})
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"its run state is of another version of this program ({error})") from None


def settings_of(config: RunConfig) -> dict[str, Json]:
    """Every setting as a checkpoint keeps it: JSON values, secrets masked."""
    found: dict[str, Json] = json.loads(json.dumps(masked_config(config.model_dump(mode="json"))))
    return found


def contradictions(path: Path, then: RunState, config: RunConfig, model: str) -> Iterator[str]:
    """Sentences about settings under which the weights in checkpoint `path` mean nothing. `model`: that of now."""
    old, new = _flat(then.config), _flat(settings_of(config))
    keys = ["model.dtype", "learner.lora.rank"]
    if old.get("learner.lora.rank") == new["learner.lora.rank"] != 0:
        keys += ["learner.lora.alpha", "learner.lora.targets"]
    for key in keys:
        if key in old and old[key] != new[key]:
            yield (
                f"{key}={_shown(new[key])} contradicts the checkpoint {path}, which was saved with "
                f"{key}={_shown(old[key])}: set it back, or start anew with resume=never."
            )
    yield from adapter_contradictions(path, then.config, config)
    if model != then.model:
        yield (
            f"model.path={config.model.path} is another model ({model}) than the one that the checkpoint {path} was "
            f"trained from, model.path={_shown(old.get('model.path'))} ({then.model}): give that one, or start anew "
            f"with resume=never."
        )


def changes(then: RunState, config: RunConfig) -> list[str]:
    """Settings that differ from those of the checkpoint, e.g. `["steps 3 → 6"]`; those that only one of them has (of
    another kind of environment, or from another version of this program) with `(none)` for the other.
    """
    old, new = _flat(then.config), _flat(settings_of(config))
    return [
        f"{key} {_shown(old[key]) if key in old else '(none)'} → {_shown(new[key]) if key in new else '(none)'}"
        for key in dict.fromkeys([*new, *old])
        if (key in old, old.get(key)) != (key in new, new.get(key)) and key not in _OWN
    ]


def model_id(model: str) -> str:
    """Eight digits that tell the model of a folder from others: its configuration, and the begin of every weight.

    Where the model lies and how its weights are spread over files does not matter. A model that is not a folder is told
    by its name alone, a folder without safetensors files by its configuration. Raises ValueError if the files cannot be
    read.
    """
    folder = Path(model)
    if not folder.is_dir():
        return model
    try:
        return _digest(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"model.path={model} cannot be read ({error})") from None


def tokenizer_id(model: str) -> str:
    """Eight digits that tell a folder's tokenizer and chat template from others; empty for what is no folder.

    Raises ValueError if the files cannot be read.
    """
    folder, digest = Path(model), hashlib.blake2b(digest_size=4)
    if not folder.is_dir():
        return ""
    try:
        for file in sorted({file for pattern in _TOKENIZER for file in folder.glob(pattern) if file.is_file()}):
            digest.update(f"{file.name}\n{file.stat().st_size}\n".encode() + file.read_bytes())
    except OSError as error:
        raise ValueError(f"model.path={model} cannot be read ({error})") from None
    return digest.hexdigest()


def _digest(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=4)
    config = folder / "config.json"
    known: dict[str, Any] = json.loads(config.read_bytes()) if config.is_file() else {}
    digest.update(json.dumps({k: v for k, v in known.items() if k not in _VOLATILE}, sort_keys=True).encode())
    for weight in sorted(weight for file in weight_files(folder) for weight in _samples(file)):
        digest.update(repr(weight).encode())
    return digest.hexdigest()


def _samples(path: Path) -> Iterator[tuple[str, str, list[int], bytes]]:
    """Name, type, shape and first bytes of every weight in a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                file.seek(8 + length + start)
                yield name, entry["dtype"], entry["shape"], file.read(min(_SAMPLE, end - start))


def _flat(settings: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Dotted key → value, e.g. `{"tree.roots": 4}`."""
    found: dict[str, Json] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
    return found


def _shown(value: Json) -> str:
    text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else json.dumps(value, ensure_ascii=False)
    return text.strip('"')
