"""Publishing: order, watermarks and ends of several captures that advance together."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from pathlib import Path

import pytest
from exports import ZERO, batches, call, export, facts, gpid, kernel, nvtx, published, rows, simple, trace

from schemas.errors import InputError
from schemas.events import decode
from schemas.records import Output, Topic
from schemas.types import END_OF_TIME, Kind, Process, partition_key
from stream.producers.publish import prepare, publish
from stream.producers.source import SourceOptions, find_captures, open_source, open_sources

CAPTURE = Process("", 0)


def many(path: Path, count: int, every: int, pid: int = 7, zero: int = ZERO) -> Path:
    """Write a capture of `count` kernels, launches and ranges, one each `every` ns."""
    tables = simple(
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(i * every + 10, i * every + 15, i, pid=pid) for i in range(count)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(i * every, i, pid=pid) for i in range(count)],
        NVTX_EVENTS=[nvtx(i * every - 1, i * every + 1, "r", pid=pid) for i in range(count)],
    )
    return export(path, tables, zero=zero)


def check_log(outputs: list[Output]) -> None:
    """Check what must hold of any published log, lane by lane."""
    ordinals: dict[tuple[str, Process, int], int] = defaultdict(int)
    watermarks: dict[tuple[str, Process], int] = {}
    ended: set[tuple[str, Process]] = set()
    for output in outputs:
        header = (batch := decode(output.value)).header
        if header.kind == Kind.SESSION_END:
            continue
        lane = (header.capture, header.process)
        assert output.key == partition_key(header.session, header.process)
        assert lane not in ended
        assert header.ordinal == ordinals[*lane, header.kind]
        ordinals[*lane, header.kind] += header.rows
        if header.rows and header.kind != Kind.FACTS:
            assert header.process != CAPTURE
            assert int(batch.columns["time"].min()) >= watermarks.get(lane, -(2**63))
        if header.watermark is not None:
            assert header.watermark > watermarks.get(lane, -(2**63))
            watermarks[lane] = header.watermark
        if header.kind == Kind.CAPTURE_END:
            assert header.watermark == END_OF_TIME
            ended.add(lane)
    assert ended == set(watermarks) | {(capture, CAPTURE) for capture, _ in ended}


def test_a_small_capture_is_facts_events_and_ends(tmp_path: Path) -> None:
    """In this order, the ends under every process and the capture, the last to all partitions."""
    _, out = published(export(tmp_path / "c.sqlite", simple()))
    kinds = [Kind(batch.kind) for batch in batches(out)]
    assert kinds == [
        Kind.FACTS,
        Kind.RANGE_OPENINGS,
        Kind.RANGE_CLOSINGS,
        Kind.LAUNCHES,
        Kind.KERNELS,
        Kind.CAPTURE_END,
        Kind.CAPTURE_END,
        *[Kind.SESSION_END] * 4,
    ]
    assert [output.partition for output in out[-4:]] == [0, 1, 2, 3]
    assert all(output.partition is None for output in out[:-4])
    assert {output.topic for output in out} == {Topic.EVENTS}
    assert batches(out, Kind.SESSION_END)[0].header.partitions == 4
    check_log(out)


def test_a_file_published_twice_gives_the_same_records(tmp_path: Path) -> None:
    """Under whatever name: a capture is known by its content."""
    first = many(tmp_path / "a.sqlite", 3000, 50)
    second = tmp_path / "b.sqlite"
    second.write_bytes(first.read_bytes())
    told, out = published(first)
    again, other = published(second)
    assert told.sources[0].capture == again.sources[0].capture
    events, others = (
        [output for output in found if decode(output.value).kind != Kind.FACTS] for found in (out, other)
    )
    assert events == others
    together, both = published(first, second)
    assert len(together.sources) == 1
    assert both == out


def test_captures_advance_together_in_session_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice goes to the same time in all; a process without rows in it is told of it too."""
    monkeypatch.setattr("stream.producers.publish.SLICE_ROWS", 1000)
    paths = [
        many(tmp_path / "a.sqlite", 4000, 50, pid=7),
        many(tmp_path / "b.sqlite", 3000, 80, pid=8),
        many(tmp_path / "c.sqlite", 2000, 10, pid=9, zero=ZERO + 150_000),
    ]
    _, out = published(*paths)
    check_log(out)
    reached: dict[Process, int] = defaultdict(int)
    for batch in batches(out):
        if batch.header.watermark is not None and batch.header.process != CAPTURE:
            reached[batch.header.process] = batch.header.watermark
        spread = [reached[Process("", gpid(pid))] for pid in (7, 8, 9)]
        if min(spread) and max(spread) < END_OF_TIME:
            assert max(spread) - min(spread) < 100_000
    assert len(rows(out, Kind.KERNELS)) == 9000


