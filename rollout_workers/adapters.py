"""The LoRA adapters of a typed decision policy as an engine serves them: their shapes, names and files.

An adapter's weights are in PEFT's format. In a run the learner sends them; before the first push, and in an evaluation,
they are those in `<model>/adapters/<name>/`, where an exported typed policy has them.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from envs.decisions.settings import DecisionSettings

FOLDER = "adapters"
"""Folder of an exported policy with one PEFT folder per node."""
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """The shape of one node's adapter."""

    name: str
    """Name of the node."""
    rank: int
    alpha: float
    """Its product is scaled by alpha / rank."""
    head: bool = False
    """Whether the output layer is adapted too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """The weights of one adapter on their way to an engine."""

    digest: str
    """Sixteen digits that tell versions apart."""
    content: bytes
    """A safetensors file in PEFT's format; empty where whoever asked has it already."""

    @classmethod
    def of(cls, content: bytes, known: str | None) -> "AdapterFile":
        """`known`: the digest of the version that whoever asked has."""
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        return cls(digest=digest, content=b"" if digest == known else content)


def adapters_of(decision: DecisionSettings | None) -> tuple[AdapterSpec, ...]:
    """Of each node that has one, in the order of their declaration; none for a flat policy."""
    if decision is None or decision.policy == "flat":
        return ()
    return tuple(
        AdapterSpec(name=node.name, rank=node.adapter.rank, alpha=node.adapter.alpha, head=node.adapter.head)
        for node in decision.nodes
        if node.adapter is not None
    )


class AdapterFiles:
    """Where the weights of each adapter lie on the node of an engine.

    What the learner sends goes into a private folder, in which an adapter keeps its place: a request that a push has
    frozen names the place of its adapter, and finds the new weights there.
    """

    def __init__(self, specs: Iterable[AdapterSpec], shipped: Path) -> None:
        """`shipped` is the folder `FOLDER` of the model that the engine loads; it need not be there."""
        self._specs = {spec.name: spec for spec in specs}
        self._shipped = shipped
        self._own: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All adapters, in the order of their declaration."""
        return tuple(self._specs)

    def number(self, name: str) -> int:
        """What an engine knows the adapter by: 1 for the first one declared."""
        return 1 + self.names.index(name)

    def place(self, name: str) -> Path | None:
        """The adapter's folder, or None while it has no weights. Raises ValueError for a name that is not declared."""
        if name not in self._specs:
            raise ValueError(f"there is no adapter {name!r}: the engine has {', '.join(self._specs) or 'none'}")
        own = self._own / name if self._own is not None else None
        folder = own if own is not None and own.is_dir() else self._shipped / name
        return folder if (folder / WEIGHTS).is_file() else None

    def write(self, name: str, weights: bytes) -> None:
        """Replaces the weights of an adapter by those that the learner sent: a safetensors file."""
        spec = self._specs[name]
        if self._own is None:
            self._own = Path(tempfile.mkdtemp(prefix="espalier-adapters-"))
        folder = self._own / name
        folder.mkdir(exist_ok=True)
        config = {"peft_type": "LORA", "r": spec.rank, "lora_alpha": spec.alpha, "target_modules": "all-linear"}
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        part = folder / f"{WEIGHTS}.part"
        part.write_bytes(weights)
        part.replace(folder / WEIGHTS)

    def close(self) -> None:
        """Removes the private folder."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
