"""DeepSpeed's own configuration, derived from ours. Pure functions; imports nothing heavy."""

from typing import Any

from trainer.config import RunConfig


def training_settings(config: RunConfig, parameters: int) -> dict[str, Any]:
    """Settings for `deepspeed.initialize` of the policy with `parameters` parameters.

    AdamW is torch's own, on every device: nothing is compiled at start. Buckets are no larger than the model, since
    DeepSpeed allocates them whole. In bfloat16, master weights are float32, and so are accumulated gradients under
    stages 2 and 3 (stages 0 and 1 accumulate in bfloat16).
    """
    learner = config.learner
    bucket = max(min(parameters, 50_000_000), 1)
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
            "stage": learner.zero_stage,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "stage3_prefetch_bucket_size": bucket,
            "overlap_comm": learner.device == "cuda",
        },
    }
    if config.model.dtype == "bfloat16" and learner.zero_stage >= 2:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def inference_settings(config: RunConfig) -> dict[str, Any]:
    """Settings for the sharded reference model of ZeRO stage 3: no optimizer."""
    return _common(config) | {"zero_optimization": {"stage": 3}}


def _common(config: RunConfig) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": config.learner.ranks,
        "bf16": {"enabled": config.model.dtype == "bfloat16"},
        "steps_per_print": 1_000_000_000,
    }
