"""`topics dead-letter`: records that could not be read, why, and a way back for those that can be by now."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from schemas.errors import DecodeError, UsageError
from schemas.events import decode
from schemas.records import DeadLetter, Output, Topic, decode_dead_letter
from schemas.types import Offset, Partition
from stream.cli.connecting import connection_of, logger, notice, topics_of
from stream.cli.logs import configure
from stream.cli.tables import table
from stream.kafka.transport import KafkaTransport
from stream.runner import RecordWriter
from stream.transport import TopicPartition

if TYPE_CHECKING:
    from stream.kafka.client import Fetched

_POLL_SECONDS: Final = 0.5
_POLL_RECORDS: Final = 16


class Found(NamedTuple):
    """A record of DEAD-LETTER; `letter` is None if it is none of ours."""

    partition: int
    offset: int
    letter: DeadLetter | None
    why: str


def command(options: argparse.Namespace) -> int:
    """List dead letters, or put them back."""
    configure(options.log_format)
    if options.offset is not None and options.partition is None:
        raise UsageError("--offset goes with --partition")
    with KafkaTransport(connection_of(options), topics_of(options), notice=notice()) as transport:
        if options.partition is not None and options.partition >= transport.partitions:
            raise UsageError(f"--partition {options.partition}: there are {transport.partitions}, from 0")
        found = _find(transport, options)
        if options.put_back:
            return _put_back(transport, found)
        rows = []
        for one in found:
            if options.json:
                sys.stdout.write(json.dumps(_as_json(one)) + "\n")
            else:
                rows.append(_row(one))
    if not options.json:
        head = ("letter", "from", "bytes", "key", "why")
        sys.stdout.write(table(head, rows, right=frozenset({"bytes"})) if rows else "no dead letters\n")
    return 0


def _find(transport: KafkaTransport, options: argparse.Namespace) -> Iterator[Found]:
    """Yield dead letters, one at a time, since each may be large."""
    for number in range(transport.partitions) if options.partition is None else [options.partition]:
        place = transport.topics.place(TopicPartition(Topic.DEAD_LETTER, Partition(number)))
        begin, end = transport.beginnings([place])[place], transport.ends([place], committed=True)[place]
        low = max(begin, end - options.limit) if options.offset is None else options.offset
        high = end if options.offset is None else min(options.offset + 1, end)
        if not begin <= low < high:
            continue
        with transport.connection.consumer("dead-letter") as consumer:
            consumer.seek({place: Offset(low)})
            while consumer.positions()[place] < high:
                for record in consumer.poll(_POLL_SECONDS, _POLL_RECORDS):
                    if record.offset < high:
                        yield _read(record)


def _read(record: Fetched) -> Found:
    try:
        letter = decode_dead_letter(record.value or b"")
    except DecodeError as error:
        return Found(record.place.partition, record.offset, None, error.what)
    return Found(record.place.partition, record.offset, letter, letter.reason)


def _row(one: Found) -> tuple[str, ...]:
    name = f"{one.partition}:{one.offset}"
    letter = one.letter
    if letter is None:
        return (name, "-", "-", "-", f"not a dead letter: {one.why}")
    origin = f"{letter.topic}-{letter.partition}:{letter.offset}"
    size = "none" if letter.value is None else f"{len(letter.value):,}"
    key = "none" if letter.key is None else letter.key.decode("utf-8", "backslashreplace").replace("\0", " ")
    return (name, origin, size, key if len(key) <= 40 else f"{key[:39]}…", one.why)


def _as_json(one: Found) -> dict[str, object]:
    letter = one.letter

    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    found: dict[str, object] = {"partition": one.partition, "offset": one.offset, "why": one.why}
    if letter is not None:
        found["from"] = {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset}
        found["key"], found["value"] = text(letter.key), text(letter.value)
    return found


def _put_back(transport: KafkaTransport, found: Iterator[Found]) -> int:
    """Publish again what can be read by now; the letters stay, and doing it twice changes nothing."""
    left: Counter[str] = Counter()
    with RecordWriter(transport) as writer:
        for one in found:
            output = _output(one, left)
            if output is not None:
                writer.write(output)
    sys.stdout.write(f"{writer.records:,} records put back, {left.total():,} not\n")
    for why, count in left.most_common():
        logger().warning(f"not put back: {count:,} records: {why}")
    return 0


def _output(one: Found, left: Counter[str]) -> Output | None:
    letter = one.letter
    if letter is None:
        left["not a dead letter"] += 1
        return None
    if letter.topic != Topic.EVENTS:
        left[f"from {letter.topic}, which only linkers write"] += 1
        return None
    value = b"" if letter.value is None else letter.value
    try:
        decode(value)
    except DecodeError as error:
        left[f"still cannot be read: {error.what}"] += 1
        return None
    return Output(Topic.EVENTS, Partition(letter.partition), letter.key or b"", value)
