"""Reading Kineto traces: exact times, one process a file, and JSON as profilers print it."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exports import batches, facts, published, rows, trace
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InputError
from schemas.types import NONE, Kind, Process
from stream.producers.source import SourceOptions
from stream.producers.tracejson import nanoseconds_of

US = 1_700_000_000_000_000
"""A moment in microseconds since 1970."""


def event(
    cat: str, ts: Any, dur: Any = 5, name: str = "n", pid: Any = 42, tid: Any = 43, **args: Any
) -> dict[str, Any]:
    """Return a complete event."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(ts: Any, dur: Any = 5, correlation: Any = 1, **more: Any) -> dict[str, Any]:
    """Return a kernel on device 0, stream 7."""
    return event(
        "kernel", ts, dur, "gemm", 0, 7, **({"device": 0, "stream": 7, "correlation": correlation} | more)
    )


def simple() -> list[dict[str, Any]]:
    """Return a kernel, its launch and an annotation around that."""
    return [
        kernel(US + 20),
        event("cuda_runtime", US + 10, name="cudaLaunchKernel", correlation=1),
        event("user_annotation", US, 30, "step"),
    ]


def test_a_kernel_its_launch_and_its_annotation_are_published(tmp_path: Path) -> None:
    """Under the pid of the runtime rows, with the GPU's own numbers for device and stream."""
    out = published(trace(tmp_path / "t.json", simple()))[1]
    (row,) = rows(out, Kind.KERNELS)
    assert row["process"] == Process("", 42 << 24)
    assert row["process"].pid == 42
    assert (row["time"], row["duration"]) == ((US + 20) * 1000, 5000)
    assert (row["device"], row["stream"], row["name"]) == (0, 7, "gemm")
    assert (row["graph"], row["node"]) == (NONE, NONE)
    assert rows(out, Kind.LAUNCHES)[0]["thread"] == 43
    assert [r["name"] for r in rows(out, Kind.RANGE_OPENINGS)] == ["step"]
    (kernels,) = batches(out, Kind.KERNELS)
    assert (kernels.header.clock.base, kernels.header.clock.zero) == ("utc", US * 1000)


def test_fractional_microseconds_are_exact(tmp_path: Path) -> None:
    """A double would be off by a hundred nanoseconds and more."""
    path = tmp_path / "t.json"
    text = json.dumps({"traceEvents": [kernel("TS", "DUR")], "baseTimeNanoseconds": 1751410836000000001})
    path.write_text(text.replace('"TS"', "1700000000000000.123").replace('"DUR"', "0.769"))
    (row,) = rows(published(path)[1], Kind.KERNELS)
    assert (row["time"], row["duration"]) == (1751410836000000001 + 1700000000000000123, 769)


@given(st.integers(-(10**18), 10**18), st.integers(0, 6), st.sampled_from(["", "e3", "E-2", "e+0"]))
def test_microseconds_become_nanoseconds_by_their_digits(digits: int, places: int, exponent: str) -> None:
    """Any decimal number is converted as exactly as decimal arithmetic does it, rounded down."""
    sign, text = ("-" if digits < 0 else ""), str(abs(digits)).zfill(places + 1)
    written = sign + (f"{text[:-places]}.{text[-places:]}" if places else text) + exponent
    exact = Decimal(written) * 1000
    expected = int(exact.to_integral_value(rounding="ROUND_FLOOR"))
    assert nanoseconds_of(msgspec.Raw(written.encode())) == expected


@pytest.mark.parametrize(
    "written",
    [
        *("", "null", "true", "[]", '"abc"', "1e999999999", "nan"),
        *("9" * 5000, "1." + "9" * 5000, "1e" + "9" * 5000, "1e-" + "9" * 5000),
    ],
)
def test_what_is_no_number_is_no_time(written: str) -> None:
    """An absurd number or exponent is not computed first."""
    assert nanoseconds_of(msgspec.Raw(written.encode())) is None


def test_launches_no_gpu_row_refers_to_are_counted_only(tmp_path: Path) -> None:
    """As are events without a usable time."""
    events = [*simple(), event("cuda_runtime", US, correlation=9), event("cuda_driver", US), kernel("soon")]
    told, out = published(trace(tmp_path / "t.json", events))
    assert len(rows(out, Kind.LAUNCHES)) == 1
    assert told.sources[0].counts == {"launches_unused": 2, "time_unusable": 1}


def test_times_beyond_what_can_be_added_up_are_counted_only(tmp_path: Path) -> None:
    """Also where only the trace's base puts them there: no record holds what no linker can read."""
    late = 2**61 // 1000 - 1
    events = [kernel(late), event("cuda_runtime", late, correlation=1), event("user_annotation", late, late)]
    out = published(trace(tmp_path / "t.json", events, baseTimeNanoseconds=2**62 - 1))[1]
    assert not rows(out, Kind.KERNELS)
    assert json.loads(facts(out, "source.counts")[0])["time_unusable"] == 3


