"""The types rollouts produce: nodes, trees, work items, branch results, and the token ledger.

A tree is an append-only list of nodes with parent indices, parents before children; every question about it (leaves,
paths, depths) is a function over that list, in `rollout_workers/trees.py`. Nothing here imports a heavy library.
"""

from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from envs.types import EndReason, Task

ROOT = 0
"""Index of the root in every tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine returns for one agent step: the exact sampled ids and what is known about each."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural-log probability of each sampled id, after temperature; same length as `token_ids`."""
    versions: tuple[int, ...]
    """Weights version that sampled each id; same length as `token_ids`."""
    text: str
    """The sampled text up to and including the stop string: for parsing only, never tokenised again."""
    finished: Literal["stop", "length"]
    """`length`: the token limit came before a stop string or an end-of-sequence token."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values came from the prefix cache; at most `prompt_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent step: sampled tokens, then the observation they caused. Only what this step adds is stored.

    The root (index 0) is the prompt: nothing sampled, `observation_ids` = the prompt's token ids.
    """

    parent: int
    """Index of the parent in the tree's list, smaller than this node's own index; -1 for the root."""
    token_ids: tuple[int, ...] = ()
    """Ids the policy sampled in this step, stop token or stop string included, e.g. `(17, 204, 9)`."""
    logprobs: tuple[float, ...] = ()
    """Natural-log probability of each sampled id under the policy that sampled it, same length as `token_ids`."""
    versions: tuple[int, ...] = ()
    """Weights version that sampled each id, same length as `token_ids`, e.g. `(3, 3, 4)` after a push in mid-step."""
    observation_ids: tuple[int, ...] = ()
    """Ids of the environment's answer, never trained on; empty when the step ended the trajectory."""
    end: EndReason | None = None
    """Set on leaves only."""
    reward: float | None = None
    """Outcome reward, set on leaves that ended without an environment error, e.g. `0.8`."""
    score: float | None = None
    """Plain task score in [0, 1], set together with `reward`."""
    tool_calls: int = 0
    note: str = ""
    """One sentence for people, e.g. why the environment failed; empty otherwise."""
    slot: int = 0
    """Which branch of the tree generated this node: 0 for the first chain, then one number per expansion."""

    @property
    def is_leaf(self) -> bool:
        """True when the trajectory ended here."""
        return self.end is not None


@dataclass(slots=True, kw_only=True)
class Tree:
    """All branches that grew from one root of one task. Append-only; `nodes[0]` is the prompt."""

    task_id: str
    index: int
    """Which of the task's `tree.roots` trees this is, from 0."""
    nodes: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """The trees of one task: the group of inter-tree advantages. The scheduler assigns it, once."""

    task: Task
    trees: tuple[Tree, ...]


Forest: TypeAlias = list[TaskGroup]
"""Everything one step collected, in the order the tasks were given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy (evaluation)."""

    temperature: float = 1.0
    max_turn_tokens: int = 64
    """Longest agent step, in tokens."""
    max_context_tokens: int = 1024
    """Prompt plus all steps of a path, in tokens."""
    max_prompt_tokens: int = 512
    """Longest prompt; a longer one is an error, never cut."""
    max_observation_tokens: int = 256
    """Observations are cut to this many tokens, with a visible mark."""
    max_turns: int = 4
    """Tool turns of a trajectory, its prefix included; one answer-only turn follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """«Continue from this node to the end of the trajectory.» The unit of scheduling, of leases and of retries."""

    id: str
    """Unique in the run, equal in a repeated run, e.g. `"train-3/city_capital/ulm/1/4"` (phase, task, tree, slot)."""
    task: Task
    tree: int
    parent: int
    """Node index to continue from; 0 continues from the prompt."""
    slot: int
    context_ids: tuple[int, ...]
    """Exact ids of the path from the root to `parent`, observation included; empty for a root whose prompt no actor
    has tokenised yet."""
    state: bytes | None
    """Pickled environment state after `parent`; None means `env.reset(task)`."""
    turns_used: int
    """Agent steps on the path so far."""
    seed: int
    """Seeds the sampling of this branch, derived from the run's seed and the item's place, never from time."""
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """A finished node on its way to the scheduler, with the environment state that a later branch would need."""

    node: Node
    """`node.parent` counts within the branch: -1 is the work item's `parent`, 0 the branch's first node, and so on."""
    state: bytes | None
    """None for leaves."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Counts of what rollouts cost. Budgets and comparisons use these, never a formula (method: cost)."""

    sampled_tokens: int = 0
    prefill_tokens_computed: int = 0
    """Prompt and observation tokens the engine really ran through the model."""
    prefill_tokens_cached: int = 0
    """Prompt and observation tokens found in the prefix cache."""
    tool_calls: int = 0
    requests: int = 0
    branches: int = 0
    branches_failed: int = 0
    """Branches that ended in an environment error."""
    branches_requeued: int = 0
    """Branches started again because their actor died."""
    branches_stolen: int = 0
    """Branches run by an actor that does not hold their tree."""
    observations_cut: int = 0
    leaves: int = 0
    trees: int = 0
    env_seconds: float = 0.0
    """Summed over branches, which wait side by side; may exceed the wall time."""

    def add(self, other: "Ledger") -> None:
        """Adds every count of `other` to this ledger."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """What an actor pushes when a work item is finished."""

    item_id: str
    prompt_ids: tuple[int, ...]
    """Ids of the prompt, so that the scheduler learns them from the first branch of a tree."""
    nodes: tuple[NewNode, ...]
    """At least one, the last one a leaf."""
    ledger: Ledger


Phase: TypeAlias = Literal["train", "eval"]
