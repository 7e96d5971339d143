"""Real captures against figures from a slow reference that shares no code with this program."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

COMMAND = Path(sys.executable).parent / "gpu-ledger"


class Expected(NamedTuple):
    """What is known of one capture; GPU times in ns, groups with names as captured."""

    kernels: int
    context: int
    launch_not_captured: int
    launch_outside_ranges: int
    thread_without_ranges: int
    gpu_ns: int
    gpu_ns_with_context: int
    groups: int


CAPTURES = {
    "cuda_graph_replays.kineto.json.gz": Expected(9876, 3582, 546, 5125, 623, 801858000, 421300000, 2806),
    "cupy_registered_strings_2025.3.sqlite": Expected(3689, 3682, 0, 7, 0, 1131742684, 1129102360, 705),
    "dlrm8_rank0.kineto.json.gz": Expected(245, 145, 0, 78, 22, 6832000, 6329000, 102),
    "dlrm8_rank1.kineto.json.gz": Expected(310, 145, 64, 79, 22, 12582000, 11858000, 108),
    "dlrm8_rank2.kineto.json.gz": Expected(246, 145, 0, 79, 22, 4560000, 4025000, 102),
    "dlrm8_rank3.kineto.json.gz": Expected(315, 145, 64, 84, 22, 11014000, 10287000, 111),
    "dlrm8_rank4.kineto.json.gz": Expected(251, 145, 0, 84, 22, 7713000, 7147000, 105),
    "dlrm8_rank5.kineto.json.gz": Expected(245, 145, 0, 78, 22, 7292000, 6788000, 102),
    "dlrm8_rank6.kineto.json.gz": Expected(246, 145, 0, 79, 22, 4609000, 4087000, 102),
    "dlrm8_rank7.kineto.json.gz": Expected(246, 145, 0, 79, 22, 2805000, 2278000, 102),
    "graph_level_trace_2025.5.sqlite": Expected(3, 0, 0, 0, 3, 3840, 0, 1),
    "graph_nodes_added_ranges.sqlite": Expected(10300, 10300, 0, 0, 0, 247109601, 247109601, 303),
    "graph_nodes_no_nvtx_2021.4.sqlite": Expected(10300, 0, 0, 0, 10300, 247109601, 0, 103),
    "h100_head_unlinked.kineto.json.gz": Expected(1465, 1029, 436, 0, 0, 45432698, 31760058, 43),
    "minimal_2026.1.sqlite": Expected(2, 0, 0, 0, 2, 4129, 0, 2),
    "mpi_saxpy_backtrace_rows_2022.2.sqlite": Expected(5, 5, 0, 0, 0, 88573480, 88573480, 1),
    "no_global_pid_2026.1.sqlite": Expected(400, 0, 0, 0, 400, 400000000, 0, 2),
    "oldest_no_metadata_2021.sqlite": Expected(12, 0, 0, 0, 12, 8544420, 0, 2),
    "one_range_2023.3.sqlite": Expected(874, 874, 0, 0, 0, 61898238, 61898238, 1),
    "start_end_ranges_no_cuda_2022.4.sqlite": Expected(0, 0, 0, 0, 0, 0, 0, 0),
    "torch_emit_nvtx_2022.1.sqlite": Expected(59, 59, 0, 0, 0, 589147, 589147, 52),
    "training_steps_2024.sqlite": Expected(15835, 13420, 0, 2415, 0, 2728107576, 1668581014, 37),
    "two_ranks_training_2026.2.sqlite": Expected(4010, 3986, 24, 0, 0, 535200650, 516689349, 3972),
    "unified_memory_copies_2022.2.sqlite": Expected(1, 0, 0, 0, 1, 25786230349, 0, 1),
}


def ledger_of(*words: str | Path) -> dict[str, Any]:
    """Return the ledger that `run --json` prints."""
    done = subprocess.run([COMMAND, "run", "--json", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["final"] is True
    return document


def figures(ledger: dict[str, Any]) -> Expected:
    """Return the figures of a ledger that are known of each capture."""
    roles = ledger["per_role"].values()
    reasons = ledger["reasons"]
    return Expected(
        kernels=ledger["kernel_events"],
        context=ledger["link_status"]["context"],
        launch_not_captured=reasons["launch_not_captured"]["kernels"],
        launch_outside_ranges=reasons["launch_outside_ranges"]["kernels"],
        thread_without_ranges=reasons["thread_without_ranges"]["kernels"],
        gpu_ns=sum(role["gpu_ns"] for role in roles),
        gpu_ns_with_context=sum(role["context"]["gpu_ns"] for role in roles),
        groups=ledger["groups"],
    )


@pytest.fixture(scope="session")
def as_captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a configuration that leaves range names as they are."""
    path = tmp_path_factory.mktemp("config") / "as_captured.toml"
    path.write_text("[context]\ndefault_rewrites = false\n", encoding="utf-8")
    return path


