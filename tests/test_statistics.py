"""Sums by key and quantiles."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers import statistics
from consumers.statistics import BUCKET_BITS, LOCAL_BITS, SumTable, quantiles, reduced
from schemas.quantiles import bucket_of, nearest_rank


@pytest.fixture(autouse=True)
def _few_rows_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_WAITING_ROWS", 4)


row = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(-9, 9))
step = st.lists(row, max_size=6) | st.dictionaries(st.integers(0, 3), st.integers(0, 3), max_size=2)


@given(st.lists(step, max_size=8))
def test_a_table_is_a_dictionary_of_sums(steps: list[list[tuple[int, int, int]] | dict[int, int]]) -> None:
    """Any rows in any number, and slots moved in between, come to what a dictionary comes to."""
    table = SumTable(np.add, np.minimum, np.maximum)
    sums: dict[int, list[int]] = defaultdict(list)
    for some in steps:
        if isinstance(some, dict):
            moves = {old: new for old, new in some.items() if new not in some}
            table.move(moves)
            for key in [*sums]:
                if (slot := key >> LOCAL_BITS) in moves:
                    sums[key + ((moves[slot] - slot) << LOCAL_BITS)] += (
                        sums.pop(key) if moves[slot] != slot else []
                    )
            continue
        keys = np.array([slot << LOCAL_BITS | local for slot, local, _ in some], np.int64)
        values = np.array([value for *_, value in some], np.int64)
        table.add(keys, values, values, values)
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            sums[key].append(value)
    found, columns = table.rows()
    expected = {k: (sum(v), min(v), max(v)) for k, v in sorted(sums.items()) if v}
    assert found.tolist() == [*expected]
    assert [*zip(*(c.tolist() for c in columns), strict=True)] == [*expected.values()]


def test_what_is_loaded_is_what_was_there() -> None:
    """A table taken over goes on as the first one would have."""
    one, two = SumTable(np.add), SumTable(np.add)
    one.add(np.array([3, 1, 3]), np.array([1, 2, 3]))
    two.load(*one.rows())
    for table in (one, two):
        table.add(np.array([1, 2]), np.array([10, 10]))
    assert [a.tolist() for a in (one.rows()[0], *one.rows()[1])] == [[1, 2, 3], [12, 10, 4]]
    assert [a.tolist() for a in (two.rows()[0], *two.rows()[1])] == [[1, 2, 3], [12, 10, 4]]


def groups_of(durations: list[list[int]]) -> tuple[list[int], list[int]]:
    """Return p50 and p99 of groups by the program."""
    filled = {g: np.array(d, np.int64) for g, d in enumerate(durations) if d}
    keys = np.concatenate([g << BUCKET_BITS | bucket_of(d) for g, d in filled.items()])
    keys, (counts,) = reduced(keys, [np.ones(len(keys), np.int64)], [np.add])
    found = quantiles(
        np.array([*filled]),
        np.array([d.min() for d in filled.values()]),
        np.array([d.max() for d in filled.values()]),
        keys >> BUCKET_BITS,
        keys & ((1 << BUCKET_BITS) - 1),
        counts,
    )
    return found.p50.tolist(), found.p99.tolist()


def test_short_durations_have_exact_quantiles() -> None:
    """Below 128 ns every duration has a bucket of its own."""
    rng = random.Random(5)
    durations = [[rng.randrange(128) for _ in range(rng.randrange(1, 300))] for _ in range(50)]
    exact = [[sorted(d)[nearest_rank(len(d), percent) - 1] for d in durations] for percent in (50, 99)]
    assert [*groups_of(durations)] == exact


def test_quantiles_are_within_their_bound() -> None:
    """Longer ones are off by 0.8 % at most, and never beyond the shortest or longest."""
    rng = random.Random(6)
    durations = [[int(2 ** rng.uniform(0, 61)) for _ in range(rng.randrange(1, 300))] for _ in range(50)]
    for percent, found in zip((50, 99), groups_of(durations), strict=True):
        for mine, q in zip(durations, found, strict=True):
            exact = sorted(mine)[nearest_rank(len(mine), percent) - 1]
            assert min(mine) <= q <= max(mine)
            assert abs(q - exact) <= 0.008 * exact


def test_a_group_without_buckets_has_no_quantiles() -> None:
    """It is said so, not made up."""
    none = np.zeros(0, np.int64)
    one = np.array([1])
    assert [q.tolist() for q in quantiles(one, one, one, none, none, none)] == [[-1], [-1]]
    assert [q.tolist() for q in quantiles(one, one, one, one + 1, one, one)] == [[-1], [-1]]
