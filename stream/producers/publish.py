"""Publishes captures as EVENTS: several sources advance together in session time.

    facts        of every capture and process, before anything else
    slices       up to the same time in all sources; with each, every process's watermark
    capture end  of every process and of the capture itself, once a source has no more
    session end  to every partition

Everything is read before the first record is written, so a capture that cannot be read leaves
nothing behind. Ordinals follow from the capture's content alone: a file published twice gives the
same rows under the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from schemas.columns import Int64s, cut_name
from schemas.errors import InputError
from schemas.events import COLUMNS, Batch, Clock, Header, encode
from schemas.records import Output, Topic
from schemas.types import END_OF_TIME, Kind, Partition, Process, partition_key
from stream.producers.capture import BATCH_ROWS, CAPTURE, FactRow, Progress, Source

SLICE_ROWS: Final = 24 * 1024
"""Rows of a process in a slice, on average: of them about 16k are kernels, a whole record."""

MAX_SLICE_ROWS: Final = 1 << 18
"""Rows in a slice of one source, however many processes it has: bounds memory."""

Write = Callable[[list[Output]], None]
"""Takes the records of one slice."""


class SourceSummary(msgspec.Struct, frozen=True):
    """What has been published of one capture.

    `events` counts rows by the name of their kind; `counts`, `missing` and `notes` are what the
    source says of itself, as in its facts.
    """

    name: str
    capture: str
    format: str
    processes: int
    events: dict[str, int]
    counts: dict[str, int]
    missing: list[str]
    notes: list[str]


class Published(msgspec.Struct, frozen=True):
    """What has been published: `records` and their `bytes` before the topic's compression."""

    sources: list[SourceSummary]
    records: int
    bytes: int


def publish(
    prepared: Sequence[Source],
    session: str,
    write: Write,
    partitions: int,
    *,
    progress: Progress = lambda *_: None,
    end_session: bool = True,
) -> Published:
    """Write the events of sources that were `prepare`d, slice by slice, to `write`.

    `progress` is told of rows published.

    Raises:
        OutputError: there is no space for temporary files.

    """
    told = _Teller(session, write)
    for source in prepared:
        told.facts(source)
    told.write()
    total = sum(source.rows for source in prepared)
    live = list(prepared)
    while live:
        before = _next_time(live)
        for source in live:
            told.slice(source, before)
        for source in [source for source in live if source.drained or before == END_OF_TIME]:
            told.end_capture(source)
            live.remove(source)
        told.write()
        progress("publishing", told.rows, total)
    if end_session:
        told.end_session(partitions)
        told.write()
    return Published([summary(source) for source in prepared], told.records, told.bytes)


def summary(source: Source) -> SourceSummary:
    """Return what there is of a prepared source."""
    return SourceSummary(
        name=source.name,
        capture=source.capture,
        format=source.format,
        processes=len(source.processes),
        events={kind.name.lower(): rows for kind, rows in source.events.items()},
        counts=dict(source.counts),
        missing=list(source.missing),
        notes=list(source.notes),
    )


def session_end(session: str, partitions: int) -> list[Output]:
    """Return the records that end a session: one for each partition of EVENTS."""
    header = Header(
        session=session,
        process=CAPTURE,
        kind=Kind.SESSION_END,
        capture="",
        watermark=END_OF_TIME,
        clock=Clock(),
        partitions=partitions,
    )
    key = session.encode("utf-8", "backslashreplace")
    return [
        Output(Topic.EVENTS, Partition(partition), key, value)
        for value in encode(Batch(header, {}, []))
        for partition in range(partitions)
    ]


def prepare(sources: Sequence[Source], progress: Progress = lambda *_: None) -> list[Source]:
    """Read the sources; return those to publish: a capture given twice is published once.

    `progress` is told of rows read.

    Raises:
        InputError: a source cannot be read, or its times cannot be put beside the others'.
        OutputError: there is no space for temporary files.

    """
    _check_clocks(sources)
    prepared: dict[str, Source] = {}
    for source in sources:
        source.prepare(progress)
        prepared.setdefault(source.capture, source)
    # Of some sources the clock is only known once they have been read.
    _check_clocks(list(prepared.values()))
    return list(prepared.values())


