"""The files that learner ranks write into a checkpoint and read from it: safetensors, no pickle.

`learner-00000-of-00002.safetensors` holds rank 0's stretches of every trained weight (`checkpoint_parts`), each as a
float32 row under `weight:NAME`, `exp_avg:NAME` and `exp_avg_sq:NAME`. Its metadata say where each stretch lies in its
weight, so any number of ranks, split in any way, can put together what they own.

Concurrency: `ShardWriter` writes in a thread, from copies, while the rank trains on. The thread waits for the disk
only; whoever wants to know that it is done looks for the file's receipt, or asks for the failure.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from envs.types import Json
from trainer.checkpoint_manifest import FileSum, leave_receipt, write_file
from trainer.checkpoint_parts import KINDS, Part, adam_state

_PATTERN = "learner-*-of-*.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Where a stored row lies in its weight."""

    name: str
    shape: list[int]
    start: int
    count: int
    step: float
    """Adam's number of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A rank's share, in memory."""

    file: str
    facts: dict[str, Json]
    """What is the same for all ranks, e.g. `{"updates": 12, "bad_steps": 0}`."""
    stretches: list[Stretch]
    rows: dict[str, Tensor]
    """Float32 rows on the CPU, e.g. `{"exp_avg:model.norm.weight": ...}`."""


def shard_file(index: int, count: int) -> str:
    """Name of the file of rank `index` of `count`."""
    return f"learner-{index:05d}-of-{count:05d}.safetensors"


def copy_shard(parts: Sequence[Part], optimizer: Any, facts: Mapping[str, Json], index: int, count: int) -> Shard:
    """Copies of this rank's stretches; of what every rank owns, rank 0's."""
    stretches, rows = [], {}
    for part in parts:
        if part.shared and index > 0:
            continue
        state = adam_state(optimizer, part.owner)
        sources = {"weight": part.owner, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}
        for kind, tensor in sources.items():
            rows[f"{kind}:{part.name}"] = part.of(tensor).to("cpu", torch.float32, copy=True)
        stretches.append(
            Stretch(
                name=part.name,
                shape=list(part.shape),
                start=part.start,
                count=part.count,
                step=float(state["step"]),
            )
        )
    return Shard(file=shard_file(index, count), facts=dict(facts), stretches=stretches, rows=rows)


def write_shard(folder: Path, shard: Shard) -> FileSum:
    """Writes the share in safetensors' format: length of the header, header, rows. Raises OSError."""
    header: dict[str, Any] = {
        "__metadata__": {
            "facts": json.dumps(shard.facts),
            "stretches": json.dumps([asdict(stretch) for stretch in shard.stretches]),
        }
    }
    end = 0
    for name, row in shard.rows.items():
        start, end = end, end + row.numel() * row.element_size()
        header[name] = {"dtype": "F32", "shape": [row.numel()], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def chunks() -> Iterator[bytes | memoryview]:
        yield len(text).to_bytes(8, "little") + text
        for row in shard.rows.values():
            yield row.numpy().data.cast("B")

    return write_file(folder / shard.file, chunks())


class ShardWriter:
    """Writes one share at a time beside the caller."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.failure: str | None = None
        """Why the newest share was not written; None while it is being written and after a success."""

    def begin(self, folder: Path, shard: Shard) -> None:
        """Writes `shard` into `folder`, with a receipt after it."""
        if self._thread is not None and self._thread.is_alive():
            self.failure = "the checkpoint before it is still being written"
            return
        self.failure = None
        self._thread = threading.Thread(target=self._write, args=(folder, shard), name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self, folder: Path, shard: Shard) -> None:
        try:
            leave_receipt(folder, shard.file, write_shard(folder, shard))
        except OSError as error:
            self.failure = f"{shard.file}: {error.strerror or error}"
            with contextlib.suppress(OSError):
                (folder / shard.file).unlink()


class Shards:
    """The shares of all ranks in a checkpoint folder. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Opens every file. Raises ValueError if one is missing or is not what `write_shard` writes."""
        self._files = contextlib.ExitStack()
        self._pieces: dict[str, list[tuple[Stretch, Any]]] = {}
        self.facts: dict[str, Json] = {}
        paths = sorted(folder.glob(_PATTERN))
        wanted = int(paths[0].stem.rpartition("-")[2]) if paths else 1
        if [path.name for path in paths] != [shard_file(index, wanted) for index in range(wanted)]:
            raise ValueError(f"the checkpoint {folder} does not have the files of all {wanted} learner ranks")
        try:
            for path in paths:
                self._add(self._files.enter_context(safe_open(path, framework="pt")))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            self._files.close()
            raise ValueError(f"the checkpoint {folder} cannot be read: {error}") from None
        self._folder = folder

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the whole weights."""
        return {name: tuple(pieces[0][0].shape) for name, pieces in self._pieces.items()}

    def step(self, name: str) -> float:
        """Adam's number of steps for the weight `name`."""
        return max(stretch.step for stretch, _ in self._pieces[name])

    def read(self, kind: str, part: Part) -> Tensor:
        """The row of `part` on the CPU; `kind` is one of `KINDS`. Raises ValueError if some of it is in no file."""
        row, filled = torch.empty(part.count, dtype=torch.float32), 0
        for stretch, file in self._pieces[part.name]:
            start = max(part.start, stretch.start)
            end = min(part.start + part.count, stretch.start + stretch.count)
            if start < end:
                stored = file.get_slice(f"{kind}:{part.name}")[start - stretch.start : end - stretch.start]
                row[start - part.start : end - part.start] = stored
                filled += end - start
        if filled != part.count:
            raise ValueError(f"the checkpoint {self._folder} does not hold all of {part.name}")
        return row

    def restore(self, parts: Sequence[Part], optimizer: Any) -> None:
        """Puts this rank's stretches of weights and moments in their places."""
        with torch.no_grad():
            for owner in {id(part.owner): part.owner for part in parts}.values():
                adam_state(optimizer, owner)["step"].zero_()
            for part in parts:
                state = adam_state(optimizer, part.owner)
                targets = {"weight": part.owner, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}
                for kind in KINDS:
                    part.of(targets[kind]).copy_(self.read(kind, part))
                state["step"].fill_(max(float(state["step"]), self.step(part.name)))

    def _add(self, file: Any) -> None:
        metadata = file.metadata()
        self.facts = json.loads(metadata["facts"])
        for saved in json.loads(metadata["stretches"]):
            stretch = Stretch(**saved)
            self._pieces.setdefault(stretch.name, []).append((stretch, file))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()
