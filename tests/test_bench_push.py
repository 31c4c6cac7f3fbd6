"""The push benchmark's arithmetic on paper; nothing is pushed."""

import pytest

from scripts.bench import push

PROMISED = {"bytes", "seconds", "share_of_step", "memcpy_seconds", "socket_seconds"}


def one_round(seconds, socket, **more):
    parts = {f"push/{part}": 0.25 * seconds for part in push.PARTS}
    shared = {"push/bytes": 4e6, "push/probe_s": 3.0, "push/max_abs_logprob_diff": 1e-6, "memcpy": 0.1}
    return parts | shared | {"push/seconds": seconds, "socket": socket} | more


def test_a_row_has_the_medians_and_their_shares_of_the_step():
    rounds = [one_round(1.0, 0.5), one_round(2.0, 0.5, **{"push/max_abs_logprob_diff": 2e-6}), one_round(9.0, 4.5)]
    row = push.row("tiny", rounds, step_s=40.0)
    assert row.keys() >= PROMISED | set(push.COLUMNS)
    assert (row["bytes"], row["seconds"], row["socket_seconds"], row["memcpy_seconds"]) == (4_000_000, 2.0, 0.5, 0.1)
    assert row["times_socket"] == 2.0, "the median of 2, 4 and 2, each with the socket of its own round"
    assert row["share_of_step"] == pytest.approx(2.0 / 40)
    assert row["share_with_probe"] == pytest.approx(5.0 / 40)
    assert (row["send_s"], row["max_abs_logprob_diff"]) == (0.5, 2e-6)


@pytest.mark.parametrize(
    ("share", "times", "held"),
    [(0.05, 2.0, [True, True]), (0.051, 2.0, [False, True]), (0.05, 2.01, [True, False])],
)
def test_the_goals_and_what_the_page_says_of_them(share, times, held):
    result = {"model": "large", "share_of_step": share, "share_with_probe": 0.2, "times_socket": times}
    assert list(push.goals(result).values()) == held
    first, second = push.verdicts(result).splitlines()
    assert ("reached" in first, "reached" in second) == tuple(held)
    assert "20.0% with the comparison after it" in first


def test_the_table_shows_bytes_in_mb_and_three_digits():
    row = dict.fromkeys(push.COLUMNS, 0.12345) | {"model": "tiny", "bytes": 10_239_744}
    assert push.table([row]).splitlines()[-1].startswith("| tiny | 10 MB | 0.123 |")
