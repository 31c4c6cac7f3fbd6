"""The contract check by a run's command line."""

import json
from dataclasses import dataclass

from envs.types import EndReason, StepResult
from trainer.check_env import main


@dataclass(frozen=True)
class OneStep:
    """Any step ends; the score is that of the options."""

    score: float
    stop: tuple[str, ...] = ("!",)

    def reset(self, task):
        return task.truth

    async def step(self, state, action, *, turns_left):
        return state, StepResult(end=EndReason.ANSWERED, reward=0.5, score=self.score)


def test_a_run_is_checked_by_its_command_line(tmp_path, capsys):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "t", "prompt": "?", "truth": "x"}))
    overrides = ["env=custom", f"env.path={__name__}.OneStep", f"env.train_tasks={tasks}", f"env.eval_tasks={tasks}"]
    assert main([*overrides, "env.options.score=0.5"]) == 0
    assert "12 of 12 clauses hold, on 1 task." in capsys.readouterr().out
    assert main([*overrides, "env.options.score=7"]) == 1
    assert (
        "WRONG  reward and score stand where they must: task 't': score must be from 0 to 1" in capsys.readouterr().out
    )


def test_a_wrong_setting_is_one_sentence(capsys):
    assert main(["env.topk=0"]) == 2
    assert capsys.readouterr().err == "env.topk=0 is not accepted: it must be an integer from 1 to 100.\n"
