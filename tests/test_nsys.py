"""Reading Nsight Systems exports: what their many schemas mean, and what is said of bad ones."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import (
    STRINGS,
    ZERO,
    batches,
    call,
    export,
    facts,
    gpid,
    gtid,
    kernel,
    nvtx,
    published,
    query,
    rows,
    simple,
)

from schemas.errors import InputError
from schemas.types import NONE, Kind, Process
from stream.producers import runs
from stream.producers.source import SourceOptions, open_source


def read(tmp_path: Path, tables: dict[str, Any], **more: Any) -> Any:
    """Return the records of an export made of `tables`."""
    return published(export(tmp_path / "c.sqlite", tables, **more))[1]


def test_a_kernel_its_launch_and_its_range_are_published_in_utc(tmp_path: Path) -> None:
    """Times are the session's start in UTC plus those of the rows."""
    out = read(tmp_path, simple())
    (kernels,) = batches(out, Kind.KERNELS)
    assert kernels.header.process == Process("", gpid(7))
    assert (kernels.header.clock.base, kernels.header.clock.zero) == ("utc", ZERO)
    assert rows(out, Kind.KERNELS)[0] | {"process": 0} == {
        "time": ZERO + 200,
        "duration": 100,
        "device": 0,
        "stream": 7,
        "correlation": 1,
        "name": "gemm(float*)",
        "graph": NONE,
        "node": NONE,
        "ordinal": 0,
        "process": 0,
    }
    (launch,) = rows(out, Kind.LAUNCHES)
    assert (launch["time"], launch["thread"], launch["name"]) == (ZERO + 100, 70, "cudaLaunchKernel_v7000")
    (opening,) = rows(out, Kind.RANGE_OPENINGS)
    assert (opening["time"], opening["thread"], opening["domain"], opening["name"]) == (
        ZERO + 50,
        70,
        "",
        "step",
    )
    (closing,) = rows(out, Kind.RANGE_CLOSINGS)
    assert (closing["time"], closing["opening"]) == (ZERO + 150, 0)


def test_times_already_in_utc_are_taken_as_they_are(tmp_path: Path) -> None:
    """An export made with normalised times gives the same events as one without."""
    plain = read(tmp_path, simple())
    tables = simple(META_DATA_EXPORT=[{"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"}])
    for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        tables[name] = [
            {**row, "start": row["start"] + ZERO, "end": row["end"] + ZERO} for row in tables[name]
        ]
    assert rows(read(tmp_path, tables), Kind.KERNELS) == rows(plain, Kind.KERNELS)


def test_a_shift_of_times_is_taken_off_again(tmp_path: Path) -> None:
    """An export made with shifted times gives the same events as one without, and says so."""
    tables = simple(META_DATA_EXPORT=[{"name": "EXPORT_PARAM_TIME_SHIFT", "value": "-1000"}])
    for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        tables[name] = [
            {**row, "start": row["start"] - 1000, "end": row["end"] - 1000} for row in tables[name]
        ]
    out = read(tmp_path, tables)
    assert rows(out, Kind.KERNELS)[0]["time"] == ZERO + 200
    assert any("-1000 ns" in note for note in facts(out, "source.note"))


def test_without_a_start_in_utc_the_clock_has_no_base(tmp_path: Path) -> None:
    """Times are then those of the rows, and the capture says what it lacks."""
    out = read(tmp_path, simple(), zero=None)
    (kernels,) = batches(out, Kind.KERNELS)
    assert (kernels.header.clock.base, kernels.header.clock.zero) == ("none", 0)
    assert rows(out, Kind.KERNELS)[0]["time"] == 200
    assert any("UTC" in words for words in facts(out, "source.missing"))


def test_negative_times_are_legal(tmp_path: Path) -> None:
    """The session's start is no bound: something may have begun before."""
    out = read(tmp_path, simple(NVTX_EVENTS=[nvtx(-500, 150, "early")]))
    assert rows(out, Kind.RANGE_OPENINGS)[0]["time"] == ZERO - 500


