"""Topics in a folder: what is committed is read, whole and in order, and nothing else ever is."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_batches import record_batch
from logs import DELTAS, EVENTS, drain, event, numbers, publish, values

from schemas.errors import DecodeError, TransportError, UsageError
from schemas.records import Output, Topic
from schemas.types import Offset, Partition
from stream.log import partition_for
from stream.manifest import End, head_end, pack_manifest, unpack_head
from stream.segments import Segments, SegmentsClaim
from stream.transport import POINTS, PUBLISH, Claim, Transport, every, link_inputs, link_task

GOLDEN_MANIFEST: Final = (
    "47504c4d010000005a0000002fa1051386a47461736ba66c696e6b2d30a6636f6d6d697403a76f757470757473"
    "9193a664656c746173009305cd025807a6696e707574739193a66576656e74730009aa73746174655f73697a65"
    "0da973746174655f637263ce6c17a5e281a46c616e65c4057374617465"
)
COMMIT_POINTS: Final = tuple(f"{when} {point}" for point in POINTS[3:] for when in ("before", "after"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where a log is to be made."""
    return tmp_path / "log"


@pytest.fixture
def log(folder: Path) -> Iterator[Segments]:
    """Return a new log with one partition and small segments."""
    with Segments.create(folder, partitions=1, segment_bytes=500) as segments:
        yield segments


class FullDiskError(OSError):
    """What the disk says when it is full."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failing_at(point: str) -> Callable[[str], None]:
    """Return a failpoint that fills the disk at one point."""

    def fail(name: str) -> None:
        if name == point:
            raise FullDiskError

    return fail


def recorded(name: str, call: Callable[..., object], calls: list[str]) -> Callable[..., object]:
    """Return a call that notes its name first."""

    def noting(*args: object) -> object:
        calls.append(name)
        return call(*args)

    return noting


# What is committed


def test_the_transport_fits_the_seam(log: Segments) -> None:
    """A folder of segments is a Transport, its claims are Claims (mypy checks the same)."""
    transport: Transport = log
    with transport.claim(PUBLISH, ()) as claim:
        held: Claim = claim
        assert held.state is None


@given(
    sizes=st.lists(st.lists(st.integers(0, 400), max_size=5), max_size=6),
    segment_bytes=st.integers(1, 2000),
    max_bytes=st.integers(1, 5000),
)
@settings(deadline=None, max_examples=60)
def test_records_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], segment_bytes: int, max_bytes: int
) -> None:
    """However records are cut into commits, segments and polls: the same records, offsets in a row."""
    log = Segments.create(
        tmp_path_factory.mktemp("log"), partitions=1, durable=False, segment_bytes=segment_bytes
    )
    commits = [[event(os.urandom(size)) for size in commit] for commit in sizes]
    publish(log, *commits)
    with log.claim(link_task(Partition(0)), [EVENTS]) as claim:
        records = drain(claim, max_bytes)

    assert [(r.key, r.value) for r in records] == [(o.key, o.value) for c in commits for o in c]
    assert [r.offset for r in records] == list(range(len(records)))
    log.close()


def test_segments_are_rolled_by_size_and_named_by_offset(log: Segments, folder: Path) -> None:
    """A full segment is left for one named after the first offset in it."""
    publish(log, *([event(os.urandom(200))] for _ in range(5)))
    files = sorted((folder / "events-0").iterdir())

    assert [path.name for path in files] == [f"{base:020d}.log" for base in range(5)]
    assert all(path.stat().st_size <= 500 for path in files)


def test_a_key_decides_where_a_record_goes(folder: Path) -> None:
    """Without a partition of its own a record goes where Kafka's partitioner sends its key."""
    log = Segments.create(folder, partitions=4)
    keys = [b"%d" % i for i in range(20)]
    publish(log, [Output(Topic.EVENTS, None, key, key) for key in keys])

    for place in every(Topic.EVENTS, 4):
        assert [r.key for r in log.records(place)] == [
            key for key in keys if partition_for(key, 4) == place.partition
        ]


def test_the_tail_is_followed(log: Segments) -> None:
    """A reader sees each commit of another task as it happens, and nothing twice."""
    with (
        log.claim(PUBLISH, ()) as writer,
        Segments.open(log.folder) as other,
        other.claim("link-0", [EVENTS]) as reader,
    ):
        assert reader.poll(1) == []
        for start in range(0, 50, 10):
            writer.commit(numbers(10, start), {})
            assert [int(r.value or b"") for r in drain(reader)] == list(range(start, start + 10))
            assert reader.poll(1) == []


def test_commits_that_look_alike_are_told_apart(log: Segments) -> None:
    """Manifests of the same size, made within one tick of the file system's clock, are all seen."""
    with log.claim(PUBLISH, ()) as writer, log.claim("link-0", [EVENTS]) as reader:
        for i in range(100):
            writer.commit([event(b"%03d" % i)], {})
            assert len(reader.poll(1)) == 1


