"""Running statistics of rewards: numbers on paper, merging, long streams, and equal rewards."""

import json
import random
import statistics as library

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.decisions.statistics import Running, statistics_from_json, statistics_to_json, with_batches

VALUES = st.lists(st.floats(-100, 100), max_size=20)


def test_numbers_on_paper() -> None:
    """(2, 4, 4, 4, 5, 5, 7, 9) has mean 5 and standard deviation 2."""
    found = Running().with_batch([2, 4, 4, 4]).with_batch([5, 5, 7, 9])
    assert (found.count, found.mean, found.std) == (8, 5.0, 2.0)
    assert found.normal(9) == 2.0
    assert found.normal(4) == -0.5


def test_without_or_with_equal_values_the_normal_reward_is_exactly_0() -> None:
    assert Running().std == 0
    assert Running().normal(3.0) == 0
    assert Running().with_batch([0.7]).normal(0.7) == 0
    seven = Running().with_batch([0.8] * 3).with_batch([0.8] * 4)
    assert seven.std == 0
    assert seven.mean == 0.8
    assert seven.normal(0.8) == 0
    rounded = Running().with_batch([1.0, (0.6 + 0.3) / 0.9, 0.1 + 0.2 + 0.7])
    assert rounded.normal(1.0) == 0, "differences in the last digit are no rewards"


@given(one=VALUES, two=VALUES, three=VALUES)
@settings(max_examples=50, deadline=None)
def test_batches_merge_to_the_statistics_of_all_values(one: list[float], two: list[float], three: list[float]) -> None:
    left = Running().with_batch(one).merged(Running().with_batch(two)).with_batch(three)
    right = Running().with_batch(three).merged(Running().with_batch([*two, *one]))
    values = [*one, *two, *three]
    assert left.count == right.count == len(values)
    if values:
        assert left.mean == pytest.approx(library.fmean(values), abs=1e-9)
        assert left.std == pytest.approx(library.pstdev(values), abs=1e-6)
        assert right.mean == pytest.approx(left.mean, abs=1e-9)
        assert right.std == pytest.approx(left.std, abs=1e-6)


def test_a_long_stream_is_normal() -> None:
    """Rewards about N(3, 0.5), taken in before they are normalised, 16 at a time: N(0, 1)."""
    rng, known, normal = random.Random(0), Running(), []
    for _ in range(1000):
        batch = [rng.gauss(3.0, 0.5) for _ in range(16)]
        known = known.with_batch(batch)
        normal += [known.normal(value) for value in batch]
    assert library.fmean(normal) == pytest.approx(0.0, abs=0.03)
    assert library.pstdev(normal) == pytest.approx(1.0, abs=0.03)


def test_nodes_have_statistics_of_their_own_that_survive_json() -> None:
    known = with_batches({"a": Running().with_batch([1.0])}, {"a": [3.0], "b": [0.5], "c": []})
    assert (known["a"].count, known["a"].mean, known["b"].mean, known["c"].count) == (2, 2.0, 0.5, 0)
    assert statistics_from_json(json.loads(json.dumps(statistics_to_json(known)))) == known