def test_64_bit_ids_survive_to_the_last_bit(tmp_path: Path) -> None:
    """Ids beyond 2**53 and negative ones are exact; a process's shown pid is its bits 24 to 47."""
    pid, big = 0xABCDEF, 2**62 + 1
    process = gpid(pid, vm=3, hardware=0xFF)
    tables = simple(
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(200, 300, big) | {"globalPid": process, "streamId": -(2**62) - 1}],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(100, big) | {"globalTid": process | 0xFEDCBA}],
    )
    out = read(tmp_path, tables)
    (row,) = rows(out, Kind.KERNELS)
    assert process < 0
    assert row["correlation"] == big
    assert row["stream"] == -(2**62) - 1
    assert row["process"] == Process("", 0xFF03_ABCDEF_000000)
    assert row["process"].pid == pid
    assert rows(out, Kind.LAUNCHES)[0]["thread"] == 0xFEDCBA


def test_only_launches_some_gpu_row_refers_to_are_published(tmp_path: Path) -> None:
    """The id must occur in the same process: of kernels, memory operations or graph traces."""
    tables = simple(
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(200, 300, 1, pid=7), kernel(200, 300, 5, pid=8)],
        CUPTI_ACTIVITY_KIND_MEMCPY=[kernel(1, 2, 2) | {"bytes": 9, "copyKind": 1}],
        CUPTI_ACTIVITY_KIND_MEMSET=[kernel(1, 2, 3) | {"bytes": 9}],
        CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[kernel(1, 2, 4) | {"graphId": 3}],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(100 + c, c) for c in (5, 4, 3, 2, 1, 6)],
    )
    told, out = published(export(tmp_path / "c.sqlite", tables))
    assert sorted(row["correlation"] for row in rows(out, Kind.LAUNCHES)) == [1, 2, 3, 4]
    assert told.sources[0].counts["launches_unused"] == 2


def test_backtrace_rows_are_no_launches(tmp_path: Path) -> None:
    """Rows of class 67 repeat the id of a call and are counted apart."""
    tables = simple(CUPTI_ACTIVITY_KIND_RUNTIME=[call(100), call(90, eventClass=67)])
    told, out = published(export(tmp_path / "c.sqlite", tables))
    assert [row["time"] for row in rows(out, Kind.LAUNCHES)] == [ZERO + 100]
    assert told.sources[0].counts["backtraces"] == 1


def test_names_come_from_text_or_from_registered_strings(tmp_path: Path) -> None:
    """Of `text` and `textId` exactly one is filled; an id without a string is no name, and counted."""
    tables = simple(
        NVTX_EVENTS=[nvtx(1, 9, "typed"), nvtx(2, 8, textId=1), nvtx(3, 7, textId=99), nvtx(4, 6)],
    )
    told, out = published(export(tmp_path / "c.sqlite", tables))
    assert [row["name"] for row in rows(out, Kind.RANGE_OPENINGS)] == ["typed", "gemm(float*)", "", ""]
    assert told.sources[0].counts["names_unknown"] == 1


def test_hostile_names_become_valid_text(tmp_path: Path) -> None:
    """NUL, line breaks, invalid UTF-8, surrogates and a megabyte all arrive, escaped or cut."""
    bad = b"a\xffb\xed\xa0\x80"
    tables = simple(
        StringIds=[{"id": 1, "value": "k\0\n" + "x" * 1_000_000}, {"id": 2, "value": "launch"}],
        NVTX_EVENTS=[
            nvtx(1, 9, "a\0b\nc"),
            nvtx(2, 8, bad),
            nvtx(3, 7, "ü" * 500_000),
            nvtx(4, 6, '=cmd()"'),
        ],
    )
    path = export(tmp_path / "c.sqlite", tables)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(text AS TEXT)")
    connection.close()
    _, out = published(path)
    names = [row["name"] for row in rows(out, Kind.RANGE_OPENINGS)]
    assert names[0] == "a\0b\nc"
    assert names[1] == "a\\xffb\\xed\\xa0\\x80"
    assert names[2].startswith("üü")
    assert "(1000000 bytes, " in names[2]
    assert names[3] == '=cmd()"'
    assert len(rows(out, Kind.KERNELS)[0]["name"]) <= 32 * 1024


