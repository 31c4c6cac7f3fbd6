"""`TreePack`: the row of tokens a learner trains on. Owned by the trainer; made by `trainer/packing.py`.

Imports numpy only, so that the driver can build packs without torch.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]
RatioLevel: TypeAlias = Literal["token", "turn", "sequence"]
"""Every value of `loss.ratio_level`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioUnits:
    """Groups of tokens that share one ratio of new to old probability: agent steps, or whole paths. U units.

    The ratio of a unit is the geometric mean over its members (GSPO, arXiv 2507.18071, Eq. 7). Example: a prompt with
    a shared step (10, 11) and two leaves (12) and (13), as paths: `member_tokens = [0, 1, 2, 0, 1, 3]` (indices into
    the pack), `member_units = [0, 0, 0, 1, 1, 1]`.
    """

    positive: Floats
    """(U,) P of each unit: sum of weight times advantage, where above 0, over its members."""
    negative: Floats
    """(U,) N of each unit: the same below 0."""
    member_tokens: Ints
    """(E,) index into the pack of each member; a token of a shared prefix is a member of several paths."""
    member_units: Ints
    """(E,) which unit it is a member of, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One sampled step of a typed decision policy in a pack."""

    start: int
    """Index of its first sampled token."""
    stop: int
    """Index behind its last sampled token."""
    node: int
    """Which decision node answered: index into the declaration's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCoefficients:
    """Loss coefficients of one decision node in one learning phase, its name for the metrics beside them."""

    name: str
    entropy_coef: float
    kl_coef: float
    clip_low: float
    clip_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePack:
    """One or more trees (or parts of trees) laid out in one row of T tokens; every array has length T.

    Nodes stand in depth-first preorder. Token i sees token j if and only if `j <= i < end[j]`.
    Example: prompt (90, 91), then two branches (10) and (20, 21):
    `ids = [90, 91, 10, 20, 21]`, `positions = [0, 1, 2, 2, 3]`, `end = [5, 5, 3, 5, 5]`, `source = [-1, 0, 1, 1, 3]`.
    """

    ids: Ints
    """Token ids."""
    positions: Ints
    """Depth of the token along its path, from 0: the position the model is told."""
    end: Ints
    """Index behind the last token of the subtree of this token's node."""
    source: Ints
    """Index whose hidden state predicts this token (a node's first token: the last token of its parent); -1: none."""
    positive: Floats
    """P: sum of weight times advantage over the leaves under the token with advantage above 0; 0 if not trained."""
    negative: Floats
    """N: the same over leaves with advantage below 0, so never above 0."""
    weight: Floats
    """W: sum of the weights of the leaves under the token; above 0 exactly where the token is trained."""
    old_logprobs: Floats
    """Log-probability under the policy that sampled the token, as the rollout engine reported it; 0 if not sampled.
    Tokens of a repeated prefix have theirs too: ratios of whole paths need them."""
    is_current: Bools
    """Whether the token was sampled by the very weights that are trained now: only there do differences between
    `old_logprobs` and the learner's own come from the two implementations. Of no meaning where nothing is sampled."""
    units: RatioUnits | None = None
    """What shares a ratio; None: each trained token has its own."""
    voice: Ints | None = None
    """(T,) which adapter each token goes through, as index into the declaration's order; -1: the backbone alone. A
    prompt has the voice of the steps that answer it. None: a flat policy."""
    answers: tuple[Answer, ...] = ()
    """The sampled steps of a typed policy that are trained here, ascending; together they are the trained tokens."""
    coefficients: tuple[NodeCoefficients, ...] = ()
    """Of every node of a typed policy, in the declaration's order; the same in all packs of a phase."""

    @property
    def tokens(self) -> int:
        """T, the length of the row."""
        return len(self.ids)

    @property
    def trained_tokens(self) -> int:
        """Tokens that carry loss, e.g. `3` in the example if both branches were sampled."""
        return int(np.count_nonzero(self.weight))

    @property
    def scored(self) -> Bools:
        """(T,) tokens whose log-probability the loss needs: the trained ones, and members of ratio units."""
        scored: Bools = self.weight != 0
        if self.units is not None:
            scored[self.units.member_tokens] = True
        return scored


RankPacks: TypeAlias = list[list[TreePack]]
"""`[rank][k]`: the packs of one optimizer step; every rank has equally many, and the k-th packs cost about the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForest:
    """All packs of one learning phase, with numbers about them for the log."""

    mini_batches: list[RankPacks]
    """One entry per optimizer step of an epoch; an entry without packs has nothing to learn from and is skipped."""
    stats: dict[str, float]
    """E.g. `{"tree/unique_tokens": 5120.0, ...}`."""


def blank_pack(tokens: int) -> TreePack:
    """A pack of `tokens` zeros in which every token sees only itself and none is trained.

    `packing` writes into its arrays. With one token it is what a rank runs while another rank still has work.
    """
    return TreePack(
        ids=np.zeros(tokens, np.int64),
        positions=np.zeros(tokens, np.int64),
        end=np.arange(1, tokens + 1),
        source=np.full(tokens, -1, np.int64),
        positive=np.zeros(tokens, np.float32),
        negative=np.zeros(tokens, np.float32),
        weight=np.zeros(tokens, np.float32),
        old_logprobs=np.zeros(tokens, np.float32),
        is_current=np.ones(tokens, np.bool_),
    )
