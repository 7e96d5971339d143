"""Finding the launch of a kernel: by correlation id and by time, never by what is in memory."""

from __future__ import annotations

import numpy as np

from consumers.tables import Table, combine, take
from schemas.columns import Flags, Int64s
from schemas.types import NONE

NOT_FOUND = -1


def in_order(launches: Table) -> Table:
    """Return the launches by correlation id, then by start, then by ordinal."""
    return take(launches, np.lexsort((launches["ordinal"], launches["start"], launches["correlation"])))


def earliest(launches: Table, correlations: Int64s, starts: Int64s, age: int, wait: int) -> Int64s:
    """Return for each (correlation id, start of work) the row of its launch, or NOT_FOUND.

    `launches` is `in_order`. A launch fits if it starts at most `age` ns before and `wait` ns
    after the work does; of several the earliest is taken. Id NONE has no launch.
    """
    ids, times = launches["correlation"], launches["start"]
    rows = np.searchsorted(ids, correlations, "left")
    if len(ids) == 0:
        return np.full(len(correlations), NOT_FOUND, np.int64)
    several = np.zeros(len(ids) + 1, bool)
    several[:-2] = ids[1:] == ids[:-1]
    crowded = np.flatnonzero(several[rows])
    if len(crowded):
        rows[crowded] = _first_not_before(ids, times, correlations[crowded], starts[crowded] - age)
    at = np.minimum(rows, len(ids) - 1)
    fits = (
        (ids[at] == correlations)
        & (correlations != NONE)
        & (times[at] >= starts - age)
        & (times[at] <= starts + wait)
    )
    return np.where(fits, at, NOT_FOUND)


def _first_not_before(ids: Int64s, times: Int64s, wanted: Int64s, since: Int64s) -> Int64s:
    """Return the first row with id `wanted` or above and, of that id, not before `since`."""
    keys = combine(np.concatenate((ids, wanted)), np.concatenate((times, since)))
    return np.searchsorted(keys[: len(ids)], keys[len(ids) :], "left")


def share_out(
    launches: Table,
    work: Table,
    rows: Int64s,
    age: int,
    wait: int,
    watermark: int,
    used: Flags,
) -> Int64s:
    """Return the launches of work that competes for them, NOT_FOUND where none is left.

    `rows` of `work` are due; in order of start, kind and ordinal each takes the earliest launch
    that fits and is not `used` (updated here). In that order any two that want the same launch
    would be decided. A launch that `watermark` has not passed is answered but not taken: its
    work is not due after all. Launches of graphs serve any number.
    """
    ids, times, graph = launches["correlation"], launches["start"], launches["is_graph"]
    chosen = np.full(len(rows), NOT_FOUND, np.int64)
    order = np.lexsort((work["ordinal"][rows], work["kind"][rows], work["start"][rows]))
    begins: dict[int, int] = {}
    for i in order.tolist():
        correlation, start = int(work["correlation"][rows[i]]), int(work["start"][rows[i]])
        row = begins.get(correlation)
        if row is None:
            row = int(np.searchsorted(ids, correlation, "left"))
        # Starts ascend, so what is used up or too old now stays so for the work that follows.
        while row < len(ids) and ids[row] == correlation and (used[row] or times[row] < start - age):
            row += 1
        begins[correlation] = row
        if row < len(ids) and ids[row] == correlation and times[row] <= start + wait:
            chosen[i] = row
            used[row] = not graph[row] and times[row] < watermark
    return chosen