def test_a_claim_goes_on_where_the_last_commit_was(log: Segments) -> None:
    """State and offsets are restored together; what was polled but not committed comes again."""
    publish(log, *([output] for output in numbers(6)))
    with log.claim("link-0", [EVENTS]) as claim:
        assert claim.state is None
        claim.poll(1)
        claim.poll(1)
        claim.commit([], {"count": b"two"})
        claim.poll(1)
    with log.claim("link-0", [EVENTS]) as claim:
        assert claim.state == {"count": b"two"}
        assert [int(r.value or b"") for r in drain(claim)] == [2, 3, 4, 5]
        assert claim.positions() == {EVENTS: 6}


def test_a_claim_goes_on_in_the_middle_of_a_batch(log: Segments) -> None:
    """Offsets, not batches, decide what comes next."""
    publish(log, numbers(10))

    assert [r.offset for r in log.reader(EVENTS, Offset(7)).read(log.end(EVENTS), 1)[0]] == [7, 8, 9]


def test_partitions_take_turns(folder: Path) -> None:
    """A partition with much to read does not keep the others waiting."""
    log = Segments.create(folder, partitions=3)
    publish(log, *([event(b"%d" % i, i % 3)] for i in range(30)))
    with log.claim("link-0", every(Topic.EVENTS, 3)) as claim:
        polls = [claim.poll(1) for _ in range(6)]

    assert [[r.partition for r in records] for records in polls] == [[0], [1], [2], [0], [1], [2]]


def test_big_states_are_kept(log: Segments) -> None:
    """A state of any size comes back, and readers of the outputs do not mind it."""
    state = os.urandom(3_000_000)
    with log.claim(PUBLISH, ()) as claim:
        claim.commit(numbers(1), {"a": state, "b": b""})
        claim.commit([], {"a": state[1:], "c": b""})
    with log.claim(PUBLISH, ()) as claim:
        assert claim.state == {"a": state[1:], "c": b""}
    assert values(log) == [0]


