"""What a made-up capture holds, known from how it was made and never by linking it."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.columns import Int64s
from schemas.types import CLASS_NAMES, Class

UInt64s = npt.NDArray[np.uint64]

UNKNOWN_TOP: Final = 40
WARMUP: Final = 5
TOLERANCE: Final = Fraction(4, 100)
HISTORY: Final = 5
"""The steadiness rule of examples/world_model.toml, applied here with a few lines of its own."""


class Tally(msgspec.Struct):
    """A number of GPU operations and their summed duration (ns, never negative each)."""

    count: int = 0
    gpu_ns: int = 0

    def add(self, durations: Int64s) -> None:
        """Count these durations (int64 ns, shape (n,)) in."""
        self.count += len(durations)
        self.gpu_ns += int(np.maximum(durations, 0).sum())


def _classes() -> dict[str, Tally]:
    return {name: Tally() for name in CLASS_NAMES}


class Figures(msgspec.Struct):
    """Kernels of one part of the capture by what became of them (`schemas.types.CLASS_NAMES`)."""

    kernels: int = 0
    gpu_ns: int = 0
    classes: dict[str, Tally] = msgspec.field(default_factory=_classes)

    def add(self, durations: Int64s, classes: Int64s) -> None:
        """Count kernels in: durations in ns and `schemas.types.Class` of each, shape (n,)."""
        self.kernels += len(durations)
        for number, name in enumerate(CLASS_NAMES):
            self.classes[name].add(durations[classes == number])
        self.gpu_ns = sum(tally.gpu_ns for tally in self.classes.values())


class RoleTruth(Figures):
    """The same of one process."""

    pid: int = 0
    clock_offset_ns: int | None = None
    """Smallest (kernel start - launch start) over linked kernels; negative with a GPU clock that
    runs behind."""
    launched_after_start: int = 0
    """Linked kernels that start before their launch."""


class Unknown(msgspec.Struct):
    """How often a kernel of a role ran without context."""

    role: str
    name: str
    count: int


class Memory(msgspec.Struct):
    """Copies and sets, by class as kernels are."""

    copies: dict[str, Tally] = msgspec.field(default_factory=_classes)
    sets: dict[str, Tally] = msgspec.field(default_factory=_classes)


class Rows(msgspec.Struct):
    """How many rows the capture's tables hold."""

    kernels: int = 0
    launches: int = 0
    """Runtime and driver calls, without backtrace rows."""
    launches_used: int = 0
    """Those whose correlation id a GPU row of the same process carries."""
    backtraces: int = 0
    copies: int = 0
    sets: int = 0
    ranges: int = 0
    """Push/pop ranges."""
    process_ranges: int = 0
    marks: int = 0
    graph_nodes: int = 0


class Windows(msgspec.Struct):
    """Spans of session time, each [start, end) in ns from the capture's zero."""

    measured: list[tuple[int, int]] = []
    steady: list[tuple[int, int]] = []


class Clock(msgspec.Struct):
    """The clock anchors; the names are those of the ledger's `clock`."""

    session_systemClockNs: int = 0  # noqa: N815
    anchor_offset_ns: int = 0
    anchor_count: int = 0
    anchor_spread_ns: int = 0
    used_offset_ns: int = 0


class Groups(msgspec.Struct):
    """Distinct (process, device, context, kernel, graph, position)."""

    captured: int = 0
    """Names of ranges as captured."""
    default: int = 0
    """Names rewritten by the built-in rules only."""
    example: int = 0
    """Names rewritten by examples/world_model.toml."""


class Truth(msgspec.Struct):
    """The whole truth about a made-up capture, written beside it as `<name>.truth.json`."""

    shape: str
    seed: int
    groups: Groups = msgspec.field(default_factory=Groups)
    rows: Rows = msgspec.field(default_factory=Rows)
    total: Figures = msgspec.field(default_factory=Figures)
    measured: Figures = msgspec.field(default_factory=Figures)
    steady: Figures = msgspec.field(default_factory=Figures)
    per_role: dict[str, RoleTruth] = {}
    windows_ns: Windows = msgspec.field(default_factory=Windows)
    counters: dict[str, dict[str, int]] = {}
    """`dit_forward_rows` and `vae_dispatch_rows`, keyed as in the ledger."""
    clock: Clock = msgspec.field(default_factory=Clock)
    unknown_top: list[Unknown] = []
    memory: Memory = msgspec.field(default_factory=Memory)
    zero_durations: int = 0
    negative_durations: int = 0
    open_ranges: int = 0
    """Push/pop ranges without an end."""
    collected: int = 0
    """Sum of what the capture's own diagnostics say was collected."""
    utc_zero_ns: int = 0

    @property
    def kernels(self) -> int:
        """Kernel rows of the capture."""
        return self.total.kernels


