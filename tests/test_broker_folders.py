"""Partition folders as a broker has them: read like a consumer that is told committed records only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_batches import ABORT, COMMIT, control_batch, record_batch
from logs import DELTAS, EVENTS, values

from schemas.errors import TransportError, UsageError
from schemas.records import Output, Topic
from schemas.types import Partition
from stream.segments import Segments
from stream.transport import PUBLISH, TopicPartition

BROKER: Final = Path(__file__).parent / "broker"


def test_a_partition_of_a_real_broker_is_read() -> None:
    """A folder copied from Apache Kafka 4.1: read-committed is what a consumer there saw.

    Two transactions committed, two aborted, interleaved with each other and with plain records in
    four compressions; a third had not ended when the folder was copied.
    """
    log = Segments.open(BROKER)

    assert [(r.offset, r.key, bytes(r.value or b"").split(b" x")[0]) for r in log.records(EVENTS)] == [
        (0, b"k", b"plain 0"),
        (1, b"k", b"plain 1"),
        (2, b"k", b"a committed 0"),
        (4, b"k", b"plain 2"),
        (5, b"k", b"a committed 1"),
        (9, b"k", b"b committed 2"),
        (13, None, b"no key"),
        (14, b"tombstone", b""),
        (15, b"h", b"with headers"),
        (17, b"k", b"plain 3"),
    ]
    assert log.end(EVENTS) is not None


def test_a_compacted_partition_is_read() -> None:
    """Offsets that compaction took away are not missed; the rest comes in order."""
    state = TopicPartition(Topic.STATE, Partition(0))

    assert [(r.offset, r.key, r.value) for r in Segments.open(BROKER).records(state)] == [
        (17, b"k2", b"17"),
        (18, b"k0", b"18"),
        (19, b"k1", b"19"),
        (20, b"z", b"last"),
    ]


def test_a_broker_folder_is_only_read(tmp_path: Path) -> None:
    """Nothing is written among a broker's files; its events can be input of another folder."""
    with pytest.raises(TransportError, match="can only be read"):
        Segments.open(BROKER).claim(PUBLISH, ())
    with pytest.raises(TransportError, match="partitions of a broker"):
        Segments.create(BROKER, partitions=1)
    with pytest.raises(UsageError, match="log has 1 partitions, 2 were asked for"):
        Segments.create(tmp_path / "two", partitions=2, events=Segments.open(BROKER))

    log = Segments.create(tmp_path / "log", partitions=1, events=Segments.open(BROKER))
    with log.claim("link-0", [EVENTS]) as claim:
        assert len(claim.poll(1 << 20)) == 10
        assert claim.positions() == {EVENTS: 19}
        claim.commit([Output(Topic.DELTAS, Partition(0), b"k", b"1")], {})
    with log.claim("link-0", [EVENTS]) as claim:
        assert claim.poll(1 << 20) == []
    assert values(log, DELTAS) == [1]


def write_broker_segment(folder: Path, base: int, data: bytes) -> Path:
    """Write one segment of EVENTS as a broker would, under a prefix."""
    path = folder / "app.events-0" / f"{base:020d}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def broker_values(folder: Path) -> list[int]:
    """Return the numbers in EVENTS of a broker's folder."""
    return values(Segments.open(folder, prefix="app."))


def test_a_torn_tail_of_a_broker_is_left_out(tmp_path: Path) -> None:
    """A last batch cut anywhere, partly zero, or followed by allocated zeros is not read."""
    whole = record_batch(0, [(b"k", b"0")]) + record_batch(1, [(b"k", b"1")])
    last = record_batch(2, [(b"k", b"2")])
    tails = [last[:cut] for cut in range(len(last))]
    tails += [last[:cut] + bytes(len(last) - cut) for cut in range(12, len(last) - 2)]
    tails += [bytes(5), bytes(100), bytes(5_000_000)]
    for tail in tails:
        write_broker_segment(tmp_path, 0, whole + tail)
        assert broker_values(tmp_path) == [0, 1]


def test_damage_in_the_middle_of_a_broker_folder_is_told(tmp_path: Path) -> None:
    """Only the very end may be torn: damage with more behind it is an error with file and byte."""
    first, second = record_batch(0, [(b"k", b"0")]), record_batch(1, [(b"k", b"1")])
    damaged = first[:-1] + b"?"
    path = write_broker_segment(tmp_path, 0, first + damaged + second)
    with pytest.raises(TransportError, match=f"{path}, byte {len(first)}: record batch is cut or fails"):
        broker_values(tmp_path)
    write_broker_segment(tmp_path, 0, first[:-5])
    write_broker_segment(tmp_path, 1, second)
    with pytest.raises(TransportError, match="cut"):
        broker_values(tmp_path)


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_transactions_are_followed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any interleaving of transactions over segments: what committed is read, nothing else."""
    folder = tmp_path_factory.mktemp("broker")
    committed: list[int] = []
    running: dict[int, list[int]] = {}
    offset = base = 0
    segment = b""
    for _ in range(data.draw(st.integers(1, 25))):
        producer = data.draw(st.integers(-1, 2))
        if producer >= 0 and data.draw(st.booleans()):
            kind = data.draw(st.sampled_from((ABORT, COMMIT)))
            batch, count = control_batch(offset, producer, kind), 1
            committed += running.pop(producer, []) if kind == COMMIT else running.pop(producer, [])[:0]
        else:
            count = data.draw(st.integers(1, 3))
            numbers = list(range(offset, offset + count))
            batch = record_batch(offset, [(b"k", b"%d" % n) for n in numbers], producer=producer)
            (committed if producer < 0 else running.setdefault(producer, [])).extend(numbers)
        segment += batch
        offset += count
        if data.draw(st.integers(0, 3)) == 0:
            write_broker_segment(folder, base, segment)
            base, segment = offset, b""
    write_broker_segment(folder, base, segment)

    assert broker_values(folder) == sorted(committed)


def test_polls_pass_over_what_was_aborted(tmp_path: Path) -> None:
    """An empty poll says that nothing is left, even if much was passed over on the way."""
    aborted = b"".join(record_batch(i, [(b"k", os.urandom(1000))], producer=1) for i in range(200))
    write_broker_segment(
        tmp_path, 0, aborted + control_batch(200, 1, ABORT) + record_batch(201, [(b"k", b"7")])
    )
    log = Segments.create(tmp_path / "log", partitions=1, events=Segments.open(tmp_path, prefix="app."))
    with log.claim("link-0", [EVENTS]) as claim:
        assert [r.offset for r in claim.poll(1)] == [201]
