"""The overlap benchmark's arithmetic, on steps that fit on paper; no training is started."""

import pytest

from scripts.bench import overlap


def step(collect: float, learn: float, push: float, **more: float) -> dict[str, float]:
    times = {"time/collect_s": collect, "time/learn_s": learn, "time/push_s": push}
    return times | {"rollout/staleness_max": 0.0, "rollout/stale_leaves": 0.0} | more


def test_the_first_and_the_last_step_count_in_neither_run():
    """Without overlap 4 + 3 + 1 = 8 s a step, with it 1 + 4 + 1 = 6 s: 1.33 times as fast; at best 8 / 4 = 2."""
    synchronous = overlap.summed([step(90, 90, 90), step(4, 3, 1), step(4, 3, 1), step(9, 9, 9)])
    hidden = {"overlap/hidden_s": 4.0, "overlap/hidden_share": 0.8, "rollout/staleness_mean": 1.0}
    overlapped = overlap.summed([step(90, 90, 90), step(0, 4, 1, **hidden), step(2, 4, 1, **hidden), step(0, 1, 1)])
    assert (synchronous["seconds_per_step"], overlapped["seconds_of_steps"]) == (8.0, [5, 7])
    assert (overlapped["staleness_mean"], overlapped["overlap_hidden_share"]) == (1.0, 0.8)
    assert "overlap_hidden_s" not in synchronous
    assert overlap.compared(synchronous, overlapped) == pytest.approx(
        {
            "speedup": 8 / 6,
            "speedup_bound": 2.0,
            "learner_waits_share_synchronous": 0.5,
            "learner_waits_share_overlapped": 1 / 6,
        }
    )


def test_the_page_says_what_a_step_gains():
    arms = [overlap.summed([step(4, 3, 1)] * 3), overlap.summed([step(0, 4, 1, **{"overlap/hidden_share": 0.8})] * 3)]
    result = {"cpu_cores": 2, "synchronous": arms[0], "overlapped": arms[1], **overlap.compared(*arms)}
    text = overlap.page(result, "the command", 3, "keep")
    assert "A step is **1.60 times** as fast" in text
    assert "| seconds per step | 8 | 5 |" in text
    assert "| share of the collection that went by beside these |  | 0.8 |" in text
    assert "waits 50% of a step, with it 0%" in text


def test_too_few_steps_are_refused(capsys, tmp_path):
    with pytest.raises(SystemExit):
        overlap.main(["--json", str(tmp_path / "o.json"), "--steps", "2"])
    assert "--steps must be at least 3" in capsys.readouterr().err
