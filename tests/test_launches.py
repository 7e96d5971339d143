"""Launches found by correlation id and time, against a plain search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from consumers.launches import NOT_FOUND, earliest, in_order
from consumers.tables import combine, runs_of
from schemas.types import NONE

AGE, WAIT = 6, 3
ids = st.sampled_from([NONE, 0, 1, 2, 2**62, -(2**62)])


@given(
    st.lists(st.tuples(ids, st.integers(-20, 20)), max_size=12),
    st.lists(st.tuples(ids, st.integers(-20, 20)), min_size=1, max_size=8),
)
def test_the_earliest_launch_within_the_limits_is_found(
    launches: list[tuple[int, int]], work: list[tuple[int, int]]
) -> None:
    """Of the launches with its id that are neither too old nor too late, work gets the earliest."""
    columns = np.array(launches, np.int64).reshape(-1, 2)
    table = in_order(
        {"correlation": columns[:, 0], "start": columns[:, 1], "ordinal": np.arange(len(launches))}
    )
    wanted, starts = np.array(work, np.int64).T
    found = earliest(table, wanted, starts, AGE, WAIT)
    for (correlation, start), row in zip(work, found.tolist(), strict=True):
        fits = [
            (s, i)
            for i, (c, s) in enumerate(launches)
            if c == correlation != NONE and start - AGE <= s <= start + WAIT
        ]
        if fits:
            assert (int(table["start"][row]), int(table["ordinal"][row])) == min(fits)
        else:
            assert row == NOT_FOUND


@given(st.lists(st.tuples(*[st.sampled_from([NONE, -1, 0, 5, 2**62, -(2**62)])] * 4), min_size=1))
def test_combined_keys_order_rows_as_their_values_do(rows: list[tuple[int, int, int, int]]) -> None:
    """Keys are equal iff rows are, and sort as rows do."""
    keys = combine(*np.array(rows, np.int64).T)
    by_key = sorted(range(len(rows)), key=lambda i: (int(keys[i]), i))
    assert by_key == sorted(range(len(rows)), key=lambda i: (rows[i], i))
    assert len(runs_of(np.sort(keys))) == len(set(rows))
