"""What a typed policy trains and holds, against training all weights of its backbone: numbers only, nothing heavy."""

from dataclasses import dataclass

HELD = {"float32": 4, "bfloat16": 2}
"""Bytes of a weight that is not trained."""
TRAINED = {"float32": 4 + 4 + 8, "bfloat16": 2 + 4 + 8 + 4}
"""Bytes of a weight that is: itself, its gradient, AdamW's two moments, and with bfloat16 a float32 master copy; the
gradient and the moments are float32 in either case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Weights of a model with adapters."""

    backbone: int
    adapters: int
    trained_backbone: int
    """All of the backbone's, or none."""
    trained_adapters: int
    """Those of adapters that are not frozen."""


def shares(dtype: str, counts: ParameterCounts) -> dict[str, float]:
    """`decision/*` metrics of a run's start.

    `backbone_share` and `adapter_share` are parts of all weights, `trained_share` the part that is trained. The bytes
    are those of weights, gradients and optimizer, over all ranks together and without activations:
    `state_bytes` of this policy, `full_state_bytes` of training every weight of a backbone without adapters, and
    `memory_saved` is 1 minus their ratio. E.g. a backbone of 900 and adapters of 100 weights in float32, the backbone
    frozen: shares 0.9 and 0.1; 900 * 4 + 100 * 16 = 5,200 of 900 * 16 = 14,400 bytes, so 0.64 is saved.
    """
    every, trained = counts.backbone + counts.adapters, counts.trained_backbone + counts.trained_adapters
    held = (every - trained) * HELD[dtype] + trained * TRAINED[dtype]
    full = counts.backbone * TRAINED[dtype]
    return {
        "decision/backbone_share": counts.backbone / every,
        "decision/adapter_share": counts.adapters / every,
        "decision/trained_share": trained / every,
        "decision/state_bytes": float(held),
        "decision/full_state_bytes": float(full),
        "decision/memory_saved": 1.0 - held / full,
    }
