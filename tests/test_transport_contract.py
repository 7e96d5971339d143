"""What every transport promises: the same tests on a folder of segments and on a real broker."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import kafka_deployment
import pytest
from logs import DELTAS, EVENTS, event, numbers, publish, values

from schemas.errors import TransportError
from schemas.records import Output, Record, Topic
from schemas.types import Offset, Partition
from stream.log import partition_for
from stream.runner import Pace, RecordWriter
from stream.segments import Segments
from stream.transport import (
    PUBLISH,
    SINK,
    Claim,
    TopicPartition,
    Transport,
    every,
    link_inputs,
    link_task,
    sink_inputs,
)

LINK = link_task(Partition(0))
PARTITIONS = 3


@pytest.fixture(params=["segments", "kafka"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    """Return an empty transport with three partitions, of each kind."""
    with contextlib.ExitStack() as stack:
        if request.param == "segments":
            log = Segments.create(tmp_path / "log", partitions=PARTITIONS, durable=False)
            yield stack.enter_context(log)
        else:
            servers = request.getfixturevalue("kafka")
            yield stack.enter_context(kafka_deployment.deployment(servers, PARTITIONS))


def drain(claim: Claim, count: int) -> list[Record]:
    """Return so many records; what has been committed may take a moment to arrive."""
    records: list[Record] = []
    deadline = time.monotonic() + 10
    while len(records) < count and time.monotonic() < deadline:
        records += claim.poll(1)
    return records


def test_records_come_back_whole_and_in_order(transport: Transport) -> None:
    """Keys, values of any size and order within the partition are kept."""
    outputs = [event(os.urandom(size)) for size in (0, 1, 100, 500_000, 7, 900_000)]
    publish(transport, outputs[:2], outputs[2:])

    with transport.claim(LINK, [EVENTS]) as claim:
        records = drain(claim, 6)
        assert [(r.key, bytes(r.value or b"")) for r in records] == [(o.key, o.value) for o in outputs]
        assert [r.offset for r in records] == sorted({r.offset for r in records})
        assert claim.poll(1) == []
    assert [bytes(r.value or b"") for r in transport.records(EVENTS)] == [o.value for o in outputs]


def test_a_key_decides_where_a_record_goes(transport: Transport) -> None:
    """Without a partition of its own a record goes where Kafka's partitioner sends its key."""
    keys = [b"%d" % i for i in range(20)]
    publish(transport, [Output(Topic.EVENTS, None, key, key) for key in keys])

    for place in every(Topic.EVENTS, PARTITIONS):
        expected = [key for key in keys if partition_for(key, PARTITIONS) == place.partition]
        assert [r.key for r in transport.records(place)] == expected


def test_the_tail_is_followed(transport: Transport) -> None:
    """A reader sees each commit of another task as it happens, and nothing twice."""
    with transport.claim(PUBLISH, ()) as writer, transport.claim(LINK, [EVENTS]) as reader:
        assert reader.poll(1) == []
        for start in range(0, 30, 10):
            writer.commit(numbers(10, start), {})
            assert [int(bytes(r.value or b"")) for r in drain(reader, 10)] == list(range(start, start + 10))
            assert reader.poll(1) == []


def test_a_commit_is_outputs_state_and_positions(transport: Transport) -> None:
    """After a commit the next claim has its state, goes on behind its input, and all can read it."""
    publish(transport, numbers(10))
    with transport.claim(LINK, link_inputs(Partition(0), PARTITIONS)) as claim:
        assert claim.state is None
        records = drain(claim, 10)
        deltas = [Output(Topic.DELTAS, Partition(0), b"key", bytes(r.value or b"")) for r in records]
        windows = Output(Topic.WINDOWS, Partition(0), b"key", b"window")
        claim.commit([*deltas, windows], {"a": b"1", "b": b"2"})
        positions = dict(claim.positions())

    assert values(transport, DELTAS) == list(range(10))
    publish(transport, numbers(5, 10))
    with transport.claim(LINK, link_inputs(Partition(0), PARTITIONS)) as claim:
        assert claim.state == {"a": b"1", "b": b"2"}
        assert claim.positions()[EVENTS] == positions[EVENTS]
        found = drain(claim, 6)
        assert sorted((r.topic, bytes(r.value or b"")) for r in found) == [
            *((Topic.EVENTS, b"%d" % i) for i in range(10, 15)),
            (Topic.WINDOWS, b"window"),
        ]


