"""The record formats: golden bytes, round trips, and bytes that nobody should have written."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import profiles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.columns import MAX_NAME_BYTES, Int64s, RecordType, cut_name, pack, unpack
from schemas.deltas import (
    TABLES,
    Anchor,
    CaptureState,
    Delta,
    DeltaHeader,
    Fact,
    RoleMatch,
    decode_delta,
    encode_delta,
)
from schemas.errors import DecodeError
from schemas.events import (
    COLUMNS,
    MAX_RECORD_BYTES,
    TEXT_COLUMNS,
    Batch,
    Clock,
    Header,
    decode,
    encode,
    slice_batch,
)
from schemas.records import DeadLetter, decode_dead_letter, encode_dead_letter
from schemas.types import DURATION_LIMIT, END_OF_TIME, NONE, TIME_LIMIT, Kind, Process
from schemas.windows import Edge, WindowsRecord, decode_windows, encode_windows

profiles.load()

GOLDEN = Path(__file__).parent / "golden"
WRITE = "GPU_LEDGER_WRITE_GOLDEN"
"""Set it to write the golden files anew; a change of them is a change of the format."""

PROCESS = Process("node-a", 0x0001_0203_0400_0000)
PROLOGUE = 32
TIMES = 16
"""Decoding may take this many times a record's size in memory ..."""
CONSTANT = 320 * 1024
"""... and this much for what every record has: directory, up to 512 columns, error text."""
SECONDS = 2.0
"""Nothing here takes a hundredth of it; what is not linear in the size would take far more."""


def numbers(*values: int) -> Int64s:
    """Return values as a column."""
    return np.array(values, np.int64)


def batch_of(kind: Kind, rows: int = 3, **header: Any) -> Batch:
    """Return a batch of a kind whose columns show every way in which one can be stored."""
    texts = ["outer \N{SNOWMAN}", "", "inner\n\0", "x" * 300]
    columns = {}
    for number, name in enumerate(COLUMNS[kind]):
        if name in TEXT_COLUMNS:
            column = [(row + number) % len(texts) for row in range(rows)]
        elif name == "time":
            column = [10**18 + 1_000 * row for row in range(rows)]
        elif number % 3 == 0:
            column = [NONE] * rows
        else:
            column = [(-1) ** row * (row + 1) * 10 ** (2 * number) for row in range(rows)]
        columns[name] = np.array(column, np.int64)
    fields: dict[str, Any] = {"clock": Clock("utc", 10**18, 1_000_000), "ordinal": 70_000} | header
    rows = rows if columns else 0
    return Batch(Header("run-7", PROCESS, kind, "c0ffee", rows=rows, **fields), columns, texts)


def events_record(kind: Kind) -> bytes:
    """Return the golden record of a kind."""
    ends = kind in (Kind.CAPTURE_END, Kind.SESSION_END)
    watermark = END_OF_TIME if ends else 10**18 + 1
    (record,) = encode(batch_of(kind, watermark=watermark, partitions=4 if ends else 0))
    return record


def delta() -> Delta:
    """Return a delta with something in every table and every part of its header."""
    header = DeltaHeader(
        session="run-7",
        config_digest="00ff00ff00ff00ff",
        partition=3,
        process=PROCESS,
        facts=(Fact("c0ffee", 5, NONE, "process.name", "python"),),
        anchors=(Anchor(10**18, -5),),
        roles=(RoleMatch(0, {"rank": "1"}),),
        captures=(
            CaptureState(
                capture="c0ffee",
                clock=Clock("utc", 10**18, NONE),
                watermark=10**18 + 5,
                ended=False,
                first=None,
                last=7,
                missing={1: [(0, 2), (5, 6)]},
                pending=4,
            ),
        ),
        counters={"late_kernels": 2},
        clock_offsets={0: -12_000_000},
        session_end=4,
    )
    tables = {
        "total": ((NONE, 0, 1, 5), (10**10, 3, 2, 10**12)),
        "unknown": ((10**10, 3, 1, 2, 10**12),),
        "context": ((-1, 0), (0, 2)),
        "group": ((0, 1, 1, NONE, NONE, 1), (1, -1, 1, 2, 3, 0)),
        "stat": ((0, NONE, 1, 5, 5, 5), (1, 10**10, 2, 10**12, 0, 10**12)),
        "bucket": ((0, 5, 1), (1, 0, 1), (1, 2000, 1)),
        "rows": ((10**10, 0, 3, 9),),
        "memory": ((4, 1, 5, 6, 2**40),),
        "graph": ((2, 1, 3, 300),),
        "opaque": ((2, 0, 1, 77),),
    }
    columns = {
        f"{table}.{name}": np.array([row[i] for row in tables[table]], np.int64)
        for table, names in TABLES.items()
        for i, name in enumerate(names)
    }
    return Delta(header, columns, ["step", "gemm", "attention", '{"ep": "1"}', "copy HtoD"])


