"""What the sink remembers of sessions and processes beside its tables of sums."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from consumers.spans import SpansState
from schemas.deltas import CaptureState, Delta, DeltaHeader, Fact, RoleMatch
from schemas.types import Process
from schemas.windows import Decision

FIRST_WINDOW = 4
"""Slots from here on are windows."""


class AnchorSums(msgspec.Struct):
    """The anchors of one process: how many, the first, and the extremes of application - UTC."""

    count: int
    first: tuple[int, int]
    """(UTC ns, application ns)."""
    low: int
    high: int


class ProcessState(msgspec.Struct):
    """What is known of one process, but for what stands in tables."""

    process: Process
    facts: dict[Fact, None] = msgspec.field(default_factory=dict)
    """In order of arrival: a set's order differs between runs, and so would the bytes of a state."""
    matches: dict[int, RoleMatch] = msgspec.field(default_factory=dict)
    """Rule -> the match with the smallest fields."""
    captures: dict[str, CaptureState] = msgspec.field(default_factory=dict)
    anchors: AnchorSums | None = None
    clock_offsets: dict[int, int] = msgspec.field(default_factory=dict)
    memory: dict[tuple[str, int], tuple[int, int, int]] = msgspec.field(default_factory=dict)
    """(operation, class) -> (count, ns, bytes)."""
    graphs: dict[tuple[int, int], tuple[int, int]] = msgspec.field(default_factory=dict)
    """(graph, by_node) -> (replays, kernels)."""
    opaque: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    """graph -> (count, ns)."""
    other: int = -1
    """Its group of those beyond the limit, -1: none so far."""
    admitted: int = 0


class SessionState(msgspec.Struct):
    """What is known of a session, but for what stands in tables."""

    session: str
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    processes: list[ProcessState] = msgspec.field(default_factory=list)
    ended: set[int] = msgspec.field(default_factory=set)
    """Partitions whose linker has seen the end of the session and decided everything."""
    closed: set[int] = msgspec.field(default_factory=set)
    """Partitions that have no more boundaries."""
    partitions: int = 0
    decisions: list[Decision] = msgspec.field(default_factory=list)
    """What was given up on, in order."""
    anchors: list[tuple[Process, str, int]] = msgspec.field(default_factory=list)
    """(process, capture, application - UTC in ns) of the processes of `clock.role`."""
    measured: SpansState = msgspec.field(default_factory=SpansState)
    steady: SpansState = msgspec.field(default_factory=SpansState)
    windows: dict[int, int] = msgspec.field(default_factory=dict)
    """Instant that names a window -> its slot."""
    free: list[int] = msgspec.field(default_factory=list)
    next_slot: int = FIRST_WINDOW
    undecided: set[int] = msgspec.field(default_factory=set)
    """Windows (by instant) that statistics or counters still wait under."""
    unknown: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """(process, string) of each number in table `unknown`."""
    rows: list[tuple[int, int, str]] = msgspec.field(default_factory=list)
    """(process, counter, fields) of each number in table `rows`."""


def add_header(process: ProcessState, header: DeltaHeader) -> None:
    """Take in what a delta says of its process."""
    process.facts.update(dict.fromkeys(header.facts))
    for match in header.roles:
        known = process.matches.get(match.rule)
        if known is None or sorted(match.fields.items()) < sorted(known.fields.items()):
            process.matches[match.rule] = match
    for capture in header.captures:
        process.captures[capture.capture] = capture
    for device, offset in header.clock_offsets.items():
        process.clock_offsets[device] = min(offset, process.clock_offsets.get(device, offset))
    for anchor in header.anchors:
        pair, offset = (anchor.time, anchor.application), anchor.application - anchor.time
        sums = process.anchors
        if sums is None:
            process.anchors = AnchorSums(1, pair, offset, offset)
            continue
        sums.count += 1
        sums.first = min(sums.first, pair)
        sums.low, sums.high = min(sums.low, offset), max(sums.high, offset)


def add_small(process: ProcessState, delta: Delta, texts: list[str]) -> None:
    """Take in the tables that are small: memory operations and graphs."""

    def lists(table: str, *names: str) -> Iterable[tuple[int, ...]]:
        return zip(*(delta.columns[f"{table}.{name}"].tolist() for name in names), strict=True)

    for operation, kind, count, ns, size in lists("memory", "operation", "class", "count", "ns", "bytes"):
        counted = process.memory.get((texts[operation], kind), (0, 0, 0))
        process.memory[texts[operation], kind] = (counted[0] + count, counted[1] + ns, counted[2] + size)
    for graph, by_node, replays, kernels in lists("graph", "graph", "by_node", "replays", "kernels"):
        known = process.graphs.get((graph, by_node), (0, 0))
        process.graphs[graph, by_node] = (known[0] + replays, known[1] + kernels)
    for graph, count, ns in lists("opaque", "graph", "count", "ns"):
        known = process.opaque.get(graph, (0, 0))
        process.opaque[graph] = (known[0] + count, known[1] + ns)