def test_values_of_the_wrong_type_do_not_stop_reading(tmp_path: Path) -> None:
    """SQLite holds anything anywhere: a number as text, a name as a number, NULL first, text later."""
    tables = simple(
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(200, 300, "1"), kernel(200.0, 300, None), kernel("250", 300, 1)],
        NVTX_EVENTS=[nvtx(1, 9, None), nvtx(2, 8, 12345), nvtx(3, 7, 1.5)],
    )
    out = read(tmp_path, tables)
    assert sorted(row["correlation"] for row in rows(out, Kind.KERNELS)) == [NONE, 1, 1]
    assert [row["name"] for row in rows(out, Kind.RANGE_OPENINGS)] == ["", "12345", "1.5"]


def test_rows_without_usable_times_are_left_out_and_counted(tmp_path: Path) -> None:
    """A start that is NULL or absurdly far away, or a kernel without an end, is no event."""
    tables = simple(
        CUPTI_ACTIVITY_KIND_KERNEL=[
            kernel(200, 300),
            kernel(None, 300),
            kernel(2**62, 2**62 + 1),
            kernel(1, None),
        ],
        NVTX_EVENTS=[nvtx(50, None, "open"), nvtx(None, 3, "gone"), nvtx(60, 2**63 - 1, "too long")],
    )
    told, out = published(export(tmp_path / "c.sqlite", tables))
    assert len(rows(out, Kind.KERNELS)) == 1
    assert [row["name"] for row in rows(out, Kind.RANGE_OPENINGS)] == ["open"]
    assert told.sources[0].counts["time_unusable"] == 5


def test_unsorted_rows_are_published_in_order(tmp_path: Path) -> None:
    """Ties: longer ranges first, no end the longest, then the order of rows."""
    tables = simple(
        NVTX_EVENTS=[
            nvtx(50, 60, "d"),
            nvtx(50, 70, "b"),
            nvtx(10, 20, "first"),
            nvtx(50, 70, "c"),
            nvtx(50, None, "a"),
        ],
    )
    out = read(tmp_path, tables)
    assert [row["name"] for row in rows(out, Kind.RANGE_OPENINGS)] == ["first", "a", "b", "c", "d"]
    assert [row["opening"] for row in rows(out, Kind.RANGE_CLOSINGS)] == [0, 4, 2, 3]


def test_a_range_that_ends_before_it_starts_is_as_short_as_can_be(tmp_path: Path) -> None:
    """It contains nothing either way, and its closing is not late from the outset."""
    out = read(tmp_path, simple(NVTX_EVENTS=[nvtx(50, 20, "backwards")]))
    assert rows(out, Kind.RANGE_CLOSINGS)[0]["time"] == ZERO + 50


def test_start_end_ranges_belong_to_the_process(tmp_path: Path) -> None:
    """Events of type 60 have no thread, those of type 34 are marks, others are no events."""
    tables = simple(
        NVTX_EVENTS=[
            nvtx(1, 9, "start-end", eventType=60),
            nvtx(2, None, "mark", eventType=34),
            nvtx(3, None, "category", eventType=33),
            nvtx(4, None, "gone", eventType=76),
        ],
    )
    out = read(tmp_path, tables)
    assert [(row["name"], row["thread"]) for row in rows(out, Kind.RANGE_OPENINGS)] == [("start-end", NONE)]
    assert [(row["name"], row["thread"]) for row in rows(out, Kind.MARKS)] == [("mark", 70)]


def test_domains_are_named_by_process(tmp_path: Path) -> None:
    """The same id means another domain in another process; one never named is shown by its id."""
    tables = simple(
        NVTX_EVENTS=[
            nvtx(1, None, "NCCL", eventType=75, domainId=1, pid=7),
            nvtx(1, None, None, eventType=75, domainId=1, pid=8, textId=1),
            nvtx(5, 9, "a", domainId=1, pid=7),
            nvtx(6, 9, "b", domainId=1, pid=8),
            nvtx(7, 9, "c", domainId=2, pid=8),
            nvtx(8, 9, "d", pid=8),
        ],
    )
    found = {row["name"]: row["domain"] for row in rows(read(tmp_path, tables), Kind.RANGE_OPENINGS)}
    assert found == {"a": "NCCL", "b": "gemm(float*)", "c": "domain 2", "d": ""}