def _check_clocks(sources: Sequence[Source]) -> None:
    for source in sources if len(sources) > 1 else ():
        if source.clock.base == "none":
            raise InputError(
                "has no time in UTC, so it cannot be put beside another capture",
                where=str(source.path),
                hint="give it alone",
            )


def _next_time(live: Iterable[Source]) -> int:
    """Return the time up to which all sources are published next."""
    boundaries = []
    for source in live:
        rows = min(MAX_SLICE_ROWS, SLICE_ROWS * max(1, len(source.processes)))
        boundary = source.next_boundary(rows)
        if boundary is not None:
            boundaries.append(boundary)
    return min(boundaries, default=END_OF_TIME)


class _Teller:
    """Encodes batches of a session and counts what it has written."""

    def __init__(self, session: str, write: Write) -> None:
        self.records = 0
        self.bytes = 0
        self.rows = 0
        self._session = session
        self._write = write
        self._outputs: list[Output] = []

    def write(self) -> None:
        """Hand on what has been told so far."""
        if self._outputs:
            self._write(self._outputs)
            self._outputs = []

    def facts(self, source: Source) -> None:
        """Tell all facts of a source."""
        by_process: dict[Process, list[FactRow]] = {process: [] for process in (CAPTURE, *source.processes)}
        for fact in source.facts():
            by_process[fact.process].append(fact)
        for process, rows in by_process.items():
            for low in range(0, len(rows), BATCH_ROWS):
                self._tell(_facts_batch(source, process, rows[low : low + BATCH_ROWS]), None)

    def slice(self, source: Source, before: int) -> None:
        """Tell what a source has before a time, and that there is no more before it."""
        waiting: Batch | None = None
        marked: set[Process] = set()
        watermark = None if before == END_OF_TIME else before
        for batch in source.take(before):
            if waiting is not None:
                last = waiting.header.process != batch.header.process
                self._tell(waiting, watermark if last else None)
            waiting = batch
            marked.add(batch.header.process)
            if batch.kind != Kind.RANGE_CLOSINGS:
                self.rows += batch.header.rows
        if waiting is not None:
            self._tell(waiting, watermark)
        if watermark is not None:
            for process in source.processes:
                if process not in marked:
                    self._tell(_facts_batch(source, process, []), watermark)

    def end_capture(self, source: Source) -> None:
        """Tell that there is no more of a source, under each process and the capture itself."""
        for process in (*source.processes, CAPTURE):
            header = _header(source, process, Kind.CAPTURE_END)
            self._tell(Batch(header, {}, []), END_OF_TIME)

    def end_session(self, partitions: int) -> None:
        """Tell every partition that the session is over."""
        for output in session_end(self._session, partitions):
            self._put(output)

    def _tell(self, batch: Batch, watermark: int | None) -> None:
        header = msgspec.structs.replace(batch.header, session=self._session, watermark=watermark)
        key = partition_key(self._session, header.process)
        for value in encode(Batch(header, batch.columns, batch.strings)):
            self._put(Output(Topic.EVENTS, None, key, value))

    def _put(self, output: Output) -> None:
        self.records += 1
        self.bytes += len(output.value)
        self._outputs.append(output)


def _header(source: Source, process: Process, kind: Kind, rows: int = 0) -> Header:
    return Header(
        session="",
        process=process,
        kind=kind,
        capture=source.capture,
        ordinal=source.next_ordinal(process, kind, rows),
        rows=rows,
        clock=source.clock,
    )


def _facts_batch(source: Source, process: Process, rows: Sequence[FactRow]) -> Batch:
    table: dict[str, int] = {}

    def place(text: str) -> int:
        return table.setdefault(cut_name(text), len(table))

    columns = {
        "time": (row.time for row in rows),
        "thread": (row.thread for row in rows),
        "key": (place(row.key) for row in rows),
        "value": (place(row.value) for row in rows),
    }
    return Batch(
        _header(source, process, Kind.FACTS, len(rows)),
        {name: _column(columns[name]) for name in COLUMNS[Kind.FACTS]},
        list(table),
    )


def _column(values: Iterator[int]) -> Int64s:
    return np.fromiter(values, np.int64)
