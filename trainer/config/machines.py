"""Sections of the processes that use a device: learner ranks, rollout actors, the weight push, and the cluster."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.config.base import Count, CountOrZero, Decay, Positive, Section, Share, Text


class LoraConfig(Section):
    """Low-rank adapters (PEFT) in place of full weights; the engines receive the merged weights."""

    rank: CountOrZero = 0
    """Rank of the adapters; 0 trains the full weights."""
    alpha: Positive = 16.0
    """Only with a rank above 0: the adapters' product is scaled by alpha / rank."""
    targets: Annotated[tuple[Text, ...], Field(strict=False, min_length=1)] = ("all-linear",)
    """Adapted layers, e.g. `[q_proj, v_proj]`; `[all-linear]`: all but the output layer. A typed policy's too."""


class LearnerConfig(Section):
    """The DeepSpeed learner: one Ray actor per rank."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where the learner's ranks run; `cuda` takes one GPU per rank."""
    ranks: Count = 1
    """Number of data-parallel ranks."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """ZeRO stage: what the ranks split (1: optimizer, 2: and gradients, 3: and weights); bfloat16 takes 0 as 1."""
    lr: Positive = 1e-6
    """Peak learning rate of AdamW."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: Positive = 1e-8
    """AdamW's epsilon."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's weight decay."""
    grad_clip: Positive = 1.0
    """Largest global gradient norm; longer gradients are scaled down to it."""
    warmup_share: Share = 0.1
    """Share of all optimizer steps in which the learning rate rises linearly; the first step already has lr > 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0."""
    mini_batches: Count = 1
    """Optimizer steps per pass over the trees of a step."""
    epochs: Count = 1
    """Passes over the trees of a step."""
    layout: Literal["auto", "level", "packed", "flat"] = "auto"
    """Each token once, attention by segments (`level`) or mask (`packed`); one row per leaf (`flat`)."""
    max_tokens_per_pack: Count = 2048
    """Most tokens in one forward pass; at least limits.max_context_tokens, so that every path fits."""
    lora: LoraConfig = LoraConfig()
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    threads: Count = 1
    """CPU threads per rank."""
    start_timeout_s: Positive = 600.0
    """Longest start of the ranks, in seconds."""
    step_timeout_s: Positive = 1800.0
    """Longest learning phase of one step, in seconds."""
    max_bad_steps: Count = 3
    """How many optimizer steps in a row, skipped for a loss or gradient that is not finite, stop the run."""

    @property
    def optimizer_steps_per_step(self) -> int:
        """Epochs · mini_batches, e.g. 1·2 = 2."""
        return self.epochs * self.mini_batches


class RolloutConfig(Section):
    """The rollout actors: each owns one vLLM engine and runs many branches at once."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where the engines run; `cuda` takes tensor_parallel GPUs per actor."""
    actors: Count = 1
    """Number of rollout actors."""
    tensor_parallel: Count = 1
    """Devices over which one engine splits the model."""
    max_branches: Count = 64
    """Branches that one actor runs at the same time."""
    kv_cache_gib: Annotated[int, Field(ge=1)] = 1
    """Memory of the KV cache per engine on CPUs, in whole GiB."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of a GPU's memory that the engine may use."""
    block_size: Count = 32
    """Tokens per KV-cache block; on CPUs a multiple of 32."""
    enforce_eager: bool = True
    """Run the model without compiling it or capturing CUDA graphs."""
    temperature: Positive = 1.0
    """Sampling temperature of training rollouts; log-probabilities are taken after it. Evaluation is greedy."""
    top_p: Positive = 1.0
    """Only 1 is accepted: a cut distribution would give engine and learner different log-probabilities."""
    entropy_topk: Annotated[int, Field(ge=2, le=100)] = 20
    """Only with `tree.picking: entropy`: likeliest tokens per position that the entropy is taken over."""
    keep_turns: bool = False
    """Steps of a branch as one open request: no partial block is computed again; see docs/architecture.md."""
    threads: Count = 1
    """CPU threads per engine."""
    start_timeout_s: Positive = 600.0
    """Longest start of an actor, in seconds."""
    turn_timeout_s: Positive = 300.0
    """Longest generation of one agent step, in seconds, without the time that a push takes."""
    max_restarts: CountOrZero = 8
    """Dead actors replaced during a run; one more death stops it."""
    stop_timeout_s: Positive = 20.0
    """Longest wait for actors to stop before they are killed, in seconds."""


