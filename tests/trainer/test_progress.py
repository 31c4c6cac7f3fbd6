import io

from trainer.progress import Progress, duration, headline

METRICS = {
    "rollout/success": 0.54,
    "rollout/reward": 0.51,
    "rollout/tokens_per_s": 2310.4,
    "time/collect_s": 6.1,
    "time/learn_s": 4.2,
    "time/push_s": 0.1,
}


class Clock:
    """Time that stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_plain_line_per_step():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, live=False, clock=clock)
    progress.start(30, done=11)
    clock.now = 10.0
    progress.step(12, METRICS)
    assert stream.getvalue() == (
        "step 12/30  success 0.54  reward 0.51  tokens/s 2,310  collect 6.1s learn 4.2s push 0.1s  left 3m00s\n"
    )


def test_tasks_without_signal_are_named_when_there_are_any():
    assert headline({"reward/mean": 0.5, "reward/dead_groups": 0.25}) == ["reward 0.50", "no signal 25%"]
    assert headline({"reward/mean": 0.5, "reward/dead_groups": 0.0}) == ["reward 0.50"]


def test_the_last_evaluation_stays_in_the_line():
    stream = io.StringIO()
    with Progress(stream, live=False, clock=Clock()) as progress:
        progress.start(3)
        progress.step(1, {"eval/success": 0.4})
        progress.step(2, {"rollout/success": 0.6})
    assert stream.getvalue().splitlines()[1] == "step 2/3  success 0.60  eval 0.40  left 0s"


def test_a_long_phase_says_how_far_it_is_at_most_every_15_seconds():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, live=False, clock=clock)
    progress.start(3)
    progress.phase("collect", total=64)
    for second in range(41):
        clock.now = float(second)
        progress.advance(second, 64)
    assert stream.getvalue() == "  collect 15/64  15s\n  collect 30/64  30s\n"


def test_a_plain_line_names_both_what_is_collected_and_what_goes_on_meanwhile():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, live=False, clock=clock)
    progress.start(30, done=5)
    progress.phase("learn")
    clock.now = 20.0
    progress.beside("collect 7", 34, 48)
    progress.phase("collect")
    clock.now = 40.0
    progress.beside("collect 7", 40, 48)
    assert stream.getvalue() == "  collect 7 34/48, learn 6  20s\n  collect 7 40/48  20s\n"


def test_time_left_is_that_of_the_last_steps():
    clock = Clock()
    progress = Progress(io.StringIO(), live=False, clock=clock)
    progress.start(100)
    assert progress.seconds_left() is None
    clock.now = 100.0  # a slow first step leaves the window of 10
    progress.step(1, {})
    for step in range(2, 12):
        clock.now += 2
        progress.step(step, {})
    assert progress.seconds_left() == 89 * 2


def test_duration():
    assert [duration(s) for s in (0.4, 59, 190, 7500)] == ["0s", "59s", "3m10s", "2h05m"]


def test_a_terminal_shows_bars_numbers_and_notes():
    stream = io.StringIO()
    with Progress(stream, live=True, clock=Clock()) as progress:
        progress.start(30, title="quickstart")
        progress.phase("collect", total=64)
        progress.advance(12, 64)
        progress.beside("collect 3", 34, 48)
        progress.step(1, METRICS)
        progress.note("evaluated [bold]as is[/bold]")
    shown = stream.getvalue()
    for text in (
        "quickstart",
        "1/30",
        "12/64",
        "collect 3",
        "34/48",
        "success 0.54",
        "tokens/s 2,310",
        "evaluated [bold]as is[/bold]",
    ):
        assert text in shown
