"""The types rollouts produce: nodes, trees, work items, branch results, and the token ledger.

A tree is an append-only list of nodes with parent indices, parents before children; every question about it (leaves,
paths, depths) is a function over that list, in `rollout_workers/trees.py`. Nothing here imports a heavy library.
"""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, TypeAlias

from envs.decisions.types import Alternatives, StepRecord
from envs.pickling import fast_pickle
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
    entropies: tuple[float, ...] = ()
    """Entropy of the distribution that each id was drawn from, in nats, over the likeliest tokens and one bucket for
    the rest; empty unless `Sampling.entropy_topk` asks for it."""
    alternatives: tuple[Alternatives, ...] = ()
    """Per sampled id itself and the likeliest tokens at its place; empty unless `Ask.alternatives` asks for them."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were there already, e.g. in the prefix cache; at most `prompt_tokens`."""
    kept_tokens: int = 0
    """Of these the ones that stayed in the engine with the branch's last step, partial block included."""
    cut_tokens: int = 0
    """Sampled tokens that came after the end of the step and were thrown away; only with `rollout.keep_turns`."""
    engine_s: float = 0.0
    """Seconds of the engine that this answer took; requests side by side share each moment evenly."""


@fast_pickle
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
    entropy: float | None = None
    """Mean entropy of this step's sampled tokens, in nats (see `Completion.entropies`); None if it was not recorded."""
    slot: int = 0
    """Which branch of the tree generated this node: 0 for the first chain, then one number per expansion."""
    record: StepRecord | None = None
    """What this step did as a typed decision node; None in flat policies and for the root."""
    result: str = ""
    """JSON text of the task's structured result, on leaves of typed policies."""

    @property
    def is_leaf(self) -> bool:
        """True when the trajectory ended here."""
        return self.end is not None

    def moved(self, parent: int) -> "Node":
        """The same node under another parent, for a quarter of the price of `dataclasses.replace`."""
        return Node(
            parent=parent,
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            versions=self.versions,
            observation_ids=self.observation_ids,
            end=self.end,
            reward=self.reward,
            score=self.score,
            tool_calls=self.tool_calls,
            note=self.note,
            entropy=self.entropy,
            slot=self.slot,
            record=self.record,
            result=self.result,
        )


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """One round's choice of where to branch."""

    scores: tuple[tuple[int, float], ...]
    """(node, score) of every candidate, e.g. `((0, 0.71), (2, 0.4))`; empty under the rule `random`."""
    chosen: tuple[int, ...]
    """The picked nodes, each as often as it was picked, e.g. `(2, 2)`; `branches_per_node` branches start at each."""


@fast_pickle
@dataclass(slots=True, kw_only=True)
class Tree:
    """All branches that grew from one root of one task. Append-only; `nodes[0]` is the prompt."""

    task_id: str
    index: int
    """Which of the task's `tree.roots` trees this is, from 0."""
    nodes: list[Node] = field(default_factory=list)
    picks: list[Pick] = field(default_factory=list)
    """One per round that was grown, in order."""
    typed: bool = False
    """Whether each node's `observation_ids` are a prompt of their own, and all that the steps after it see."""


@fast_pickle
@dataclass(slots=True, kw_only=True)
class Ledger:
    """Counts of what rollouts cost. Budgets and comparisons use these, never a formula (method: cost)."""

    sampled_tokens: int = 0
    prefill_tokens_computed: int = 0
    """Prompt and observation tokens the engine really ran through the model."""
    prefill_tokens_cached: int = 0
    """Prompt and observation tokens found in the prefix cache."""
    prefill_tokens_kept: int = 0
    """Of the cached ones those that stayed in the engine with their branch (`rollout.keep_turns`)."""
    prefill_tokens_unique: int = 0
    """Prompt and observation tokens of the forest, each once: a prompt once per task, an observation once per node."""
    prefill_tokens_block_bound: int = 0
    """Tokens that had to be computed again because only whole blocks are cached: per request the part of a block before
    its new tokens, the last sampled token included."""
    prefill_tokens_stolen: int = 0
    """Tokens that branches run by an actor that does not hold their tree computed again, beyond the block bound: the
    part of their context that the cache of the tree's actor has."""
    discarded_tokens: int = 0
    """Sampled tokens that no tree holds: resampled steps, and branches that came back twice or too late."""
    surplus_tokens: int = 0
    """Tokens an engine sampled after the end of a step, seen by no branch and in no other count: see
    `EngineCounts.surplus`."""
    recomputed_tokens: int = 0
    """Tokens run again because requests lost their keys and values (a push, too little memory); in no other count."""
    engine_mismatch: int = 0
    """Tokens by which the branches' counts differ from the engines' own; anything but 0 is a defect."""
    tool_calls: int = 0
    requests: int = 0
    branches: int = 0
    branches_failed: int = 0
    """Branches that ended in an environment error."""
    branches_requeued: int = 0
    """Branches started again because their actor died or their lease ran out."""
    branches_stolen: int = 0
    """Branches run by an actor that does not hold their tree."""
    siblings_equal: int = 0
    """Branches whose first action a sibling had already, those kept and those sampled again."""
    siblings_resampled: int = 0
    """First steps and branches sampled again for that."""
    growth_stopped: int = 0
    """Trees that got fewer branches because `tree.max_tokens` or `tree.max_tool_calls` was used up."""
    observations_cut: int = 0
    observations_repaired: int = 0
    """Observations with halves of surrogate pairs, which are no text: each half is read as "?"."""
    leaves: int = 0
    trees: int = 0
    env_seconds: float = 0.0
    """Summed over branches, which wait side by side; may exceed the wall time."""
    engine_busy_s: float = 0.0
    """Seconds in which an engine had at least one request, summed over actors; requests side by side share them."""

    def add(self, other: "Ledger") -> None:
        """Adds every count of `other` to this ledger."""
        for name, value in zip(self.__slots__, _counts(other), strict=True):
            if value:
                setattr(self, name, getattr(self, name) + value)


_counts = attrgetter(*Ledger.__slots__)
"""All counts of a ledger at once: several times faster than one after the other."""


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """The trees of one task: the group of inter-tree advantages. The scheduler assigns it, once."""

    task: Task
    trees: tuple[Tree, ...]
    ledger: Ledger = field(default_factory=Ledger)
    """What this task's rollouts cost."""


Forest: TypeAlias = list[TaskGroup]
"""Everything one step collected, in the order the tasks were given."""


@fast_pickle
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
    entropy_topk: int = 0
    """Likeliest tokens per position that the recorded entropy is taken over; 0 records none."""


@fast_pickle
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
    avoid: tuple[str, ...] = ()
    """Action texts of the siblings that `parent` has already: a first step equal to one of them is sampled again."""
    resamples: int = 0
    """How often the first step may be sampled again."""
    stolen: bool = False
    """Handed to an actor that does not hold the task, so that its cache knows nothing of the context."""
    sampling: Sampling


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """A finished node on its way to the scheduler, with the environment state that a later branch would need."""

    node: Node
    """`node.parent` counts within the branch: -1 is the work item's `parent`, 0 the branch's first node, and so on."""
    state: bytes | None
    """None for leaves."""
    action: str = ""
    """Text of the sampled step, by which duplicate siblings are known."""


@fast_pickle
@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """What an actor pushes when a work item is finished."""

    item_id: str
    prompt_ids: tuple[int, ...]
    """Ids of the prompt, so that the scheduler learns them from the first branch of a tree; empty in later ones."""
    nodes: tuple[NewNode, ...]
    """At least one, the last one a leaf."""
    ledger: Ledger


Phase: TypeAlias = Literal["train", "eval"]
