"""DELTAS: what one commit of a linker adds, for one (session, process).

Everything additive is a table of int64 columns named `<table>.<column>`; `*` marks an index into
the record's string table, `@` one into `context`. A window is named by any instant within it: the
time of the cut it begins at, or NONE before the first cut.

    total     window, class, kernels, ns
    unknown   window, class, kernel*, kernels, ns       kernels without context, by name
    context   parent@ (-1: none), name*                 rows in order: a parent comes first
    group     device, context@ (-1: none), kernel*, graph, position, first
              `first` 1: decided since the last commit, in the order groups are admitted
    stat      group (row of `group`), window, count, total, min, max         all ns
    bucket    stat (row of `stat`), bucket, count       see schemas.quantiles
    rows      window, counter (index into `rows` of the configuration), fields*, count
              `fields` is a JSON object of the named captures, keys sorted
    memory    operation*, class, count, ns, bytes
    graph     graph, by_node (1: positions are node numbers, 0: order), replays, kernels
    opaque    graph, class, count, ns

Records of one commit are independent of each other and add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from schemas.columns import Int64s, RecordType, pack, unpack
from schemas.errors import DecodeError
from schemas.events import Clock
from schemas.quantiles import BUCKETS
from schemas.types import Class, Int64, Process

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "total": ("window", "class", "kernels", "ns"),
    "unknown": ("window", "class", "kernel", "kernels", "ns"),
    "context": ("parent", "name"),
    "group": ("device", "context", "kernel", "graph", "position", "first"),
    "stat": ("group", "window", "count", "total", "min", "max"),
    "bucket": ("stat", "bucket", "count"),
    "rows": ("window", "counter", "fields", "count"),
    "memory": ("operation", "class", "count", "ns", "bytes"),
    "graph": ("graph", "by_node", "replays", "kernels"),
    "opaque": ("graph", "class", "count", "ns"),
}
_TEXT: Final = frozenset(
    {"unknown.kernel", "context.name", "group.kernel", "rows.fields", "memory.operation"}
)
_STEP: Final = 1 << 12
"""Rows looked at together where that takes memory of its own."""
_ROW_OF: Final = {"stat.group": "group", "bucket.stat": "stat"}


class Fact(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One FACTS row, passed on. `thread` is NONE for a fact of the process."""

    capture: str
    time: Int64
    thread: Int64
    key: str
    value: str


class Anchor(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A mark that carries the application's clock: it read `application` ns at `time` (UTC ns)."""

    time: Int64
    application: Int64


class RoleMatch(msgspec.Struct, frozen=True, array_like=True):
    """A range name matched role rule number `rule`; `fields` are its named captures."""

    rule: Int64
    fields: dict[str, str]


class CaptureState(msgspec.Struct, frozen=True):
    """How far one (capture, process) has come. Replaces the one before.

    `first` and `last` are the smallest start and largest end of its events (None: no events).
    `missing` maps a kind's number to intervals [low, high) of row ordinals never seen.
    `pending` counts rows that are not decided or not stamped with a window yet.
    """

    capture: str
    clock: Clock
    watermark: Int64
    ended: bool
    first: Int64 | None
    last: Int64 | None
    missing: dict[Int64, list[tuple[Int64, Int64]]]
    pending: Int64


class DeltaHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The small parts of a delta.

    `counters` add up; their names are those of `schemas.deltas.COUNTERS`. `clock_offsets` maps a
    device to the smallest (kernel start - launch start) so far in ns; the smallest counts.
    `session_end` is the partition count when the linker of `partition` has seen the end of the
    session and everything it holds is decided; such a record has no process.
    """

    session: str
    config_digest: str
    partition: Int64
    process: Process = Process("", 0)
    facts: tuple[Fact, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    roles: tuple[RoleMatch, ...] = ()
    captures: tuple[CaptureState, ...] = ()
    counters: dict[str, Int64] = {}
    clock_offsets: dict[Int64, Int64] = {}
    session_end: Int64 = 0


COUNTERS: Final[Mapping[str, str]] = {
    "late_kernels": "kernels that came after their watermark",
    "late_launches": "launches that came after their watermark",
    "late_ranges": "range openings and closings that came after their watermark",
    "late_memory": "memory operations that came after their watermark",
    "crossing_ranges": "ranges that ended after a range they began in",
    "unmatched_closings": "range closings whose opening is not known",
    "second_kernels": "kernels that found the launch of their id used up by another kernel",
    "negative_durations": "kernels that end before they start; counted with 0 ns",
    "zero_durations": "kernels that end as they start",
    "launched_after_start": "kernels that start before the launch they are linked to",
    "repeated_rows": "rows seen before, skipped",
    "dead_letters": "records that could not be read",
    "unknown_kinds": "batches of a kind this program does not know",
    "after_end": "rows that came after the end of their session, not taken in",
    "unended_captures": "captures of a process that had not ended when their session did",
    "late_boundaries": "window boundaries that came too late to be any",
}


class Delta(msgspec.Struct, frozen=True):
    """A delta taken apart: `columns` by `<table>.<column>`, all of a table equally long."""

    header: DeltaHeader
    columns: Mapping[str, Int64s]
    strings: Sequence[str]


_header_decoder = msgspec.msgpack.Decoder(DeltaHeader)


def encode_delta(delta: Delta) -> bytes:
    """Return the delta as one record; tables that are absent are empty."""
    return pack(RecordType.DELTA, delta.header, delta.columns, delta.strings)


def decode_delta(data: bytes | memoryview) -> Delta:
    """Return the delta in a record value; every table is there, maybe empty.

    Raises:
        DecodeError: the bytes are not such a record, or an index points nowhere.

    """
    unpacked = unpack(data)
    if unpacked.record_type != RecordType.DELTA:
        raise DecodeError(f"record is of type {unpacked.record_type}, not a delta")
    try:
        header = _header_decoder.decode(unpacked.header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"delta header: {error}") from None
    columns = unpacked.columns
    for table, names in TABLES.items():
        if f"{table}.{names[0]}" not in columns:
            columns.update({f"{table}.{name}": EMPTY for name in names})
            continue
        for name in names:
            if f"{table}.{name}" not in columns:
                raise DecodeError(f"delta lacks column {table}.{name}")
            if len(columns[f"{table}.{name}"]) != len(columns[f"{table}.{names[0]}"]):
                raise DecodeError(f"delta table {table} has columns of different lengths")
    _check_indexes(columns, len(unpacked.strings))
    return Delta(header, columns, unpacked.strings)


def _check_indexes(columns: Mapping[str, Int64s], strings: int) -> None:
    limits: dict[str, tuple[int, int]] = dict.fromkeys(_TEXT, (0, strings))
    limits |= dict.fromkeys(("total.class", "unknown.class", "memory.class", "opaque.class"), (0, len(Class)))
    limits["bucket.bucket"] = (0, BUCKETS)
    limits |= {name: (0, len(columns[f"{t}.{TABLES[t][0]}"])) for name, t in _ROW_OF.items()}
    limits["group.context"] = (-1, len(columns["context.parent"]))
    for name, (low, high) in limits.items():
        values = columns[name]
        if len(values) and not low <= int(values.min()) <= int(values.max()) < high:
            raise DecodeError(f"delta column {name} points nowhere")
    parents = columns["context.parent"]
    for low in range(0, len(parents), _STEP):
        part = parents[low : low + _STEP]
        if not (part < np.arange(low, low + len(part))).all() or int(part.min()) < -1:
            raise DecodeError("delta column context.parent points nowhere, or to a later row")


EMPTY: Final = np.zeros(0, np.int64)