def test_threads_and_processes_are_named_and_ranks_follow(tmp_path: Path) -> None:
    """Only of processes that have events: PROCESSES lists the whole machine."""
    tables = simple(
        StringIds=[*STRINGS, {"id": 3, "value": "MPI Rank 12"}, {"id": 4, "value": "elsewhere"}],
        PROCESSES=[
            {"globalPid": gpid(7), "pid": 7, "name": b"python"},
            {"globalPid": gpid(9), "pid": 9, "name": "sshd"},
        ],
        ThreadNames=[{"nameId": 3, "globalTid": gtid(7, 70)}, {"nameId": 4, "globalTid": gtid(9, 90)}],
        NVTX_EVENTS=[nvtx(1, 9, "a"), nvtx(4, None, "main", eventType=39)],
    )
    out = read(tmp_path, tables)
    assert facts(out, "process.name") == ["python"]
    assert facts(out, "thread.name") == ["MPI Rank 12", "main"]
    assert facts(out, "process.rank") == ["12"]


def test_graph_nodes_are_split_and_a_filled_graph_id_wins(tmp_path: Path) -> None:
    """The high half of graphNodeId is the graph, the low one the node."""
    tables = simple(
        CUPTI_ACTIVITY_KIND_KERNEL=[
            kernel(1, 2, graphNodeId=5 << 32 | 9, graphId=None),
            kernel(2, 3, graphNodeId=5 << 32 | 9, graphId=77),
            kernel(3, 4),
        ],
    )
    found = [(row["graph"], row["node"]) for row in rows(read(tmp_path, tables), Kind.KERNELS)]
    assert found == [(5, 9), (77, 9), (NONE, NONE)]


def test_graphs_traced_whole_are_said_to_hide_their_kernels(tmp_path: Path) -> None:
    """They are graph launches with a time, never kernels."""
    tables = simple(CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[kernel(5, 25, 4, graphId=3)])
    out = read(tmp_path, tables)
    (row,) = rows(out, Kind.GRAPHS)
    assert (row["duration"], row["correlation"], row["graph"]) == (20, 4, 3)
    assert any("--cuda-graph-trace=node" in note for note in facts(out, "source.note"))


def test_memory_operations_say_from_where_to_where(tmp_path: Path) -> None:
    """As far as the export says it; unified memory moves have id 0."""
    tables = simple(
        CUPTI_ACTIVITY_KIND_MEMCPY=[
            kernel(1, 2, bytes=64, copyKind=1, srcKind=1, dstKind=2),
            kernel(2, 3, 0, bytes=65, copyKind=11, srcKind=4, dstKind=None),
            kernel(3, 4, bytes=None, copyKind=99),
        ],
        CUPTI_ACTIVITY_KIND_MEMSET=[kernel(1, 2, bytes=4, memKind=2)],
    )
    found = [(row["operation"], row["bytes"]) for row in rows(read(tmp_path, tables), Kind.MEMORY)]
    assert found == [
        ("Memcpy HtoD (Pinned -> Device)", 64),
        ("Memset (Device)", 4),
        ("Memcpy unified HtoD", 65),
        ("Memcpy kind 99", 0),
    ]


def test_gpu_rows_without_a_process_are_those_of_the_only_one_that_called(tmp_path: Path) -> None:
    """Where the column is missing or empty and RUNTIME names one process."""
    row = kernel(200, 300)
    del row["globalPid"]
    out = read(tmp_path, simple(CUPTI_ACTIVITY_KIND_KERNEL=[row]))
    assert rows(out, Kind.KERNELS)[0]["process"] == Process("", gpid(7))
    assert len(rows(out, Kind.LAUNCHES)) == 1
    out = read(tmp_path, simple(CUPTI_ACTIVITY_KIND_KERNEL=[kernel(200, 300), kernel(9, 10, globalPid=None)]))
    assert {row["process"] for row in rows(out, Kind.KERNELS)} == {Process("", gpid(7))}


