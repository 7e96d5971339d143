"""Small captures made by hand: nsys exports and Kineto traces with just what a test needs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from schemas.events import Batch, decode
from schemas.records import Output
from schemas.types import Kind
from stream.producers.publish import Published, prepare, publish
from stream.producers.source import SourceOptions, open_source

ZERO = 1_700_000_000_000_000_000
"""The session's start in UTC ns of every export made here."""

Rows = Sequence[Mapping[str, Any]]


def gpid(pid: int, vm: int = 1, hardware: int = 1) -> int:
    """Return the `globalPid` of a process, as SQLite stores it."""
    value = hardware << 56 | vm << 48 | pid << 24
    return value - (1 << 64) if value >= 1 << 63 else value


def gtid(pid: int, tid: int) -> int:
    """Return the `globalTid` of a thread."""
    return gpid(pid) | tid


def export(path: Path, tables: Mapping[str, Rows], *, zero: int | None = ZERO, wal: bool = False) -> Path:
    """Write an export: tables by name, rows by column; a table without rows is left out, as nsys does.

    With `wal` the rows are only in a write-ahead log beside the file, as after a crash.
    """
    path.unlink(missing_ok=True)
    everything = dict(tables)
    if zero is not None:
        everything.setdefault("TARGET_INFO_SESSION_START_TIME", [{"utcEpochNs": zero}])
    everything.setdefault("META_DATA_EXPORT", [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.99"}])
    connection = sqlite3.connect(path, isolation_level=None)
    if wal:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA synchronous = off")
    connection.execute("BEGIN")
    for name, rows in everything.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        if not columns:
            continue
        connection.execute(f'CREATE TABLE "{name}" ({", ".join(f"{c!r}" for c in columns)})')
        marks = ", ".join("?" * len(columns))
        connection.executemany(
            f'INSERT INTO "{name}" VALUES ({marks})', [[row.get(c) for c in columns] for row in rows]
        )
    connection.execute("COMMIT")
    if wal:
        log = path.with_name(path.name + "-wal")
        kept = log.read_bytes()
        main = path.read_bytes()
        connection.close()
        path.write_bytes(main)
        log.write_bytes(kept)
    else:
        connection.close()
    return path


def kernel(start: Any, end: Any, correlation: Any = 1, pid: int = 7, **more: Any) -> dict[str, Any]:
    """Return a row of CUPTI_ACTIVITY_KIND_KERNEL."""
    row = {"start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": correlation}
    return row | {"globalPid": gpid(pid), "demangledName": 1} | more


def call(start: int, correlation: int = 1, pid: int = 7, tid: int = 70, **more: Any) -> dict[str, Any]:
    """Return a row of CUPTI_ACTIVITY_KIND_RUNTIME."""
    row = {"start": start, "end": start + 5, "eventClass": 0, "globalTid": gtid(pid, tid)}
    return row | {"correlationId": correlation, "nameId": 2} | more


def nvtx(start: Any, end: Any, text: Any = None, pid: int = 7, tid: int = 70, **more: Any) -> dict[str, Any]:
    """Return a row of NVTX_EVENTS, by default a push/pop range in the default domain."""
    row = {"start": start, "end": end, "eventType": 59, "globalTid": gtid(pid, tid), "domainId": 0}
    return row | {"text": text, "textId": None} | more


STRINGS = [{"id": 1, "value": "gemm(float*)"}, {"id": 2, "value": "cudaLaunchKernel_v7000"}]


def simple(**more: Rows) -> dict[str, Rows]:
    """Return the tables of a capture with one kernel, its launch and a range around that."""
    tables: dict[str, Rows] = {
        "StringIds": STRINGS,
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(200, 300)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [call(100)],
        "NVTX_EVENTS": [nvtx(50, 150, "step")],
    }
    return tables | more


def trace(path: Path, events: Sequence[Mapping[str, Any]], **beside: Any) -> Path:
    """Write a Kineto trace."""
    path.write_text(json.dumps({"traceEvents": list(events)} | beside))
    return path


def published(
    *paths: Path, session: str = "s", options: SourceOptions | None = None
) -> tuple[Published, list[Output]]:
    """Publish captures; return what was said of it, and the records."""
    sources = [open_source(path, options) for path in paths]
    outputs: list[Output] = []
    try:
        return publish(prepare(sources), session, outputs.extend, 4), outputs
    finally:
        for source in sources:
            source.close()


def batches(outputs: Sequence[Output], kind: Kind | None = None) -> list[Batch]:
    """Return the batches in records, of one kind or all."""
    decoded = [decode(output.value) for output in outputs]
    return [batch for batch in decoded if kind is None or batch.kind == kind]


def rows(outputs: Sequence[Output], kind: Kind) -> list[dict[str, Any]]:
    """Return the rows of a kind in the order of their records, text spelled out, each with its process."""
    found = []
    for batch in batches(outputs, kind):
        columns = {name: values.tolist() for name, values in batch.columns.items()}
        for row in range(batch.header.rows):
            values = {name: column[row] for name, column in columns.items()}
            for name in ("name", "domain", "operation", "key", "value"):
                if name in values:
                    values[name] = batch.strings[values[name]]
            found.append(values | {"ordinal": batch.header.ordinal + row, "process": batch.header.process})
    return found


def facts(outputs: Sequence[Output], key: str) -> list[str]:
    """Return the values of all facts of a key."""
    return [row["value"] for row in rows(outputs, Kind.FACTS) if row["key"] == key]


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return what SQLite itself says of a file that is left as it is."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        return connection.execute(sql).fetchall()
