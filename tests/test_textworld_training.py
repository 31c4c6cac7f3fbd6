"""Real training steps on text adventures: trajectories of many turns, kept as one request each, beside the learner."""

import json
from pathlib import Path

import pytest
from real_runs import Run, costs_of, metrics_of, summary_of

from envs.textworld_games import make_games
from envs.textworld_maker import Difficulty

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_text_adventures_with_kept_turns_and_pushes_among_them(tmp_path: Path) -> None:
    levels = [Difficulty(steps=steps) for steps in (6, 7)]
    make_games(tmp_path / "games", {"train": 4, "heldout": 4}, levels, seed=3, processes=1)
    tasks = tmp_path / "games" / "train.jsonl"
    long = json.loads(tasks.read_text().splitlines()[0]) | {"id": "long"}
    long["prompt"] += " and" * 200
    tasks.write_text(tasks.read_text() + json.dumps(long) + "\n")
    world = [
        f"env.train_tasks={tmp_path}/games/train.jsonl",
        f"env.eval_tasks={tmp_path}/games/heldout.jsonl",
        f"env.games={tmp_path}/games/games",
        "limits.long_prompts=skip",
    ]
    ahead = ["steps=3", "max_staleness=1", "push.mode=keep"]
    Run(tmp_path, "adventures", "experiment=textworld", *ahead, "evaluation.tasks=4", *world).finish()
    summary = summary_of(tmp_path / "adventures")
    ledger = summary["ledger"]
    assert (summary["steps"], ledger["leaves"], ledger["trees"]) == (3, 3 * 4 * 12, 3 * 4 * 4)
    assert summary["parity"]["max_abs_logprob_diff"] < 0.02
    assert summary["eval"]["after"]["n"] == 4
    first, *_ = metrics = metrics_of(tmp_path / "adventures")
    assert first["data/skipped_prompts"] == 1
    steps = [line for line in metrics if "learner/loss" in line]
    assert len(steps) == 3
    for step in steps:
        assert step["learner/grad_norm"] > 0
        assert step["rollout/ledger_mismatch"] == 0
        assert step["learner/mismatch_max_abs_logprob_diff"] < 1e-3, "what the versions said is what the learner says"
        assert step["ledger/prefill_tokens_kept"] > step["ledger/prefill_tokens_computed"], "turns stay in the engine"
        costs = costs_of(tmp_path / "adventures", step["step"])
        assert {name: step[f"ledger/{name}"] for name in costs} == pytest.approx(costs)
    assert ledger["tool_calls"] > 4 * ledger["leaves"], "a game takes many commands"
    assert ledger["env_seconds"] > 0

    from trainer.forest_file import read_forest

    records = read_forest(tmp_path / "adventures" / "forest" / "step-000001.jsonl")
    ends = {str(node.end) for record in records for node in record.tree.nodes if node.end is not None}
    assert ends <= {"answered", "turn_limit", "invalid_action", "length_limit"}
    scores = {node.score for record in records for node in record.tree.nodes if node.end is not None}
    assert scores <= {0.0, 1 / 3, 2 / 3, 1.0}
    assert len(scores) > 1, "the starting policy makes some points"
