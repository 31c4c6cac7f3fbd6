"""The text of `dry_run=true`: what it says about credit, loss and learner."""

from trainer.compose import compose
from trainer.plan import plan
from trainer.preflight import Findings


def test_the_plan_says_how_leaves_get_credit_and_how_they_are_learnt():
    more = ["advantage=edge", "advantage.dead_groups=resample", "loss.ratio_level=turn", "loss.kl_coef=0.001"]
    changed = compose(["experiment=quickstart", "name=r", *more, "learner.lora.rank=8", "learner.layout=flat"])
    usual, other = (
        plan(config, Findings(train_tasks=900, eval_tasks=90), {"CPU": 8}).splitlines()
        for config in (compose(["experiment=quickstart", "name=r", "loss.kl_coef=0"]), changed)
    )
    assert [line for line in usual if line.startswith(("credit", "loss", "learner"))] == [
        "credit   advantage tree, groups without signal: keep",
        "loss     seq_mean, one ratio per token, KL coefficient 0",
        "learner  1 rank on cpu, ZeRO stage 1, full weights, layout level",
    ]
    assert [line for line in other if line.startswith(("credit", "loss", "learner"))] == [
        "credit   advantage edge, groups without signal: resample in at most 3 further collections",
        "loss     seq_mean, one ratio per agent step, KL coefficient 0.001",
        "learner  1 rank on cpu, ZeRO stage 1, LoRA of rank 8, layout flat",
    ]
