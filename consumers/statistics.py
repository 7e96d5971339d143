"""Sums by key, kept sorted: the store of everything the sink adds up.

A key is an int64 made of a *slot* (where in time) and a local number (what). Rows come in any
order and any number; they wait in a list and are folded in together, so that a million rows cost
a few sorts, not a million look-ups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from schemas.columns import Int64s
from schemas.quantiles import midpoint_of

LOCAL_BITS: Final = 40
"""Bits of a key below the slot."""
BUCKET_BITS: Final = 12
"""Bits of a bucket in a local number; the group stands above it."""
MAX_SLOTS: Final = 1 << (63 - LOCAL_BITS)
MAX_GROUPS: Final = 1 << (LOCAL_BITS - BUCKET_BITS)

_LOCAL: Final = (1 << LOCAL_BITS) - 1
_WAITING_ROWS: Final = 1 << 18
"""Rows that may wait, at least: 16 to 40 bytes each."""


class SumTable:
    """Rows of one or more int64 columns by key; rows of the same key are reduced to one.

    `reducers` has one numpy ufunc for each column, such as `np.add`; all must be commutative.
    """

    def __init__(self, *reducers: np.ufunc) -> None:
        self._reducers = reducers
        self._keys = np.zeros(0, np.int64)
        self._columns = [np.zeros(0, np.int64) for _ in reducers]
        self._waiting: list[tuple[Int64s, tuple[Int64s, ...]]] = []
        self._waiting_rows = 0

    def add(self, keys: Int64s, *columns: Int64s) -> None:
        """Fold rows in: `keys` and each column are int64 of one length, not changed afterwards."""
        if not len(keys):
            return
        self._waiting.append((keys, columns))
        self._waiting_rows += len(keys)
        if self._waiting_rows >= max(_WAITING_ROWS, len(self._keys) // 2):
            self._settle()

    def rows(self) -> tuple[Int64s, list[Int64s]]:
        """Return keys, ascending and without repetition, and the columns; not to be changed."""
        self._settle()
        return self._keys, self._columns

    def load(self, keys: Int64s, columns: Sequence[Int64s]) -> None:
        """Replace all rows by what `rows` returned elsewhere."""
        self._keys = np.array(keys, np.int64)
        self._columns = [np.array(c, np.int64) for c in columns]
        self._waiting, self._waiting_rows = [], 0

    def move(self, slots: Mapping[int, int]) -> None:
        """Fold all rows of some slots into others; a slot moved from is empty afterwards."""
        self._settle()
        if not len(self._keys):
            return
        keep = np.ones(len(self._keys), bool)
        moved = []
        for old, new in slots.items():
            low, high = np.searchsorted(self._keys, [old << LOCAL_BITS, (old + 1) << LOCAL_BITS]).tolist()
            if low == high or old == new:
                continue
            keep[low:high] = False
            keys = self._keys[low:high] + ((new - old) << LOCAL_BITS)
            moved.append((keys, tuple(c[low:high] for c in self._columns)))
        if not moved:
            return
        self._keys = self._keys[keep]
        self._columns = [c[keep] for c in self._columns]
        for keys, columns in moved:
            self.add(keys, *columns)

    def _settle(self) -> None:
        """Fold the waiting rows in."""
        if not self._waiting:
            return
        keys, columns = reduced(
            np.concatenate([k for k, _ in self._waiting]),
            [np.concatenate(parts) for parts in zip(*(c for _, c in self._waiting), strict=True)],
            self._reducers,
        )
        self._waiting, self._waiting_rows = [], 0
        if not len(self._keys):
            self._keys, self._columns = keys, columns
            return
        at = np.searchsorted(self._keys, keys)
        known = self._keys[np.minimum(at, len(self._keys) - 1)] == keys
        rows = at[known]
        for reducer, mine, more in zip(self._reducers, self._columns, columns, strict=True):
            mine[rows] = reducer(mine[rows], more[known])
        if not known.all():
            new, at = ~known, at[~known]
            self._keys = np.insert(self._keys, at, keys[new])
            self._columns = [
                np.insert(mine, at, more[new]) for mine, more in zip(self._columns, columns, strict=True)
            ]


def slot_of(keys: Int64s) -> Int64s:
    """Return the slot of each key."""
    return keys >> LOCAL_BITS


def local_of(keys: Int64s) -> Int64s:
    """Return the local number of each key."""
    return keys & _LOCAL


def reduced(
    keys: Int64s, columns: Sequence[Int64s], reducers: Sequence[np.ufunc]
) -> tuple[Int64s, list[Int64s]]:
    """Return rows with unique ascending keys; those of the same key reduced to one."""
    # Stable is timsort for int64: what comes in is made of sorted runs, which it merges.
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.empty(len(keys), bool)
    first[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    if len(starts) == len(keys):
        return keys, [c[order] for c in columns]
    return keys[starts], [r.reduceat(c[order], starts) for r, c in zip(reducers, columns, strict=True)]


class Quantiles(NamedTuple):
    """Quantiles of each group, in ns; -1 where it has no buckets."""

    p50: Int64s
    p99: Int64s


def quantiles(
    groups: Int64s, low: Int64s, high: Int64s, bucket_groups: Int64s, buckets: Int64s, counts: Int64s
) -> Quantiles:
    """Return the quantiles of groups by nearest rank.

    `groups` (ascending, unique) have smallest and largest durations `low` and `high`;
    `bucket_groups`, `buckets`, `counts` are the bucket rows, by group, then bucket. A quantile is
    the midpoint of the bucket that holds the rank, clipped to `low` and `high`.
    """
    sums = np.concatenate(([0], np.cumsum(counts)))
    begin = np.searchsorted(bucket_groups, groups, "left")
    end = np.searchsorted(bucket_groups, groups, "right")
    before = sums[begin]
    totals = sums[end] - before
    found = []
    for percent in (50, 99):
        # Split, so that counts beyond 2**56 do not overflow: ceil(percent / 100 * total).
        whole, rest = np.divmod(totals, 100)
        rank = np.maximum(whole * percent - (-rest * percent // 100), 1)
        at = np.searchsorted(sums[1:], before + rank, "left")
        if not len(buckets):
            found.append(np.full(len(groups), -1, np.int64))
            continue
        values = midpoint_of(buckets[np.minimum(at, len(buckets) - 1)])
        found.append(np.where(totals > 0, np.clip(values, low, high), -1))
    return Quantiles(*found)
