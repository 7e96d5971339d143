"""Made-up captures: the truth written beside one is what a slow count over its rows finds."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from schemas.errors import OutputError, UsageError
from stream.producers.synth import Truth, truth_path, write_capture

KERNELS = 12_000


class Capture(NamedTuple):
    """A small capture, read back."""

    path: Path
    truth: Truth
    tables: dict[str, list[dict[str, Any]]]


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return every table of a database as rows by column name."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        tables = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in names}
    connection.close()
    return tables


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """One capture of the world model for all tests of its content."""
    path = tmp_path_factory.mktemp("synth") / "world.sqlite"
    truth = write_capture(path, kernels=KERNELS, seed=7)
    return Capture(path, truth, read(path))


class Linked(NamedTuple):
    """A kernel, what became of it and where."""

    row: dict[str, Any]
    name: str
    reason: str
    context: tuple[str, ...]
    delay: int | None


def link(tables: dict[str, list[dict[str, Any]]]) -> list[Linked]:
    """Join kernels to launches and ranges, as slowly and plainly as can be."""
    text = {row["id"]: row["value"] for row in tables["StringIds"]}
    launches: dict[tuple[int, int], dict[str, Any]] = {}
    for row in tables["CUPTI_ACTIVITY_KIND_RUNTIME"]:
        key = (row["globalTid"] >> 24, row["correlationId"])
        if row["eventClass"] != 67 and (key not in launches or row["start"] < launches[key]["start"]):
            launches[key] = row
    ranges = defaultdict(list)
    for row in tables["NVTX_EVENTS"]:
        if row["eventType"] == 59:
            name = row["text"] if row["text"] is not None else text[row["textId"]]
            end = row["end"] if row["end"] is not None else 2**62
            ranges[row["globalTid"]].append((row["start"], -end, name))
    for opened in ranges.values():
        opened.sort()
    linked = []
    for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"]:
        launch = launches.get((row["globalPid"] >> 24, row["correlationId"]))
        context: tuple[str, ...] = ()
        if launch is None:
            reason = "launch_not_captured"
        else:
            at = launch["start"]
            own = ranges[launch["globalTid"]]
            context = tuple(name for start, end, name in own if start <= at < -end)
            reason = "context" if context else "thread_without_ranges"
            if not context and own and own[0][0] <= at:
                reason = "launch_outside_ranges"
        delay = None if launch is None else row["start"] - launch["start"]
        linked.append(Linked(row, text[row["demangledName"]], reason, context, delay))
    return linked


def test_truth_is_what_a_slow_count_finds(world: Capture) -> None:
    """Classes, nanoseconds, roles, clock offsets and unknown kernels agree with a plain join."""
    roles = {figures.pid: role for role, figures in world.truth.per_role.items()}
    count: Counter[tuple[str, str]] = Counter()
    time: Counter[tuple[str, str]] = Counter()
    unknown: Counter[tuple[str, str]] = Counter()
    delays = defaultdict(list)
    steady: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    for kernel in link(world.tables):
        role = roles[(kernel.row["globalPid"] >> 24) & 0xFFFFFF]
        length = max(0, kernel.row["end"] - kernel.row["start"])
        count[role, kernel.reason] += 1
        time[role, kernel.reason] += length
        if kernel.reason != "context":
            unknown[role, kernel.name] += 1
        if kernel.delay is not None:
            delays[role].append(kernel.delay)
        at = kernel.row["start"]
        steady[kernel.reason] += length * any(a <= at < b for a, b in world.truth.windows_ns.steady)
        measured[kernel.reason] += any(a <= at < b for a, b in world.truth.windows_ns.measured)
    for role, figures in world.truth.per_role.items():
        assert {name: t.count for name, t in figures.classes.items()} == {
            c: count[role, c] for c in figures.classes
        }
        assert {name: t.gpu_ns for name, t in figures.classes.items()} == {
            c: time[role, c] for c in figures.classes
        }
        assert figures.clock_offset_ns == min(delays[role])
        assert figures.launched_after_start == sum(d < 0 for d in delays[role])
    assert world.truth.total.kernels == KERNELS == sum(count.values())
    assert world.truth.total.gpu_ns == sum(time.values())
    assert {name: t.gpu_ns for name, t in world.truth.steady.classes.items()} == {
        name: steady[name] for name in world.truth.steady.classes
    }
    assert {name: t.count for name, t in world.truth.measured.classes.items()} == {
        name: measured[name] for name in world.truth.measured.classes
    }
    top = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))[:40]
    assert [((u.role, u.name), u.count) for u in world.truth.unknown_top] == top


def test_truth_counts_groups_under_three_ways_of_rewriting(world: Capture) -> None:
    """Groups as captured, by the built-in rules and by the example's rules agree with a plain count."""
    groups: tuple[set[object], set[object], set[object]] = (set(), set(), set())
    for kernel in link(world.tables):
        node = kernel.row["graphNodeId"]
        graph = kernel.row["graphId"] if kernel.row["graphId"] is not None else node and node >> 32
        rest = (
            kernel.row["globalPid"],
            kernel.row["deviceId"],
            kernel.name,
            graph,
            node and node & 0xFFFFFFFF,
        )
        plain = tuple(re.sub(r",? ?(op_id|seq) = \d+", "", name) for name in kernel.context)
        groups[0].add((*rest, kernel.context))
        groups[1].add((*rest, plain))
        groups[2].add((*rest, tuple(re.sub(r"ep\d+_chunk\d+", "ep_chunk", name) for name in plain)))
    truth = world.truth.groups
    assert [truth.captured, truth.default, truth.example] == [len(kept) for kept in groups]