WINDOWS = WindowsRecord(
    session="run-7",
    config_digest="00ff00ff00ff00ff",
    partition=1,
    process=PROCESS,
    capture="c0ffee",
    purposes=("measured", "steady"),
    edges=(
        Edge(10, "measured", opens=True, span=0),
        Edge(-5, "steady", opens=False, span=1, application=True),
    ),
    anchor=-(10**15),
    watermark=12,
    ended=True,
    closed=True,
    partitions=4,
)
LETTER = DeadLetter("record fails its CRC", "events", 3, 17, b"run-7\0node-a\0" + b"5", b"GPUL\0\xff")

RECORDS: dict[str, Callable[[], bytes]] = {
    **{f"events-{kind.name.lower()}": partial(events_record, kind) for kind in Kind},
    "delta": lambda: encode_delta(delta()),
    "windows": lambda: encode_windows(WINDOWS),
    "dead-letter": lambda: encode_dead_letter(LETTER),
}
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "events": decode,
    "delta": decode_delta,
    "windows": decode_windows,
    "dead-letter": decode_dead_letter,
}


def plain(columns: Mapping[str, Int64s]) -> dict[str, list[int]]:
    """Return columns as what can be compared."""
    return {name: values.tolist() for name, values in columns.items()}


def same(left: Batch | Delta, right: Batch | Delta) -> bool:
    """Tell whether two batches or deltas say the same."""
    return (
        left.header == right.header
        and plain(left.columns) == plain(right.columns)
        and list(left.strings) == list(right.strings)
    )


@pytest.mark.parametrize("name", RECORDS)
def test_record_has_its_golden_bytes(name: str) -> None:
    """What is written today can be read by whoever read it yesterday: the bytes do not change."""
    path = GOLDEN / f"{name}.bin"
    record = RECORDS[name]()
    if os.environ.get(WRITE):
        path.write_bytes(record)
    assert record == path.read_bytes()


@pytest.mark.parametrize("kind", Kind)
def test_golden_events_decode_to_what_was_said(kind: Kind) -> None:
    """Yesterday's records of events say today what they said then."""
    ends = kind in (Kind.CAPTURE_END, Kind.SESSION_END)
    batch = decode((GOLDEN / f"events-{kind.name.lower()}.bin").read_bytes())
    watermark = END_OF_TIME if ends else 10**18 + 1
    assert same(batch, batch_of(kind, watermark=watermark, partitions=4 if ends else 0))


def test_golden_delta_windows_and_dead_letter_decode_to_what_was_said() -> None:
    """Yesterday's deltas, boundaries and dead letters say today what they said then."""
    assert same(decode_delta((GOLDEN / "delta.bin").read_bytes()), delta())
    assert decode_windows((GOLDEN / "windows.bin").read_bytes()) == WINDOWS
    assert decode_dead_letter((GOLDEN / "dead-letter.bin").read_bytes()) == LETTER


