"""Kafka's record batches (v2) as bytes: the only module that touches `kafka.record`.

kafka-python's record classes are untyped and undocumented; what is used of them is here, behind
types, and golden bytes in the tests notice when they change. Nothing here reads or writes files.
Everything that cannot be read becomes a DecodeError, with bounded memory.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import lz4.frame
import zstandard
from kafka.errors import CorruptRecordError
from kafka.partitioner import murmur2
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from schemas.errors import DecodeError
from schemas.types import Offset, Partition

BATCH_BYTES: Final = 1 << 20
"""Records share a batch up to this size before compression: the broker's default limit, and
large enough for names common to several records to be compressed once."""

MAX_BATCH_BYTES: Final = 64 << 20
"""No batch may take more once decompressed: a small one could otherwise claim any memory."""

_MAGIC: Final = 2
_ZSTD: Final = 4
_HEADER: Final = 61
_LENGTH: Final = struct.Struct(">8xi")
_LENGTH_END: Final = 12
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22
_COMPRESSION: Final = 0x07
_RECORD_OVERHEAD: Final = 64


class Entry(NamedTuple):
    """A record in its batch."""

    offset: Offset
    key: bytes | None
    value: bytes | None


class Packed(NamedTuple):
    """A batch ready to be written; `next_offset` is the one behind its last record."""

    base_offset: Offset
    next_offset: Offset
    data: bytearray


class Batch:
    """A batch as it stands in a log; only its header has been read.

    `data` is exactly the batch. Offsets are those of its records; a compacted batch may hold
    fewer records than offsets. `control` batches hold a marker instead of records.
    """

    __slots__ = ("_batch", "_data", "base_offset", "control", "next_offset", "producer_id", "transactional")

    def __init__(self, data: memoryview) -> None:
        if data[_MAGIC_AT] != _MAGIC:
            raise DecodeError(
                f"message format {data[_MAGIC_AT]} instead of 2, which Kafka has written since 0.11"
            )
        self._data = data
        self._batch = MemoryRecords(data).next_batch()
        self.base_offset = Offset(self._batch.base_offset)
        self.next_offset = Offset(self._batch.next_offset)
        self.producer_id = int(self._batch.producer_id)
        self.transactional = bool(self._batch.is_transactional)
        self.control = bool(self._batch.is_control_batch)

    @property
    def size(self) -> int:
        """Bytes it takes in the log."""
        return len(self._data)

    @property
    def whole(self) -> bool:
        """Whether its CRC is right."""
        return bool(self._batch.validate_crc())

    def entries(self) -> list[Entry]:
        """Return its records (of a control batch: its marker), checked and decompressed.

        Raises:
            DecodeError: it is damaged, compressed in a way we do not read, or too big.

        """
        return [Entry(Offset(r.offset), r.key, r.value) for r in self._records()]

    def commits(self) -> bool:
        """Return whether the marker of this control batch commits its producer's transaction.

        Raises:
            DecodeError: as `entries`.

        """
        return any(record.commit for record in self._records())

    def _records(self) -> list:  # type: ignore[type-arg]
        if not self.whole:
            raise DecodeError("record batch fails its CRC")
        # Decompressed here, since kafka-python's own way has no limit.
        header = bytearray(self._data[:_HEADER])
        header[_ATTRIBUTES_AT] &= ~_COMPRESSION
        records = _decompress(self._batch.compression_type, self._data[_HEADER:])
        try:
            return list(DefaultRecordBatch(header + records))
        except (CorruptRecordError, struct.error, TypeError, ValueError) as error:
            raise DecodeError(f"record batch: {error}") from None


def batch_size(data: bytes | memoryview) -> int | None:
    """Return the size of the batch that `data` begins with; None if its length is not in `data`.

    Raises:
        DecodeError: no batch can have that length.

    """
    if len(data) < _LENGTH_END:
        return None
    size = int(_LENGTH.unpack_from(data)[0]) + _LENGTH_END
    if size < _HEADER:
        raise DecodeError(f"record batch of {size} bytes is shorter than its header")
    return size


def batches(data: bytes | memoryview) -> Iterator[Batch]:
    """Yield the whole batches that `data` begins with, up to one that is cut.

    Raises:
        DecodeError: what follows is no batch.

    """
    view = memoryview(data)
    while (size := batch_size(view)) is not None and size <= len(view):
        yield Batch(view[:size])
        view = view[size:]


def pack_batches(
    records: Iterable[tuple[bytes | None, bytes | None]],
    base: Offset,
    timestamp: int,
    limit: int = BATCH_BYTES,
) -> Iterator[Packed]:
    """Yield batches of (key, value) records with offsets from `base` on, zstd-compressed.

    A batch takes `limit` bytes before compression, or a single record. `timestamp` is in ms.

    Raises:
        DecodeError: a record is too big ever to be read again.

    """
    builder = None
    for key, value in records:
        size = len(key or b"") + len(value or b"") + _RECORD_OVERHEAD
        if size > MAX_BATCH_BYTES:
            raise DecodeError(f"record of {size} bytes is larger than the {MAX_BATCH_BYTES} that can be read")
        if builder is not None and builder.append(timestamp, key, value) is None:
            yield (packed := _close(builder, base))
            base = packed.next_offset
            builder = None
        if builder is None:
            # A fresh one with offset 0: its builder writes deltas as if the base were 0.
            builder = MemoryRecordsBuilder(_MAGIC, _ZSTD, limit)
            builder.append(timestamp, key, value)
    if builder is not None:
        yield _close(builder, base)


def _close(builder: MemoryRecordsBuilder, base: Offset) -> Packed:
    builder.close()
    data = builder.buffer()
    data[:8] = base.to_bytes(8, "big")  # outside the CRC
    return Packed(base, Offset(base + builder.next_offset()), data)


def _decompress(compression: int, data: memoryview) -> bytes | memoryview:
    limit = MAX_BATCH_BYTES + 1
    try:
        match compression:
            case 0:
                return data
            case 1:
                result = zlib.decompressobj(wbits=31).decompress(data, limit)
            case 3:
                result = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=limit)
            case 4:
                result = _zstd(data, limit)
            case _:
                raise DecodeError(f"record batch has compression {compression}, which is not supported")
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise DecodeError(f"record batch: {error}") from None
    if len(result) >= limit:
        raise _too_big()
    return result


def _too_big() -> DecodeError:
    return DecodeError(f"record batch decompresses to more than {MAX_BATCH_BYTES} bytes")


def _zstd(data: memoryview, limit: int) -> bytes:
    size = zstandard.frame_content_size(data)
    if 0 <= size < limit:
        return zstandard.ZstdDecompressor().decompress(data)
    if size >= limit:
        raise _too_big()
    # Java's producer streams, and then the frame does not say its size.
    parts = []
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while limit > 0 and (part := reader.read(min(limit, BATCH_BYTES))):
            parts.append(part)
            limit -= len(part)
    return b"".join(parts)


@functools.lru_cache(maxsize=4096)
def partition_for(key: bytes, partitions: int) -> Partition:
    """Return the partition of a key, as Kafka's default partitioner chooses it (murmur2)."""
    return Partition((murmur2(key) & 0x7FFFFFFF) % partitions)