def test_gpu_rows_without_a_process_are_linked_to_nothing_where_several_called(tmp_path: Path) -> None:
    """They keep their place in the figures, lose their correlation id, and a note says why."""
    tables = simple(
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(200, 300, globalPid=None)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(100, pid=8), call(100, pid=7)],
    )
    out = read(tmp_path, tables)
    (row,) = rows(out, Kind.KERNELS)
    assert (row["process"], row["correlation"]) == (Process("", gpid(7)), NONE)
    assert any("no process" in note for note in facts(out, "source.note"))


def test_a_suffixed_table_is_read_like_the_plain_one(tmp_path: Path) -> None:
    """Of both, the one that has rows; of two with rows, the newer."""
    tables = simple()
    tables["CUPTI_ACTIVITY_KIND_KERNEL_V2"] = [kernel(200, 300), kernel(300, 400)]
    assert len(rows(read(tmp_path, tables), Kind.KERNELS)) == 2


def test_tables_that_are_views_are_read_too(tmp_path: Path) -> None:
    """A view has no row ids to cut it by."""
    path = export(tmp_path / "c.sqlite", simple())
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO K")
        connection.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM K")
    connection.close()
    assert len(rows(published(path)[1], Kind.KERNELS)) == 1


def test_row_ids_far_apart_are_no_obstacle(tmp_path: Path) -> None:
    """A table is cut by row ids, but never into more pieces than make sense."""
    path = export(tmp_path / "c.sqlite", simple())
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO NVTX_EVENTS SELECT * FROM NVTX_EVENTS")
        connection.execute("UPDATE NVTX_EVENTS SET rowid = 4611686018427387904 WHERE rowid = 2")
        connection.execute("UPDATE NVTX_EVENTS SET rowid = -4611686018427387904 WHERE rowid = 1")
    connection.close()
    assert len(rows(published(path)[1], Kind.RANGE_OPENINGS)) == 2


