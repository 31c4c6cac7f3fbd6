"""Names and shapes of a model's weights, from the headers of its safetensors files; no weights are read, no torch here.

The format (safetensors 0.4 and later): 8 bytes with the header's length, little-endian; the header, a JSON object
`{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}`; then the data.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""Tensor name → shape, e.g. `{"model.embed_tokens.weight": (2048, 192)}`."""
INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 10**8
"""Bytes: the safetensors library's own limit."""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder: those that its index names, or all that are there.

    Raises ValueError naming an index that cannot be read and a file that it names and that is missing.
    """
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    names = set(_index(index).values())
    if wrong := [name for name in names if not isinstance(name, str) or Path(name).name != name]:
        raise ValueError(f"{INDEX} names {wrong[0]!r}, which is no file name")
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise ValueError(f"{INDEX} names {missing[0]}, which is not there")
    return sorted(folder / name for name in names)


def shapes(folder: Path) -> Shapes:
    """Shapes of all weights in safetensors files; empty without such a file.

    Raises ValueError, a phrase such as `"model.safetensors is cut off: ..."`, for a file that cannot be read.
    """
    return {name: shape for file in weight_files(folder) for name, shape in _header(file)}


def weight_bytes(folder: Path) -> int:
    """Size of the safetensors files in a folder, about what an export of the model takes; 0 without any."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())


def _index(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{file.name} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not JSON ({error})") from None
    named = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(named, dict) or not named:
        raise ValueError(f"{file.name} is not an index of weights: it has no weight_map from names to files")
    return named


def _header(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if start == b"version ":
                raise ValueError(f"{path.name} is a pointer of Git LFS, and not the weights (get them: git lfs pull)")
            if not 2 <= length <= min(LONGEST_HEADER, size - 8):
                raise ValueError(f"{path.name} is not a safetensors file (its first 8 bytes are no header's length)")
            found, end = _entries(file.read(length), path.name)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror or error})") from None
    if size - 8 - length != end:
        raise ValueError(f"{path.name} is damaged: its header speaks of {end:,} bytes and it has {size - 8 - length:,}")
    yield from found.items()


def _entries(header: bytes, name: str) -> tuple[Shapes, int]:
    """(shapes, end of the data) that a header speaks of."""
    found: Shapes = {}
    end = 0
    try:
        for tensor, entry in json.loads(header).items():
            if tensor != "__metadata__":
                found[tensor] = tuple(_count(side) for side in entry["shape"])
                end = max(end, _count(entry["data_offsets"][1]))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{name} is not a safetensors file (its header is not what the format says)") from None
    return found, end


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError
    return value
