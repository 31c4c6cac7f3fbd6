"""Sections of the method: how trees grow, how leaves get credit, and what the loss is."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.config.base import Count, CountOrZero, Positive, Section


class TreeConfig(Section):
    """How the rollouts of one task branch: M roots, then L rounds of N picked nodes with K branches each."""

    roots: Count = 2
    """M: independent chains per task at the start; each becomes one tree."""
    nodes_per_round: CountOrZero = 2
    """N: nodes picked per tree in each round, with replacement."""
    branches_per_node: Count = 1
    """K: continuations generated from each picked node."""
    rounds: CountOrZero = 1
    """L: rounds of pick-and-expand; 0 gives plain chains."""
    picking: Literal["random", "entropy", "surprisal", "uncertain", "ucb"] = "random"
    """Which nodes grow: uniformly drawn, or those of the highest score (docs/method.md, Picking)."""
    sibling_penalty: Annotated[float, Field(ge=0)] = 0.05
    """Taken from the score of a node for each child after its first; without effect on `random`."""
    ucb_constant: Annotated[float, Field(ge=0)] = 1.4
    """Only with `picking: ucb`: weight of the term that favours nodes with few leaves."""
    max_tokens: Count | None = None
    """Tokens per task, an equal share for each tree (its prompt, steps and observations once); null: no limit."""
    max_tool_calls: Count | None = None
    """Tool calls per task, an equal share for each tree; null: no limit."""
    dedup: Literal["count", "resample"] = "count"
    """Siblings with the same action text: only counted, or sampled again."""
    dedup_attempts: Count = 2
    """Only with `dedup: resample`: how often one branch is sampled again; a duplicate after that is kept."""

    @property
    def leaves_per_tree(self) -> int:
        """1 + L·N·K, e.g. 1 + 1·2·1 = 3."""
        return 1 + self.rounds * self.nodes_per_round * self.branches_per_node

    @property
    def leaves_per_task(self) -> int:
        """G = M·(1 + L·N·K), e.g. 2·(1 + 1·2·1) = 6."""
        return self.roots * self.leaves_per_tree


class AdvantageConfig(Section):
    """How rewards of leaves become advantages."""

    kind: Literal["tree", "inter", "intra", "tree_2norm", "loo", "sibling", "edge", "global_local", "node_value"] = (
        "tree"
    )
    """Of leaves: `inter` (in the task), `intra` (in the tree), `tree` (both), `tree_2norm`, `loo`; else of nodes."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a leaf that is alone in its group: 0, or its raw reward (only kinds of leaves)."""
    dead_groups: Literal["keep", "drop", "resample"] = "keep"
    """Tasks without any advantage other than 0: kept in KL and weights, left out, or replaced by further tasks."""
    resample_rounds: Count = 3
    """Only with `dead_groups: resample`: most further collections per step; what is dead after them is left out."""

    @property
    def is_of_nodes(self) -> bool:
        """Whether each agent step has an advantage of its own, instead of each leaf one for its whole path."""
        return self.kind in ("sibling", "edge", "global_local", "node_value")


class LossConfig(Section):
    """The clipped policy-gradient loss."""

    clip_low: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The ratio of new to old probability is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Field(ge=0)] = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """For negative advantages the ratio counts at most this much; null switches it off."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.001
    """Weight of the K3 estimate of the divergence from the starting policy; 0 needs no reference model."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus, in nats per token."""
    aggregation: Literal["seq_mean", "token_mean", "dr_grpo"] = "seq_mean"
    """Token weights: each leaf's mean, the mean over all tokens of the global batch, or divided by dr_grpo_length."""
    dr_grpo_length: Count | None = None
    """Only with `aggregation: dr_grpo`: its fixed divisor, in tokens per leaf."""
    ratio_level: Literal["token", "turn", "sequence"] = "token"
    """What shares one ratio: a token, an agent step, or a whole path (GSPO); longer ones take the geometric mean."""
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """Denominator of the ratio: what the rollout engine reported, or the learner's own before its first step."""
    tis_cap: Positive | None = None
    """Truncated importance sampling: weight min(learner / engine probability, cap); needs `recompute`, null is off."""


class LimitsConfig(Section):
    """Lengths of trajectories."""

    max_prompt_tokens: Count = 256
    """Longest prompt, in tokens; prompts are never cut."""
    long_prompts: Literal["error", "skip"] = "error"
    """A task with a longer prompt: ends the start of the run with a sentence, or is left out and counted."""
    max_turns: CountOrZero = 4
    """Tool turns per trajectory; one answer-only turn may follow."""
    max_turn_tokens: Count = 64
    """Longest agent step, in sampled tokens."""
    max_context_tokens: Count = 1024
    """Prompt plus all steps and observations of a path, in tokens."""
    max_observation_tokens: Count = 256
    """Longest observation, in tokens; longer ones are cut with a visible mark."""

    @property
    def max_path_tokens(self) -> int:
        """Most tokens one path can have: min(context, prompt + turns·(turn + observation) + turn)."""
        unbounded = self.max_prompt_tokens + self.max_turns * (self.max_turn_tokens + self.max_observation_tokens)
        return min(self.max_context_tokens, unbounded + self.max_turn_tokens)


class ModelConfig(Section):
    """The policy that training starts from."""

    path: Annotated[
        str, Field(min_length=1, pattern=r"\S", json_schema_extra={"accepted": "a model folder or a hub id"})
    ]
    """Folder with a Hugging Face causal language model, or a hub id such as `org/name`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the weights in the learner and in the rollout engines."""
    trust_remote_code: bool = False
    """Whether code that comes with the model may run."""


class SchedulerConfig(Section):
    """The actor that owns the trees of a step and hands out work."""

    steal_after: Annotated[float, Field(ge=1)] = 1.5
    """What waits for an actor beyond its room is stolen if longer than this times the mean; never from n actors on."""
    lease_timeout_s: Positive = 600.0
    """Seconds without a step after which a branch is handed to another actor; above one turn and one tool call."""
    max_attempts: Count = 3
    """How often one branch is started before the run stops."""
    poll_s: Positive = 1.0
    """Seconds between two looks of the driver at a collection's progress and at the health of the actors."""
    answer_timeout_s: Positive = 60.0
    """Longest wait for an answer of this actor, in seconds, and for what engines counted; ten times for a forest."""
    collect_timeout_s: Positive = 1800.0
    """Longest collection of one step, in seconds."""
    watchdog_s: Positive = 120.0
    """Seconds without a finished branch after which a warning says what is stuck and who holds it."""
    watchdog_abort_s: Positive = 900.0
    """Seconds without a finished branch after which the run ends, with the same words."""