int64s = st.integers(NONE, END_OF_TIME) | st.integers(-300, 300)
times = st.integers(1 - TIME_LIMIT, TIME_LIMIT - 1) | st.integers(0, 100_000)
durations = st.integers(1 - DURATION_LIMIT, DURATION_LIMIT - 1) | st.integers(0, 100_000)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Return batches of any kind with any values a record may hold."""
    kind = draw(st.sampled_from(Kind))
    rows = draw(st.integers(0, 12)) if COLUMNS[kind] else 0
    strings = draw(st.lists(names, min_size=1, max_size=5))
    columns = {}
    for name in COLUMNS[kind]:
        if name in TEXT_COLUMNS:
            values = st.integers(0, len(strings) - 1)
        else:
            values = {"time": times, "duration": durations}.get(name, int64s)
        steady = draw(st.booleans())
        drawn = [draw(values)] * rows if steady else draw(st.lists(values, min_size=rows, max_size=rows))
        columns[name] = np.array(drawn, np.int64)
    header = Header(
        session=draw(names),
        process=Process(draw(names), draw(st.integers(0, 2**40 - 1)) << 24),
        kind=kind,
        capture=draw(names),
        ordinal=draw(st.integers(0, TIME_LIMIT - 1)),
        rows=rows,
        watermark=draw(st.none() | int64s),
        clock=Clock("utc", draw(int64s), draw(int64s)),
        partitions=draw(st.integers(0, 100)),
    )
    return Batch(header, columns, strings)


@given(batches())
def test_any_batch_comes_back_as_it_was(batch: Batch) -> None:
    """Encoding and decoding lose nothing, whatever the values."""
    (record,) = encode(batch)
    assert same(decode(record), batch)


@given(batches())
def test_a_record_is_the_same_bytes_each_time(batch: Batch) -> None:
    """What is decoded encodes to the very bytes it came from."""
    (record,) = encode(batch)
    assert encode(decode(record)) == [record]


@given(st.lists(int64s, max_size=40), st.booleans())
def test_any_column_comes_back_as_it_was(values: list[int], keep: bool) -> None:  # noqa: FBT001
    """Narrowing, differences and shuffling are exact for any int64, wrapping ones too."""
    column = np.array(values, np.int64)
    back = unpack(pack(RecordType.STATE, {}, {"a": column}, keep="a" if keep else ""))
    assert back.columns["a"].tolist() == values


@given(batches(), st.data())
def test_a_slice_holds_its_rows_and_only_their_strings(batch: Batch, data: st.DataObject) -> None:
    """Cutting a batch keeps rows, numbers them on, and leaves the watermark with the last part."""
    rows = batch.header.rows
    low = data.draw(st.integers(0, rows))
    high = data.draw(st.integers(low, rows))
    part = slice_batch(batch, low, high)

    def resolved(of: Batch) -> list[tuple[object, ...]]:
        columns = [
            [of.strings[i] for i in values.tolist()] if name in TEXT_COLUMNS else values.tolist()
            for name, values in of.columns.items()
        ]
        return list(zip(*columns, strict=True))

    assert resolved(part) == resolved(batch)[low:high]
    assert part.header.ordinal == batch.header.ordinal + low
    assert part.header.rows == high - low
    assert part.header.watermark == (batch.header.watermark if high == rows else None)
    used = {s for name, v in part.columns.items() if name in TEXT_COLUMNS for s in v.tolist()}
    assert set(range(len(part.strings))) == used


def test_a_large_batch_becomes_records_under_the_limit() -> None:
    """Rows are spread over as many records as needed, in order; the watermark goes with the last."""
    rows = 40_000
    rng = np.random.default_rng(1)
    columns = {n: rng.integers(0, 2**40, rows) for n in COLUMNS[Kind.KERNELS]}
    columns["name"] = np.arange(rows)
    header = Header("s", PROCESS, Kind.KERNELS, "c", ordinal=5, rows=rows, watermark=9)
    records = encode(Batch(header, columns, [f"kernel {i}" for i in range(rows)]))
    parts = [decode(r) for r in records]
    assert max(map(len, records)) <= MAX_RECORD_BYTES
    assert np.concatenate([p.columns["time"] for p in parts]).tolist() == columns["time"].tolist()
    assert [n for p in parts for n in p.strings] == [f"kernel {i}" for i in range(rows)]
    assert [p.header.watermark for p in parts] == [None] * (len(parts) - 1) + [9]
    assert [p.header.ordinal for p in parts] == [
        5 + sum(q.header.rows for q in parts[:i]) for i in range(len(parts))
    ]


def test_a_row_goes_without_strings_that_are_not_its_own() -> None:
    """One row is small however large the string table it is cut from."""
    strings = ["n" * MAX_NAME_BYTES] * 20
    columns = {n: numbers(0) for n in COLUMNS[Kind.MARKS]}
    (record,) = encode(Batch(Header("s", PROCESS, Kind.MARKS, "c", rows=1), columns, strings))
    assert len(record) < 2 * MAX_NAME_BYTES


def test_columns_of_one_value_take_no_bytes() -> None:
    """A constant column is a view of one value, and another column of the record bounds its rows."""
    rows = 10_000
    columns = {n: np.full(rows, 7) for n in COLUMNS[Kind.GRAPHS]}
    (record,) = encode(Batch(Header("s", PROCESS, Kind.GRAPHS, "c", rows=rows), columns, []))
    assert len(record) < rows + 1024
    decoded = decode(record).columns["device"]
    assert decoded.strides == (0,)
    assert decoded.tolist() == [7] * rows


def test_a_record_of_nothing_but_equal_values_can_be_read() -> None:
    """Where every column is constant the longest is stored, since a reader bounds rows by bytes."""
    columns = {"a": np.full(70_000, 3), "b": np.full(5, 1)}
    assert plain(unpack(pack(RecordType.STATE, {}, columns)).columns) == plain(columns)


@given(st.text(max_size=50))
def test_names_keep_their_text_but_for_lone_surrogates(text: str) -> None:
    """Valid text stays as it is; what UTF-8 cannot hold is backslash-escaped."""
    name = cut_name(text)
    assert len(name.encode()) <= MAX_NAME_BYTES
    if not any(0xD800 <= ord(c) < 0xE000 for c in text):
        assert name == text
    assert cut_name("a\ud800b") == "a\\ud800b"


@given(
    st.sampled_from(["x", "\N{SNOWMAN}", "\U0001f600"]), st.integers(MAX_NAME_BYTES // 4, MAX_NAME_BYTES + 9)
)
@settings(max_examples=30)
def test_long_names_are_cut_and_told_apart(letter: str, count: int) -> None:
    """A name over 32 KiB is cut at a character and carries its length and digest."""
    text = letter * count
    size = len(text.encode())
    name = cut_name(text)
    assert len(name.encode()) <= MAX_NAME_BYTES
    if size > MAX_NAME_BYTES:
        assert f"({size} bytes, " in name
        assert name != cut_name(text[:-1] + "y")
    else:
        assert name == text


# --- bytes that nobody should have written


def seal(record: bytes) -> bytes:
    """Return a record with lengths and CRC made right again, as far as that can be done."""
    if len(record) < PROLOGUE:
        return record
    head = int.from_bytes(record[8:12], "little")
    body_at = PROLOGUE + head
    body_at += -body_at % 64
    size = struct.pack("<I", max(0, len(record) - body_at))
    record = record[:12] + size + b"\0\0\0\0" + record[20:]
    return record[:16] + struct.pack("<I", zlib.crc32(record)) + record[20:]


def directory_of(record: bytes) -> dict[str, Any]:
    """Return the directory of a record as plain objects; its header is one of them."""
    head = int.from_bytes(record[8:12], "little")
    directory: dict[str, Any] = msgspec.msgpack.decode(record[PROLOGUE : PROLOGUE + head])
    return directory


def with_directory(record: bytes, directory: dict[str, Any]) -> bytes:
    """Return a record with another directory, sealed."""
    head = int.from_bytes(record[8:12], "little")
    body = record[PROLOGUE + head + -(PROLOGUE + head) % 64 :]
    raw = msgspec.msgpack.encode(directory)
    pad = bytes(-(PROLOGUE + len(raw)) % 64)
    return seal(record[:8] + struct.pack("<I", len(raw)) + record[12:PROLOGUE] + raw + pad + body)


@contextmanager
def bounded(size: int, times: int = TIMES) -> Iterator[None]:
    """Hold the block to `times` the record's size in memory, and to the time limit."""
    tracemalloc.start()
    began = time.perf_counter()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < SECONDS
    assert peak <= times * size + CONSTANT


