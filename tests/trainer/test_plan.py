"""The text of `dry_run=true`: what it says about credit, loss and learner."""

from typed_forests import FAN, decision, typed_config

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


def test_the_plan_of_a_typed_policy_says_how_its_nodes_are_learnt():
    typed = typed_config(decision(FAN, {"lookup": {"entropy_coef": 0.35}, "shipping": {"freeze": True}}))
    lines = plan(typed, Findings(train_tasks=900, eval_tasks=90), {"CPU": 8}).splitlines()
    assert [line for line in lines if line.startswith(("credit", "loss", "learner"))] == [
        "credit   adjacent of 4 decision nodes, levels 0.6/0.3/0.1, baseline task, groups without signal: keep",
        "loss     seq_mean, one ratio per token, KL coefficient 0.001; coefficients of their own: lookup",
        "learner  1 rank on cpu, ZeRO stage 1, 3 trained adapters over a frozen backbone, layout level",
    ]


def test_the_plan_says_how_far_collection_runs_ahead():
    config = compose(["name=r", "steps=3", "max_staleness=2", "push.mode=drain"])
    text = plan(config, Findings(train_tasks=900, eval_tasks=90), {"CPU": 8})
    assert "after each step; collection up to 2 steps ahead, branches in flight finished before a push" in text


def test_the_plan_says_how_trees_grow():
    more = ["tree=ucb", "tree.max_tokens=9000", "tree.max_tool_calls=12", "tree.dedup=resample"]
    (line,) = (
        line
        for line in plan(compose(["name=r", *more]), Findings(train_tasks=9, eval_tasks=9), {"CPU": 8}).splitlines()
        if line.startswith("tree")
    )
    assert line == (
        "tree     2 roots x (1 + 2 rounds x 1 node x 1 branch) = 6 leaves per task, picked by ucb, at most about 9,000 "
        "tokens, at most about 12 tool calls, duplicate siblings sampled again"
    )
