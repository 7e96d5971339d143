"""Record batches as other programs write them: transactions, markers, other compressions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c
from kafka.record.memory_records import MemoryRecordsBuilder

HEADER = 61
TIMESTAMP = 1_700_000_000_000
ABORT, COMMIT = 0, 1


def record_batch(
    base: int,
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    producer: int = -1,
    compression: int = 0,
) -> bytes:
    """Return a batch; with a `producer` id it is part of a transaction of that one."""
    builder = MemoryRecordsBuilder(
        2,
        compression,
        1 << 30,
        transactional=producer >= 0,
        producer_id=producer,
        producer_epoch=-1 if producer < 0 else 0,
        base_sequence=-1 if producer < 0 else 0,
    )
    for key, value in records:
        builder.append(TIMESTAMP, key, value)
    builder.close()
    return sealed(base.to_bytes(8, "big") + bytes(builder.buffer()[8:]))


def control_batch(base: int, producer: int, kind: int) -> bytes:
    """Return the marker that ends a transaction."""
    data = record_batch(base, [(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))], producer=producer)
    return sealed(data, attributes=0x30)


def with_payload(batch: bytes, payload: bytes, compression: int) -> bytes:
    """Return a batch with other bytes in place of its records."""
    return sealed(batch[:HEADER] + payload, attributes=compression)


def sealed(data: bytes, *, attributes: int | None = None) -> bytes:
    """Return a batch whose length and CRC are right again."""
    batch = bytearray(data)
    if attributes is not None:
        struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)