def read(decoder: Callable[[bytes], Any], data: bytes, times: int = TIMES) -> Any:
    """Return what the bytes decode to, None if they do not; fail if they cost too much."""
    with bounded(len(data), times):
        try:
            return decoder(data)
        except DecodeError as error:
            assert "\n" not in str(error)  # noqa: PT017
            assert len(str(error)) < 4_000  # noqa: PT017
            return None


@given(st.binary(max_size=400), st.sampled_from(sorted(DECODERS)))
def test_any_bytes_decode_or_give_the_one_error(data: bytes, decoder: str) -> None:
    """Bytes of any origin decode or raise DecodeError, as they are and behind a valid prologue."""
    read(DECODERS[decoder], data)
    read(DECODERS[decoder], seal(b"GPUL\1\0\1\0" + data))


@given(st.sampled_from(sorted(RECORDS)), st.lists(st.integers(0), min_size=1, max_size=4), st.booleans())
def test_flipped_bits_decode_or_give_the_one_error(name: str, bits: list[int], mend: bool) -> None:  # noqa: FBT001
    """A damaged record fails its CRC; with the CRC made right it decodes or is refused, no more."""
    record = bytearray(RECORDS[name]())
    for bit in bits:
        at = bit % (8 * len(record))
        record[at // 8] ^= 1 << at % 8
    data = bytes(record)
    kind = name.split("-", maxsplit=1)[0].replace("dead", "dead-letter")
    if mend and kind in ("events", "delta"):
        data = seal(data)
    decoded = read(DECODERS[kind], data)
    if not mend and kind in ("events", "delta") and data != RECORDS[name]():
        assert decoded is None


@given(st.sampled_from(sorted(RECORDS)), st.integers(0), st.booleans())
def test_cut_records_decode_or_give_the_one_error(name: str, cut: int, mend: bool) -> None:  # noqa: FBT001
    """A record cut short anywhere is refused, also when its lengths were made to agree."""
    record = RECORDS[name]()
    data = record[: cut % len(record)]
    kind = name.split("-", maxsplit=1)[0].replace("dead", "dead-letter")
    decoded = read(DECODERS[kind], seal(data) if mend and kind in ("events", "delta") else data)
    assert mend or decoded is None


lies = st.sampled_from(
    [-1, 0, 1, 2, 3, 4, 5, 8, 63, 64, 65, 1000, 2**20, 2**31, 2**32, 2**62, 2**63, 2**64 - 1]
)
lies |= st.sampled_from([-(2**63), 255, 256, 2**63 - 1])


@given(st.data())
def test_lying_directories_decode_or_give_the_one_error(data: st.DataObject) -> None:
    """Counts, widths, places and sizes that do not agree with the bytes are never believed."""
    name = data.draw(st.sampled_from([n for n in sorted(RECORDS) if n.startswith(("events", "delta"))]))
    directory = directory_of(RECORDS[name]())
    columns = directory["columns"]
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.sampled_from(["column", "column", "directory", "header", "drop", "twice"]))
        if where == "column" and columns:
            entry = data.draw(st.sampled_from(columns))
            entry[data.draw(st.sampled_from([1, 2, 4, 5, 6, 7]))] = data.draw(lies)
        elif where == "directory":
            directory[data.draw(st.sampled_from(["strings", "strings_offset", "strings_size"]))] = data.draw(
                lies
            )
        elif where == "header":
            field = data.draw(
                st.sampled_from(["rows", "ordinal", "watermark", "kind", "partition", "process"])
            )
            directory["header"][field] = data.draw(lies)
        elif where == "drop" and columns:
            columns.remove(data.draw(st.sampled_from(columns)))
        elif where == "twice" and columns:
            columns.append(list(data.draw(st.sampled_from(columns))))
    decoder = decode_delta if name == "delta" else decode
    decoded = read(decoder, with_directory(RECORDS[name](), directory))
    if isinstance(decoded, Batch) and decoded.header.kind in list(Kind):
        for column in COLUMNS[Kind(decoded.header.kind)]:
            assert len(decoded.columns[column]) == decoded.header.rows


