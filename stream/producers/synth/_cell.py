"""A stretch of one process's time, made as columns and written as unsorted rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from schemas.columns import Int64s
from schemas.types import Class
from stream.producers.synth import _names, _schema
from stream.producers.synth._truth import Counting, Tally, Truth

BLOCK: Final = 64
"""Rows stay in order only so far; real exports are unsorted in much the same way."""
ECHO_EVERY: Final = 53
BACKTRACE_EVERY: Final = 97


class Contexts(NamedTuple):
    """The contexts of kernels as numbers, shape (n,): as captured, by default rules, by the example's."""

    captured: Int64s
    default: Int64s
    example: Int64s


class Process(NamedTuple):
    """A process of the capture."""

    role: str
    rank: int
    pid: int
    device: int
    skew: int
    """ns that its GPU clock runs behind the CPU's."""

    @property
    def global_pid(self) -> int:
        """As Nsight Systems writes it: the vm id above the pid makes twins of careless readers."""
        return (1 << 48) | (self.pid << 24)

    def thread(self, number: int) -> int:
        """Return the globalTid of the process's thread `number`; 0 is the main one."""
        return self.global_pid | ((self.pid + number) & 0xFFFFFF)


class Work(NamedTuple):
    """GPU operations of one kind; all arrays int64 of shape (n,), times in ns."""

    start: Int64s
    end: Int64s
    stream: Int64s
    launch: Int64s
    """Index of the launch within the cell, or -1 - correlation id where there is none."""
    extra: tuple[Int64s, ...]
    node: Int64s
    """Graph node id (graph in the high 32 bits), -1 for none."""


class Strings(NamedTuple):
    """Ids in StringIds of what the rows name."""

    calls: Int64s
    kernels: Int64s
    """Shape (3, names): full, short and mangled."""


def fill(n: int, value: int) -> Int64s:
    """Return `n` times `value`."""
    return np.full(n, value, np.int64)


