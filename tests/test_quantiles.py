"""Quantiles by integer buckets, against the exact ones."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import profiles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.quantiles import BUCKETS, bucket_of, midpoint_of, nearest_rank

profiles.load()

WITHIN = Fraction(8, 1000)
durations = st.integers(0, 2**63 - 1) | st.integers(0, 10**6) | st.integers(0, 300)
edges = st.integers(0, 62).flatmap(lambda e: st.integers(-2, 2).map(lambda d: max(0, (1 << e) + d)))


def bucket(value: int) -> int:
    """Return the bucket of one duration."""
    return int(bucket_of(np.array([value], np.int64))[0])


def midpoint(number: int) -> int:
    """Return the midpoint of one bucket."""
    return int(midpoint_of(np.array([number], np.int64))[0])


def exact(values: list[int], percent: int) -> int:
    """Return the percentile by nearest rank: the smallest value that enough do not exceed."""
    return min(v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values))


def estimated(buckets: Counter[int], low: int, high: int, percent: int) -> int:
    """Return the percentile from buckets: walk to the rank, take the midpoint, clip it."""
    left = nearest_rank(buckets.total(), percent)
    for number in sorted(buckets):
        left -= buckets[number]
        if left <= 0:
            return min(max(midpoint(number), low), high)
    raise AssertionError(percent)


@given(durations | edges)
def test_a_bucket_is_within_eight_per_mille_of_what_is_in_it(value: int) -> None:
    """A bucket's midpoint differs from every duration in it by at most 0.8 %."""
    assert abs(midpoint(bucket(value)) - value) <= WITHIN * value


@given(edges | durations)
def test_longer_durations_are_in_later_buckets(value: int) -> None:
    """Buckets are in the order of the durations, one after the other, without gaps."""
    if value < 2**63 - 1:
        assert bucket(value + 1) - bucket(value) in (0, 1)
    assert 0 <= bucket(value) < BUCKETS


@given(st.integers(0, BUCKETS - 1))
def test_the_midpoint_of_a_bucket_is_in_it(number: int) -> None:
    """A bucket and its midpoint name each other."""
    assert bucket(midpoint(number)) == number


def test_durations_below_128_ns_are_exact() -> None:
    """Short durations have a bucket each."""
    values = np.arange(128)
    assert midpoint_of(bucket_of(values)).tolist() == values.tolist()


@given(st.lists(durations, min_size=1, max_size=60), st.sampled_from([1, 50, 99, 100]))
def test_percentiles_are_within_eight_per_mille_of_the_exact_ones(values: list[int], percent: int) -> None:
    """Percentiles from buckets agree with nearest rank over the durations themselves."""
    buckets = Counter(map(bucket, values))
    truth = exact(values, percent)
    assert abs(estimated(buckets, min(values), max(values), percent) - truth) <= WITHIN * truth


@given(st.lists(durations, min_size=1, max_size=30), st.lists(durations, min_size=1, max_size=30))
def test_buckets_of_parts_add_up_to_those_of_the_whole(one: list[int], other: list[int]) -> None:
    """Percentiles can be merged: counts of buckets add up, whatever was counted first."""
    apart = Counter(map(bucket, one)) + Counter(map(bucket, other))
    together = Counter(bucket_of(np.array(other + one, np.int64)).tolist())
    assert apart == together


@pytest.mark.parametrize(
    ("total", "percent", "rank"),
    [
        (1, 50, 1),
        (2, 50, 1),
        (3, 50, 2),
        (100, 99, 99),
        (101, 99, 100),
        (1, 99, 1),
        (10**15, 99, 99 * 10**13),
    ],
)
def test_nearest_rank_is_the_rounded_up_share(total: int, percent: int, rank: int) -> None:
    """The rank of a percentile is ceil(percent / 100 x total), in exact integers."""
    assert nearest_rank(total, percent) == rank