def test_a_capture_ends_once_it_has_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not wait for those that go on."""
    monkeypatch.setattr("stream.producers.publish.SLICE_ROWS", 1000)
    short, long = many(tmp_path / "a.sqlite", 100, 50, pid=7), many(tmp_path / "b.sqlite", 5000, 50, pid=8)
    _, out = published(short, long)
    check_log(out)
    ends = [batch.header.process for batch in batches(out) if batch.kind == Kind.CAPTURE_END]
    assert ends == [Process("", gpid(7)), CAPTURE, Process("", gpid(8)), CAPTURE]
    last = max(i for i, batch in enumerate(batches(out)) if batch.kind == Kind.KERNELS)
    assert last > next(i for i, batch in enumerate(batches(out)) if batch.kind == Kind.CAPTURE_END)


def test_ranges_open_across_slices_close_where_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closing comes in the slice of its time and names the row that opened it."""
    monkeypatch.setattr("stream.producers.publish.SLICE_ROWS", 500)
    path = many(tmp_path / "a.sqlite", 2000, 50)
    ranges = [nvtx(-10, 90_000, "long"), nvtx(-5, None, "open")] + [
        nvtx(i * 50, i * 50 + 9, "r") for i in range(2000)
    ]
    path = export(
        path,
        simple(
            NVTX_EVENTS=ranges,
            CUPTI_ACTIVITY_KIND_KERNEL=[kernel(i * 50, i * 50 + 9, 1) for i in range(2000)],
        ),
    )
    _, out = published(path)
    check_log(out)
    openings = {row["ordinal"]: row for row in rows(out, Kind.RANGE_OPENINGS)}
    closings = {row["opening"]: row["time"] for row in rows(out, Kind.RANGE_CLOSINGS)}
    assert openings[0]["name"] == "long"
    assert closings[0] == ZERO + 90_000
    assert set(openings) - set(closings) == {1}


def test_the_session_may_stay_open(tmp_path: Path) -> None:
    """More captures can then follow."""
    source = open_source(export(tmp_path / "c.sqlite", simple()))
    outputs: list[Output] = []
    publish(prepare([source]), "s", outputs.extend, 4, end_session=False)
    source.close()
    assert not batches(outputs, Kind.SESSION_END)


def test_progress_reaches_its_total(tmp_path: Path) -> None:
    """First of rows read, then of rows published."""
    source = open_source(many(tmp_path / "c.sqlite", 300, 5))
    told: dict[str, tuple[int, int]] = {}

    def progress(what: str, done: int, total: int) -> None:
        told[what] = (done, total)

    publish(prepare([source], progress), "s", lambda _: None, 1, progress=progress)
    source.close()
    assert told == {"reading": (900, 900), "publishing": (900, 900)}


def test_what_was_published_is_summed_up(tmp_path: Path) -> None:
    """By kind, with what was left out."""
    told, out = published(many(tmp_path / "c.sqlite", 300, 5))
    (source,) = told.sources
    assert source.events == {"range_openings": 300, "launches": 300, "kernels": 300}
    assert (source.name, source.format, source.processes) == ("c.sqlite", "nsys 3.99", 1)
    assert (told.records, told.bytes) == (len(out), sum(len(output.value) for output in out))


