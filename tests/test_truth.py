"""Captures whose right answers are known, through the whole program: every figure and every group."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import test_synth

from stream.producers.synth import Truth, write_capture
from stream.producers.synth._truth import Figures

COMMAND = Path(sys.executable).parent / "gpu-ledger"
SHAPES = [(4_000, 1, 1), (4_999, 2, 4), (9_001, 3, 7)]
"""Kernels, seed and partitions."""

Table = dict[str, list[dict[str, Any]]]
Durations = dict[tuple[Any, ...], list[int]]


class Made(NamedTuple):
    """What was made of a capture, and what is true of it."""

    truth: Truth
    tables: Table
    ledger: dict[str, Any]
    groups: list[dict[str, str]]


def run(capture: Path, out: Path, *words: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return the ledger and the rows of `groups.csv` that `run` makes of a capture."""
    subprocess.run([COMMAND, "run", capture, "--out", out, *words], check=True, capture_output=True)
    with (out / "groups.csv").open(encoding="utf-8", newline="") as file:
        return json.loads((out / "ledger.json").read_bytes()), [*csv.DictReader(file)]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, root: Path) -> Made:
    """Return a made-up capture under the example configuration."""
    kernels, seed, partitions = request.param
    folder = tmp_path_factory.mktemp("truth")
    truth = write_capture(folder / "capture.sqlite", kernels=kernels, seed=seed)
    config = root / "examples" / "world_model.toml"
    words = ["--config", str(config), "--partitions", str(partitions)]
    ledger, groups = run(folder / "capture.sqlite", folder / "out", *words)
    return Made(truth, test_synth.read(folder / "capture.sqlite"), ledger, groups)


def amounts(figures: Figures) -> dict[str, Any]:
    """Return figures of the truth as the ledger writes them."""
    classes = {name: {"kernels": t.count, "gpu_ns": t.gpu_ns} for name, t in figures.classes.items()}
    context = classes.pop("context")
    return {"kernels": figures.kernels, "gpu_ns": figures.gpu_ns, "context": context, "reasons": classes}


