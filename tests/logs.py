"""Writing and reading small logs."""

from __future__ import annotations

from typing import Final

from schemas.records import Output, Record, Topic
from schemas.types import Partition
from stream.transport import PUBLISH, Claim, TopicPartition, Transport

EVENTS: Final = TopicPartition(Topic.EVENTS, Partition(0))
DELTAS: Final = TopicPartition(Topic.DELTAS, Partition(0))


def event(value: bytes, partition: int | None = 0) -> Output:
    """Return a record for EVENTS."""
    return Output(Topic.EVENTS, None if partition is None else Partition(partition), b"key", value)


def numbers(count: int, start: int = 0) -> list[Output]:
    """Return that many records for EVENTS, each with its number as value."""
    return [event(b"%d" % i) for i in range(start, start + count)]


def values(transport: Transport, place: TopicPartition = EVENTS) -> list[int]:
    """Return the numbers that are committed to a partition."""
    return [int(bytes(record.value or b"")) for record in transport.records(place)]


def publish(transport: Transport, *commits: list[Output]) -> None:
    """Write each list of records in a commit of its own."""
    with transport.claim(PUBLISH, ()) as claim:
        for outputs in commits:
            claim.commit(outputs, {})


def drain(claim: Claim, max_bytes: int = 1) -> list[Record]:
    """Return all there is to poll."""
    records: list[Record] = []
    while more := claim.poll(max_bytes):
        records += more
    return records