SIZE = 200_000


def crafted(rows: int, columns: list[list[Any]], strings: int, size: int, body: bytes) -> bytes:
    """Return a record of events with a directory written by hand."""
    header = msgspec.to_builtins(Header("s", PROCESS, Kind.MARKS, "c", rows=rows))
    directory = {
        "columns": columns,
        "strings": strings,
        "strings_offset": len(body) - size,
        "strings_size": size,
        "header": header,
    }
    prologue = b"GPUL\1\0\1\0" + bytes(24)
    return with_directory(prologue + bytes(32) + body, directory)


def entry(name: str, rows: int, width: int, offset: int = 0, base: int = 0) -> list[Any]:
    """Return a directory's line for a column."""
    return [name, rows, width, False, base, 0, offset, rows * width]


MARKS = COLUMNS[Kind.MARKS]
COSTLY = {
    "narrow columns": crafted(
        SIZE, [entry(n, SIZE, 1, i * SIZE) for i, n in enumerate(MARKS)], 0, 0, bytes(4 * SIZE)
    ),
    "one narrow column with differences": crafted(
        SIZE, [["time", SIZE, 1, True, 3, 5, 0, SIZE]], 0, 0, bytes(SIZE)
    ),
    "strings of one byte": crafted(
        0, [entry("strings.length", SIZE, 1, base=1)], SIZE, SIZE, bytes(SIZE) + b"x" * SIZE
    ),
    "empty strings": crafted(0, [entry("strings.length", SIZE, 1)], SIZE, 0, bytes(SIZE)),
    "empty strings that are not stored": crafted(0, [entry("strings.length", SIZE, 0)], SIZE, 0, bytes(SIZE)),
    "one string of wide characters": crafted(
        0,
        [entry("strings.length", 1, 8, base=4 * SIZE)],
        1,
        4 * SIZE,
        bytes(64) + "\U0001f600".encode() * SIZE,
    ),
    "strings over columns": crafted(
        SIZE, [entry("strings.length", SIZE, 1, base=1), entry("time", 0, 0)], SIZE, SIZE, bytes(SIZE)
    ),
    "columns that take no bytes": crafted(
        SIZE, [entry(n, SIZE, 0) for n in (*MARKS, *map(str, range(508)))], 1, 1, bytes(SIZE)
    ),
    "too many columns": crafted(0, [entry(f"{i:x}", 0, 0) for i in range(20_000)], 0, 0, b""),
    "a column with a long name": crafted(0, [entry("\0" * SIZE, -1, 0)], 0, 0, b""),
    "a string table of negative size": crafted(0, [], 0, -5, bytes(SIZE)),
}