def test_what_a_trace_says_of_itself_may_be_anything(tmp_path: Path) -> None:
    """Bytes of no encoding, numbers of thousands of digits: shown or passed over, never a fault."""
    name = {
        "ph": "M",
        "name": "thread_name",
        "pid": 42,
        "tid": 43,
        "args": {"name": "MPI Rank " + "9" * 5000},
    }
    path = trace(tmp_path / "t.json", [*simple(), name], schemaVersion="SV", distributedInfo={"rank": "R"})
    text = path.read_bytes().replace(b'"R"', b"9" * 5000).replace(b"SV", b"\xff")
    path.write_bytes(text)
    out = published(path)[1]
    assert len(rows(out, Kind.KERNELS)) == 1
    assert facts(out, "source.format") == ['kineto "\\xff"']
    assert facts(out, "process.rank") == []


def test_annotations_of_the_gpu_are_no_ranges_of_a_thread(tmp_path: Path) -> None:
    """Neither by their category nor, in old traces, by the GPU's number in place of a pid."""
    events = [
        *simple(),
        event("gpu_user_annotation", US, name="gpu side"),
        event("user_annotation", US, name="old gpu side", pid=0, tid=7),
    ]
    out = published(trace(tmp_path / "t.json", events))[1]
    assert [row["name"] for row in rows(out, Kind.RANGE_OPENINGS)] == ["step"]


def test_operators_are_ranges_on_request(tmp_path: Path) -> None:
    """`cpu_op` rows join the annotations, longer ones first where they start together."""
    path = trace(tmp_path / "t.json", [event("cpu_op", US, 20, "aten::mm"), *simple()])
    assert len(rows(published(path)[1], Kind.RANGE_OPENINGS)) == 1
    out = published(path, options=SourceOptions(cpu_ops=True))[1]
    assert [row["name"] for row in rows(out, Kind.RANGE_OPENINGS)] == ["step", "aten::mm"]


def test_without_callers_the_process_is_the_one_labelled_cpu(tmp_path: Path) -> None:
    """Without either it is process 0, and the kernels are still there."""
    label = {"ph": "M", "name": "process_labels", "pid": 99, "tid": 0, "ts": US, "args": {"labels": "CPU"}}
    out = published(trace(tmp_path / "t.json", [kernel(US), label]))[1]
    assert rows(out, Kind.KERNELS)[0]["process"].pid == 99
    out = published(trace(tmp_path / "u.json", [kernel(US)]))[1]
    assert rows(out, Kind.KERNELS)[0]["process"].pid == 0


def test_rank_devices_and_names_are_facts(tmp_path: Path) -> None:
    """From distributedInfo, deviceProperties and metadata events."""
    name = {"ph": "M", "name": "process_name", "pid": 42, "tid": 0, "ts": US, "args": {"name": "python3"}}
    beside = {
        "distributedInfo": {"rank": 3, "world_size": 8},
        "deviceProperties": [{"id": 0, "name": "H100", "numSms": 132}],
        "cuda_driver_version": 12090,
    }
    out = published(trace(tmp_path / "t.json", [name, *simple()], **beside))[1]
    assert (facts(out, "process.rank"), facts(out, "process.world_size")) == (["3"], ["8"])
    assert facts(out, "process.name") == ["python3"]
    assert json.loads(facts(out, "device")[0]) == {"device": 0, "name": "H100", "numSms": 132}
    assert (facts(out, "metadata.gpu"), facts(out, "metadata.driver")) == (["H100"], ["12090"])


def test_node_ids_are_taken_where_a_trace_has_them(tmp_path: Path) -> None:
    """Zero stands for none."""
    ids = {"graph node id": 5 << 32 | 9, "graph id": 0}
    out = published(trace(tmp_path / "t.json", [kernel(US, **ids), kernel(US + 1, **dict.fromkeys(ids, 0))]))[
        1
    ]
    assert [(row["graph"], row["node"]) for row in rows(out, Kind.KERNELS)] == [(5, 9), (NONE, NONE)]


def test_times_from_an_unknown_moment_have_no_base(tmp_path: Path) -> None:
    """A trace that counts from the start of the machine cannot be put beside others."""
    out = published(trace(tmp_path / "t.json", [kernel(1000)]))[1]
    (kernels,) = batches(out, Kind.KERNELS)
    assert (kernels.header.clock.base, kernels.header.clock.zero) == ("none", 0)


def test_gzip_and_a_bare_list_of_events_are_read_alike(tmp_path: Path) -> None:
    """By content, whatever the file is called."""
    plain = rows(published(trace(tmp_path / "t.json", simple()))[1], Kind.KERNELS)
    packed, bare = tmp_path / "packed", tmp_path / "bare"
    packed.write_bytes(gzip.compress((tmp_path / "t.json").read_bytes()))
    bare.write_text("\ufeff\n " + json.dumps(simple()))
    assert rows(published(packed)[1], Kind.KERNELS) == plain
    assert rows(published(bare)[1], Kind.KERNELS) == plain


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb"a\u0000b\nc", "a\0b\nc"),
        (b"raw\nbreak", "raw\nbreak"),
        (b"bad\xff\xfe", "bad\\xff\\xfe"),
        (rb"\ud800 alone", "\\ud800 alone"),
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"=cmd()\"", '=cmd()"'),
    ],
)
def test_hostile_names_become_valid_text(tmp_path: Path, written: bytes, read: str) -> None:
    """Whatever a profiler printed, a name arrives, and the rest of the trace with it."""
    path = tmp_path / "t.json"
    path.write_bytes(json.dumps({"traceEvents": simple()}).encode().replace(b"gemm", written))
    assert rows(published(path)[1], Kind.KERNELS)[0]["name"] == read


