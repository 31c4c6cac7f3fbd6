"""A real typed run whose weights are changed while it goes on, collecting ahead, and that is resumed."""

import json
import subprocess
import sys

import pytest
from order_tasks import write_tasks
from real_runs import ROOT, Run, metrics_of

NODES = ("order", "shipping", "after_sales")


def state_of(folder, step):
    (file,) = (folder / "checkpoints" / f"step-{step:06d}").glob("run-*.json")
    return json.loads(file.read_text())["decision"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_weights_change_while_a_run_collects_ahead_and_stay_after_a_resume(tmp_path):
    write_tasks(tmp_path / "tasks.jsonl")
    settings = [
        *(f"env.{kind}_tasks={tmp_path}/tasks.jsonl" for kind in ("train", "eval")),
        *("env=decision", "~env.topk", "decision=orders", "max_staleness=1", "evaluation.every=0"),
        *("tasks_per_step=3", "limits.max_prompt_tokens=256", "evaluation.tasks=3", "checkpoint.every=2"),
        *("loss.kl_coef=0.01", "checkpoint.keep=9", "decision.nodes.2.adapter.freeze=true"),
    ]
    command = [sys.executable, "-m", "trainer.decisions.live", str(tmp_path / "live")]
    with Run(tmp_path, "live", *settings, "steps=4") as run:
        run.wait_for_step(1)
        with run.standing_still():
            made = subprocess.run(
                [*command, "shipping.rewards.weight=3", "order.coefficients.entropy_coef=0.2"], cwd=ROOT, check=True
            )
        assert made.returncode == 0
        said = run.finish()
    assert "changed: shipping.rewards.weight 1 → 3" in said
    steps = {line["step"]: line for line in metrics_of(run.folder) if "decision/order/steps" in line}
    assert sorted(steps) == [1, 2, 3, 4]
    told = [step for step, line in steps.items() if "decision/live/shipping.rewards.weight" in line]
    assert len(told) == 1
    assert steps[told[0]]["decision/live/shipping.rewards.weight/before"] == 1.0
    for line in steps.values():
        assert line["decision/order/factor"] == pytest.approx(0.92)
        assert line["decision/shipping/share"] == 1.0, "after_sales is frozen"
        assert "decision/after_sales/tokens" not in line
        assert line["decision/order/tokens"] > 0
        assert line["decision/order/kl"] >= 0
        assert all(0 <= line[f"decision/{node}/valid_share"] <= 1 for node in NODES if line[f"decision/{node}/steps"])
        assert line["learner/skipped_steps"] == 0
        assert line["learner/mismatch_max_abs_logprob_diff"] < 0.02
    two, four = state_of(run.folder, 2), state_of(run.folder, 4)
    seen = sum(line["decision/order/steps"] for line in steps.values())
    assert four["statistics"]["order"]["count"] == seen > two["statistics"]["order"]["count"]
    assert four["live"] == {"shipping.rewards.weight": 3.0, "order.coefficients.entropy_coef": 0.2}
    with Run(tmp_path, "live", *settings, "steps=5") as again:
        again.finish()
    last = metrics_of(again.folder)[-1]
    after = state_of(again.folder, 5)
    assert after["statistics"]["order"]["count"] == seen + next(
        line["decision/order/steps"] for line in metrics_of(again.folder) if line["step"] == 5
    )
    assert after["live"] == four["live"]
    assert not any(name.startswith("decision/live/") for name in last)