@pytest.mark.parametrize("name", COSTLY)
def test_the_costliest_records_stay_within_16_times_their_size(name: str) -> None:
    """Memory is bounded by a record's size, whatever it claims."""
    read(decode, COSTLY[name])


def test_the_costliest_delta_stays_within_its_bound() -> None:
    """Tables that claim many rows cost no more than their bytes; a header costs 48 times its own."""
    columns: dict[str, Int64s] = {f"{t}.{n}": np.zeros(SIZE, np.int64) for t in TABLES for n in TABLES[t]}
    columns["context.parent"] = np.full(SIZE, -1)
    columns["total.window"] = np.arange(SIZE) % 200
    header = DeltaHeader("s", "d", 0, roles=(RoleMatch(0, {}),) * 5)
    assert read(decode_delta, pack(RecordType.DELTA, header, columns, ["x"])) is not None
    header = DeltaHeader("s", "d", 0, roles=(RoleMatch(0, {}),) * 50_000)
    assert read(decode_delta, pack(RecordType.DELTA, header, {}), times=48) is not None


def test_a_state_may_have_a_column_for_every_table_of_every_process() -> None:
    """States are not bound to the few columns of events and deltas."""
    columns = {f"{lane}.work.start": numbers(lane) for lane in range(1_000)}
    assert plain(unpack(pack(RecordType.STATE, {}, columns)).columns) == plain(columns)


def test_a_newer_minor_version_is_read() -> None:
    """What a later program adds is read past: another minor version is no obstacle."""
    record = bytearray(events_record(Kind.KERNELS))
    record[5] = 9
    assert same(decode(seal(bytes(record))), decode(events_record(Kind.KERNELS)))


def test_another_major_version_is_refused() -> None:
    """What may mean something else is not guessed at."""
    record = bytearray(events_record(Kind.KERNELS))
    record[4] = 2
    with pytest.raises(DecodeError, match=r"format version 2\.0, this program reads 1\.x"):
        decode(seal(bytes(record)))


def test_unknown_columns_and_header_fields_are_read_past() -> None:
    """A later program's columns, of any length, and header fields change nothing for this one."""
    batch = batch_of(Kind.MARKS)
    columns = {**batch.columns, "colour": numbers(1, 2, 3), "palette": numbers(4, 5)}
    record = pack(RecordType.EVENTS, batch.header, columns, batch.strings, keep="time")
    directory = directory_of(record)
    directory["header"]["mood"] = {"is": ["good"]}
    directory["later"] = 5
    decoded = decode(with_directory(record, directory))
    assert decoded.header == batch.header
    assert plain(decoded.columns) == plain(columns)