def test_truth_counts_rows_of_every_table(world: Capture) -> None:
    """Row counts, memory operations and what the capture says it collected are those of the tables."""
    tables, rows = world.tables, world.truth.rows
    runtime = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    gpu = [*tables["CUPTI_ACTIVITY_KIND_KERNEL"], *tables["CUPTI_ACTIVITY_KIND_MEMCPY"]]
    gpu += tables["CUPTI_ACTIVITY_KIND_MEMSET"]
    carried = {(row["globalPid"] >> 24, row["correlationId"]) for row in gpu}
    launches = [row for row in runtime if row["eventClass"] != 67]
    kinds = Counter(row["eventType"] for row in tables["NVTX_EVENTS"])
    assert rows.kernels == len(tables["CUPTI_ACTIVITY_KIND_KERNEL"])
    assert rows.launches == len(launches)
    assert rows.launches_used == sum(
        (row["globalTid"] >> 24, row["correlationId"]) in carried for row in launches
    )
    assert rows.backtraces == len(runtime) - len(launches)
    assert (rows.ranges, rows.process_ranges, rows.marks) == (kinds[59], kinds[60], kinds[34])
    assert rows.graph_nodes == len(tables["CUDA_GRAPH_NODE_EVENTS"])
    for tallies, table in ((world.truth.memory.copies, "MEMCPY"), (world.truth.memory.sets, "MEMSET")):
        work = tables[f"CUPTI_ACTIVITY_KIND_{table}"]
        assert sum(t.count for t in tallies.values()) == len(work)
        assert sum(t.gpu_ns for t in tallies.values()) == sum(row["end"] - row["start"] for row in work)
    said = [
        re.search(r"Number of CUDA events collected: \t(\d+)", row["text"])
        for row in tables["DIAGNOSTIC_EVENT"]
    ]
    assert world.truth.collected == sum(int(m[1]) for m in said if m) == len(gpu) + len(runtime)


