"""Deltas and boundaries written by hand, for tests of the sink."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from consumers.files import csv_text
from consumers.sink import Sink
from schemas.config import Config
from schemas.deltas import TABLES, CaptureState, Delta, DeltaHeader, encode_delta
from schemas.events import Clock
from schemas.ledger import encode_ledger
from schemas.quantiles import bucket_of
from schemas.records import Record, Topic
from schemas.types import END_OF_TIME, NONE, Class, Offset, Partition, Process
from schemas.windows import Edge, WindowsRecord, encode_windows

SECOND = 10**9
SESSION = "a session"


def process(pid: int, host: str = "", vm: int = 0) -> Process:
    """Return a process."""
    return Process(host, vm << 48 | pid << 24)


class Kernel(NamedTuple):
    """A kernel as a linker decides it; `window` is any instant in its window."""

    window: int
    duration: int = 10
    context: tuple[str, ...] = ()
    name: str = "kernel"
    kind: Class = Class.CONTEXT
    device: int = 0
    graph: int = NONE
    position: int = NONE


def capture(
    first: int | None = 0, last: int | None = 100 * SECOND, name: str = "capture", **more: Any
) -> CaptureState:
    """Return how far a capture has come: by default all the way."""
    values: dict[str, Any] = {
        "clock": Clock("utc", 0),
        "watermark": END_OF_TIME,
        "ended": True,
        "missing": {},
        "pending": 0,
    }
    return CaptureState(capture=name, first=first, last=last, **values | more)


def delta(
    config: Config,
    who: Process,
    kernels: Iterable[Kernel] = (),
    *,
    partition: int = 0,
    rows: Iterable[tuple[int, int, dict[str, str], int]] = (),
    tables: dict[str, Sequence[tuple[Any, ...]]] | None = None,
    **header: Any,
) -> Record:
    """Return a delta with some kernels, row counts (window, counter, fields, count) and the like.

    `tables` adds rows of other tables; text stands in them as text.
    """
    strings: dict[str, int] = {}
    data: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    contexts: dict[tuple[str, ...], int] = {(): -1}
    groups: dict[tuple[Any, ...], int] = {}
    times: dict[tuple[int, int], list[int]] = defaultdict(list)

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    for kernel in kernels:
        for depth in range(1, len(kernel.context) + 1):
            names = kernel.context[:depth]
            if names not in contexts:
                contexts[names] = len(contexts) - 1
                data["context"].append((contexts[names[:-1]], text(names[-1])))
        group = (
            kernel.device,
            contexts[kernel.context],
            text(kernel.name),
            kernel.graph,
            kernel.position,
        )
        if group not in groups:
            groups[group] = len(groups)
            data["group"].append((*group, 1))
        times[groups[group], kernel.window].append(kernel.duration)
        data["total"].append((kernel.window, kernel.kind, 1, kernel.duration))
        if kernel.kind != Class.CONTEXT:
            data["unknown"].append((kernel.window, kernel.kind, text(kernel.name), 1, kernel.duration))
    for (group_row, window), durations in times.items():
        stat = len(data["stat"])
        data["stat"].append(
            (group_row, window, len(durations), sum(durations), min(durations), max(durations))
        )
        data["bucket"] += [(stat, int(b), 1) for b in bucket_of(np.array(durations))]
    for window, counter, fields, count in rows:
        data["rows"].append((window, counter, text(msgspec.json.encode(fields).decode()), count))
    for table, more in (tables or {}).items():
        data[table] += [tuple(text(v) if isinstance(v, str) else v for v in row) for row in more]
    columns = {
        f"{table}.{name}": np.array([row[i] for row in data[table]], np.int64)
        for table, names in TABLES.items()
        if data[table]
        for i, name in enumerate(names)
    }
    head = DeltaHeader(SESSION, config.digest, partition, who, **header)
    return record(Topic.DELTAS, encode_delta(Delta(head, columns, [*strings])), partition)


def boundaries(
    config: Config, who: Process, edges: Iterable[Edge] = (), *, partition: int = 0, **more: Any
) -> Record:
    """Return what a source has to say."""
    ordered = tuple(sorted(edges))
    values = {"purposes": tuple(sorted({e.purpose for e in ordered})), "capture": "capture", **more}
    windows = WindowsRecord(SESSION, config.digest, partition, who, edges=ordered, **values)
    return record(Topic.WINDOWS, encode_windows(windows), partition)


def spans(purpose: Any, *pairs: tuple[int, int]) -> list[Edge]:
    """Return the edges of some spans."""
    return [
        Edge(time, purpose, opens, number)
        for number, pair in enumerate(pairs)
        for time, opens in zip(pair, (True, False), strict=True)
    ]


def end(config: Config, partitions: int = 1) -> list[Record]:
    """Return the end of the session, from every partition."""
    found = []
    for p in range(partitions):
        windows = WindowsRecord(SESSION, config.digest, p, closed=True, partitions=partitions)
        found.append(record(Topic.WINDOWS, encode_windows(windows), p))
        found.append(delta(config, Process("", 0), partition=p, session_end=partitions))
    return found


def record(topic: Topic, value: bytes, partition: int = 0) -> Record:
    """Return a record as a transport hands it out."""
    return Record(topic, Partition(partition), Offset(0), b"", value)


def fold(config: Config, records: Iterable[Record]) -> Sink:
    """Return a sink that has taken the records in."""
    sink = Sink(config)
    for each in records:
        sink.apply(each)
    return sink


def said(sink: Sink) -> tuple[bytes, str]:
    """Return the bytes of the ledger and the groups."""
    return encode_ledger(sink.ledger(SESSION)), csv_text(sink.groups(SESSION))
