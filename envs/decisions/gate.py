"""The gate: a small network that reads the root's output distribution and says which of its children must run.

Inference only, in plain Python, so that environments stay without torch; `python -m trainer.gate` trains it. A file is
in safetensors format: `hidden.weight` (H, I), `hidden.bias` (H), `output.weight` (K, H) and `output.bias` (K), all
float32, and in its metadata `inputs` and `nodes`, JSON lists of the I names of `root_odds` and of the K children. With
x the inputs: p = sigmoid(W2 relu(W1 x + b1) + b2).
"""

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from envs.decisions.odds import feature_names
from envs.decisions.tree import Declared
from envs.decisions.types import Gating

if TYPE_CHECKING:
    from envs.decisions.settings import DecisionSettings

MOST_WEIGHTS = 50_000
Matrix: TypeAlias = tuple[tuple[float, ...], ...]
_LONGEST_HEADER = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """I inputs, H hidden units, K children of the root."""

    inputs: tuple[str, ...]
    """Names of its inputs, in order, e.g. `("intent=refund", "intent=status")`."""
    nodes: tuple[str, ...]
    """The children it decides on, in order."""
    hidden_weight: Matrix
    """(H, I)"""
    hidden_bias: tuple[float, ...]
    output_weight: Matrix
    """(K, H)"""
    output_bias: tuple[float, ...]
    threshold: float = 0.5
    """A child runs if its probability is at least this."""

    def __post_init__(self) -> None:
        """Raises ValueError for shapes that don't fit together, and for more than 50,000 weights."""
        rows = {"hidden.weight": (self.hidden_weight, len(self.hidden_bias), len(self.inputs))}
        rows["output.weight"] = (self.output_weight, len(self.nodes), len(self.hidden_bias))
        for name, (matrix, height, width) in rows.items():
            if len(matrix) != height or any(len(row) != width for row in matrix):
                found = f"({len(matrix)}, {len(matrix[0]) if matrix else 0})"
                raise ValueError(f"{name} must have shape ({height}, {width}), not {found}")
        if len(self.output_bias) != len(self.nodes):
            raise ValueError(f"output.bias must have {len(self.nodes)} values, not {len(self.output_bias)}")
        if self.weights > MOST_WEIGHTS:
            raise ValueError(f"a gate has at most {MOST_WEIGHTS:,} weights, not {self.weights:,}")

    @classmethod
    def from_file(cls, path: Path | str, threshold: float = 0.5) -> "Gate":
        """Reads what `python -m trainer.gate` wrote. Raises ValueError with one sentence that names the file."""
        try:
            arrays, about = _read(Path(path).read_bytes())
            return cls(
                inputs=tuple(map(str, json.loads(about["inputs"]))),
                nodes=tuple(map(str, json.loads(about["nodes"]))),
                hidden_weight=arrays["hidden.weight"],
                hidden_bias=_row(arrays, "hidden.bias"),
                output_weight=arrays["output.weight"],
                output_bias=_row(arrays, "output.bias"),
                threshold=threshold,
            )
        except OSError as error:
            raise ValueError(f"the gate {path} cannot be read: {error.strerror}") from None
        except KeyError as error:
            raise ValueError(f"the gate {path} has no {error.args[0]}: it must be what trainer.gate wrote") from None
        except (ValueError, TypeError, AttributeError, struct.error) as error:
            raise ValueError(f"the gate {path} cannot be used: {error}") from None

    @property
    def weights(self) -> int:
        """How many numbers it has learned: H(I + 1) + K(H + 1)."""
        return len(self.hidden_bias) * (len(self.inputs) + 1) + len(self.nodes) * (len(self.hidden_bias) + 1)

    def decide(self, odds: Sequence[tuple[str, float]]) -> tuple[Gating, ...]:
        """What it says about each child, given `root_odds` of the root's answer."""
        given = dict(odds)
        assert given.keys() == set(self.inputs), "a gate's inputs are compared with the declaration before a run"
        inputs = [given[name] for name in self.inputs]
        hidden = [max(value, 0.0) for value in _affine(self.hidden_weight, self.hidden_bias, inputs)]
        logits = _affine(self.output_weight, self.output_bias, hidden)
        chances = [1 / (1 + math.exp(-max(min(logit, 80.0), -80.0))) for logit in logits]
        return tuple(
            Gating(node=node, probability=chance, runs=chance >= self.threshold)
            for node, chance in zip(self.nodes, chances, strict=True)
        )


def load_gate(settings: "DecisionSettings") -> Gate | None:
    """The gate of a decision policy; None where every node runs.

    Raises ValueError with one sentence for a file that cannot be read, and for a gate of another declaration.
    """
    if settings.gate.path is None:
        return None
    path, declared = settings.gate.path, Declared(settings)
    gate = Gate.from_file(path, settings.gate.threshold)
    _compare(path, "inputs", gate.inputs, "the enumerated outputs of the root", gate_inputs(settings))
    _compare(path, "children", gate.nodes, "the children of the root", declared.children(declared.root))
    return gate


def gate_inputs(settings: "DecisionSettings") -> tuple[str, ...]:
    """The names that a gate of this declaration reads."""
    declared = Declared(settings)
    return feature_names(declared.node(declared.root).output_schema)


def _compare(path: Path, what: str, has: Sequence[str], source: str, wanted: Sequence[str]) -> None:
    if set(has) != set(wanted):
        odd = sorted(set(has) ^ set(wanted))
        raise ValueError(
            f"decision.gate.path={path} was trained for another declaration: its {what} differ from {source} in "
            f"{', '.join(odd[:3])}{' and more' if len(odd) > 3 else ''}"
        )


def _affine(weight: Matrix, bias: Sequence[float], inputs: Sequence[float]) -> list[float]:
    return [math.fsum((b, *map(float.__mul__, row, inputs))) for row, b in zip(weight, bias, strict=True)]


def _read(data: bytes) -> tuple[dict[str, Matrix], dict[str, str]]:
    """Float32 arrays of a safetensors file as rows (a vector is one row), and its metadata.

    The format: the length of the header (8 bytes, little-endian), the header (JSON), the numbers.
    """
    (length,) = struct.unpack_from("<Q", data)
    if length > min(len(data) - 8, _LONGEST_HEADER):
        raise ValueError("it is no safetensors file")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    about = header.pop("__metadata__", {})
    arrays = {name: _array(entry, data[8 + length :], name) for name, entry in header.items()}
    return arrays, about


def _array(entry: dict[str, Any], numbers: bytes, name: str) -> Matrix:
    begin, end = entry["data_offsets"]
    *outer, width = entry["shape"]
    count = width * math.prod(outer)
    if entry["dtype"] != "F32" or len(outer) > 1 or end - begin != 4 * count or end > len(numbers):
        raise ValueError(f"{name} must be a float32 matrix or vector")
    values = struct.unpack_from(f"<{count}f", numbers, begin)
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{name} holds a number that is not finite")
    return tuple(values[place : place + width] for place in range(0, count, width or 1))


def _row(arrays: dict[str, Matrix], name: str) -> tuple[float, ...]:
    (row,) = arrays[name] or ((),)
    return row