def added(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return figures of the ledger added up."""
    whole = amounts(Figures())
    for part in parts:
        for name in ("kernels", "gpu_ns"):
            whole[name] += part[name]
            whole["context"][name] += part["context"][name]
            for reason, amount in part["reasons"].items():
                whole["reasons"][reason][name] += amount[name]
    return whole


def test_nothing_is_withheld_and_nothing_missing(made: Made) -> None:
    """A whole capture makes a final ledger in which every figure stands."""
    assert made.ledger["final"] is True
    assert made.ledger["withheld"] == {}
    quality = made.ledger["quality"]
    assert (quality["missing_rows"], quality["pending"], quality["after_end"]) == (0, 0, 0)
    assert set(quality["late"].values()) == {0}
    (source,) = quality["sources"]
    assert source["counts"]["collected"] == made.truth.collected == source["counts"]["exported"]
    assert source["zero_ns"] == made.truth.utc_zero_ns


def test_totals_and_reasons_are_the_truth(made: Made) -> None:
    """Kernels, GPU time, classes and coverage of the whole are those the capture was made with."""
    ledger, truth = made.ledger, made.truth
    total = amounts(truth.total)
    assert ledger["kernel_events"] == truth.kernels
    assert ledger["reasons"] == total["reasons"]
    with_context = truth.total.classes["context"].count
    assert ledger["link_status"] == {
        "no_nvtx_context": truth.kernels - with_context,
        "total": truth.kernels,
        "context": with_context,
    }
    assert ledger["coverage"]["invocations_with_context"] == with_context / truth.kernels
    assert ledger["groups"] == truth.groups.example
    assert ledger["unknown_top"] == [
        {"role": u.role, "name": u.name, "count": u.count} for u in truth.unknown_top
    ]


def test_every_role_has_its_own_figures(made: Made) -> None:
    """Each rank has its pid, kernels, classes and clock."""
    ledger, truth = made.ledger, made.truth
    assert ledger["roles"] == {str(role.pid): name for name, role in truth.per_role.items()}
    offsets = {entry["pid"]: entry["offset_ns"] for entry in ledger["quality"]["clock_offsets"]}
    for name, role in truth.per_role.items():
        found = ledger["per_role"][name]
        assert {key: found[key] for key in amounts(role)} == amounts(role)
        assert found["invocations_with_context"] == role.classes["context"].count / role.kernels
        assert found["gpu_time_with_context"] == role.classes["context"].gpu_ns / role.gpu_ns
        assert offsets[role.pid] == role.clock_offset_ns
    behind = sum(role.launched_after_start for role in truth.per_role.values())
    assert ledger["quality"]["odd"] == {
        "negative_durations": truth.negative_durations,
        "zero_durations": truth.zero_durations,
        "launched_after_start": behind,
        "second_kernels": 0,
        "crossing_ranges": 0,
        "unmatched_closings": 0,
        "unknown_kinds": 0,
    }


def test_windows_add_up_to_the_truth_of_measured_and_steady_time(made: Made) -> None:
    """Spans, and the kernels of measured, of steady and of all windows, are the truth's."""
    ledger, truth = made.ledger, made.truth
    assert ledger["windows_ns"]["measured"] == [[*span] for span in truth.windows_ns.measured]
    assert ledger["windows_ns"]["steady"] == [[*span] for span in truth.windows_ns.steady]
    assert len(ledger["windows"]) < 64
    for flag, figures in (("closed", truth.total), ("measured", truth.measured), ("steady", truth.steady)):
        windows = [window for window in ledger["windows"] if window[flag]]
        assert added(role for window in windows for role in window["per_role"].values()) == amounts(figures)
    steady = truth.steady.classes["context"].gpu_ns / truth.steady.gpu_ns
    assert ledger["coverage"]["steady_gpu_time_with_context"] == steady
    assert ledger["coverage"]["steady_gpu_ns_total"] == truth.steady.gpu_ns
    recent = ledger["coverage_recent"]
    last = ledger["windows"][-recent["windows"] :]
    roles = [role for window in last for role in window["per_role"].values()]
    assert added(role["figures"] for role in recent["per_role"].values()) == added(roles)


def test_counters_and_clock_are_the_truth(made: Made) -> None:
    """The application's own steps are counted under their keys, and its clock is tied exactly."""
    for name, counts in made.truth.counters.items():
        assert made.ledger["coverage"][name] == counts
    clock = made.truth.clock
    assert made.ledger["clock"] == {name: getattr(clock, name) for name in clock.__struct_fields__}


def test_copies_and_sets_are_counted_apart(made: Made) -> None:
    """Memory operations have their number, time and contexts, and are no kernels."""
    for kind, tallies in (("Memcpy", made.truth.memory.copies), ("Memset", made.truth.memory.sets)):
        mine = [m for m in made.ledger["memory"] if m["operation"].startswith(kind)]
        assert sum(m["count"] for m in mine) == sum(t.count for t in tallies.values())
        assert sum(m["gpu_ns"] for m in mine) == sum(t.gpu_ns for t in tallies.values())
        assert sum(m["with_context"] for m in mine) == tallies["context"].count


def rewritten(context: Iterable[str]) -> tuple[str, ...]:
    """Return a context as the example configuration shows it."""
    return tuple(
        re.sub(r"^vae:ep\d+_chunk\d+$", "vae:ep_chunk", re.sub(r",? ?(op_id|seq) = \d+|\s*#\d+\b", "", name))
        for name in context
    )


def joined(made: Made) -> Durations:
    """Return durations by the columns that name a row of `groups.csv`, from a plain join."""
    steady = made.truth.windows_ns.steady
    found: Durations = defaultdict(list)
    for kernel in test_synth.link(made.tables):
        row = kernel.row
        node = row["graphNodeId"]
        graph = row["graphId"] if row["graphId"] is not None else node and node >> 32
        found[
            row["globalPid"] >> 24 & 0xFFFFFF,
            row["deviceId"],
            rewritten(kernel.context),
            kernel.name,
            graph,
            node and node & 0xFFFFFFFF,
            any(start <= row["start"] < end for start, end in steady),
        ].append(max(0, row["end"] - row["start"]))
    return found


def number(text: str) -> int | None:
    """Return a number of a CSV file."""
    return int(text) if text else None


def test_every_group_is_what_a_plain_join_finds(made: Made) -> None:
    """Each row of `groups.csv` has the kernels of its group, and no group is left out."""
    expected = joined(made)
    found = {}
    for row in made.groups:
        key = (
            int(row["pid"]),
            number(row["device"]),
            tuple(json.loads(row["context"])),
            row["kernel"],
            number(row["graph_id"]),
            number(row["position"]),
            row["steady"] == "true",
        )
        assert key not in found
        found[key] = [int(row[name]) for name in ("count", "total_ns", "min_ns", "max_ns")]
        assert row["role"] == made.ledger["roles"][row["pid"]]
    assert found == {key: [len(ns), sum(ns), min(ns), max(ns)] for key, ns in expected.items()}


def test_replays_are_counted_by_graph(made: Made) -> None:
    """A graph has as many replays as launches of it have kernels, positions being its node numbers."""
    replays: dict[tuple[int, int], list[int]] = defaultdict(list)
    launched = defaultdict(set)
    names = {row["id"]: row["value"] for row in made.tables["StringIds"]}
    for row in made.tables["CUPTI_ACTIVITY_KIND_RUNTIME"]:
        if names[row["nameId"]].startswith("cudaGraphLaunch"):
            launched[row["globalTid"] >> 24 & 0xFFFFFF].add(row["correlationId"])
    for row in made.tables["CUPTI_ACTIVITY_KIND_KERNEL"]:
        if row["graphNodeId"] is not None:
            graph = row["graphNodeId"] >> 32 if row["graphId"] is None else row["graphId"]
            replays[row["globalPid"] >> 24 & 0xFFFFFF, graph].append(row["correlationId"])
    assert {(g["pid"], g["graph_id"]): (g["positions"], g["kernels"]) for g in made.ledger["graphs"]} == {
        key: ("node", len(ids)) for key, ids in replays.items()
    }
    for graph in made.ledger["graphs"]:
        ids = set(replays[graph["pid"], graph["graph_id"]])
        assert graph["replays"] == len(ids & launched[graph["pid"]])


def test_replays_put_the_same_kernel_at_the_same_position(captures: Path, tmp_path: Path) -> None:
    """Two graphs of 315 and 429 kernels, six replays each: six times one kernel at each position."""
    ledger, rows = run(captures / "cuda_graph_replays.kineto.json.gz", tmp_path / "out")
    graphs: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row["position"]:
            assert int(row["count"]) == 6
            graphs[row["context"]].append(int(row["position"]))
    assert sorted(map(len, graphs.values())) == [315, 429]
    for positions in graphs.values():
        assert sorted(positions) == [*range(len(positions))]
    (graph,) = ledger["graphs"]
    assert (graph["positions"], graph["replays"], graph["kernels"]) == ("order", 12, 6 * (315 + 429))