def test_many_partitions_take_few_descriptors(folder: Path) -> None:
    """Following all partitions from all tasks holds one file a task open, not one a pair."""
    log = Segments.create(folder, partitions=40, durable=False)
    publish(log, [event(b"x", p) for p in range(40)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    claims = [log.claim(link_task(Partition(p)), link_inputs(Partition(p), 40)) for p in range(40)]
    for claim in claims:
        assert len(drain(claim)) == 1
        claim.commit([Output(Topic.WINDOWS, None, b"k", b"v")][:0], {})
    for claim in claims:
        claim.poll(1)

    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 2 * 40 + 2
    for claim in claims:
        claim.close()


# What is not committed


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_failing_disk_leaves_all_or_nothing(folder: Path, point: str) -> None:
    """Wherever a commit fails there is one clear error, and then all of it or nothing is there."""
    with Segments.create(folder, partitions=1) as log:
        publish(log, numbers(3))
    with Segments.open(folder, failpoint=failing_at(point)) as log, log.claim(PUBLISH, ()) as claim:
        with pytest.raises(TransportError, match="No space left on device; mend that and start again"):
            claim.commit(numbers(5, 3), {"n": b"5"})
        with pytest.raises(TransportError, match="has failed"):
            claim.commit([], {})
        done = point == "after swap"
        assert values(log) == list(range(8 if done else 3))
    with Segments.open(folder) as log:
        with log.claim(PUBLISH, ()) as claim:
            assert claim.state == ({"n": b"5"} if done else {})
            claim.commit(numbers(2, 8 if done else 3), {})
        assert values(log) == list(range(10 if done else 5))


def test_a_really_full_disk_is_one_line(folder: Path) -> None:
    """Past a limit on file sizes the commit fails with one line, and the earlier ones stand."""
    program = f"""
import os, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from logs import PUBLISH, event, numbers
from schemas.errors import TransportError
from stream.segments import Segments
log = Segments.create(Path({str(folder)!r}), partitions=1)
with log.claim(PUBLISH, ()) as claim:
    claim.commit(numbers(10), {{}})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        claim.commit([event(os.urandom(1000)) for _ in range(100)], {{}})
    except TransportError as error:
        print(error.line())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.splitlines() == [
        f"{folder}: cannot write: File too large; mend that and start again: it resumes from the last commit"
    ]
    assert values(Segments.open(folder)) == list(range(10))


def test_a_torn_tail_of_ours_is_cut(log: Segments, folder: Path) -> None:
    """Bytes and segments behind the committed end are never read, and gone after the next claim."""
    publish(log, [event(os.urandom(300))], [event(os.urandom(300))])
    sizes = {path: path.stat().st_size for path in (folder / "events-0").iterdir()}
    last = folder / "events-0" / f"{1:020d}.log"
    for tail in (record_batch(2, [(b"k", b"v")]), b"\0" * 100, b"garbage"):
        with last.open("ab") as file:
            file.write(tail)
        (folder / "events-0" / f"{2:020d}.log").write_bytes(tail)

        assert len(list(log.records(EVENTS))) == 2
        with log.claim(PUBLISH, ()):
            assert {path: path.stat().st_size for path in (folder / "events-0").iterdir()} == sizes


def test_what_was_written_before_the_first_commit_is_nothing(log: Segments, folder: Path) -> None:
    """A partition its owner never committed to is empty, whatever lies in its folder."""
    (folder / "events-0").mkdir()
    (folder / "events-0" / f"{0:020d}.log").write_bytes(record_batch(0, [(b"k", b"v")]))

    assert list(log.records(EVENTS)) == []
    publish(log, numbers(2))
    assert values(log) == [0, 1]


def test_a_record_for_a_partition_of_another_task_is_a_fault(folder: Path) -> None:
    """Every partition has one writer; a processor that writes elsewhere is wrong, not unlucky."""
    log = Segments.create(folder, partitions=2)
    with (
        log.claim("link-0", ()) as claim,
        pytest.raises(ValueError, match="link-0 may not write to deltas-1"),
    ):
        claim.commit([Output(Topic.DELTAS, Partition(1), b"k", b"v")], {})
    with log.claim("link-0", ()) as claim:
        assert claim.state is None


@pytest.mark.parametrize("durable", [True, False])
def test_durable_commits_sync_before_they_show(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, durable: bool
) -> None:
    """Everything is synced before the rename and the folder after it; throwaway logs never sync."""
    calls: list[str] = []
    for name in ("fsync", "fdatasync", "replace"):
        monkeypatch.setattr(os, name, recorded(name, getattr(os, name), calls))
    log = Segments.create(folder, partitions=1, durable=durable, segment_bytes=100)
    del calls[:]
    publish(log, [event(os.urandom(90)) for _ in range(2)] + [event(os.urandom(2 << 20))])

    synced = ["fdatasync", "fdatasync", "fsync", "fsync", "fsync"]
    assert calls == ([*synced, "replace", "fsync"] if durable else ["replace"])


# One writer


def test_a_second_writer_is_refused(log: Segments, folder: Path) -> None:
    """A task that is held is refused in one line that says by whom, and free once let go."""
    with log.claim(PUBLISH, ()), pytest.raises(TransportError) as caught:
        Segments.open(folder).claim(PUBLISH, ())
    assert caught.value.line() == (
        f"{folder}: task publish is already run by process {os.getpid()}; "
        "stop that one first, or use another folder"
    )
    log.claim(PUBLISH, ()).close()


def test_a_killed_writer_holds_nothing(log: Segments, folder: Path) -> None:
    """The lock of a process goes with it, even by SIGKILL."""
    program = (
        "import sys, time; from pathlib import Path; from stream.segments import Segments\n"
        f"claim = Segments.open(Path({str(folder)!r})).claim('publish', ())\n"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(TransportError, match=f"already run by process {child.pid}"):
            log.claim(PUBLISH, ())
        child.kill()
    log.claim(PUBLISH, ()).close()


# The folder


def test_the_partition_count_never_changes(folder: Path) -> None:
    """Another count than the recorded one is refused; without one, the recorded one is taken."""
    Segments.create(folder, partitions=3)

    assert Segments.open(folder).partitions == 3
    assert Segments.create(folder, partitions=3).partitions == 3
    with pytest.raises(UsageError, match="log has 3 partitions, 2 were asked for"):
        Segments.create(folder, partitions=2)
    with pytest.raises(UsageError, match="1 to 1024"):
        Segments.create(folder, partitions=0)


def test_a_folder_that_is_no_log_is_refused(tmp_path: Path) -> None:
    """Opening nothing, or something else, or a later format, says so in one line."""
    (tmp_path / "file").write_text("")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "meta.json").write_text('{"format": 2, "partitions": 1}')
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "meta.json").write_text("[]")
    Segments.create(tmp_path / "part", partitions=1)
    shutil.rmtree(tmp_path / "part" / "commits")

    for name, what in {
        "absent": "no log in this folder",
        "file": "no log in this folder",
        "later": "log has format 2",
        "odd": "not a description of a log",
        "part": "log has lost its commits; copy the whole folder",
    }.items():
        with pytest.raises(TransportError, match=what):
            Segments.open(tmp_path / name)
    with pytest.raises(TransportError, match="cannot write"):
        Segments.create(tmp_path / "file", partitions=1)


# Damage


def test_damage_is_told_with_file_and_byte(log: Segments, folder: Path) -> None:
    """A changed byte in what is committed stops the reader there, and says where."""
    publish(log, numbers(1), numbers(1, 1))
    path = folder / "events-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(TransportError) as caught:
        values(log)
    assert caught.value.line() == (
        f"{path}, byte {len(data) // 2}: record batch fails its CRC; copy the folder anew from where it is whole"
    )


def test_lost_bytes_are_noticed(log: Segments, folder: Path) -> None:
    """A log shorter than its manifest says is an error to readers and to its writer."""
    publish(log, numbers(3))
    path = folder / "events-0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size - 1)

    with pytest.raises(TransportError, match="cut"):
        values(log)
    with pytest.raises(TransportError, match="1 bytes that were committed are missing"):
        log.claim(PUBLISH, ())
    path.unlink()
    with pytest.raises(TransportError, match="no segments left"):
        values(log)


@pytest.mark.parametrize("segment", [1, 2])
def test_a_missing_segment_is_noticed(log: Segments, folder: Path, segment: int) -> None:
    """No segment in the middle can go without being missed."""
    publish(log, *([event(os.urandom(400))] for _ in range(4)))
    (folder / "events-0" / f"{segment:020d}.log").unlink()

    with pytest.raises(TransportError, match=f"segment with record {segment} is missing"):
        list(log.records(EVENTS))


def test_retention_that_passed_the_offset_is_told(log: Segments, folder: Path) -> None:
    """A task whose next record is gone stops; one without offset begins where the log does."""
    publish(log, *([event(os.urandom(400))] for _ in range(4)))
    with log.claim("link-0", [EVENTS]) as claim:
        claim.poll(1)
        claim.commit([], {})
    for segment in (0, 1):
        (folder / "events-0" / f"{segment:020d}.log").unlink()

    assert [r.offset for r in log.records(EVENTS)] == [2, 3]
    with (
        log.claim("link-0", [EVENTS]) as claim,
        pytest.raises(TransportError, match="record 1 is asked for, but the partition begins at 2"),
    ):
        claim.poll(1)


def test_a_replaced_log_is_noticed(log: Segments, folder: Path) -> None:
    """An input that ends before the offset to go on from is refused, not waited for."""
    publish(log, numbers(5))
    with log.claim("link-0", [EVENTS]) as claim:
        drain(claim)
        claim.commit([], {})
    shutil.rmtree(folder / "events-0")
    (folder / "commits" / PUBLISH).unlink()

    with (
        Segments.open(folder) as again,
        pytest.raises(TransportError, match="events-0 ends before record 5, where link-0 is"),
    ):
        again.claim("link-0", [EVENTS])


@pytest.mark.parametrize("position", [0, 5, 10, 20, -1])
def test_a_damaged_manifest_is_refused(log: Segments, folder: Path, position: int) -> None:
    """Neither head nor state of a manifest is believed if a byte of it has changed."""
    with log.claim(PUBLISH, ()) as claim:
        claim.commit(numbers(1), {"some": b"state"})
    path = folder / "commits" / PUBLISH
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)

    with pytest.raises(TransportError, match="manifest"):
        log.claim(PUBLISH, ())


def test_manifests_have_these_bytes() -> None:
    """A manifest is written in exactly these bytes, and says the same again."""
    data = pack_manifest(
        "link-0", 3, {DELTAS: End(Offset(5), 600, Offset(7))}, {EVENTS: Offset(9)}, {"lane": b"state"}
    )

    assert data.hex() == GOLDEN_MANIFEST
    head = unpack_head(data)
    assert (head.task, head.commit, head.state_size) == ("link-0", 3, len(data) - head_end(data))
    assert head.ends() == {DELTAS: End(Offset(5), 600, Offset(7))}
    assert head.offsets() == {EVENTS: 9}


@given(st.binary(max_size=100))
def test_any_bytes_are_a_manifest_or_refused(data: bytes) -> None:
    """Whatever stands in a manifest file is one, or gives a DecodeError."""
    for start in (b"", b"GPLM\1\0\0\0"):
        with contextlib.suppress(DecodeError):
            unpack_head(start + data)


def test_a_manifest_that_goes_away_is_told(log: Segments, folder: Path) -> None:
    """A folder deleted under a reader is an error, not an endless wait."""
    publish(log, numbers(1))
    with log.claim("link-0", [EVENTS]) as claim:
        drain(claim)
        shutil.rmtree(folder)
        with pytest.raises(TransportError, match="manifest has gone"):
            claim.poll(1)


def test_closing_twice_is_harmless(log: Segments) -> None:
    """A claim and a log may be closed again."""
    claim: SegmentsClaim = log.claim(PUBLISH, ())
    claim.close()
    claim.close()
    log.close()
    log.close()