def test_counters_and_windows_follow_from_the_ranges(world: Capture) -> None:
    """Forwards, dispatches and spans of the truth are the ranges that stand in the capture."""
    ranges = [row for row in world.tables["NVTX_EVENTS"] if row["eventType"] == 59]
    text = {row["id"]: row["value"] for row in world.tables["StringIds"]}
    for row in ranges:
        row["name"] = row["text"] if row["text"] is not None else text[row["textId"]]
        row["pid"] = row["globalTid"] >> 24 & 0xFFFFFF
    rank0 = world.truth.per_role["dit_rank0"].pid
    [measured] = [r for r in ranges if r["name"] == "measured" and r["pid"] == rank0]
    assert world.truth.windows_ns.measured == [(measured["start"], measured["end"])]
    steps = sorted(r["start"] for r in ranges if r["name"].startswith("chunk_step") and r["pid"] == rank0)
    assert set(world.truth.windows_ns.steady) <= set(itertools.pairwise(steps))
    assert len(world.truth.windows_ns.steady) == 4
    inside = [r for r in ranges if measured["start"] <= r["start"] < measured["end"]]
    forwards = Counter(str(r["pid"]) for r in inside if r["name"] == "dit_forward")
    assert world.truth.counters["dit_forward_rows"] == forwards
    chunks = [r for r in ranges if r["name"].startswith("vae:")]
    ranks = {figures.pid: role[-1] for role, figures in world.truth.per_role.items()}
    dispatches: Counter[str] = Counter()
    for r in inside:
        if r["name"].startswith("vae_dispatch:"):
            [chunk] = [c for c in chunks if c["pid"] == r["pid"] and c["start"] <= r["start"] < c["end"]]
            dispatches[f"{ranks[r['pid']]}:{chunk['name'].removeprefix('vae:')}"] += 1
    assert world.truth.counters["vae_dispatch_rows"] == dispatches


def test_clock_anchors_give_the_offsets_of_the_truth(world: Capture) -> None:
    """Each DiT rank has one anchor; offset and spread follow from them in exact integers."""
    anchors = [
        (row["globalTid"] >> 24 & 0xFFFFFF, int(row["text"].removeprefix("clock_anchor:")) - row["start"])
        for row in world.tables["NVTX_EVENTS"]
        if row["eventType"] == 34 and row["text"].startswith("clock_anchor:")
    ]
    offsets = dict(anchors)
    clock = world.truth.clock
    assert len(offsets) == clock.anchor_count == 4
    assert offsets[world.truth.per_role["dit_rank0"].pid] == clock.anchor_offset_ns
    assert max(offsets.values()) - min(offsets.values()) == clock.anchor_spread_ns
    [start] = world.tables["TARGET_INFO_SESSION_START_TIME"]
    assert (start["systemClockNs"], start["utcEpochNs"]) == (
        clock.session_systemClockNs,
        world.truth.utc_zero_ns,
    )


def test_everything_readers_stumble_over_is_there(world: Capture) -> None:
    """Colliding ids, cut launches, vm ids, unsorted rows, odd durations and the rest are all present."""
    tables, truth = world.tables, world.truth
    runtime, kernels = tables["CUPTI_ACTIVITY_KIND_RUNTIME"], tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    owners = defaultdict(set)
    for row in runtime:
        owners[row["correlationId"]].add(row["globalTid"] >> 24)
    assert max(map(len, owners.values())) == 8
    cut = [k.row for k in link(tables) if k.reason == "launch_not_captured"]
    assert any(owners[row["correlationId"]] for row in cut), "a join without the process finds them launches"
    assert any(row["graphNodeId"] is not None for row in cut)
    assert all(
        figures.classes[reason].count for figures in truth.per_role.values() for reason in figures.classes
    )
    assert all(row["globalPid"] >> 48 == 1 for row in kernels)
    for rows in (kernels, runtime, tables["NVTX_EVENTS"]):
        assert [r["start"] for r in rows] != sorted(r["start"] for r in rows)
    assert (truth.zero_durations, truth.negative_durations) == (3, 1)
    assert truth.per_role["vae_rank3"].clock_offset_ns < 0 < truth.per_role["vae_rank2"].clock_offset_ns  # type: ignore[operator]
    assert truth.open_ranges
    assert truth.rows.launches_used < truth.rows.launches
    assert truth.rows.backtraces
    assert {row["eventType"] for row in tables["NVTX_EVENTS"]} >= {34, 39, 59, 60, 75}
    assert {row["domainId"] for row in tables["NVTX_EVENTS"]} == {0, 1}
    assert any(row["graphId"] is not None for row in kernels)
    assert any(row["correlationId"] == 0 for row in tables["CUPTI_ACTIVITY_KIND_MEMCPY"])
    assert any("op_id" in (row["text"] or "") for row in tables["NVTX_EVENTS"])
    assert any(row["textId"] is not None for row in tables["NVTX_EVENTS"] if row["eventType"] == 59)
    replays = defaultdict(list)
    for row in kernels:
        if row["graphNodeId"] is not None:
            replays[row["globalPid"], row["correlationId"]].append((row["start"], row["graphNodeId"]))
    assert any(sorted(nodes) != sorted(nodes, key=lambda n: n[1]) for nodes in replays.values())
    assert len({row["streamId"] for row in kernels if row["graphNodeId"] is not None}) == 3