def test_what_is_not_committed_never_was(transport: Transport) -> None:
    """A claim that is let go leaves nothing; the next one reads the same records again."""
    publish(transport, numbers(5))
    for _ in range(2):
        with transport.claim(LINK, [EVENTS]) as claim:
            assert len(drain(claim, 5)) == 5

    with transport.claim(LINK, [EVENTS]) as claim:
        assert claim.state is None
        assert len(drain(claim, 5)) == 5
        claim.commit([], {"n": b"5"})
    with transport.claim(LINK, [EVENTS]) as claim:
        assert claim.state == {"n": b"5"}
        assert claim.poll(1) == []
        assert claim.positions() == {EVENTS: Offset(5)}


def test_states_change_entry_by_entry(transport: Transport) -> None:
    """Whatever entries come, grow beyond a record, shrink and go: the last commit's are there."""
    large = os.urandom(1_300_000)
    states = [
        {"a": b"1", "big": large},
        {"a": b"1", "b": b"", "big": large + b"more"},
        {"b": b"2", "big": large[:600_000]},
        {"b": b"2", "big": b"small", "odd/näme": b"x"},
        {},
        {"a": b"again"},
    ]
    for state in states:
        with transport.claim(LINK, [EVENTS]) as claim:
            claim.commit([], state)
        with transport.claim(LINK, [EVENTS]) as claim:
            assert claim.state == state


def test_commits_go_on_within_a_claim(transport: Transport) -> None:
    """One claim may commit many times; only the last state counts, all outputs do."""
    publish(transport, numbers(6))
    with transport.claim(LINK, [EVENTS]) as claim:
        for record in drain(claim, 6):
            value = bytes(record.value or b"")
            claim.commit([Output(Topic.DELTAS, Partition(0), b"key", value)], {"last": value, "same": b"x"})
    with transport.claim(LINK, [EVENTS]) as claim:
        assert claim.state == {"last": b"5", "same": b"x"}
    assert values(transport, DELTAS) == list(range(6))


def test_a_task_writes_to_its_own_partitions_only(transport: Transport) -> None:
    """Every partition has one writer; a processor that writes elsewhere is wrong, not unlucky."""
    for place in (TopicPartition(Topic.DELTAS, Partition(1)), TopicPartition(Topic.EVENTS, Partition(0))):
        with (
            transport.claim(LINK, ()) as claim,
            pytest.raises(ValueError, match=f"link-0 may not write to {place.topic}-{place.partition}"),
        ):
            claim.commit([Output(place.topic, place.partition, b"k", b"v")], {})
    with transport.claim(LINK, ()) as claim:
        assert claim.state is None
    for topic in (Topic.DELTAS, Topic.EVENTS):
        assert [r for place in every(topic, PARTITIONS) for r in transport.records(place)] == []


def test_tasks_do_not_see_each_others_states(transport: Transport) -> None:
    """Linkers and the sink keep their states apart."""
    tasks = {link_task(Partition(p)): link_inputs(Partition(p), PARTITIONS) for p in range(PARTITIONS)}
    tasks[SINK] = sink_inputs(PARTITIONS)
    for name, inputs in tasks.items():
        with transport.claim(name, inputs) as claim:
            claim.commit([], {"of": name.encode()})
    for name, inputs in tasks.items():
        with transport.claim(name, inputs) as claim:
            assert claim.state == {"of": name.encode()}


def test_a_closed_claim_is_of_no_use(transport: Transport) -> None:
    """Neither reading nor committing works after closing, and closing again is harmless."""
    claim = transport.claim(LINK, [EVENTS])
    claim.close()
    claim.close()
    with pytest.raises(TransportError, match="closed"):
        claim.poll(1)
    with pytest.raises(TransportError, match="closed"):
        claim.commit([], {})


def test_a_writer_commits_by_size_and_at_the_end(transport: Transport) -> None:
    """All that was written to a writer is there once it is left."""
    with RecordWriter(transport, pace=Pace(commit_bytes=20, commit_seconds=60)) as writer:
        for output in numbers(50):
            writer.write(output)
    assert writer.records == 50
    assert values(transport) == list(range(50))
