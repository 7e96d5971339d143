"""A whole deployment on a broker, small: events, linkers, a sink, and what must hold of it all.

with deployment(servers, partitions=2) as made:      # topics under a prefix of their own
    publish(made, small_session(partitions=2))       # many small records
    work_off(made, [linker(made, 0), linker(made, 1)])
    ledger(made) == ledger_in_memory(partitions=2)
    check_changelogs(made)                           # every commit, once, in order
"""

from __future__ import annotations

import contextlib
import functools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import driver
import msgspec
import numpy as np

from consumers.files import csv_text
from consumers.linker import Linker
from consumers.sink import Sink
from schemas.config import Config, Spans, Windows
from schemas.events import COLUMNS, TEXT_COLUMNS, Batch, Header, encode
from schemas.facts import PROCESS_RANK
from schemas.ledger import Delivery, encode_ledger
from schemas.records import Output, Record, Topic
from schemas.types import END_OF_TIME, NONE, Kind, Offset, Partition, Process, partition_key
from stream.kafka.changelog import Head
from stream.kafka.client import Connection, Place, Times
from stream.kafka.topics import Topics, create, delete
from stream.kafka.transport import KafkaTransport
from stream.log import partition_for
from stream.runner import Pace, RecordWriter, Runner, Task
from stream.transport import (
    SINK,
    Failpoint,
    TopicPartition,
    every,
    link_inputs,
    link_task,
    pass_point,
    sink_inputs,
)

SESSION: Final = "s"
SLICE_NS: Final = 100_000_000
TIMES: Final = Times(connect=20, request=5, delivery=15, transaction=10, session=3, progress=15)
PACE: Final = Pace(commit_bytes=1, commit_seconds=0.2, poll_bytes=1)
"""Commits after every poll, so that a few events make many."""

CONFIG: Final = Config(
    windows=Windows(
        measured=Spans(by="ranges", name="^step$", role="rank0"),
        steady=Spans(by="ranges", name="^step$", role="rank0", warmup=1, tolerance=0.5, history=2),
    )
)
"""Windows by the ranges of one process: all others wait for what it says on WINDOWS."""


# Events


def small_session(partitions: int, slices: int = 6, processes: int = 3) -> list[Output]:
    """Return the records of a session: of each process, in each slice, a few rows of every kind."""
    told: list[Output] = []
    who = [Process("host", pid << 24) for pid in range(1, processes + 1)]
    for rank, process in enumerate(who):
        facts = [{"time": 0, "thread": NONE, "key": PROCESS_RANK, "value": str(rank)}]
        told += _records(process, Kind.FACTS, 0, facts)
    for number in range(slices):
        for process in who:
            told += _slice(process, number)
    for process in who:
        told += _records(process, Kind.CAPTURE_END, 0, [], watermark=END_OF_TIME)
    for partition in range(partitions):
        header = Header(SESSION, Process("", 0), Kind.SESSION_END, "", partitions=partitions)
        told += [
            Output(Topic.EVENTS, Partition(partition), SESSION.encode(), value)
            for value in encode(Batch(header, {}, ()))
        ]
    return told


def _slice(process: Process, number: int) -> list[Output]:
    start = number * SLICE_NS
    call = {"thread": 7, "name": "cudaLaunchKernel"}
    kernel = {"device": 0, "stream": 1, "graph": NONE, "node": NONE}
    step, layer = 2 * number, 2 * number + 1
    openings = [
        {"time": start + 10, "thread": 7, "domain": "", "name": "step"},
        {"time": start + 20, "thread": 7, "domain": "", "name": f"layer {number % 2}"},
    ]
    closings = [{"time": start + 60, "opening": layer}, {"time": start + 80, "opening": step}]
    launches: list[dict[str, Any]] = [
        {"time": start + at, "correlation": 10 * number + at % 10, **call} for at in (15, 31, 42, 83, 94)
    ]
    kernels: list[dict[str, Any]] = [
        {
            "time": row["time"] + 3,
            "duration": 5 + process.pid,
            "correlation": row["correlation"],
            "name": f"kernel {row['correlation'] % 3}",
            **kernel,
        }
        for row in launches
    ]
    # The last one's launch is taken away: it waits in the state until it is given up.
    launches = launches[:-1]
    return [
        *_records(process, Kind.RANGE_OPENINGS, 2 * number, openings),
        *_records(process, Kind.RANGE_CLOSINGS, 2 * number, closings),
        *_records(process, Kind.LAUNCHES, 4 * number, launches),
        *_records(process, Kind.KERNELS, 5 * number, kernels, watermark=start + SLICE_NS),
    ]


def _records(
    process: Process, kind: Kind, ordinal: int, rows: Sequence[dict[str, Any]], watermark: int | None = None
) -> list[Output]:
    strings: dict[str, int] = {}

    def value(row: dict[str, Any], column: str) -> int:
        found = row[column]
        return strings.setdefault(found, len(strings)) if column in TEXT_COLUMNS else int(found)

    columns = {name: np.array([value(row, name) for row in rows], np.int64) for name in COLUMNS[kind]}
    header = Header(SESSION, process, kind, "capture", ordinal, len(rows), watermark)
    key = partition_key(SESSION, process)
    return [Output(Topic.EVENTS, None, key, v) for v in encode(Batch(header, columns, [*strings]))]


