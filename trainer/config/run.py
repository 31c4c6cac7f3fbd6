"""`RunConfig`: every setting of a run, and the checks between sections."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, model_validator

from envs.decisions.settings import DecisionSettings
from envs.settings import EnvSettings
from trainer.config.base import Count, CountOrZero, Section, Text
from trainer.config.decision_checks import decision_notes, decision_problems
from trainer.config.machines import (
    CheckpointConfig,
    ClusterConfig,
    EvaluationConfig,
    GuardsConfig,
    LearnerConfig,
    LoggerConfig,
    PushConfig,
    RolloutConfig,
)
from trainer.config.search import AdvantageConfig, LimitsConfig, LossConfig, ModelConfig, SchedulerConfig, TreeConfig
from trainer.config.tree_notes import tree_notes

FEW_LEAVES = 6
"""Leaves per tree below which `intra` gets a note: at a success rate of 0.3 a third of the trees of 3 leaves have equal
rewards (0.7^3 + 0.3^3 = 0.37), and an eighth of those of 6 (0.7^6 + 0.3^6 = 0.12)."""


MAX_LEAVES = 1_000_000
"""Leaves of a step: its trees are in the memory of one process, at about 10 kB for a leaf of some hundred tokens."""


class RunConfig(Section):
    """Every setting of a run. Made by `trainer.compose.compose`, stored as `config.yaml` in the run folder."""

    seed: CountOrZero = 0
    """Seeds task order, picking and sampling."""
    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
            json_schema_extra={"accepted": "null, or letters, digits, dots, dashes and underscores, at most 128"},
        ),
    ]
    """Name of the run and of its folder; null gives `<experiment>-<date>-<time>`."""
    runs_dir: Text = "runs"
    """Folder that holds the run folders."""
    steps: Count = 30
    """Training steps; each collects trees, learns from them and pushes weights."""
    tasks_per_step: Count = 16
    """Tasks per step."""
    dry_run: bool = False
    """Print what would run, check files and resources, and exit."""
    resume: Annotated[Text, Field(json_schema_extra={"accepted": "auto, never or a checkpoint folder"})] = "auto"
    """`auto`: from the run folder's newest checkpoint if there is one; `never`: anew; else a checkpoint folder."""
    max_staleness: Annotated[int, Field(ge=0, le=16)] = 0
    """Optimizer phases by which sampled tokens may lag behind the learner; above 0, collection overlaps learning."""
    model: ModelConfig
    env: EnvSettings
    decision: DecisionSettings | None = None
    """A typed decision policy (docs/decisions.md), with `env.name: decision`; null: the policy has one kind of step."""
    tree: TreeConfig = TreeConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    limits: LimitsConfig = LimitsConfig()
    learner: LearnerConfig = LearnerConfig()
    rollout: RolloutConfig = RolloutConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    push: PushConfig = PushConfig()
    guards: GuardsConfig = GuardsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cluster: ClusterConfig = ClusterConfig()
    logger: LoggerConfig = LoggerConfig()

    @property
    def leaves_per_step(self) -> int:
        """tasks_per_step · tree.leaves_per_task, e.g. 16·12 = 192."""
        return self.tasks_per_step * self.tree.leaves_per_task

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run: steps · epochs · mini_batches, e.g. 30·1·2 = 60."""
        return self.steps * self.learner.optimizer_steps_per_step

    @property
    def typed(self) -> DecisionSettings | None:
        """The decision section if its nodes are typed (`policy: typed`); None for every flat policy."""
        return self.decision if self.decision is not None and self.decision.policy == "typed" else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about accepted settings that may not do what one expects."""
        return (
            *_method_notes(self),
            *_length_notes(self),
            *tree_notes(self.tree, self.limits),
            *decision_notes(self.typed, self.rollout),
        )

    @property
    def push_backend(self) -> str:
        """`push.backend` with `auto` resolved: nccl if learner and rollouts are on GPUs, else gloo."""
        if self.push.backend != "auto":
            return self.push.backend
        return "nccl" if self.learner.device == self.rollout.device == "cuda" else "gloo"

    @model_validator(mode="after")
    def _cross_checks(self) -> "RunConfig":
        """Raises ValueError with one sentence per line."""
        sentences = [
            *_method_problems(self),
            *_length_problems(self),
            *_machine_problems(self),
            *decision_problems(self.decision, self.env.name, self.limits),
        ]
        if sentences:
            raise ValueError("\n".join(sentences))
        return self


