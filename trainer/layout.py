"""How trees reach the model's forward pass: the choice that packing, forward pass and engine share.

`level` and `packed` lay the nodes of a tree out once, in depth-first preorder, and differ in how attention is computed;
`flat` repeats a shared prefix in the row of every leaf. All three give the same gradient.
"""

from typing import Literal, TypeAlias

from trainer.config import LearnerConfig

Layout: TypeAlias = Literal["level", "packed", "flat"]


def chosen_layout(learner: LearnerConfig) -> Layout:
    """The layout of a run: `learner.layout`, or for `auto` by device: `packed` on CUDA, `level` on CPUs.

    On CUDA the mask of `packed` goes to flex attention, which skips blocks nobody sees (not run on a GPU yet). On CPUs
    there is no such kernel with a backward pass, and a dense mask costs the square of the pack's length.
    """
    if learner.layout != "auto":
        return learner.layout
    return "packed" if learner.device == "cuda" else "level"
