"""The one check of failed branches, and the sentence with which an evaluation stops."""

import json
import logging

import pytest

from rollout_workers.types import Ledger
from trainer.compose import compose
from trainer.evaluate import main
from trainer.failures import check_failures

NOTES = ("train-1/ulm/0/2: the reward function mine.reward gave nan for task 'ulm'; ...",)


@pytest.mark.parametrize("notes", [NOTES, ()])
def test_too_many_failed_branches_stop_a_run_with_the_first_reason(notes):
    with pytest.raises(RuntimeError) as raised:
        check_failures("train-1", Ledger(branches=10, branches_failed=3), notes, 0.2)
    sentence = "30% of the branches of train-1 ended in an environment error, more than env.max_error_share=0.2"
    assert str(raised.value) == sentence + (f", e.g. {NOTES[0]}" if notes else "")


def test_few_failed_branches_are_a_warning(caplog):
    caplog.set_level(logging.WARNING)
    check_failures("train-1", Ledger(branches=10, branches_failed=2), NOTES, 0.2)
    assert caplog.messages == [f"20.0% of the branches of train-1 failed, e.g. {NOTES[0]}"]


def test_the_share_is_that_of_the_step_so_far(caplog):
    """1 of 2 branches failed in the further collection, 3 of 18 before it: 4 of 20 are no more than accepted."""
    caplog.set_level(logging.WARNING)
    before = Ledger(branches=18, branches_failed=3)
    check_failures("train-1-resample-1", Ledger(branches=2, branches_failed=1), NOTES, 0.2, before)
    assert caplog.messages == [f"20.0% of the branches of train-1 failed, e.g. {NOTES[0]}"]
    with pytest.raises(RuntimeError, match=r"25% of the branches of train-1 ended"):
        check_failures("train-1-resample-2", Ledger(branches=2, branches_failed=2), NOTES, 0.2, before)


def test_failures_of_an_earlier_collection_are_not_told_again(caplog):
    check_failures("train-1-resample-1", Ledger(branches=2), (), 0.2, Ledger(branches=18, branches_failed=3))
    assert caplog.messages == []


def test_no_failed_branch_says_nothing(caplog):
    check_failures("train-1", Ledger(branches=10), (), 0.0)
    check_failures("eval-0", Ledger(), (), 0.0)
    assert caplog.messages == []


def test_an_evaluation_that_cannot_begin_is_one_sentence_per_fault(tmp_path, capfd):
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "config.json").write_text("{}")
    config = compose(["name=r", "cluster=local", f"env.eval_tasks={tmp_path}/nowhere.jsonl"])
    (tmp_path / "config.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    assert main([str(tmp_path)]) == 2
    said = capfd.readouterr().err.splitlines()  # also what libraries log, and the corpus a new checkout lacks
    for sentence in (
        f"model.path={tmp_path}/export cannot be used: ",
        f"env.eval_tasks={tmp_path}/nowhere.jsonl is not a file ",
    ):
        assert sum(line.startswith(sentence) for line in said) == 1