@functools.lru_cache
def ledger_in_memory(partitions: int, slices: int = 6) -> tuple[bytes, str]:
    """Return the ledger and the groups of that session, made without any transport."""
    log: driver.Log = {(Topic.EVENTS, number): [] for number in range(partitions)}
    for output in small_session(partitions, slices):
        number = output.partition
        if number is None:
            number = partition_for(output.key, partitions)
        into = log[Topic.EVENTS, number]
        into.append(Record(Topic.EVENTS, number, Offset(len(into)), output.key, output.value))
    return said(driver.run_sink(driver.run_linkers(log, CONFIG, partitions=partitions), CONFIG))


def said(sink: Sink) -> tuple[bytes, str]:
    """Return the bytes of the ledger and the groups; of delivery, which may differ, nothing."""
    whole = sink.ledger(SESSION)
    same = msgspec.structs.replace(whole, delivery=Delivery(repeated_rows=0, dead_letters=0))
    return encode_ledger(same), csv_text(sink.groups(SESSION))


# Topics and tasks


def transport_of(servers: str, prefix: str, *, times: Times = TIMES, **options: Any) -> KafkaTransport:
    """Return a transport for a deployment's topics."""
    return KafkaTransport(Connection(servers, times=times), Topics(prefix), **options)


@contextlib.contextmanager
def deployment(
    servers: str, partitions: int = 1, *, replication: int = 1, **options: Any
) -> Iterator[KafkaTransport]:
    """Give the transport of topics made for this, and delete them afterwards."""
    topics = Topics(f"t{uuid.uuid4().hex[:8]}.")
    connection = Connection(servers, times=options.get("times", TIMES))
    with connection.admin() as admin:
        create(admin, topics.plan(partitions, replication))
        try:
            with transport_of(servers, topics.prefix, **options) as transport:
                yield transport
        finally:
            with contextlib.suppress(Exception):
                delete(admin, topics)


def publish(transport: KafkaTransport, outputs: Sequence[Output]) -> None:
    """Publish records."""
    with RecordWriter(transport) as writer:
        for output in outputs:
            writer.write(output)


def linker(transport: KafkaTransport, partition: int, pace: Pace = PACE) -> Task:
    """Return the task that links a partition."""
    at, count = Partition(partition), transport.partitions
    return Task(link_task(at), partial(Linker, CONFIG, at), link_inputs(at, count), pace)


def sink_task(transport: KafkaTransport, pace: Pace = PACE) -> Task:
    """Return the task that folds what was linked."""
    return Task(SINK, partial(Sink, CONFIG), sink_inputs(transport.partitions), pace)


def caught_up(transport: KafkaTransport, runners: Sequence[Runner]) -> bool:
    """Return whether runners have committed all there is to read."""
    positions: dict[Place, int] = {}
    for runner in runners:
        for place, offset in runner.positions().items():
            native = transport.topics.place(place)
            positions[native] = min(offset, positions.get(native, offset))
    # Also what is committed and cannot be read yet: markers come a moment later.
    ends = transport.ends(positions)
    return all(positions[place] >= end for place, end in ends.items())


def work_off(
    transport: KafkaTransport,
    tasks: Sequence[Task],
    *,
    failpoint: Failpoint = pass_point,
    seconds: float = 40,
) -> list[Any]:
    """Run tasks until they have committed all there is to read; return their processors."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        runners = [stack.enter_context(Runner(transport, task, failpoint=failpoint)) for task in tasks]
        while True:
            moved = sum(runner.step() for runner in runners)
            if not moved:
                moved = sum(runner.commit() for runner in runners)
            if not moved and caught_up(transport, runners):
                break
            assert time.monotonic() < deadline, "not worked off in time"
            if not moved:
                time.sleep(0.005)
        return [runner.processor for runner in runners]


def ledger(transport: KafkaTransport) -> tuple[bytes, str]:
    """Return what a new sink makes of the deltas and windows in the topics."""
    inputs = [
        ((topic, number), [*transport.records(TopicPartition(topic, Partition(number)))])
        for topic in (Topic.WINDOWS, Topic.DELTAS)
        for number in range(transport.partitions)
    ]
    return said(driver.run_sink(dict(inputs), CONFIG))


def values(transport: KafkaTransport, topic: Topic) -> list[bytes]:
    """Return all values of a topic, partition by partition."""
    return [
        bytes(r.value or b"")
        for place in every(topic, transport.partitions)
        for r in transport.records(place)
    ]


# What must hold


_head_decoder = msgspec.msgpack.Decoder(Head)


def check_changelogs(transport: KafkaTransport) -> int:
    """Fail unless every commit follows on the one before it; return how many there were.

    Numbers count from 1 without a gap or a repetition, and no input ever goes back.
    """
    total = 0
    for place in every(Topic.STATE, transport.partitions):
        before: Mapping[TopicPartition, int] = dict.fromkeys(
            link_inputs(place.partition, transport.partitions), 0
        )
        number = 0
        for record in transport.records(place):
            if record.key != f"{link_task(place.partition)}/head".encode():
                continue
            head = _head_decoder.decode(record.value or b"")
            number += 1
            assert head.commit == number, f"commit {head.commit} where {number} was due"
            after = head.positions()
            moved = [at for at in before if after[at] > before[at]]
            assert moved, f"commit {number} moved nothing"
            assert all(after[at] >= before[at] for at in before), f"commit {number} went back"
            before = after
        total += number
    return total
