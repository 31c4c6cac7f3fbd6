"""DeepSpeed's own configuration, derived from ours. Pure functions; imports nothing heavy."""

from typing import Any

from trainer.config import RunConfig

BUCKET = 50_000_000
"""Most values that DeepSpeed moves at a time."""


def training_settings(config: RunConfig, parameters: int, trained: int) -> dict[str, Any]:
    """Settings for `deepspeed.initialize` of the policy with `parameters` parameters, `trained` of them with gradients.

    AdamW is torch's own, on every device: nothing is compiled at start. Buckets are no larger than the model, since
    DeepSpeed allocates them whole. In bfloat16, master weights are float32, and packs add up gradients in float32;
    stage 0 then runs as stage 1, which computes the same: DeepSpeed's unsplit bfloat16 optimizer adds up in bfloat16,
    and it makes a first step without gradients, after which Adam's first real update is too short by a quarter.
    """
    learner = config.learner
    half = config.model.dtype == "bfloat16"
    stage = max(learner.zero_stage, 1) if half else learner.zero_stage
    bucket = max(min(trained, BUCKET), 1)
    settings = _common(config) | {
        "gradient_clipping": learner.grad_clip,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": learner.lr,
                "betas": list(learner.betas),
                "eps": learner.eps,
                "weight_decay": learner.weight_decay,
                "torch_adam": True,
            },
        },
        "zero_optimization": {
            **_sharding(stage, parameters),
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "overlap_comm": learner.device == "cuda",
        },
    }
    if half:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def inference_settings(config: RunConfig, parameters: int) -> dict[str, Any]:
    """Settings that split the frozen reference model, of `parameters` parameters, over the ranks: no optimizer."""
    return _common(config) | {"zero_optimization": _sharding(3, parameters)}


def _sharding(stage: int, parameters: int) -> dict[str, Any]:
    """Stage 3 keeps weights below a size whole on each rank; the size shrinks with the model, so that small ones split.

    With 3 million parameters 30,000, with 10 million and more DeepSpeed's own 100,000.
    """
    return {
        "stage": stage,
        "stage3_prefetch_bucket_size": max(min(parameters, BUCKET), 1),
        "stage3_param_persistence_threshold": min(parameters // 100, 100_000),
    }


def _common(config: RunConfig) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": config.learner.ranks,
        "bf16": {"enabled": config.model.dtype == "bfloat16"},
        "steps_per_print": 1_000_000_000,
    }