def test_what_nsys_says_it_collected_is_told(tmp_path: Path) -> None:
    """Its sum over processes stands beside the number of rows it means."""
    tables = simple(
        DIAGNOSTIC_EVENT=[
            {"text": "Number of CUDA events collected: \t2."},
            {"text": "Number of CUDA events collected: \t5."},
            {"text": "Not all CUDA events might have been collected."},
        ],
    )
    told, out = published(export(tmp_path / "c.sqlite", tables))
    assert (told.sources[0].counts["collected"], told.sources[0].counts["exported"]) == (7, 2)
    assert len(facts(out, "source.note")) == 2


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Tables are left out when empty: a capture may lack kernels, calls and ranges."""
    told, _ = published(export(tmp_path / "c.sqlite", {}))
    assert [words.partition(":")[0] for words in told.sources[0].missing] == [
        "GPU kernels",
        "CUDA calls",
        "NVTX ranges",
    ]


def test_the_host_is_the_traced_machine_and_never_the_exporting_one(tmp_path: Path) -> None:
    """Secrets of its environment stay in the export."""
    tables = simple(
        META_DATA_EXPORT=[{"name": "EXPORT_HOST", "value": "laptop"}],
        TARGET_INFO_SYSTEM_ENV=[
            {"name": "Hostname", "value": "node17"},
            {"name": "CudaDriverVersion", "value": "13000"},
            {"name": "DeviceEnvironment", "value": "TOKEN=hunter2"},
        ],
    )
    out = read(tmp_path, tables)
    assert rows(out, Kind.KERNELS)[0]["process"].host == "node17"
    assert facts(out, "metadata.cuda") == ["13000"]
    assert not any(b"hunter2" in output.value for output in out)


def test_a_write_ahead_log_beside_the_file_is_read_and_left_alone(tmp_path: Path) -> None:
    """What was not checkpointed counts, and the folder looks as before."""
    path = export(tmp_path / "c.sqlite", simple(), wal=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(before) == {"c.sqlite", "c.sqlite-wal"}
    assert len(rows(published(path)[1], Kind.KERNELS)) == 1
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_written_to_is_enough(tmp_path: Path) -> None:
    """Nothing is written beside a capture, whatever its name."""
    folder = tmp_path / "100% of #1?"
    folder.mkdir()
    path = export(folder / "c.sqlite", simple())
    os.chmod(folder, 0o500)  # noqa: PTH101 -- says what it does
    try:
        published(path)
        assert [file.name for file in folder.iterdir()] == ["c.sqlite"]
    finally:
        folder.chmod(0o700)


def test_memory_and_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same records come of many runs on disk as of one in memory."""
    random = np.random.default_rng(5)
    starts = random.integers(0, 2000, 3000).tolist()
    ranges = [
        nvtx(
            start,
            start + 40 if i % 9 else None,
            f"op {i % 1500}",
            pid=7 + i % 2,
            tid=i % 3,
            textId=None if i % 4 else 1,
        )
        for i, start in enumerate(starts)
    ]
    kernels = [kernel(start, start + 3, i, pid=7 + i % 2) for i, start in enumerate(starts)]
    calls = [call(start - 1, i, pid=7 + i % 2) for i, start in enumerate(starts)]
    tables = simple(NVTX_EVENTS=ranges, CUPTI_ACTIVITY_KIND_KERNEL=kernels, CUPTI_ACTIVITY_KIND_RUNTIME=calls)
    path = export(tmp_path / "c.sqlite", tables)
    whole = published(path)[1]
    monkeypatch.setattr("stream.producers.nsys.RUN_ROWS", 100)
    for options in (
        SourceOptions(memory=0),
        SourceOptions(memory=0, threads=1),
        SourceOptions(memory=30_000),
    ):
        assert published(path, options=options)[1] == whole
    assert runs.RUN_ROWS > 100


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_slices_keep_order_and_close_every_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """However small the slices, rows are in order, none twice, each closing behind its opening."""
    monkeypatch.setattr("stream.producers.publish.SLICE_ROWS", 1)
    ranges = [nvtx(i * 7919 % 5000, i * 7919 % 5000 + i % 900, f"r{i}") for i in range(4000)]
    path = export(tmp_path / "c.sqlite", simple(NVTX_EVENTS=ranges))
    _, out = published(path, options=SourceOptions(memory=memory))
    opened, closed, watermark = 0, set(), -(2**63)
    times: dict[int, int] = {}
    for batch in batches(out):
        if batch.kind == Kind.RANGE_OPENINGS:
            assert batch.header.ordinal == opened
            times |= {opened + i: time for i, time in enumerate(batch.columns["time"].tolist())}
            opened += batch.header.rows
        if batch.kind == Kind.RANGE_CLOSINGS:
            for opening, time in zip(
                batch.columns["opening"].tolist(), batch.columns["time"].tolist(), strict=True
            ):
                assert times[opening] <= time
                assert opening not in closed
                closed.add(opening)
        if batch.header.rows and batch.kind != Kind.FACTS:
            assert int(batch.columns["time"].min()) >= watermark
        if batch.header.watermark is not None and batch.header.process.global_pid:
            watermark = batch.header.watermark
    assert opened == len(closed) == 4000
    assert list(times.values()) == sorted(times.values())


def say(path: Path) -> str:
    """Return the one line said of a capture that cannot be read."""
    with pytest.raises(InputError) as caught:
        published(path)
    line = caught.value.line()
    assert "\n" not in line
    assert str(path) in line
    return line


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """By its content, whatever its name."""
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"hello, world" * 100)
    assert "is not an SQLite database" in say(path)
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert "is not an SQLite database" in say(path)


def test_a_truncated_database_is_refused(tmp_path: Path, captures: Path) -> None:
    """At any length: by its size, by the page that is missing, by its first page."""
    whole = (captures / "cupy_registered_strings_2025.3.sqlite").read_bytes()
    path = tmp_path / "c.sqlite"
    for size in (20, 99, 100, 4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "is cut" in say(path)


def test_a_damaged_database_is_refused(tmp_path: Path, captures: Path) -> None:
    """A page of rubbish in the middle makes one clear line, and no figure."""
    path = tmp_path / "c.sqlite"
    shutil.copyfile(captures / "training_steps_2024.sqlite", path)
    path.chmod(0o600)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 8192))
    assert "damaged" in say(path)


