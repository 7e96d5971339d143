"""EVENTS: one record is one batch of one kind of event of one (capture, process).

The columns of every kind, all int64; times are UTC ns, `*` marks an index into the batch's own
string table, `NONE` stands for "no value":

    KERNELS         time (start), duration, device, stream, correlation, name*, graph, node
    LAUNCHES        time (start), thread, correlation, name*
    RANGE_OPENINGS  time (start), thread (NONE: a start/end range of the process), domain*, name*
    RANGE_CLOSINGS  time (end), opening (ordinal of the row that opened it)
    MARKS           time, thread, domain*, name*
    MEMORY          time (start), duration, device, stream, correlation, operation*, bytes
    GRAPHS          time (start), duration, device, stream, correlation, graph
    FACTS           time, thread, key*, value*
    WINDOWS         time (start), duration, name*
    CAPTURE_END, SESSION_END    no columns

Rows are numbered per (capture, process, kind) from 0: `ordinal` is the number of a batch's first
row. That shows loss and repetition, and it is how a closing names its opening.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from schemas.columns import Int64s, RecordType, Strings, pack, unpack
from schemas.errors import DecodeError
from schemas.types import DURATION_LIMIT, NONE, TIME_LIMIT, Int64, Kind, Process

MAX_RECORD_BYTES: Final = 512 * 1024
"""A batch is cut in two until its record is no larger: half the broker's default limit."""

COLUMNS: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.KERNELS: ("time", "duration", "device", "stream", "correlation", "name", "graph", "node"),
    Kind.LAUNCHES: ("time", "thread", "correlation", "name"),
    Kind.RANGE_OPENINGS: ("time", "thread", "domain", "name"),
    Kind.RANGE_CLOSINGS: ("time", "opening"),
    Kind.MARKS: ("time", "thread", "domain", "name"),
    Kind.MEMORY: ("time", "duration", "device", "stream", "correlation", "operation", "bytes"),
    Kind.GRAPHS: ("time", "duration", "device", "stream", "correlation", "graph"),
    Kind.FACTS: ("time", "thread", "key", "value"),
    Kind.WINDOWS: ("time", "duration", "name"),
    Kind.CAPTURE_END: (),
    Kind.SESSION_END: (),
}
_LIMITS: Final = {"time": TIME_LIMIT, "duration": DURATION_LIMIT}
TEXT_COLUMNS: Final = frozenset({"name", "domain", "operation", "key", "value"})
"""Columns that index the string table, whatever the kind."""


class Clock(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a capture's times rest on.

    `base` is "utc" or "none"; `zero` is the capture's own zero in UTC ns (0 without UTC) and
    `uncertainty` how far off that may be, in ns (NONE: unknown).
    """

    base: str = "none"
    zero: Int64 = 0
    uncertainty: Int64 = NONE


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a batch says of itself.

    `watermark`, where set, holds once this record is read: every event of this (capture, process)
    that starts before it has been published. `partitions` is the partition count of the topic the
    session was published to (set on SESSION_END, which goes to every partition).
    """

    session: str
    process: Process
    kind: int
    capture: str
    ordinal: int = 0
    rows: int = 0
    watermark: Int64 | None = None
    clock: Clock = Clock()
    partitions: int = 0


class Batch(msgspec.Struct, frozen=True):
    """A batch: `columns` int64 of `header.rows` each, `strings` the table the `*` columns index."""

    header: Header
    columns: Mapping[str, Int64s]
    strings: Sequence[str]

    @property
    def kind(self) -> int:
        """The kind of the rows; may be one this program does not know."""
        return self.header.kind


_header_decoder = msgspec.msgpack.Decoder(Header)


def encode(batch: Batch) -> list[bytes]:
    """Return the batch as records of at most `MAX_RECORD_BYTES`, cut as often as needed.

    A watermark goes with the last of them. A single row that does not fit is a record of its own,
    however long: names are at most 32 KiB, so it does.
    """
    record = pack(RecordType.EVENTS, batch.header, batch.columns, batch.strings, keep="time")
    rows = batch.header.rows
    if len(record) <= MAX_RECORD_BYTES:
        return [record]
    if rows < 2:
        if len(batch.strings) <= len(TEXT_COLUMNS.intersection(batch.columns)) * rows:
            return [record]
        return encode(slice_batch(batch, 0, rows))
    half = rows // 2
    return [r for lo, hi in ((0, half), (half, rows)) for r in encode(slice_batch(batch, lo, hi))]


def slice_batch(batch: Batch, low: int, high: int) -> Batch:
    """Return rows `low` to `high` as a batch with only the strings they use."""
    header = batch.header
    columns = {name: values[low:high] for name, values in batch.columns.items()}
    texts = sorted(TEXT_COLUMNS.intersection(columns))
    used = np.unique(np.concatenate([columns[name] for name in texts])) if texts else np.zeros(0, np.int64)
    for name in texts:
        columns[name] = np.searchsorted(used, columns[name])
    header = msgspec.structs.replace(
        header,
        ordinal=header.ordinal + low,
        rows=high - low,
        watermark=header.watermark if high == header.rows else None,
    )
    return Batch(header, columns, [batch.strings[i] for i in used.tolist()])


def decode(data: bytes | memoryview) -> Batch:
    """Return the batch in a record.

    Unknown kinds and columns are returned as they are; a known kind has all its columns, each of
    `header.rows` rows, its times within +-2**62 and durations within +-2**50, and its text within
    the string table.

    Raises:
        DecodeError: the bytes are not such a record.

    """
    unpacked = unpack(data)
    if unpacked.record_type != RecordType.EVENTS:
        raise DecodeError(f"record is of type {unpacked.record_type}, not a batch of events")
    try:
        header = _header_decoder.decode(unpacked.header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"batch header: {error}") from None
    _check(header, unpacked.columns, unpacked.strings)
    return Batch(header, unpacked.columns, unpacked.strings)


def _check(header: Header, columns: Mapping[str, Int64s], strings: Strings) -> None:
    _check_header(header)
    try:
        expected = COLUMNS[Kind(header.kind)]
    except ValueError:
        return
    for name in expected:
        values = columns.get(name)
        if values is None:
            raise DecodeError(f"batch lacks column {name!r}")
        if len(values) != header.rows:
            raise DecodeError(f"column {name!r} has {len(values)} of {header.rows} rows")
    if not header.rows:
        return
    if not expected:
        raise DecodeError("an end has rows")
    for name in expected:
        low, high = int(columns[name].min()), int(columns[name].max())
        if name in TEXT_COLUMNS:
            if not 0 <= low <= high < len(strings):
                raise DecodeError(f"column {name!r} points outside the string table")
        elif name in _LIMITS and not -_LIMITS[name] < low <= high < _LIMITS[name]:
            raise DecodeError(f"column {name!r} has a time out of range")


def _check_header(header: Header) -> None:
    if not (0 <= header.ordinal < TIME_LIMIT and 0 <= header.rows < TIME_LIMIT):
        raise DecodeError(f"batch has ordinal {header.ordinal} and {header.rows} rows")
    if not 0 <= header.process.global_pid < 2**64 or header.process.global_pid & 0xFFFFFF:
        raise DecodeError(f"batch is of process {header.process.global_pid:#x}")
    if not 0 <= header.partitions < 2**31:
        raise DecodeError(f"batch is of a topic of {header.partitions} partitions")