def test_a_capture_without_utc_is_refused_beside_another_one(tmp_path: Path) -> None:
    """An nsys export that lacks its start, or a trace whose times turn out to count from nowhere."""
    fine = many(tmp_path / "a.sqlite", 3, 5)
    for bad in (
        export(tmp_path / "b.sqlite", simple(), zero=None),
        trace(tmp_path / "t.json", [{"ph": "X", "ts": 5}]),
    ):
        published(bad)
        with pytest.raises(InputError, match="no time in UTC"):
            published(fine, bad)


def test_nothing_is_written_if_a_later_capture_cannot_be_read(tmp_path: Path) -> None:
    """All are read before the first record leaves."""
    bad = tmp_path / "t.json"
    bad.write_text('{"traceEvents": [')
    sources = [open_source(many(tmp_path / "a.sqlite", 3, 5)), open_source(bad)]
    outputs: list[Output] = []
    with pytest.raises(InputError):
        publish(prepare(sources), "s", outputs.extend, 1)
    for source in sources:
        source.close()
    assert outputs == []


def test_folders_stand_for_the_captures_in_them(tmp_path: Path) -> None:
    """By name, other files passed over; one without any is refused."""
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match="folder without captures"):
        find_captures(folder)
    many(folder / "b.sqlite", 3, 5)
    trace(folder / "a.json", [])
    sources = open_sources([folder, folder / "b.sqlite"], SourceOptions(memory=300))
    assert [source.name for source in sources] == ["a.json", "b.sqlite", "b.sqlite"]
    assert {source.options.memory for source in sources} == {100}
    for source in sources:
        source.close()


def test_unreadable_things_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, no permission, an empty file, a folder, a device, a file of another kind."""
    (tmp_path / "empty.sqlite").touch()
    (tmp_path / "text.txt").write_text("hello")

    def refused(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            open_source(path)
        return caught.value.line()

    assert "No such file" in refused(tmp_path / "absent.sqlite")
    assert "is empty" in refused(tmp_path / "empty.sqlite")
    assert "is a folder" in refused(tmp_path)
    assert "is not a regular file" in refused(Path("/dev/null"))
    assert "no capture of a known format" in refused(tmp_path / "text.txt")

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = many(tmp_path / "a.sqlite", 3, 5)
    monkeypatch.setattr(Path, "open", deny)
    assert "cannot be read: Permission denied; check its permissions" in refused(path)


def test_facts_come_first_and_say_where_things_are_from(tmp_path: Path) -> None:
    """The file's own name, never its path."""
    _, out = published(export(tmp_path / "secret-folder.sqlite", simple()))
    assert facts(out, "source.file") == ["secret-folder.sqlite"]
    assert facts(out, "source.format") == ["nsys 3.99"]
    assert not any(str(tmp_path).encode() in output.value for output in out)
    assert facts(out, "clock.utc_zero_ns") == [str(ZERO)]


def test_other_json_in_a_folder_is_no_capture(tmp_path: Path) -> None:
    """A ledger, a truth or spans beside captures are passed over; a trace that was cut is not."""
    (tmp_path / "spans.json").write_text("[[1, 2], [3, 4]]")
    (tmp_path / "ledger.json").write_text('{"label": "x"}')
    (tmp_path / "a.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    (tmp_path / "cut.json").write_text('{"schemaVersion": 1, "trac')
    assert [path.name for path in find_captures(tmp_path)] == ["a.json", "cut.json"]


def test_absurd_durations_are_left_out_and_counted(tmp_path: Path) -> None:
    """A kernel of years is damage; a few would take the sum of GPU time past what an integer holds."""
    capture = tmp_path / "a.json"
    kernels = [
        f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {ts}, "dur": {dur}, '
        f'"args": {{"device": 0, "stream": 7, "correlation": {ts}}}}}'
        for ts, dur in ((10, 5), (20, 2**41))
    ]
    capture.write_text(f'{{"schemaVersion": 1, "traceEvents": [{", ".join(kernels)}]}}')
    with contextlib.closing(open_source(capture)) as source:
        source.prepare(lambda *_: None)
        assert source.counts["time_unusable"] == 1
        assert source.events[Kind.KERNELS] == 1