def test_an_unknown_kind_is_returned_as_it_is() -> None:
    """A later program's kind of rows decodes, so that it can be counted rather than lost."""
    header = Header("s", PROCESS, 77, "c", rows=2)
    decoded = decode(pack(RecordType.EVENTS, header, {"what": numbers(1, 2)}))
    assert decoded.kind == 77
    assert decoded.columns["what"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c.pop("stream"), "lacks column 'stream'"),
        (lambda c: c.update(stream=numbers(1)), "'stream' has 1 of 3 rows"),
        (lambda c: c.update(name=numbers(0, 1, 4)), "'name' points outside the string table"),
        (lambda c: c.update(name=numbers(0, 1, -1)), "'name' points outside the string table"),
        (lambda c: c.update(time=numbers(0, 1, 2**62)), "'time' has a time out of range"),
        (lambda c: c.update(duration=numbers(0, 1, NONE)), "'duration' has a time out of range"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(
    change: Callable[[dict[str, Int64s]], object], complaint: str
) -> None:
    """Missing columns, wrong lengths, indexes and times out of range are named in the error."""
    batch = batch_of(Kind.KERNELS)
    columns = dict(batch.columns)
    change(columns)
    with pytest.raises(DecodeError, match=complaint):
        decode(pack(RecordType.EVENTS, batch.header, columns, batch.strings))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("stat.group", 2),
        ("bucket.stat", -1),
        ("bucket.bucket", 1 << 40),
        ("group.context", 2),
        ("group.kernel", 5),
        ("context.parent", 1),
        ("context.parent", -2),
        ("total.class", 4),
        ("opaque.class", -1),
        ("rows.fields", 99),
    ],
)
def test_a_delta_that_points_nowhere_is_refused(column: str, value: int) -> None:
    """Every index in a delta is checked, so that folding it needs no checks."""
    whole = delta()
    columns = dict(whole.columns)
    columns[column] = columns[column].copy()
    columns[column][-1] = value
    with pytest.raises(DecodeError, match=column.replace(".", r"\.")):
        decode_delta(encode_delta(Delta(whole.header, columns, whole.strings)))


def test_a_delta_without_a_table_has_it_empty() -> None:
    """Tables nobody filled are not written, and are there when read."""
    record = encode_delta(Delta(DeltaHeader("s", "d", 0), {}, ()))
    decoded = decode_delta(record)
    assert {len(c) for c in decoded.columns.values()} == {0}
    assert set(decoded.columns) == {f"{t}.{n}" for t in TABLES for n in TABLES[t]}


def test_records_of_one_type_are_not_taken_for_another() -> None:
    """A delta is no batch of events, and a state is neither."""
    with pytest.raises(DecodeError, match="not a batch of events"):
        decode(encode_delta(delta()))
    with pytest.raises(DecodeError, match="not a delta"):
        decode_delta(pack(RecordType.STATE, {}, {}))


def test_numbers_no_column_could_hold_are_refused_in_headers() -> None:
    """A watermark or edge of 2**64 - 1 is valid msgpack and would crash what reads it."""
    record = events_record(Kind.KERNELS)
    directory = directory_of(record)
    directory["header"]["watermark"] = 2**64 - 1
    with pytest.raises(DecodeError, match="watermark"):
        decode(with_directory(record, directory))
    windows = msgspec.msgpack.decode(encode_windows(WINDOWS))
    windows["edges"][0][0] = 2**64 - 1
    with pytest.raises(DecodeError, match="edges"):
        decode_windows(msgspec.msgpack.encode(windows))


def test_strings_are_decoded_when_asked_for() -> None:
    """A string table behaves as a sequence: by index from either end, by slice, in a loop."""
    strings = unpack(pack(RecordType.STATE, {}, {}, ["a", "", "\N{SNOWMAN}b"])).strings
    assert (strings[0], strings[-1], strings[1:], list(strings)) == (
        "a",
        "\N{SNOWMAN}b",
        ["", "\N{SNOWMAN}b"],
        ["a", "", "\N{SNOWMAN}b"],
    )
    with pytest.raises(IndexError):
        strings[3]
