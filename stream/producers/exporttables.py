"""Makes rows of events of the tables of an Nsight Systems export, batch by batch, by columns."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from schemas.columns import Int64s
from schemas.errors import InputError
from schemas.types import DURATION_LIMIT, NONE, TIME_LIMIT, Kind
from stream.producers import wording
from stream.producers.columnar import Column, Texts
from stream.producers.export import Table
from stream.producers.exportfacts import PID_MASK, Times
from stream.producers.ids import IdSet
from stream.producers.names import EMPTY, Names, StringTable

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX: Final = "NVTX_EVENTS"
GPU_TABLES: Final = (KERNEL, MEMCPY, MEMSET, GRAPH_TRACE)

NO_PROCESS: Final = 1 << 48
"""Stands for a process without an id, as some exporters write it: vm 1, pid 0."""

_MARK, _THREAD_NAME, _PUSH_POP, _START_END, _DOMAIN = 34, 39, 59, 60, 75
_BACKTRACE: Final = 67

Rows = list[tuple[Kind, Int64s]]
"""Rows by kind, int64 [n, columns of the kind's runs]."""

_Flags = npt.NDArray[np.bool_]


class Query(NamedTuple):
    """How a table is read: its columns, the places of text ones, and what makes rows of a batch.

    A column is that of the first name whose value is not NULL; without names it is NULL.
    """

    columns: tuple[tuple[str, ...], ...]
    texts: frozenset[int]
    make: Callable[[list[Column]], Rows]


class ThreadName(NamedTuple):
    """A thread's name as an NVTX event gave it: time in UTC ns, process, thread, name's id."""

    time: int
    process: int
    thread: int
    name: int


class Tables:
    """Turns batches of the tables into rows; used by several threads at once.

    GPU tables must have been read, and `gpu_ids` closed, before RUNTIME is: only launches that
    some GPU row refers to are kept. `found` counts what was left out, by reason; `domains` has
    the time and name of each NVTX domain by process and its id.
    """

    def __init__(self, where: str, names: Names, strings: StringTable, times: Times) -> None:
        self.found: Counter[str] = Counter()
        self.gpu_ids = IdSet()
        self.domains: dict[tuple[int, int], tuple[int, int]] = {}
        self.thread_names: list[ThreadName] = []
        self._where = where
        self._names = names
        self._strings = strings
        self._times = times
        self._lock = threading.Lock()

    def query(self, name: str, table: Table) -> Query:
        """Return how to read a table.

        Raises:
            InputError: it lacks a column that nothing works without.

        """
        makers = {
            KERNEL: self._kernels,
            MEMCPY: self._copies,
            MEMSET: self._sets,
            GRAPH_TRACE: self._graph_launches,
            RUNTIME: self._launches,
            NVTX: self._annotations,
        }
        return makers[name](table)

    def rows(self, name: str, query: Query, batch: list[Column]) -> Rows:
        """Return the rows a batch of a table comes to, having counted those it has."""
        self.count(name, len(batch[0]) if isinstance(batch[0], np.ndarray) else 0)
        return query.make(batch)

    def count(self, name: str, number: int) -> None:
        """Count rows under a name."""
        if number:
            with self._lock:
                self.found[name] += number

    def _kernels(self, table: Table) -> Query:
        """Names are those with their arguments; `graphNodeId` is graph and node number, `graphId` wins."""
        columns = (
            *self._gpu_columns(KERNEL, table),
            table.present("demangledName", "shortName", "mangledName"),
            table.present("graphNodeId"),
            table.present("graphId"),
        )

        def rows(batch: list[Column]) -> Rows:
            names, node_id, graph_id = cast("list[Int64s]", batch[6:])
            node = np.where(node_id == NONE, node_id, node_id & 0xFFFFFFFF)
            graph = np.where(node_id == NONE, node_id, (node_id >> 32) & 0xFFFFFFFF)
            graph = np.where(graph_id == NONE, graph, graph_id)
            return self._gpu_rows(Kind.KERNELS, batch, self._lookup(names), graph, node)

        return Query(columns, frozenset(), rows)

    def _copies(self, table: Table) -> Query:
        return self._memory(MEMCPY, table, "Memcpy", ("copyKind", "srcKind", "dstKind"))

    def _sets(self, table: Table) -> Query:
        return self._memory(MEMSET, table, "Memset", ("memKind",))

    def _memory(self, name: str, table: Table, verb: str, kinds: Sequence[str]) -> Query:
        columns = (*self._gpu_columns(name, table), *map(table.present, ("bytes", *kinds)))

        def rows(batch: list[Column]) -> Rows:
            size, *codes = cast("list[Int64s]", batch[6:])
            key = np.zeros(len(size), np.int64)
            for code in codes:
                used, place = np.unique(code, return_inverse=True)
                key = key * len(used) + place
            _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            kinds = [[int(code[row]) for code in codes] for row in first.tolist()]
            names = [self._names.one(wording.operation(verb, kind).encode()) for kind in kinds]
            operation = np.array(names, np.int64)[inverse]
            return self._gpu_rows(Kind.MEMORY, batch, operation, np.where(size == NONE, 0, size))

        return Query(columns, frozenset(), rows)

    def _graph_launches(self, table: Table) -> Query:
        columns = (*self._gpu_columns(GRAPH_TRACE, table), table.present("graphId", "graphExecId"))

        def rows(batch: list[Column]) -> Rows:
            return self._gpu_rows(Kind.GRAPHS, batch, cast("Int64s", batch[6]))

        return Query(columns, frozenset(), rows)

    def _launches(self, table: Table) -> Query:
        """Backtrace rows repeat the id of the call they belong to: they are no calls."""
        self._require(RUNTIME, table, "start", "globalTid", "correlationId")
        columns = tuple(
            table.present(column)
            for column in ("start", "globalTid", "correlationId", "nameId", "eventClass")
        )

        def rows(batch: list[Column]) -> Rows:
            start, thread, correlation, name, event = cast("list[Int64s]", batch)
            calls = event != _BACKTRACE
            known = thread != NONE
            process = _processes(thread)
            used = self.gpu_ids.holds(process, correlation)
            self.count("backtraces", int(np.count_nonzero(~calls)))
            self.count("without_thread", int(np.count_nonzero(calls & ~known)))
            self.count("launches_unused", int(np.count_nonzero(calls & known & ~used)))
            kept = np.flatnonzero(calls & known & used)
            time, _, good = self._span(start[kept], None, open_ended=False)
            return self._rows(
                Kind.LAUNCHES,
                good,
                time,
                process[kept],
                thread[kept] & ~PID_MASK,
                correlation[kept],
                self._lookup(name[kept]),
            )

        return Query(columns, frozenset(), rows)

    def _annotations(self, table: Table) -> Query:
        """Push/pop ranges are a thread's, start/end ranges the process's; names are `textId` or `text`."""
        self._require(NVTX, table, "start", "eventType", "globalTid")
        columns = tuple(
            table.present(column)
            for column in ("start", "end", "eventType", "globalTid", "domainId", "textId", "text")
        )

        def rows(batch: list[Column]) -> Rows:
            start, end, event, thread, domain, registered = cast("list[Int64s]", batch[:6])
            typed = cast("Texts", batch[6])
            name = (
                self._names.add(typed)
                if (typed.ends > typed.starts).any()
                else np.full(len(start), EMPTY, np.int64)
            )
            by_id = registered != NONE
            if by_id.any():
                name = np.where(by_id, 0, name)
                name[by_id] = self._lookup(registered[by_id])
            known = thread != NONE
            self.count("without_thread", int(np.count_nonzero(~known)))
            ranges = known & ((event == _PUSH_POP) | (event == _START_END))
            made: Rows = []
            for kind, chosen in ((Kind.RANGE_OPENINGS, ranges), (Kind.MARKS, known & (event == _MARK))):
                here = slice(None) if chosen.all() else np.flatnonzero(chosen)
                process, owner = _processes(thread[here]), thread[here] & ~PID_MASK
                if not len(process):
                    continue
                if kind is Kind.RANGE_OPENINGS:
                    owner = np.where(event[here] == _START_END, np.int64(NONE), owner)
                    time, ends, good = self._span(start[here], end[here], open_ended=True)
                    made += self._rows(kind, good, time, ends, process, owner, domain[here], name[here])
                else:
                    time, _, good = self._span(start[here], None, open_ended=False)
                    made += self._rows(kind, good, time, process, owner, domain[here], name[here])
            for row in np.flatnonzero(known & ((event == _DOMAIN) | (event == _THREAD_NAME))).tolist():
                self._take_name(
                    int(event[row]), int(start[row]), int(thread[row]), int(domain[row]), int(name[row])
                )
            return made

        return Query(columns, frozenset({6}), rows)

    def _take_name(self, event: int, start: int, thread: int, domain: int, name: int) -> None:
        """Note what a domain or a thread is called."""
        process = thread & PID_MASK or NO_PROCESS
        with self._lock:
            if event == _DOMAIN:
                known = self.domains.get((process, domain))
                self.domains[process, domain] = min(known, (start, name)) if known else (start, name)
            elif abs(start) < TIME_LIMIT - abs(self._times.shift):
                self.thread_names.append(
                    ThreadName(start + self._times.shift, process, thread & ~PID_MASK, name)
                )

    def _require(self, name: str, table: Table, *columns: str) -> None:
        for column in columns:
            if column not in table.columns:
                raise InputError(
                    f"table {name} has no column {column}", where=self._where, hint="export it again"
                )

    def _gpu_columns(self, name: str, table: Table) -> tuple[tuple[str, ...], ...]:
        self._require(name, table, "start", "end")
        shared = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        return tuple(table.present(column) for column in shared)

    def _lookup(self, keys: Int64s) -> Int64s:
        names, unknown = self._strings.look_up(keys)
        self.count("names_unknown", int(np.count_nonzero(unknown)))
        return names

    def _span(
        self, start: Int64s, end: Int64s | None, *, open_ended: bool
    ) -> tuple[Int64s, Int64s, _Flags | None]:
        """Return UTC starts and ends and which rows have usable ones (None: all of them).

        An end of NONE stays one if rows may be `open_ended`.
        """
        shift = np.int64(self._times.shift)
        limit = TIME_LIMIT - abs(self._times.shift)
        good = _within(start, limit)
        if end is None:
            return start + shift, start, None if good.all() else good
        if open_ended:
            has_end = end != NONE
            good &= ~has_end | _within(end, limit)
            ends = np.where(has_end, end + shift, np.int64(NONE))
        else:
            good &= _within(end, limit)
            with np.errstate(over="ignore"):
                good &= _within(end - start, DURATION_LIMIT)
            ends = end + shift
        return start + shift, ends, None if good.all() else good

    def _rows(self, kind: Kind, good: _Flags | None, *columns: Int64s | int) -> Rows:
        size = next(len(column) for column in columns if isinstance(column, np.ndarray))
        rows = np.empty((size, len(columns)), np.int64)
        for place, column in enumerate(columns):
            rows[:, place] = column
        if good is not None:
            self.count("time_unusable", size - int(np.count_nonzero(good)))
            rows = rows[good]
        return [(kind, rows)]

    def _gpu_rows(self, kind: Kind, batch: list[Column], *more: Int64s | int) -> Rows:
        """Make rows of a table whose first six columns are those all GPU tables share."""
        start, end, device, stream, correlation, pid = cast("list[Int64s]", batch[:6])
        time, ends, good = self._span(start, end, open_ended=False)
        process = _processes(pid)
        rows = self._rows(kind, good, time, ends - time, process, device, stream, correlation, *more)
        kept = rows[0][1]
        self.gpu_ids.add(kept[:, 2], kept[:, 5])
        return rows


def _within(values: Int64s, limit: int) -> _Flags:
    return (values > -limit) & (values < limit)


def _processes(ids: Int64s) -> Int64s:
    """Return the process of each `globalPid` or `globalTid`; NONE stays NONE."""
    process = ids & PID_MASK
    process[process == 0] = NO_PROCESS
    return process
