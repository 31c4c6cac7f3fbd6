"""What the loss of a typed policy reports per decision node, summed over packs, ranks and optimizer steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainer.types import NodeCoefficients

_SUMS = ("tokens", "ratios", "clipped", "kl_old", "kl_reference", "entropy")


@dataclass(slots=True, kw_only=True)
class NodeMeter:
    """Sums of one or more optimizer steps; without content for a flat policy."""

    sums: dict[str, list[float]] = field(default_factory=dict)
    """Name of a sum -> value of each node, in the declaration's order."""

    def add(self, more: Mapping[str, Sequence[float]]) -> None:
        """Adds what a pack or an optimizer step reports."""
        for name in _SUMS if more else ():
            new = more.get(name, [0.0] * len(more["tokens"]))
            known = self.sums.get(name, [0.0] * len(new))
            self.sums[name] = [a + b for a, b in zip(known, new, strict=True)]

    def flat(self) -> list[float]:
        """All numbers in a row, as long on every rank."""
        return [value for name in _SUMS for value in self.sums.get(name, ())]

    @classmethod
    def from_flat(cls, values: Sequence[float]) -> "NodeMeter":
        """The inverse of `flat`."""
        nodes = len(values) // len(_SUMS)
        if not nodes:
            return cls()
        return cls(sums={name: list(values[k * nodes : (k + 1) * nodes]) for k, name in enumerate(_SUMS)})

    def metrics(self, coefficients: Sequence[NodeCoefficients]) -> dict[str, float]:
        """`decision/<node>/...` of the nodes that were trained. `kl` is the divergence from the starting policy where
        the node's loss has that term, and from the policy that sampled otherwise.
        """
        found: dict[str, float] = {}
        for index, node in enumerate(coefficients):
            of = {name: values[index] for name, values in self.sums.items()}
            if not of.get("tokens"):
                continue
            kl = of["kl_reference" if node.kl_coef > 0 else "kl_old"]
            found |= {
                f"decision/{node.name}/tokens": of["tokens"],
                f"decision/{node.name}/kl": kl / of["tokens"],
                f"decision/{node.name}/entropy": of["entropy"] / of["tokens"],
                f"decision/{node.name}/clip_share": of["clipped"] / max(of["ratios"], 1.0),
            }
        return found
