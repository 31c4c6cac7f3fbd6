"""Trains the gate by itself: binary cross-entropy per child of the root, on labels of which nodes a task needs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from envs.decisions.gate import Gate
from trainer.decisions.gate_data import Example

LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Decisions about one child, against its labels."""

    right: int = 0
    """It runs, and must run."""
    needless: int = 0
    """It runs for nothing."""
    missed: int = 0
    """It is skipped, and must run."""
    spared: int = 0
    """It is skipped, and need not run."""

    @property
    def precision(self) -> float:
        """Share of the runs that were needed; 1 if there was no run."""
        return self.right / runs if (runs := self.right + self.needless) else 1.0

    @property
    def recall(self) -> float:
        """Share of the needed runs that happened; 1 if none was needed."""
        return self.right / needed if (needed := self.right + self.missed) else 1.0

    @property
    def f1(self) -> float:
        """2 right / (2 right + needless + missed); 1 if there was nothing to run and nothing ran."""
        return 2 * self.right / whole if (whole := 2 * self.right + self.needless + self.missed) else 1.0

    @property
    def spared_share(self) -> float:
        """Share of what need not run that was skipped; 1 if everything was needed."""
        return self.spared / idle if (idle := self.needless + self.spared) else 1.0

    @property
    def running_all(self) -> "Counts":
        """What a gate that skips nothing would have, on the same labels."""
        return Counts(right=self.right + self.missed, needless=self.needless + self.spared)

    def plus(self, other: "Counts") -> "Counts":
        """Counts of both."""
        return Counts(
            right=self.right + other.right,
            needless=self.needless + other.needless,
            missed=self.missed + other.missed,
            spared=self.spared + other.spared,
        )


def train_gate(
    examples: Sequence[Example], inputs: Sequence[str], nodes: Sequence[str], *, hidden: int, steps: int, seed: int
) -> dict[str, Tensor]:
    """Weights of the gate after `steps` of Adam over all examples at once; named as in the gate's file.

    Raises ValueError for odds of other names than `inputs`.
    """
    features_NI, labels_NK = _tensors(examples, inputs, nodes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.ModuleDict({"hidden": nn.Linear(len(inputs), hidden), "output": nn.Linear(hidden, len(nodes))})
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(steps):
        optimizer.zero_grad()
        logits_NK = network["output"](network["hidden"](features_NI).relu())
        F.binary_cross_entropy_with_logits(logits_NK, labels_NK).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: tensor.detach() for name, tensor in network.state_dict().items()}


def save_gate(path: Path, weights: dict[str, Tensor], inputs: Sequence[str], nodes: Sequence[str]) -> None:
    """Writes a gate's file (see `envs.decisions.gate`). Raises ValueError if the disk does not take it."""
    about = {"inputs": json.dumps(list(inputs)), "nodes": json.dumps(list(nodes))}
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(weights, part, metadata=about)
        part.replace(path)
    except Exception as error:  # safetensors has an error of its own for a full disk
        part.unlink(missing_ok=True)
        raise ValueError(f"--out {path} cannot be written: {error}") from None


def measure(gate: Gate, examples: Sequence[Example]) -> dict[str, Counts]:
    """The gate's decisions on `examples`, by child."""
    found = dict.fromkeys(gate.nodes, Counts())
    for example in examples:
        for gating in gate.decide(example.odds):
            needed = gating.node in example.needs
            one = Counts(
                right=int(gating.runs and needed),
                needless=int(gating.runs and not needed),
                missed=int(needed and not gating.runs),
                spared=int(not needed and not gating.runs),
            )
            found[gating.node] = found[gating.node].plus(one)
    return found


def _tensors(examples: Sequence[Example], inputs: Sequence[str], nodes: Sequence[str]) -> tuple[Tensor, Tensor]:
    rows = []
    for example in examples:
        odds = dict(example.odds)
        if odds.keys() != set(inputs):
            raise ValueError(
                f"the stored odds of task {example.task_id!r} are not those of the declaration: they have "
                f"{', '.join(sorted(odds.keys() ^ set(inputs))[:3])} only on one side"
            )
        rows.append([odds[name] for name in inputs])
    labels = [[float(node in example.needs) for node in nodes] for example in examples]
    return torch.tensor(rows, dtype=torch.float32), torch.tensor(labels, dtype=torch.float32)
