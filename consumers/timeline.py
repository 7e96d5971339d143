"""Where a linker cuts time: from the configuration, or from what WINDOWS says so far."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from schemas.columns import Int64s
from schemas.config import Config, Spans, duration_ns
from schemas.types import END_OF_TIME, NONE, Process
from schemas.windows import Decision, Edge, Purpose, WindowsRecord

PURPOSES: Final[tuple[Purpose, ...]] = ("measured", "steady")
KEPT_EDGES: Final = 256
"""Edges kept of a time that is over; a kernel later than that names its window by its own start."""


def spans_of(config: Config, purpose: Purpose) -> Spans:
    """Return where spans of `purpose` come from."""
    return config.windows.measured if purpose == "measured" else config.windows.steady


def by_length(config: Config) -> bool:
    """Tell whether the timeline is cut at multiples of a length, since nothing else cuts it."""
    return all(spans_of(config, p).by in ("all", "none") for p in PURPOSES)


def reads_application_clock(spans: Spans) -> bool:
    """Tell whether an anchor is needed to place these spans."""
    return spans.by == "file" or (
        spans.by == "marks"
        and any("ns" in re.compile(pattern).groupindex for pattern in (spans.name, spans.end))
    )


class SourceState(msgspec.Struct):
    """How far one source of boundaries has come."""

    process: Process
    capture: str
    purposes: tuple[Purpose, ...]
    watermark: int
    ended: bool = False


class TimelineState(msgspec.Struct):
    """What a timeline must remember."""

    edges: list[Edge]
    sources: list[SourceState]
    reached: dict[str, int]
    anchor: int | None
    closed: list[int]
    partitions: int = 0
    forgot: bool = False
    given_up: dict[str, int] = {}
    """By purpose: nobody waits for boundaries before this."""


class Timeline:
    """The cuts known so far and up to when they are all there are."""

    def __init__(self, config: Config) -> None:
        self._length = duration_ns(config.windows.length) if by_length(config) else 0
        self._waits = [p for p in PURPOSES if spans_of(config, p).by in ("ranges", "marks", "file")]
        self._needs_anchor = {p: reads_application_clock(spans_of(config, p)) for p in PURPOSES}
        self._follows = {p: spans_of(config, p).by in ("ranges", "marks") for p in PURPOSES}
        fixed = [
            t
            for p in PURPOSES
            if spans_of(config, p).by == "times"
            for s in spans_of(config, p).times
            for t in s
        ]
        self._from_file = [
            Edge(t, p, opens, i, application=True)
            for p in PURPOSES
            if spans_of(config, p).by == "file"
            for i, span in enumerate(spans_of(config, p).times)
            for t, opens in zip(span, (True, False), strict=True)
        ]
        self._fixed = fixed
        self.state = TimelineState([], [], dict.fromkeys(PURPOSES, NONE), None, [])
        self._cuts: Int64s | None = None

    def restore(self, state: TimelineState) -> None:
        """Take over what another instance remembered."""
        self.state = state
        self._cuts = None

    def apply(self, record: WindowsRecord) -> None:
        """Take in one record of WINDOWS of this session."""
        state = self.state
        if record.closed and record.partition not in state.closed:
            state.closed.append(record.partition)
        if record.anchor is not None and state.anchor is None:
            state.anchor = record.anchor
            self._add_edges(())
        if record.edges:
            self._add_edges(record.edges)
        if record.watermark is not None and record.purposes:
            self._advance(record)
        if record.decision is not None and record.decision.kind == "cut":
            self._give_up(record.decision)
        state.partitions = max(state.partitions, record.partitions)

    def _add_edges(self, edges: Iterable[Edge]) -> None:
        """Take edges in, or with a new anchor place those known; edges that are too late are none."""
        state = self.state
        state.edges = sorted(
            (e for e in (*state.edges, *edges) if not (e.opens and e.is_late(state.anchor))), key=self._place
        )
        self._cuts = None

    def forget_before(self, instant: int) -> None:
        """Let go of edges that only late events could ask for, but the last few."""
        edges = self.state.edges
        over = bisect.bisect_left(edges, instant, key=self._place) - KEPT_EDGES
        if over > 0:
            del edges[:over]
            self.state.forgot = True
            self._cuts = None

    def _place(self, edge: Edge) -> int:
        """Return an edge's time in UTC ns; one that cannot be placed yet is after all others."""
        time = edge.placed(self.state.anchor)
        return END_OF_TIME if time is None else time

    def _give_up(self, decision: Decision) -> None:
        """Wait no longer for boundaries before a decision's end; the sink voids any that come."""
        given_up = self.state.given_up
        for purpose in self._waits:
            if decision.process.is_capture or any(
                purpose in s.purposes
                for s in self.state.sources
                if (s.process, s.capture) == (decision.process, decision.capture)
            ):
                given_up[purpose] = max(given_up.get(purpose, NONE), decision.until)

    def holders(self) -> list[tuple[Process, str, int]]:
        """Return the sources that hold the watermark back, each with how far it has come.

        A process with `global_pid` 0 stands for one that has yet to come, or come again.
        """
        if not self._waits or self.all_closed:
            return []
        found = []
        for purpose in self._waits:
            if self._watermark(purpose) > self.watermark:
                continue
            live = [s for s in self.state.sources if purpose in s.purposes]
            if live:
                least = min(s.watermark for s in live)
                found += [(s.process, s.capture, s.watermark) for s in live if s.watermark == least]
            else:
                found.append((Process("", 0), "", self._watermark(purpose)))
        return sorted(set(found))

    @property
    def all_closed(self) -> bool:
        """Whether every partition's linker has seen the end of the session."""
        return bool(self.state.partitions) and len(self.state.closed) == self.state.partitions

    def _advance(self, record: WindowsRecord) -> None:
        state = self.state
        for source in state.sources:
            if (source.process, source.capture) == (record.process, record.capture):
                break
        else:
            source = SourceState(record.process, record.capture, record.purposes, NONE)
            state.sources.append(source)
        if record.ended:
            state.sources.remove(source)
        elif record.watermark is not None:
            source.watermark = max(source.watermark, record.watermark)
        for purpose in record.purposes:
            live = [s.watermark for s in state.sources if purpose in s.purposes]
            if live:
                state.reached[purpose] = max(state.reached[purpose], min(live))

    @property
    def watermark(self) -> int:
        """Every cut before this time (UTC ns) is known."""
        if not self._waits or self.all_closed:
            return END_OF_TIME
        return min(map(self._watermark, self._waits))

    def _watermark(self, purpose: Purpose) -> int:
        given_up = self.state.given_up.get(purpose, NONE)
        if self._needs_anchor[purpose] and self.state.anchor is None:
            return given_up
        return max(given_up, self.state.reached[purpose]) if self._follows[purpose] else END_OF_TIME

    def windows(self, starts: Int64s) -> Int64s:
        """Return the window of each instant: the cut it follows, NONE before the first."""
        if self._length:
            return starts // self._length * self._length
        cuts = self._all_cuts()
        found = np.searchsorted(cuts, starts, "right")
        windows = np.concatenate(([NONE], cuts))[found]
        if self.state.forgot:
            windows[found == 0] = starts[found == 0]
        return windows

    def _all_cuts(self) -> Int64s:
        if self._cuts is None:
            placed = map(self._place, (*self.state.edges, *self._from_file))
            times = [*self._fixed, *(t for t in placed if t != END_OF_TIME)]
            self._cuts = np.unique(np.array(times, np.int64))
        return self._cuts