def test_a_name_of_a_megabyte_is_cut(tmp_path: Path) -> None:
    """Its length and a digest keep it apart from others that begin alike."""
    events = [kernel(US) | {"name": "x" * 1_000_000 + end} for end in "ab"]
    names = [row["name"] for row in rows(published(trace(tmp_path / "t.json", events))[1], Kind.KERNELS)]
    assert len({*names}) == 2
    assert all(len(name) <= 32 * 1024 and "(1000001 bytes" in name for name in names)


@pytest.mark.parametrize("number", ["inf", "-nan", "NaN", "Infinity"])
def test_numbers_that_json_does_not_have_are_passed_over(tmp_path: Path, number: str) -> None:
    """Bandwidths are divided for without a look at what they are divided by."""
    path = tmp_path / "t.json"
    text = json.dumps({"traceEvents": [kernel(US, bandwidth="B"), *simple()]})
    path.write_text(text.replace('"B"', number))
    assert len(rows(published(path)[1], Kind.KERNELS)) == 2


def test_events_of_other_shapes_are_passed_over(tmp_path: Path) -> None:
    """Numbers where objects should be, arguments that are text, threads that are names."""
    events: list[Any] = [1, None, "x", [], kernel(US) | {"args": "none"}, kernel(US) | {"cat": 5}, *simple()]
    out = published(trace(tmp_path / "t.json", events))[1]
    assert [row["correlation"] for row in rows(out, Kind.KERNELS)] == [NONE, 1]
    named = event("cuda_runtime", US, tid="thread 12 (python)", correlation=1)
    assert (
        rows(published(trace(tmp_path / "u.json", [kernel(US), named]))[1], Kind.LAUNCHES)[0]["thread"] == 12
    )


def say(path: Path) -> str:
    """Return the one line said of a trace that cannot be read."""
    with pytest.raises(InputError) as caught:
        published(path)
    line = caught.value.line()
    assert "\n" not in line
    assert str(path) in line
    return line


def test_cut_json_is_refused(tmp_path: Path) -> None:
    """Wherever it was cut, nothing of it is taken."""
    text = trace(tmp_path / "t.json", simple()).read_bytes()
    path = tmp_path / "cut.json"
    for size in (1, 20, len(text) // 2, len(text) - 1):
        path.write_bytes(text[:size])
        assert "is cut" in say(path)


def test_cut_gzip_is_refused(tmp_path: Path, captures: Path) -> None:
    """A stream that ends too early, and one that is damaged, are told apart."""
    whole = (captures / "dlrm8_rank0.kineto.json.gz").read_bytes()
    path = tmp_path / "t.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    assert "gzip data ends too early" in say(path)
    path.write_bytes(whole[:1000] + b"\0" * 1000 + whole[2000:])
    assert "is damaged" in say(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1}', "no traceEvents"),
        ("{]", "is not JSON"),
        ('{"traceEvents": 5}', "no traceEvents"),
        ("hello", "is not JSON"),
        ('{"traceEvents": [}', "is not JSON"),
        ("[" * 100_000, "is"),
        ("[]", "a list without events"),
        ("[[1, 2], [3, 4]]", "a list without events"),
        ("[nan, 3]", "a list without events"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """JSON of something else, and what only looks like JSON."""
    path = tmp_path / "t.json"
    path.write_text(text)
    assert why in say(path)


def test_the_ranks_of_one_job_are_processes_of_their_own(captures: Path) -> None:
    """Eight files, eight processes with ranks, one session; ids that collide stay apart."""
    paths = sorted(captures.glob("dlrm8_*"))
    told, out = published(*paths)
    assert sorted(facts(out, "process.rank")) == [str(rank) for rank in range(8)]
    assert len({source.capture for source in told.sources}) == 8
    kernels = rows(out, Kind.KERNELS)
    assert len(kernels) == 245 + 310 + 246 + 315 + 251 + 245 + 246 + 246


def test_real_traces_keep_their_gpu_time_to_the_nanosecond(captures: Path) -> None:
    """As the sum of the durations' decimal digits."""
    path = captures / "h100_head_unlinked.kineto.json.gz"
    found = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    durations = [Decimal(e["dur"]) for e in found["traceEvents"] if e.get("cat") == "kernel"]
    told = rows(published(path)[1], Kind.KERNELS)
    assert sum(row["duration"] for row in told) == int(sum(durations) * 1000) == 45432698
    starts = [Decimal(e["ts"]) for e in found["traceEvents"] if e.get("cat") == "kernel"]
    base = found["baseTimeNanoseconds"]
    assert [row["time"] for row in told] == sorted(base + int(start * 1000) for start in starts)