class PushConfig(Section):
    """Moving new weights from the learner to the rollout engines."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport; `auto` takes nccl when learner and rollouts run on GPUs, else gloo."""
    mode: Literal["keep", "drain"] = "keep"
    """Branches in flight during a push: frozen in mid-step and continued with the new weights, or finished before."""
    timeout_s: Positive = 300.0
    """Longest push, in seconds; also the longest wait for branches to finish under `mode: drain`."""
    join_timeout_s: Positive = 60.0
    """Longest wait for engines to join the learner for pushes, in seconds: they are loaded by then."""
    probe_prompts: Count = 4
    """Sampled sequences whose log-probabilities engine and learner compare after a push."""
    probe_tokens: Count = 32
    """Tokens per compared sequence."""


class GuardsConfig(Section):
    """Bounds that stop a run, or drop an optimizer step."""

    max_logprob_diff: Positive = 0.02
    """Largest difference between the log-probabilities of engine and learner for the same token, in nats."""
    max_mean_logprob_diff: Positive | None = None
    """Largest mean of these differences after a push, in nats; null: no bound. The sharper one for bfloat16."""
    max_kl: Positive | None = None
    """Largest mean K3 divergence from the old policy in one optimizer step, in nats per token; null: no bound."""
    max_ratio: Annotated[float, Field(gt=1)] | None = None
    """Largest ratio of new to old probability in one optimizer step; null: no bound."""
    on_breach: Literal["stop", "skip"] = "stop"
    """Beyond max_kl or max_ratio: end the run after a checkpoint, or go on; the step is not applied either way."""


class ClusterConfig(Section):
    """The Ray cluster."""

    address: Annotated[
        str,
        Field(pattern=r"^(auto|local|ray://\S+)$", json_schema_extra={"accepted": "auto, local or ray://HOST:PORT"}),
    ] = "auto"
    """`auto` joins the running cluster, `local` starts a private one, `ray://host:port` is a Ray client address."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Placement: few nodes or many; strictly: one node for all, or one for each."""
    learner: Literal["any", "same_node"] = "any"
    """Learner ranks are placed by `strategy` like all, or on one node whatever it says for the rollout actors."""
    wait_s: Positive = 120.0
    """Longest wait for the cluster to reserve what the run needs, in seconds."""
    connect_timeout_s: Positive = 10.0
    """Longest wait for the host that RAY_ADDRESS names, in seconds."""
    start_timeout_s: Positive = 120.0
    """Longest start of the server of a private Ray, in seconds, unless RAY_gcs_server_port_wait_time_s is set."""


class LoggerConfig(Section):
    """Weights & Biases and the stored trees."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """`auto` is what WANDB_MODE says, else online with WANDB_API_KEY or `wandb login`, else offline; it never asks."""
    project: Text = "espalier"
    """W&B project."""
    entity: Text | None = None
    """W&B user or team; null takes the key's default."""
    timeout_s: Positive = 30.0
    """Longest wait for W&B at the start, in seconds; at the end an upload may take twice that."""
    sample_trees: CountOrZero = 8
    """Trees per step that W&B shows and the run folder keeps."""
    forest_every: Count = 1
    """The run folder keeps trees every so many steps."""


class EvaluationConfig(Section):
    """Greedy chain rollouts on held-out tasks."""

    every: CountOrZero = 0
    """Evaluate every so many steps; 0 means before and after training only."""
    tasks: Count = 100
    """Held-out tasks used: the first of the file, or equally many of each `meta.source` as far as they go."""
    sample_trees: CountOrZero = 8
    """Evaluated trajectories that the run folder keeps each time."""


class CheckpointConfig(Section):
    """What is saved to go on later."""

    every: CountOrZero = 10
    """Save every so many steps; 0 means at the end only. One takes 12 bytes per trained parameter."""
    keep: Count = 2
    """Newest checkpoints kept."""
    best: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z]+/[A-Za-z0-9_@.-]+$",
            json_schema_extra={"accepted": "null or a metric such as eval/success"},
        ),
    ] = None
    """Metric of the step by which one more is kept, the best of those saved; see `metrics.jsonl` for the names."""
    best_mode: Literal["max", "min"] = "max"
    """Only with `checkpoint.best`: whether the best one has the largest or the smallest value."""
    background: bool = True
    """Write from copies in memory while the run goes on; else the run waits for the disk."""
    timeout_s: Positive = 1800.0
    """Longest write of one checkpoint, in seconds; one that takes longer is given up."""
