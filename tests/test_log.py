"""Kafka's record batches: the bytes we write, and reading whatever a broker may have written."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from typing import Final

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka_batches import HEADER, record_batch, sealed, with_payload

from schemas.errors import DecodeError
from schemas.types import Offset
from stream.log import (
    BATCH_BYTES,
    MAX_BATCH_BYTES,
    Entry,
    batch_size,
    batches,
    pack_batches,
    partition_for,
)

TIMESTAMP: Final = 1_700_000_000_000
PLAIN: Final = bytes.fromhex(
    "00000000000000070000004e0000000002bf8dee600000000000020000018bcfe568000000018bcfe56800"
    "ffffffffffffffffffffffffffff000000031c000000066b65790a76616c7565000c0000020000000c0000"
    "04010100"
)
COMPRESSED: Final = bytes.fromhex(
    "0000010000000000000000670000000002d3ab9e600004000000010000018bcfe568000000018bcfe56800"
    "ffffffffffffffffffffffffffff0000000228b52ffd604c00650100f08c020000000e73657373696f6ef0"
    "0176616c756520008403000002e8020004000112a890f0c2bce54b5a98"
)
RECORDS: Final = [(b"key", b"value"), (b"", b""), (None, None)]


def read(data: bytes) -> list[Entry]:
    """Return all records of all whole batches."""
    return [entry for batch in batches(data) for entry in batch.entries()]


def test_small_records_have_these_bytes() -> None:
    """What is too small to compress is written in exactly these bytes."""
    [packed] = pack_batches(RECORDS, Offset(7), TIMESTAMP)

    assert bytes(packed.data) == PLAIN
    assert (packed.base_offset, packed.next_offset) == (7, 10)


def test_golden_bytes_are_read() -> None:
    """Batches written by an earlier version, compressed or not, say what they said."""
    assert read(PLAIN) == [Entry(Offset(7 + i), key, value) for i, (key, value) in enumerate(RECORDS)]
    assert read(COMPRESSED) == [
        Entry(Offset(2**40), b"session", b"value " * 20),
        Entry(Offset(2**40 + 1), b"session", b"value " * 30),
    ]


@given(
    st.lists(st.tuples(st.none() | st.binary(), st.none() | st.binary(max_size=500))), st.integers(0, 2**60)
)
def test_records_come_back(records: list[tuple[bytes | None, bytes | None]], base: int) -> None:
    """Any keys and values, absent ones too, are read as they were written, offsets in a row."""
    packed = list(pack_batches(records, Offset(base), TIMESTAMP, limit=1000))
    data = b"".join(p.data for p in packed)

    assert read(data) == [Entry(Offset(base + i), *record) for i, record in enumerate(records)]
    assert [b.next_offset for b in batches(data)] == [p.next_offset for p in packed]


def test_records_share_batches_up_to_a_limit() -> None:
    """Records go together until they fill a batch; one that is larger than that goes alone."""
    sizes = [BATCH_BYTES // 3] * 4 + [2 * BATCH_BYTES, 10]
    packed = list(pack_batches([(b"k", bytes(size)) for size in sizes], Offset(0), TIMESTAMP))

    assert [p.next_offset - p.base_offset for p in packed] == [2, 2, 1, 1]


def test_a_record_that_could_not_be_read_is_not_written() -> None:
    """What is larger than readers accept is refused before it is in the log."""
    with pytest.raises(DecodeError, match="larger than"):
        list(pack_batches([(b"k", bytes(MAX_BATCH_BYTES))], Offset(0), TIMESTAMP))


def test_a_cut_batch_is_left_alone() -> None:
    """Reading stops before a batch that is not whole, wherever it is cut."""
    for cut in range(len(PLAIN)):
        assert len(read(COMPRESSED + PLAIN[:cut])) == 2


@pytest.mark.parametrize("position", range(17, len(PLAIN)))
def test_damage_is_noticed(position: int) -> None:
    """A changed byte anywhere behind the length is a DecodeError, never another record."""
    damaged = bytearray(PLAIN)
    damaged[position] ^= 0x20

    with pytest.raises(DecodeError):
        read(bytes(damaged))


@given(st.binary(max_size=200), st.integers(0, 4))
def test_any_records_inside_a_batch_are_read_or_refused(payload: bytes, compression: int) -> None:
    """A batch whose CRC is right but whose inside is anything is read or gives a DecodeError."""
    try:
        read(with_payload(PLAIN, payload, compression))
    except DecodeError:
        return


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Any bytes at all are batches, a cut batch, or a DecodeError."""
    try:
        read(data)
    except DecodeError:
        return


COMPRESSORS: Final[dict[int, Callable[[bytes], bytes]]] = {
    1: gzip.compress,
    3: lz4.frame.compress,
    4: lambda data: zstandard.ZstdCompressor().compress(data),
    5: lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
}


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_compressions_of_a_broker_are_read(compression: int) -> None:
    """gzip, lz4 and zstd are read, the last also without its size in front, as Java writes it."""
    plain = record_batch(3, [(b"k", b"value" * 100), (b"k", b"other")])
    data = with_payload(plain, COMPRESSORS[compression](plain[HEADER:]), min(compression, 4))

    assert read(data) == read(plain)


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_decompression_is_capped(compression: int) -> None:
    """A small batch that would fill memory is refused before it does."""
    bomb = COMPRESSORS[compression](bytes(2 * MAX_BATCH_BYTES))
    data = with_payload(PLAIN, bomb, min(compression, 4))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="decompresses to more"):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_BATCH_BYTES
    finally:
        tracemalloc.stop()


def test_snappy_is_refused_by_name() -> None:
    """A compression we do not read is a DecodeError that gives its number."""
    with pytest.raises(DecodeError, match="compression 2"):
        read(with_payload(PLAIN, b"", 2))


def test_older_message_formats_are_refused() -> None:
    """Message formats 0 and 1 have other headers and are refused, not misread."""
    old = bytearray(PLAIN)
    old[16] = 1

    with pytest.raises(DecodeError, match="message format 1"):
        read(sealed(bytes(old)))


def test_impossible_lengths_are_refused() -> None:
    """A length shorter than a header, as zeros or garbage give, is a DecodeError and no endless loop."""
    for length in (0, 48, -1, -12, -(2**31)):
        with pytest.raises(DecodeError, match="shorter than its header"):
            batch_size(bytes(8) + length.to_bytes(4, "big", signed=True))


@pytest.mark.parametrize(
    ("key", "murmur2"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_partitions_are_those_of_kafka(key: bytes, murmur2: int) -> None:
    """A key goes where Kafka's own client puts it (hashes from the tests of that client)."""
    for partitions in (1, 2, 7, 64):
        assert partition_for(key, partitions) == (murmur2 & 0x7FFFFFFF) % partitions