class Cell:
    """Collects what a process does, then numbers its launches in time order and writes it all.

    `first` is the correlation id of its first launch.
    """

    def __init__(self, process: Process, counting: Counting, first: int, rng: np.random.Generator) -> None:
        self.process = process
        self.first = first
        self.rng = rng
        self.launches = 0
        self._counting = counting
        self._calls: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []
        self._kernels: list[Work] = []
        self._copies: list[Work] = []
        self._sets: list[Work] = []
        self._nvtx: list[tuple[object, ...]] = []
        self.waits: list[tuple[Int64s, Int64s]] = []

    def noise(self, n: int, most: int) -> Int64s:
        """Return `n` delays (ns) below `most`: times that repeat exactly would compress as none do."""
        return self.rng.integers(0, max(1, most), n)

    def launch(self, start: Int64s, length: int, thread: int, call: str) -> Int64s:
        """Add CUDA calls (start in ns, shape (n,)); return their indices."""
        n = len(start)
        number = fill(n, _names.CALLS.index(call))
        self._calls.append((start, start + length, fill(n, self.process.thread(thread)), number))
        self.launches += n
        return np.arange(self.launches - n, self.launches, dtype=np.int64)

    def idle(self, ratio: float, begin: int, end: int) -> None:
        """Add calls that no GPU row comes of: `ratio` for each call so far, anywhere in the time given."""
        n = int(self.launches * ratio)
        starts = self.rng.integers(begin, end, n)
        for i, call in enumerate(_names.WITHOUT_WORK):
            self.launch(np.sort(starts[i :: len(_names.WITHOUT_WORK)]), 900, 0, call)

    def kernels(
        self,
        work: Work,
        names: Int64s,
        classes: Int64s | Class,
        contexts: Contexts | None = None,
        graph_column: int = -1,
    ) -> None:
        """Add kernels; `contexts` of those in class CONTEXT, `graph_column` what `graphId` says."""
        n = len(work.start)
        start, end = work.start - self.process.skew, work.end - self.process.skew
        if isinstance(classes, Class):
            classes = fill(n, classes)
        none = fill(n, -1)
        node = np.where(work.node < 0, -1, work.node & 0xFFFFFFFF)
        graph = np.where(work.node < 0, -1, work.node >> 32 if graph_column < 0 else graph_column)
        self._counting.kernels(starts=start, ends=end, names=names, classes=classes)
        self._counting.group(contexts or Contexts(none, none, none), names, graph, node)
        self._counting.truth.rows.kernels += n
        column = fill(n, graph_column)
        self._kernels.append(work._replace(start=start, end=end, extra=(names, column)))

    def copies(self, work: Work, context: Class) -> None:
        """Add copies; `work.extra` are bytes, kind and migration cause (-1 for none)."""
        self._memory(work, self._copies, self._counting.truth.memory.copies, context)
        self._counting.truth.rows.copies += len(work.start)

    def sets(self, work: Work, context: Class) -> None:
        """Add sets; `work.extra` are bytes."""
        self._memory(work, self._sets, self._counting.truth.memory.sets, context)
        self._counting.truth.rows.sets += len(work.start)

    def _memory(self, work: Work, kept: list[Work], tallies: dict[str, Tally], context: Class) -> None:
        skew = self.process.skew
        kept.append(work._replace(start=work.start - skew, end=work.end - skew))
        tallies[context.name.lower()].add(work.end - work.start)

    def ranges(
        self,
        start: Int64s,
        end: Int64s,
        thread: int,
        text: str | Sequence[str] | None,
        text_id: int = -1,
        domain: int = 0,
    ) -> None:
        """Add push/pop ranges (ns, shape (n,); end -1 for open ones), named by text or by string id."""
        n = len(start)
        texts = [text] * n if text is None or isinstance(text, str) else text
        rest = [[value] * n for value in (self.process.thread(thread), text_id, domain)]
        rows = zip(start.tolist(), end.tolist(), [59] * n, [-1] * n, texts, *rest, strict=True)
        self._nvtx.extend(rows)
        self._counting.truth.rows.ranges += n
        self._counting.truth.open_ranges += int((end == -1).sum())

    def event(
        self, kind: int, start: int, text: str, *, end: int = -1, thread: int = 0, domain: int = 0
    ) -> None:
        """Add another NVTX row: a mark (34), a thread's name (39), a start/end range (60), a domain (75)."""
        range_id = len(self._nvtx) if kind == 60 else -1
        tid = self.process.thread(thread)
        self._nvtx.append((start, end, kind, range_id, text, tid, -1, domain))
        self._counting.truth.rows.marks += kind == 34
        self._counting.truth.rows.process_ranges += kind == 60

    def write(self, database: _schema.Database, strings: Strings, truth: Truth) -> int:
        """Write all rows, unsorted; return how many of them are CUDA events."""
        calls = [np.concatenate(part) for part in zip(*self._calls, strict=True)]
        start, end, tid, call = calls or [fill(0, 0)] * 4
        correlation = np.empty(self.launches, np.int64)
        correlation[np.argsort(start, kind="stable")] = self.first + np.arange(self.launches)
        used = np.zeros(self.launches, bool)
        events = 0
        for works, write in (
            (self._kernels, self._write_kernels),
            (self._copies, self._write_copies),
            (self._sets, self._write_sets),
        ):
            if not works:
                continue
            work = _concatenate(works)
            linked = work.launch >= 0
            used[work.launch[linked]] = True
            if write == self._write_kernels:
                self._counting.linked(work.start[linked] - start[work.launch[linked]])
            ids = -1 - work.launch
            ids[linked] = correlation[work.launch[linked]]
            write(
                database,
                strings,
                self._shuffled([work.start, work.end, work.stream, ids, *work.extra, work.node]),
            )
            events += len(ids)
        klass = fill(self.launches, 0)
        klass[call == _names.CALLS.index(_names.LAUNCH_DRIVER)] = 1
        columns = [start, end, klass, tid, correlation, strings.calls[call]]
        # Calls of the driver within one of the runtime share its id: the earliest counts.
        plain = np.flatnonzero((call == _names.CALLS.index(_names.LAUNCH_KERNEL)) & used)
        echo = plain[::ECHO_EVERY]
        driver = strings.calls[_names.CALLS.index(_names.LAUNCH_DRIVER)]
        echoes = [start[echo] + 150, end[echo] - 150, fill(len(echo), 1), tid[echo], correlation[echo]]
        # Backtrace rows repeat a launch's id, earlier and on another thread, but are no launches.
        trace = plain[::BACKTRACE_EVERY]
        backtrace = strings.calls[_names.CALLS.index(_names.BACKTRACE)]
        helper = fill(len(trace), self.process.thread(17))
        traces = [start[trace] - 500, start[trace] - 100, fill(len(trace), 67), helper, correlation[trace]]
        echoes.append(fill(len(echo), int(driver)))
        traces.append(fill(len(trace), int(backtrace)))
        rows = [np.concatenate(parts) for parts in zip(columns, echoes, traces, strict=True)]
        database.insert(_schema.INSERT_LAUNCH, _rows(self._shuffled(rows)))
        truth.rows.launches += self.launches + len(echo)
        truth.rows.launches_used += int(used.sum()) + len(echo)
        truth.rows.backtraces += len(trace)
        order = _block_order(len(self._nvtx), self.rng).tolist()
        database.insert(_schema.INSERT_NVTX, map(self._nvtx.__getitem__, order))
        return events + len(rows[0])

    def _shuffled(self, columns: list[Int64s]) -> list[Int64s]:
        order = _block_order(len(columns[0]), self.rng)
        return [column[order] for column in columns]

    def _write_kernels(self, database: _schema.Database, strings: Strings, columns: list[Int64s]) -> None:
        start, end, stream, ids, names, graph, node = columns
        n = len(start)
        full, short, mangled = strings.kernels
        device, process = fill(n, self.process.device), fill(n, self.process.global_pid)
        name_ids = (full[names], short[names], mangled[names])
        rows = [start, end, device, stream, ids, process, *name_ids, ids, node, graph]
        database.insert(_schema.INSERT_KERNEL, _rows(rows))

    def _write_copies(self, database: _schema.Database, _: Strings, columns: list[Int64s]) -> None:
        start, end, stream, ids, size, kind, cause, node = columns
        n = len(start)
        device, process = fill(n, self.process.device), fill(n, self.process.global_pid)
        # Memory kinds: 1 pinned, 2 on the device, 4 managed. Copy kinds: 1 to the device, 11 unified.
        destination = np.where(kind == 11, 4, 2)
        source = np.where(kind == 1, 1, destination)
        rows = [start, end, device, stream, ids, process, size, kind, source, destination, cause, node]
        database.insert(_schema.INSERT_COPY, _rows(rows))

    def _write_sets(self, database: _schema.Database, _: Strings, columns: list[Int64s]) -> None:
        start, end, stream, ids, size, node = columns
        n = len(start)
        device, process = fill(n, self.process.device), fill(n, self.process.global_pid)
        database.insert(_schema.INSERT_SET, _rows([start, end, device, stream, ids, process, size, node]))


def _rows(columns: Sequence[Int64s]) -> zip[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _concatenate(works: list[Work]) -> Work:
    return Work(
        np.concatenate([work.start for work in works]),
        np.concatenate([work.end for work in works]),
        np.concatenate([work.stream for work in works]),
        np.concatenate([work.launch for work in works]),
        tuple(np.concatenate(part) for part in zip(*(work.extra for work in works), strict=True)),
        np.concatenate([work.node for work in works]),
    )


def _block_order(n: int, rng: np.random.Generator) -> Int64s:
    blocks = rng.permutation(-(-n // BLOCK))
    order = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    return order[order < n]