def test_a_damaged_schema_is_refused(tmp_path: Path) -> None:
    """Also where SQLite quotes bytes of it that are no text."""
    path = export(tmp_path / "c.sqlite", simple())
    path.write_bytes(
        path.read_bytes().replace(b"CUPTI_ACTIVITY_KIND_KERNEL", b"CUP\x80I_ACTIVITY_KIND_KERNEL", 1)
    )
    assert "SQLite cannot read it: malformed database schema" in say(path)


def test_numbers_in_texts_may_have_any_length(tmp_path: Path) -> None:
    """What is no rank and no count of events is passed over."""
    text = f"Number of CUDA events collected: {'9' * 5000}"
    path = export(
        tmp_path / "c.sqlite",
        simple(
            DIAGNOSTIC_EVENT=[{"text": text}],
            StringIds=[*STRINGS, {"id": 9, "value": f"MPI Rank {'9' * 5000}"}],
            ThreadNames=[{"globalTid": gtid(7, 70), "nameId": 9}],
        ),
    )
    out = published(path)[1]
    assert len(rows(out, Kind.KERNELS)) == 1
    assert facts(out, "process.rank") == []


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    """It says how to make one of a report."""
    path = tmp_path / "c.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cats (name)")
    connection.close()
    assert "nsys export --type sqlite" in say(path)


def test_a_table_without_a_needed_column_is_refused(tmp_path: Path) -> None:
    """Rather than counted as empty."""
    path = export(tmp_path / "c.sqlite", simple(CUPTI_ACTIVITY_KIND_KERNEL=[{"begin": 1}]))
    assert "CUPTI_ACTIVITY_KIND_KERNEL has no column start" in say(path)


def test_a_report_is_refused_with_how_to_export_it(tmp_path: Path) -> None:
    """The format of reports is NVIDIA's own."""
    path = tmp_path / "my report.nsys-rep"
    path.write_bytes(b"\x01\x02\x03\x04")
    assert "nsys export --type sqlite my report.nsys-rep" in say(path)


def test_every_real_capture_gives_the_rows_its_tables_hold(captures: Path) -> None:
    """Kernels, GPU time and ranges, as SQLite itself adds them up."""
    for path in sorted(captures.glob("*.sqlite")):
        _, out = published(path)
        names = {name for (name,) in query(path, "SELECT name FROM sqlite_master")}
        kernels = rows(out, Kind.KERNELS)
        if "CUPTI_ACTIVITY_KIND_KERNEL" in names:
            ((count, total),) = query(
                path, 'SELECT count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL'
            )
            assert (len(kernels), sum(row["duration"] for row in kernels)) == (count, total or 0)
        if "NVTX_EVENTS" in names:
            ((ranges,),) = query(path, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60)")
            assert len(rows(out, Kind.RANGE_OPENINGS)) == ranges
            ((names_told,),) = query(
                path,
                "SELECT count(DISTINCT COALESCE(text, value)) FROM NVTX_EVENTS "
                "LEFT JOIN StringIds ON id = textId WHERE eventType IN (59, 60)",
            )
            assert len({row["name"] for row in rows(out, Kind.RANGE_OPENINGS)}) == names_told


def test_every_real_capture_is_whole_by_what_nsys_says_it_collected(captures: Path) -> None:
    """Where it says so: proof of a whole export."""
    said = 0
    for path in sorted(captures.glob("*.sqlite")):
        counts = published(path)[0].sources[0].counts
        if "collected" in counts:
            said += 1
            assert counts["collected"] == counts["exported"]
    assert said == 6


def test_options_do_not_leak_between_sources(tmp_path: Path) -> None:
    """Closing one source twice, or never preparing it, is harmless."""
    source = open_source(export(tmp_path / "c.sqlite", simple()))
    source.close()
    source.close()