class Counting:
    """Adds up the truth of one process as its kernels are made."""

    def __init__(self, role: str, pid: int, truth: Truth, names: int) -> None:
        self.role = role
        self.truth = truth
        self.figures = truth.per_role.setdefault(role, RoleTruth(pid=pid))
        self._unknown = np.zeros(names, np.int64)
        self._groups: list[list[UInt64s]] = [[], [], []]
        self._edges = (_flat(truth.windows_ns.measured), _flat(truth.windows_ns.steady))

    def kernels(self, *, starts: Int64s, ends: Int64s, names: Int64s, classes: Int64s) -> None:
        """Count kernels in; times in ns from the capture's zero, all of shape (n,)."""
        durations = ends - starts
        self.truth.zero_durations += int((durations == 0).sum())
        self.truth.negative_durations += int((durations < 0).sum())
        self.figures.add(durations, classes)
        self.truth.total.add(durations, classes)
        for edges, figures in zip(self._edges, (self.truth.measured, self.truth.steady), strict=True):
            # Spans do not overlap, so an odd number of edges at or before a time lies inside one.
            inside = np.searchsorted(edges, starts, side="right") % 2 == 1
            if inside.any():
                figures.add(durations[inside], classes[inside])
        self._unknown += np.bincount(names[classes != Class.CONTEXT], minlength=len(self._unknown))

    def group(
        self, contexts: tuple[Int64s, Int64s, Int64s], names: Int64s, graph: Int64s, node: Int64s
    ) -> None:
        """Note the groups of kernels: contexts as captured, by default rules, by the example's."""
        rest = (names + 1).astype(np.uint64) << np.uint64(26)
        rest |= (graph + 1).astype(np.uint64) << np.uint64(18)
        rest |= (node + 1).astype(np.uint64)
        for kept, context in zip(self._groups, contexts, strict=True):
            kept.append(np.unique(((context + 1).astype(np.uint64) << np.uint64(36)) | rest))
            if sum(map(len, kept[1:])) > 1 << 20:
                kept[:] = [np.unique(np.concatenate(kept))]

    def linked(self, delays: Int64s) -> None:
        """Note kernel start - launch start (ns) of linked kernels."""
        if len(delays):
            least = int(delays.min())
            known = self.figures.clock_offset_ns
            self.figures.clock_offset_ns = least if known is None else min(known, least)
            self.figures.launched_after_start += int((delays < 0).sum())

    def finish(self, texts: list[str]) -> list[Unknown]:
        """Add this process's groups to the truth; return its kernels without context by name."""
        captured, default, example = (
            len(np.unique(np.concatenate(kept))) if kept else 0 for kept in self._groups
        )
        groups = self.truth.groups
        groups.captured += captured
        groups.default += default
        groups.example += example
        counts = self._unknown.tolist()
        return [Unknown(self.role, texts[i], n) for i, n in enumerate(counts) if n]


def top_unknown(unknown: list[Unknown]) -> list[Unknown]:
    """Return the most frequent, ties by role, then name."""
    return sorted(unknown, key=lambda u: (-u.count, u.role, u.name))[:UNKNOWN_TOP]


def steady_spans(edges: list[int]) -> list[tuple[int, int]]:
    """Return which of the spans between `edges` (ns, each to the next) the example calls steady."""
    lengths = [end - start for start, end in itertools.pairwise(edges)]
    steady = []
    for k, length in enumerate(lengths):
        before = sorted(lengths[max(0, k - HISTORY) : k])
        if k < WARMUP or not before:
            continue
        median = before[(len(before) - 1) // 2]
        if abs(length - median) <= TOLERANCE * median:
            steady.append((edges[k], edges[k + 1]))
    return steady


def _flat(spans: list[tuple[int, int]]) -> Int64s:
    return np.array([edge for span in spans for edge in span], np.int64)
