"""One real training step on text adventures: ten-step trajectories through engine, scheduler, learner and push."""

from pathlib import Path

import pytest
from real_runs import Run, metrics_of, summary_of

from envs.textworld_games import make_games
from envs.textworld_maker import Difficulty

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_step_on_text_adventures(tmp_path: Path) -> None:
    levels = [Difficulty(steps=steps) for steps in (6, 7)]
    make_games(tmp_path / "games", {"train": 4, "heldout": 4}, levels, seed=3, processes=1)
    world = [
        f"env.train_tasks={tmp_path}/games/train.jsonl",
        f"env.eval_tasks={tmp_path}/games/heldout.jsonl",
        f"env.games={tmp_path}/games/games",
    ]
    Run(tmp_path, "adventures", "experiment=textworld", "steps=1", "evaluation.tasks=4", *world).finish()
    summary = summary_of(tmp_path / "adventures")
    ledger = summary["ledger"]
    assert (summary["steps"], ledger["leaves"], ledger["trees"]) == (1, 4 * 12, 4 * 4)
    assert summary["parity"]["max_abs_logprob_diff"] < 0.02
    assert summary["eval"]["after"]["n"] == 4
    (step,) = [line for line in metrics_of(tmp_path / "adventures") if "learner/loss" in line]
    assert step["learner/grad_norm"] > 0
    assert ledger["tool_calls"] > 4 * ledger["leaves"], "a game takes many commands"
    assert ledger["env_seconds"] > 0

    from trainer.forest_file import read_forest

    records = read_forest(tmp_path / "adventures" / "forest" / "step-000001.jsonl")
    ends = {str(node.end) for record in records for node in record.tree.nodes if node.end is not None}
    assert ends <= {"answered", "turn_limit", "invalid_action", "length_limit"}
    scores = {node.score for record in records for node in record.tree.nodes if node.end is not None}
    assert scores <= {0.0, 1 / 3, 2 / 3, 1.0}
    assert len(scores) > 1, "the starting policy makes some points"
