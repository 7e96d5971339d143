"""A lane as a source: of window boundaries, and of the application's clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from consumers.roles import role_of
from consumers.tables import Table, pick
from consumers.timeline import PURPOSES, reads_application_clock, spans_of
from schemas.columns import Int64s
from schemas.config import Config, Spans, duration_ns
from schemas.deltas import Anchor
from schemas.types import END_OF_TIME, NONE, TIME_LIMIT, Kind
from schemas.windows import Edge, Purpose, WindowsRecord

if TYPE_CHECKING:
    from consumers.lane import Lane

_CLOSING_SHIFT: Final = len(PURPOSES)
"""In a range's `purposes`: bit p, its opening is still to be written; bit p + shift, its closing."""


class Mark(msgspec.Struct, array_like=True, order=True):
    """A mark, or with `duration` a window the application announced; `span` tells them all apart."""

    time: int
    span: int
    duration: int
    name: str


class BoundaryState(msgspec.Struct):
    """What a source must remember; `purposes` and `is_clock` hold once `decided`."""

    decided: bool = False
    purposes: tuple[Purpose, ...] = ()
    is_clock: bool = False
    anchored: bool = False
    anchors: list[Anchor] = []
    marks: list[Mark] = []
    open_marks: dict[str, int] = {}


class Boundaries:
    """What one lane has to say to WINDOWS."""

    def __init__(self, config: Config, state: BoundaryState) -> None:
        self._config = config
        self.state = state
        self._spans: dict[Purpose, Spans] = {p: spans_of(config, p) for p in PURPOSES}
        self._names = {p: re.compile(s.name) for p, s in self._spans.items()}
        self._ends = {p: re.compile(s.end) for p, s in self._spans.items() if s.end}
        self._by_ranges = [p for p in PURPOSES if self._spans[p].by == "ranges"]
        self._by_marks = [p for p in PURPOSES if self._spans[p].by == "marks"]
        self._slack = {
            p: duration_ns(s.slack) if s.by == "marks" and reads_application_clock(s) else 0
            for p, s in self._spans.items()
        }
        self._clock_mark = re.compile(config.clock.mark)
        self._new_anchors: list[Anchor] = []
        self.late = 0

    @property
    def of_ranges(self) -> bool:
        """Whether the names of ranges matter."""
        return bool(self._by_ranges) and (not self.state.decided or bool(self.state.purposes))

    def purposes_of(self, name: str) -> int:
        """Return the `purposes` of a new range of this name."""
        bits = 0
        for i, purpose in enumerate(PURPOSES):
            if purpose in self._by_ranges and self._names[purpose].search(name):
                closes = self._spans[purpose].until == "end"
                bits |= 1 << i | closes << (i + _CLOSING_SHIFT)
        return bits

    def collect_marks(self, kind: int, columns: Table, ordinals: Int64s, strings: Sequence[str]) -> None:
        """Take in marks (or announced windows); those of no interest are forgotten at once."""
        used = np.flatnonzero(np.bincount(columns["name"]))
        texts = zip(used.tolist(), pick(strings, used), strict=True)
        interesting = {i: text for i, text in texts if self._matters(text)}
        if not interesting:
            return
        rows = np.flatnonzero(np.isin(columns["name"], list(interesting)))
        durations = columns.get("duration", np.full(len(ordinals), NONE))
        for row in rows.tolist():
            name = interesting[int(columns["name"][row])]
            # Marks and announced windows are numbered each on their own.
            span = 2 * int(ordinals[row]) + (kind == Kind.WINDOWS)
            mark = Mark(int(columns["time"][row]), span, int(durations[row]), name)
            if (reading := _reading(self._clock_mark, name)) is not None and kind == Kind.MARKS:
                self._new_anchors.append(Anchor(mark.time, reading))
                if not self.state.anchored:
                    self.state.anchors.append(Anchor(mark.time, reading))
            if self._by_marks:
                self.state.marks.append(mark)

    def _matters(self, name: str) -> bool:
        patterns = [self._clock_mark, *(self._names[p] for p in self._by_marks)]
        patterns += [self._ends[p] for p in self._by_marks if p in self._ends]
        return any(pattern.search(name) for pattern in patterns)

    def take_anchors(self) -> list[Anchor]:
        """Return the anchors that came since the last call."""
        anchors, self._new_anchors = self._new_anchors, []
        return anchors

    def advance(self, lane: Lane, before: int) -> WindowsRecord | None:
        """Return what the lane, just advanced from `before`, has to say to WINDOWS."""
        state = self.state
        if not state.decided:
            self._decide(lane)
        watermark = lane.state.watermark
        edges = self._range_edges(lane, before) if self._by_ranges and state.purposes else []
        edges += self._mark_edges(watermark, before)
        anchor = self._first_anchor(watermark)
        if not state.purposes and anchor is None:
            return None
        return WindowsRecord(
            session="",
            config_digest="",
            partition=0,
            process=lane.state.process,
            capture=lane.state.capture,
            purposes=state.purposes,
            edges=tuple(sorted(edges)),
            anchor=anchor,
            watermark=watermark if watermark == END_OF_TIME else watermark - max(self._slack.values()),
            ended=watermark == END_OF_TIME,
        )

    def _decide(self, lane: Lane) -> None:
        """Settle what the lane is a source of, by the role its first facts give it."""
        state = self.state
        state.decided = True
        role = role_of(self._config.roles, lane.state.process, lane.state.facts)
        state.purposes = tuple(
            p for p in PURPOSES if self._spans[p].by in ("ranges", "marks") and self._spans[p].role == role
        )
        state.is_clock = role == self._config.clock.role and any(
            map(reads_application_clock, self._spans.values())
        )
        if not state.is_clock:
            state.anchored = True
            state.anchors.clear()

    def _range_edges(self, lane: Lane, before: int) -> list[Edge]:
        ranges, watermark = lane.ranges, lane.state.watermark
        edges: list[Edge] = []
        rows = np.flatnonzero((ranges["purposes"] != 0) & (ranges["start"] < watermark))
        if not len(rows):
            return edges
        ranges["purposes"] = ranges["purposes"].copy()
        for row in rows.tolist():
            start, end, span, bits = (int(ranges[c][row]) for c in ("start", "end", "ordinal", "purposes"))
            for i, purpose in enumerate(PURPOSES):
                opening, closing = 1 << i, 1 << (i + _CLOSING_SHIFT)
                if purpose not in self.state.purposes:
                    bits &= ~(opening | closing)
                if bits & opening:
                    bits &= ~opening
                    if start < before:
                        self.late += 1
                        bits &= ~closing
                    else:
                        edges.append(Edge(start, purpose, opens=True, span=span))
                if bits & closing and (end < watermark or watermark == END_OF_TIME):
                    bits &= ~closing
                    # A range without end lasts as long as its capture.
                    close = max(start, end if end < END_OF_TIME else lane.state.last)
                    if close < before:
                        self.late += end < END_OF_TIME
                        close = before
                    edges.append(Edge(close, purpose, opens=False, span=span))
            ranges["purposes"][row] = bits
        return edges

    def _mark_edges(self, watermark: int, before: int) -> list[Edge]:
        state = self.state
        if not state.marks:
            return []
        due = sorted(m for m in state.marks if m.time < watermark)
        state.marks = [m for m in state.marks if m.time >= watermark]
        edges: list[Edge] = []
        for mark in due:
            for purpose in self._by_marks:
                if purpose in state.purposes:
                    edges += self._edges_of(mark, purpose, before)
        return edges

    def _edges_of(self, mark: Mark, purpose: Purpose, before: int) -> list[Edge]:
        opens = bool(self._names[purpose].search(mark.name))
        pattern = self._names[purpose] if opens else self._ends.get(purpose)
        if pattern is None or not pattern.search(mark.name):
            return []
        time, since = mark.time, NONE
        reading = _reading(pattern, mark.name)
        if before == END_OF_TIME:
            self.late += 1
            return []
        if reading is not None:
            time, since = reading, max(mark.time, before) - self._slack[purpose]
        elif time < before:
            self.late += 1
            if opens:
                return []
            time = before
        edge = Edge(time, purpose, opens, mark.span, reading is not None, since)
        if not opens:
            span = self.state.open_marks.pop(purpose, None)
            return [] if span is None else [msgspec.structs.replace(edge, span=span)]
        if mark.duration >= 0:
            return [edge, msgspec.structs.replace(edge, time=time + mark.duration, opens=False)]
        self.state.open_marks[purpose] = mark.span
        return [edge]

    def _first_anchor(self, watermark: int) -> int | None:
        state = self.state
        due = [a for a in state.anchors if a.time < watermark]
        if state.anchored or not due:
            return None
        state.anchored = True
        state.anchors.clear()
        first = min(due)
        return first.application - first.time


def _reading(pattern: re.Pattern[str], name: str) -> int | None:
    """Return the reading of the application's clock that a mark carries, if it does."""
    found = pattern.search(name)
    if found is None or "ns" not in pattern.groupindex or found["ns"] is None:
        return None
    try:
        value = int(found["ns"])
    except ValueError:
        return None
    return value if -TIME_LIMIT < value < TIME_LIMIT else None
