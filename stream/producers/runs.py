"""Rows of one kind in order of time, merged from sorted runs that may lie on disk.

A capture's rows come in any order. They are read some hundred thousand at a time, each such run
is sorted by itself and kept, in memory while that lasts, and `take` merges the next stretch of
all runs. So memory is bounded by one run and one stretch, however long the capture.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from schemas.columns import Int64s
from schemas.types import END_OF_TIME, NONE
from stream.producers.names import Names
from stream.producers.spill import Appended, Spill

RUN_ROWS: Final = 1 << 18
"""Rows a run: 16 MiB of eight columns, twice that while it is sorted."""

SAMPLE_ROWS: Final = 1 << 8
"""Of a run on disk, the time of every so many rows is kept in memory."""

_NOTHING: Final = np.zeros(0, np.int64)


class _Run:
    """Rows sorted by their first column; `at` is where they begin on disk, None in memory."""

    __slots__ = ("at", "position", "rows", "samples", "size")

    def __init__(self, rows: Int64s, at: int | None) -> None:
        self.at = at
        self.size = len(rows)
        self.samples = rows[::SAMPLE_ROWS, 0].copy()
        self.rows = rows if at is None else None
        self.position = 0


class Runs:
    """Sorted rows of one kind.

    `columns` names their columns, "time" first. `longest_first` names one of ends: of rows with
    equal times the one with the larger end comes first, NONE being the largest. Otherwise, and
    among equal ends, rows stay in the order of the runs' keys and of their places in them.
    """

    def __init__(self, columns: tuple[str, ...], spill: Spill, names: Names, longest_first: str = "") -> None:
        self.columns = columns
        self.rows = 0
        self._spill = spill
        self._end = columns.index(longest_first) if longest_first else -1
        self._runs: list[tuple[tuple[int, ...], _Run]] = []
        self._disk: Appended | None = None
        self._processes: set[int] = set()
        self._process = columns.index("process")
        self._name = columns.index("name") if "name" in columns else -1
        self._names = names
        self._lock = threading.Lock()

    def add(self, key: tuple[int, ...], rows: Int64s) -> None:
        """Take over a run: `rows` int64 [n, columns]. May be called from several threads."""
        if not len(rows):
            return
        order = self._order(rows)
        ordered = rows[order] if order is not None else rows.copy()
        if self._name >= 0:
            ordered[:, self._name] = self._names.settle(ordered[:, self._name])
        process = ordered[:, self._process]
        found = np.unique(process).tolist() if (process != process[0]).any() else [int(process[0])]
        at = None
        if not self._spill.fits(ordered.nbytes):
            with self._lock:
                self._disk = self._disk or self._spill.bytes()
            at = self._disk.append(ordered.tobytes())
        with self._lock:
            self._runs.append((key, _Run(ordered, at)))
            self._runs.sort(key=lambda run: run[0])
            self.rows += len(ordered)
            self._processes.update(found)

    @property
    def processes(self) -> set[int]:
        """What stands in column "process"."""
        return self._processes

    @property
    def drained(self) -> bool:
        """Whether all rows have been taken."""
        return all(run.position == run.size for _, run in self._runs)

    def samples(self) -> Int64s:
        """Return the times that stand for `SAMPLE_ROWS` rows before them each, in any order."""
        return np.concatenate([_NOTHING, *(run.samples[1:] for _, run in self._runs)])

    def take(self, before: int) -> Int64s:
        """Return the rows, int64 [n, columns], not taken yet and earlier than `before`, in order."""
        parts = [part for _, run in self._runs if len(part := self._next(run, before))]
        if not parts:
            return np.zeros((0, len(self.columns)), np.int64)
        if len(parts) == 1:
            return parts[0]
        rows = np.concatenate(parts)
        order = self._order(rows)
        return rows if order is None else rows[order]

    def _next(self, run: _Run, before: int) -> Int64s:
        if run.position == run.size:
            return np.zeros((0, len(self.columns)), np.int64)
        if run.rows is not None:
            end = int(np.searchsorted(run.rows[:, 0], before))
            part = run.rows[run.position : end]
            run.position = max(end, run.position)
            if run.position == run.size:
                run.rows = None
            return part
        end = min(run.size, int(np.searchsorted(run.samples, before)) * SAMPLE_ROWS)
        count = max(0, end - run.position)
        if not count or self._disk is None or run.at is None:
            return np.zeros((0, len(self.columns)), np.int64)
        width = 8 * len(self.columns)
        data = self._disk.read(run.at + run.position * width, count * width)
        part = np.frombuffer(data, np.int64).reshape(-1, len(self.columns))
        part = part[: int(np.searchsorted(part[:, 0], before))]
        run.position += len(part)
        return part

    def _order(self, rows: Int64s) -> Int64s | None:
        """Return the order of rows by time and the rules for equal times; None if it is theirs."""
        time = np.ascontiguousarray(rows[:, 0])
        steps = time[1:] >= time[:-1]
        order = None if steps.all() else np.argsort(time, kind="stable")
        if self._end < 0:
            return order
        ordered = time if order is None else time[order]
        equal = ordered[1:] == ordered[:-1]
        if not equal.any():
            return order
        # Few rows share their time with another one: only those are sorted again.
        tied = np.zeros(len(rows), bool)
        tied[1:] = equal
        tied[:-1] |= equal
        places = np.flatnonzero(tied)
        order = np.arange(len(rows)) if order is None else order
        among = order[places]
        ends = rows[among, self._end]
        ends = np.where(ends == NONE, np.int64(END_OF_TIME), ends)
        order[places] = among[np.lexsort((~ends, ordered[places]))]
        return order