def test_same_seed_gives_the_same_rows(tmp_path: Path) -> None:
    """A capture is a function of its arguments, and another seed makes another one."""
    first = write_capture(tmp_path / "a.sqlite", kernels=4_000, seed=1)
    again = write_capture(tmp_path / "b.sqlite", kernels=4_000, seed=1)
    other = write_capture(tmp_path / "c.sqlite", kernels=4_000, seed=2)
    assert first == again != other
    assert read(tmp_path / "a.sqlite") == read(tmp_path / "b.sqlite") != read(tmp_path / "c.sqlite")


@pytest.mark.parametrize("kernels", [4_000, 4_001, 17_389, 60_000])
def test_kernels_are_as_many_as_asked_for(tmp_path: Path, kernels: int) -> None:
    """Any number from the smallest on is met exactly."""
    path = tmp_path / "x.sqlite"
    truth = write_capture(path, kernels=kernels)
    with sqlite3.connect(path) as connection:
        [(rows,)] = connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    connection.close()
    assert truth.kernels == rows == kernels


def test_truth_stands_beside_the_capture(tmp_path: Path) -> None:
    """The file of the truth decodes to what was returned."""
    path = tmp_path / "x.sqlite"
    truth = write_capture(path, kernels=4_000)
    assert truth_path(path) == tmp_path / "x.truth.json"
    assert msgspec.json.decode(truth_path(path).read_bytes(), type=Truth) == truth


def test_ranges_shape_agrees_with_a_slow_count(tmp_path: Path) -> None:
    """Very many ranges in random order: classes and groups are still those a plain join finds."""
    path = tmp_path / "ranges.sqlite"
    truth = write_capture(path, shape="ranges", kernels=300, ranges=60_003, seed=3)
    tables = read(path)
    linked = link(tables)
    assert Counter(k.reason for k in linked) == {
        name: tally.count for name, tally in truth.total.classes.items() if tally.count
    }
    assert truth.kernels == len(linked) == 300
    assert truth.rows.ranges == sum(row["eventType"] == 59 for row in tables["NVTX_EVENTS"]) == 60_003
    assert truth.groups.captured == len({(k.context, k.name) for k in linked})
    assert len({row["globalTid"] for row in tables["NVTX_EVENTS"]}) == 5


@pytest.mark.parametrize(
    "wrong", [{"kernels": 3}, {"shape": "torus"}, {"shape": "ranges", "ranges": 100, "kernels": 30}]
)
def test_impossible_shapes_are_wrong_usage(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """What cannot be made is refused before anything is written."""
    with pytest.raises(UsageError):
        write_capture(tmp_path / "x.sqlite", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_failure_to_write_leaves_nothing(tmp_path: Path) -> None:
    """Without the folder there is one clear error."""
    with pytest.raises(OutputError, match="cannot be written"):
        write_capture(tmp_path / "nowhere" / "x.sqlite", kernels=4_000)
    with pytest.raises(OutputError, match="is a folder; name a file"):
        write_capture(tmp_path, kernels=4_000)
    with pytest.raises(OutputError, match="File name too long"):
        write_capture(tmp_path / ("x" * 300), kernels=4_000)
    assert list(tmp_path.iterdir()) == []
