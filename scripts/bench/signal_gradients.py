"""Gradients of single groups, computed as the learner does, and kept as short sketches.

Credit, packs, forward pass and loss are the learner's own; only the optimizer is missing.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from rollout_workers.types import TaskGroup
from trainer.advantages import advantages, is_dead
from trainer.config import LossConfig, RunConfig
from trainer.demonstrations import Example
from trainer.forward import PackedPolicy, to_tensors
from trainer.layout import chosen_layout
from trainer.loss import pack_loss
from trainer.loss_inputs import loss_inputs
from trainer.packing import pack_forest
from trainer.pretrained import load_model

SMALLEST_SCALE = 1e-3
"""Root mean squares below this share of the largest one count as that share: weights that hardly any token reaches."""


class Gradients:
    """The starting policy of a run, ready to be differentiated."""

    def __init__(self, config: RunConfig) -> None:
        """Loads the model at `model.path`; KL and entropy terms are left out of the loss."""
        torch.set_num_threads(config.learner.threads)
        self._config = config
        self._loss = config.loss.model_copy(update={"kl_coef": 0.0, "entropy_coef": 0.0})
        lm = load_model(config, train=True)
        self._hidden = int(lm.config.get_text_config().hidden_size)
        self._policy = PackedPolicy(lm, config.rollout.temperature, chosen_layout(config.learner))
        self._weights = [p for p in self._policy.parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self._weights)
        """Number of trained weights."""

    def of(self, group: TaskGroup, kind: str, *, plain: bool = False) -> npt.NDArray[np.float32] | None:
        """The gradient of what the loss of `group` alone lets grow (minus the loss); None if it is exactly 0.

        `kind` is an `advantage.kind`. With `plain` each token of a leaf counts alike, whatever the leaf's length: the
        gradient of the expected reward, if the leaves are independent and `kind` has no bias.
        """
        credit = advantages(group, kind, self._config.advantage.singleton)
        if is_dead(credit):
            return None
        loss = self._plain_loss() if plain else self._loss
        learner = self._config.learner.model_copy(update={"ranks": 1, "mini_batches": 1})
        packs = pack_forest([group], [credit], loss, learner, self._hidden).mini_batches[0][0]
        self._policy.zero_grad()
        device = torch.device("cpu")
        for pack in packs:
            batch = to_tensors(pack, device)
            logprobs_R, entropy_R = self._policy(
                batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, 1
            )
            parts = pack_loss(logprobs_R, entropy_R, None, loss_inputs(pack, device), loss)
            parts.loss.backward()  # type: ignore[no-untyped-call]
        return -self._gathered()

    def of_likelihood(self, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """The gradient of the mean log-likelihood of what demonstrations say, all of them counting alike."""
        self._policy.zero_grad()
        for example in examples:
            trained_R = torch.tensor(example.trained).nonzero()[:, 0]
            ids_T, length = torch.tensor(example.ids), len(example.ids)
            logprobs_R, _ = self._policy(
                ids_T, torch.arange(length), torch.full((length,), length), trained_R - 1, ids_T[trained_R], 1
            )
            (logprobs_R.mean() / len(examples)).backward()
        return self._gathered()

    def _gathered(self) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = torch.cat(
            [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().float() for p in self._weights]
        ).numpy()
        return found

    def _plain_loss(self) -> LossConfig:
        return self._loss.model_copy(update={"aggregation": "dr_grpo", "dr_grpo_length": 1})


class Sketch:
    """A random projection to few dimensions that keeps inner products: each coordinate is added to one, with a sign.

    Charikar, Chen and Farach-Colton's count sketch. With D dimensions an inner product <x, y> is unbiased, with a
    standard deviation of about |x||y|/sqrt(D).
    """

    def __init__(self, size: int, dimensions: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._place = rng.integers(dimensions, size=size)
        self._sign = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), size=size)
        self.dimensions = dimensions

    def of(self, vector: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32]:
        """The projection of a vector; None stands for zeros."""
        if vector is None:
            return np.zeros(self.dimensions, np.float32)
        found = np.bincount(self._place, weights=self._sign * vector, minlength=self.dimensions)
        return found.astype(np.float32)


def adam_scale(vectors: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Per weight rms^(-1/2) over `vectors`: of vectors scaled so, an inner product is g · r / rms.

    Adam divides a gradient g by its root mean square, so what its step adds along r is g · r / rms: in this metric
    a plain step is Adam's.
    """
    rms = np.sqrt(np.mean([np.square(vector, dtype=np.float64) for vector in vectors], axis=0))
    found: npt.NDArray[np.float32] = (np.maximum(rms, SMALLEST_SCALE * rms.max()) ** -0.5).astype(np.float32)
    return found