def test_every_capture_there_is_known(captures: Path) -> None:
    """No capture lies in the folder untested."""
    assert {p.name for p in captures.iterdir() if p.suffix != ".md"} == set(CAPTURES)


@pytest.mark.parametrize("name", CAPTURES)
def test_figures_equal_those_of_the_reference(captures: Path, as_captured: Path, name: str) -> None:
    """Kernels, context, each reason, GPU time and groups are those of the independent reference."""
    assert figures(ledger_of(captures / name, "--config", as_captured)) == CAPTURES[name]


def test_eight_ranks_in_one_session_keep_apart(captures: Path, as_captured: Path) -> None:
    """Eight traces of one job make eight roles, and no kernel finds another rank's launch."""
    names = [f"dlrm8_rank{rank}.kineto.json.gz" for rank in range(8)]
    ledger = ledger_of(*(captures / name for name in names), "--config", as_captured)
    assert sorted(ledger["roles"].values()) == [f"rank{rank}" for rank in range(8)]
    assert list(ledger["per_role"]) == [f"rank{rank}" for rank in range(8)]
    for rank, name in enumerate(names):
        role, expected = ledger["per_role"][f"rank{rank}"], CAPTURES[name]
        assert role["kernels"] == expected.kernels
        assert role["gpu_ns"] == expected.gpu_ns
        assert role["context"] == {"kernels": expected.context, "gpu_ns": expected.gpu_ns_with_context}
        assert role["reasons"]["launch_not_captured"]["kernels"] == expected.launch_not_captured
    expected_sum = Expected(*(sum(column) for column in zip(*(CAPTURES[n] for n in names), strict=True)))
    assert figures(ledger) == expected_sum


def test_the_same_capture_twice_changes_nothing(captures: Path, tmp_path: Path) -> None:
    """A copy under another name is the same capture: its rows are counted once."""
    name = "two_ranks_training_2026.2.sqlite"
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes((captures / name).read_bytes())
    once = ledger_of(captures / name, "--label", "x")
    twice = ledger_of(captures / name, copy, "--label", "x")
    assert figures(once) == figures(twice)


def test_partitions_change_no_figure(captures: Path) -> None:
    """However many linkers share the processes, the ledger is the same to the byte."""
    words: list[str | Path] = [captures / "two_ranks_training_2026.2.sqlite", "--label", "x"]
    one, many = ledger_of(*words), ledger_of(*words, "--partitions", "7")
    for ledger in (one, many):
        for key in ("generated_at", "seconds", "delivery"):
            del ledger[key]
    assert json.dumps(one) == json.dumps(many)


@pytest.mark.parametrize(
    ("name", "word"),
    [("graph_level_trace_2025.5.sqlite", "graph"), ("start_end_ranges_no_cuda_2022.4.sqlite", "kernel")],
)
def test_what_a_capture_lacks_is_said(captures: Path, name: str, word: str) -> None:
    """A capture without kernels, or with graph launches only, is no error: the summary says so."""
    done = subprocess.run([COMMAND, "run", captures / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "About the input" in done.stdout
    assert word in done.stdout.partition("About the input")[2]


def test_graph_replays_without_node_ids_get_the_same_positions(captures: Path, tmp_path: Path) -> None:
    """In six replays each of two graphs a kernel is always at the same position, 0 to n - 1."""
    subprocess.run(
        [COMMAND, "run", captures / "cuda_graph_replays.kineto.json.gz", "--out", tmp_path / "out"],
        check=True,
        capture_output=True,
    )
    with (tmp_path / "out" / "groups.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["position"] != ""]
    graphs: dict[str, dict[int, int]] = {}
    for row in rows:
        graphs.setdefault(row["context"], {}).setdefault(int(row["position"]), 0)
        graphs[row["context"]][int(row["position"])] += int(row["count"])
    assert graphs
    for positions in graphs.values():
        assert sorted(positions) == list(range(len(positions)))