def _method_problems(config: RunConfig) -> Iterator[str]:
    loss, tree, advantage = config.loss, config.tree, config.advantage
    if loss.aggregation == "dr_grpo" and loss.dr_grpo_length is None:
        yield "loss.aggregation=dr_grpo needs loss.dr_grpo_length, an integer of at least 1."
    if loss.aggregation != "dr_grpo" and loss.dr_grpo_length is not None:
        yield f"loss.dr_grpo_length is only accepted with loss.aggregation=dr_grpo, not {loss.aggregation}."
    if advantage.singleton == "zero" and tree.leaves_per_task < 2:
        yield (
            "tree.roots=1 without branches gives every task one leaf and so no advantage: "
            "set tree.roots to at least 2, or tree.rounds and tree.nodes_per_round to at least 1."
        )
    elif advantage.singleton == "zero" and advantage.kind in ("intra", "tree_2norm") and tree.leaves_per_tree < 2:
        yield (
            f"advantage.kind={advantage.kind} needs at least two leaves per tree: "
            "set tree.rounds and tree.nodes_per_round to at least 1, or use advantage.kind=inter."
        )
    if advantage.singleton == "raw" and advantage.is_of_nodes:
        yield (
            f"advantage.singleton=raw is not accepted with advantage.kind={advantage.kind}, which compares steps: "
            "use advantage.singleton=zero, or one of the kinds of leaves (tree, inter, intra, tree_2norm, loo)."
        )
    if loss.tis_cap is not None and loss.old_logprobs == "rollout":
        yield (
            "loss.tis_cap needs loss.old_logprobs=recompute: with old_logprobs=rollout the ratio itself already "
            "compares the learner with the rollout engine."
        )
    if config.rollout.top_p != 1:
        yield (
            f"rollout.top_p={config.rollout.top_p:g} is not accepted: sampling must be from the full distribution "
            "(rollout.top_p=1), since the learner's log-probabilities know nothing of the cut; use rollout.temperature."
        )
    if config.leaves_per_step > MAX_LEAVES:
        yield (
            f"tasks_per_step={config.tasks_per_step} and the tree section give {config.leaves_per_step:,} leaves per "
            f"step, and one step holds at most {MAX_LEAVES:,}: lower tree.rounds, tree.nodes_per_round, "
            "tree.branches_per_node, tree.roots or tasks_per_step."
        )
    batches, tasks = config.learner.mini_batches, config.tasks_per_step
    if batches > tasks:
        yield f"learner.mini_batches={batches} must be at most tasks_per_step={tasks}."


def _method_notes(config: RunConfig) -> Iterator[str]:
    kind, tree, loss = config.advantage.kind, config.tree, config.loss
    if config.max_staleness > 0 and loss.old_logprobs == "recompute" and loss.tis_cap is None:
        yield (
            f"Note: with max_staleness={config.max_staleness} and loss.old_logprobs=recompute nothing corrects for "
            "tokens of older weights; loss.tis_cap does, and so does loss.old_logprobs=rollout."
        )
    has_bound = config.guards.max_kl is not None or config.guards.max_ratio is not None
    if has_bound and loss.old_logprobs == "recompute" and config.learner.optimizer_steps_per_step == 1:
        yield (
            "Note: guards.max_kl and guards.max_ratio see nothing with loss.old_logprobs=recompute and one optimizer "
            "step per step, since every ratio is then exactly 1; learner.mini_batches or learner.epochs of at least 2, "
            "or loss.old_logprobs=rollout, gives them something to bound."
        )
    if kind == "tree" and tree.roots == 1:
        yield (
            "Note: with tree.roots=1 both comparisons of advantage.kind=tree are the same one, so every advantage "
            "doubles; advantage.kind=inter counts it once."
        )
    if kind in ("intra", "tree_2norm") and tree.leaves_per_tree < FEW_LEAVES:
        yield (
            f"Note: advantage.kind={kind} compares only the {tree.leaves_per_tree} leaves of a tree with each other; "
            "with so few, many trees have equal rewards and teach nothing; advantage.kind=tree also compares trees."
        )


def _length_notes(config: RunConfig) -> Iterator[str]:
    limits = config.limits
    steps = limits.max_prompt_tokens + (limits.max_turns + 1) * limits.max_turn_tokens
    if config.typed is None and limits.max_context_tokens < steps:
        yield (
            f"Note: limits.max_context_tokens={limits.max_context_tokens} is less than the {steps} tokens of a prompt "
            f"of limits.max_prompt_tokens and {limits.max_turns + 1} steps of limits.max_turn_tokens, without any "
            "observations: a path of long steps ends with context_limit before its turns are used up."
        )


def _length_problems(config: RunConfig) -> Iterator[str]:
    limits, pack = config.limits, config.learner.max_tokens_per_pack
    least = limits.max_prompt_tokens + limits.max_turn_tokens
    if limits.max_context_tokens < least:
        yield (
            f"limits.max_context_tokens={limits.max_context_tokens} must be at least {least} "
            "(limits.max_prompt_tokens + limits.max_turn_tokens)."
        )
    if pack < limits.max_context_tokens:
        yield (
            f"learner.max_tokens_per_pack={pack} must be at least "
            f"limits.max_context_tokens={limits.max_context_tokens}, so that every path fits into a pack."
        )


def _machine_problems(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    if rollout.device == "cpu" and rollout.block_size % 32:
        yield f"rollout.block_size={rollout.block_size} must be a multiple of 32 when rollout.device=cpu."
    if config.push.backend == "nccl" and not config.learner.device == rollout.device == "cuda":
        yield "push.backend=nccl needs learner.device=cuda and rollout.device=cuda: use push.backend=gloo or auto."
    if config.typed is not None and config.learner.lora.rank:
        yield (
            f"learner.lora.rank={config.learner.lora.rank} must be 0 with decision.policy=typed, whose nodes have "
            "adapters of their own."
        )
    lease, turn, tool = config.scheduler.lease_timeout_s, rollout.turn_timeout_s, config.env.max_tool_seconds
    if lease <= turn + tool:
        yield (
            f"scheduler.lease_timeout_s={lease:g} must be above rollout.turn_timeout_s={turn:g} plus "
            f"env.max_tool_seconds={tool:g}: a branch may be silent for so long and be well."
        )
