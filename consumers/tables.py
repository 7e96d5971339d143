"""Small helpers for tables held as dictionaries of equally long int64 columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.columns import Flags, Int64s, Strings
from schemas.types import NONE

Table = dict[str, Int64s]
"""Columns by name, all int64 and of one length."""


def empty(names: Sequence[str]) -> Table:
    """Return a table without rows."""
    return {name: np.zeros(0, np.int64) for name in names}


def rows_of(table: Table) -> int:
    """Return the number of rows."""
    return len(next(iter(table.values())))


def concat(tables: Sequence[Table]) -> Table:
    """Return the rows of all tables, in order; they have the same columns."""
    if len(tables) == 1:
        return tables[0]
    return {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}


def take(table: Table, index: Flags | Int64s) -> Table:
    """Return the rows that `index` names, by boolean mask or by row numbers."""
    if index.dtype == bool and index.all():
        return table
    return {name: values[index] for name, values in table.items()}


_KEY_LIMIT = 1 << 62


def combine(*columns: Int64s) -> Int64s:
    """Return one key per row, equal iff the row's values are; ordered as the rows are.

    Values may be any int64. Keys are packed into 63 bits as long as they fit, after that the
    keys so far are numbered anew.
    """
    key = np.zeros(len(columns[0]), np.int64)
    span = 1
    for values in columns if len(key) else ():
        low, high = int(values.min()), int(values.max())
        if low == high:
            continue
        if low == NONE:
            # "No value" lies far from all values: move it next to them.
            has = values != NONE
            low = int(values.min(where=has, initial=high)) - 1
            values = np.where(has, values, low)  # noqa: PLW2901
        width = high - low + 1
        if span * width >= _KEY_LIMIT:
            uniques, values = np.unique(values, return_inverse=True)  # noqa: PLW2901
            low, width = 0, len(uniques)
        if span * width >= _KEY_LIMIT:
            uniques, key = np.unique(key, return_inverse=True)
            span = len(uniques)
        key = key * width + (values - low)
        span *= width
    return key


def runs_of(ordered: Int64s) -> Int64s:
    """Return the row numbers at which a new value begins; `ordered` has equal values together."""
    if not len(ordered):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


def pick(strings: Sequence[str], indexes: Int64s) -> list[str]:
    """Return the strings at `indexes` of a record's string table."""
    if isinstance(strings, Strings):
        return strings.pick(indexes)
    return [strings[i] for i in indexes.tolist()]
