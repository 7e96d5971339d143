"""The spans of one purpose, as the sink knows them: which instants lie in one, as far as decided.

An answer given is final: it does not depend on what else arrives, unless two processes cut the
same time, and then the purpose is withheld as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from typing import NamedTuple

import msgspec

from consumers.steadiness import steadiness
from consumers.timeline import reads_application_clock
from schemas.config import Spans
from schemas.types import END_OF_TIME, NONE, Process
from schemas.windows import Decision, Edge, Purpose, WindowsRecord


class SourceState(msgspec.Struct):
    """What one (capture, process) has said of its boundaries, by span."""

    process: Process
    capture: str
    openings: dict[int, Edge] = {}
    closings: dict[int, Edge] = {}
    watermark: int = NONE
    ended: bool = False


class SpansState(msgspec.Struct):
    """What must be remembered of a purpose."""

    sources: list[SourceState] = []
    cuts: list[Decision] = []
    """What was given up on: boundaries in these times are none."""


class Span(NamedTuple):
    """[start, end) in UTC ns.

    `end` END_OF_TIME: open. `counts`: whether it is of the purpose; None: not decided yet.
    """

    start: int
    end: int
    counts: bool | None


class _Line(NamedTuple):
    """The spans of one source, in order of opening."""

    source: SourceState | None
    """None: they stand in the configuration."""
    spans: list[Span]
    reach: list[int]
    """Largest end of the spans up to each."""
    low: int
    high: int
    """Earliest and latest boundary."""


Lifetime = tuple[int, int]
"""First start and last end of the events of a (capture, process), UTC ns."""


class PurposeSpans:
    """The spans of one purpose; see the module's docstring."""

    def __init__(self, purpose: Purpose, spans: Spans) -> None:
        self.by = spans.by
        self.state = SpansState()
        self.closed = False
        """Whether no more boundaries will come."""
        self.lifetimes: dict[tuple[Process, str], Lifetime] = {}
        """Of every (process, capture) that has events, as far as known."""
        self._purpose = purpose
        self._spans = spans
        self._needs_anchor = reads_application_clock(spans)
        self._anchor: int | None = None
        self._clocks: list[Process] = []
        """Two processes that each say what the application's clock shows."""
        self._lines: list[_Line] | None = None

    @property
    def from_events(self) -> bool:
        """Whether WINDOWS decides them."""
        return self.by in ("ranges", "marks", "file")

    @property
    def cuts_time(self) -> bool:
        """Whether they cut the timeline."""
        return self.by not in ("all", "none")

    def update(self, *, anchors: Mapping[Process, int], closed: bool) -> None:
        """Take over the application's clock less UTC, as its processes say, and whether all is said.

        Linkers take the first that comes, so with two that differ nothing in that clock has a place.
        """
        anchor = next(iter(anchors.values())) if len(anchors) == 1 else None
        clocks = sorted(anchors)[:2] if len(anchors) > 1 and self._needs_anchor else []
        if (anchor, clocks, closed) != (self._anchor, self._clocks, self.closed):
            self._anchor, self._clocks, self.closed, self._lines = anchor, clocks, closed, None

    def add(self, record: WindowsRecord) -> None:
        """Take in what a source says of this purpose."""
        if record.decision is not None and record.decision.kind == "cut":
            self.state.cuts = sorted({*self.state.cuts, record.decision})
            self._lines = None
        edges = [e for e in record.edges if e.purpose == self._purpose]
        if not edges and self._purpose not in record.purposes:
            return
        source = self._source(record)
        for edge in edges:
            into = source.openings if edge.opens else source.closings
            into.setdefault(edge.span, edge)
        if record.watermark is not None:
            source.watermark = max(source.watermark, record.watermark)
        source.ended |= record.ended
        self._lines = None

    def _source(self, record: WindowsRecord) -> SourceState:
        for source in self.state.sources:
            if (source.process, source.capture) == (record.process, record.capture):
                return source
        self.state.sources.append(SourceState(record.process, record.capture, {}, {}))
        return self.state.sources[-1]

    def holds(self, instant: int) -> bool | None:
        """Tell whether a span of the purpose holds the window that `instant` is in.

        `instant` in UTC ns, NONE: before the first cut. None: not decided yet.
        """
        if self.by in ("all", "none"):
            return self.by == "all"
        if instant == NONE:
            return False
        given_up = any(cut.since <= instant < cut.until for cut in self.state.cuts)
        answer: bool | None = False if self.closed or given_up or not self.from_events else None
        for line in self._all_lines():
            known_from, known_to = self._known(line)
            if not known_from <= instant < known_to:
                continue
            inside = _inside(line, instant)
            if inside or inside is None:
                return inside
            answer = False
        return answer

    def listed(self) -> list[Span]:
        """Return the spans that are of the purpose, in order of time; `all` and `none`: nothing."""
        return sorted(s for line in self._all_lines() for s in line.spans if s.counts)

    def nothing(self) -> str:
        """Say why no span is of the purpose."""
        spans, key = self._spans, f"windows.{self._purpose}"
        if self.by in ("times", "file"):
            where = "" if self._anchor is not None or self.by == "times" else ": no anchor places them"
            return f"{len(spans.times)} spans in {key}{where}"
        if not self.state.sources:
            return f"no process has the role {spans.role!r} of {key}"
        found = sum(len(line.spans) for line in self._all_lines())
        if not found:
            return f"none of the {self.by} of {spans.role!r} matches {spans.name!r} of {key}"
        never = max(1, spans.warmup)
        if found <= never:
            return f"{found} spans by {key}, of which the first {never} are never steady"
        return (
            f"none of {found} spans by {key} is steady: they differ by more than {spans.tolerance:g} of it "
            f"from the median of the {spans.history} before"
        )

    def cuts(self) -> Iterator[int]:
        """Yield the instants at which they cut the timeline, in UTC ns, in any order."""
        for line in self._all_lines():
            for span in line.spans:
                yield span.start
                if span.end != END_OF_TIME:
                    yield span.end
        if self.by in ("ranges", "marks"):
            # An end without its beginning makes no span, but the linkers cut there all the same.
            for source in self.state.sources:
                for time in self._times(source.closings.values()):
                    if not self._is_void(source, time, time + 1):
                        yield time

    def late(self) -> int:
        """Return how many boundaries pointed so far back in the application's clock that they are none."""
        return sum(
            edge.is_late(self._anchor)
            for source in self.state.sources
            for edge in (*source.openings.values(), *source.closings.values())
        )

    def known_to(self) -> int:
        """Return the time before which all cuts known of are all there are."""
        if self.closed or not self.from_events:
            return END_OF_TIME
        if self.by == "file":
            return NONE if self._anchor is None else END_OF_TIME
        lines = self._all_lines()
        live = [line for line in lines if line.source and not line.source.ended]
        known = [self._known(line)[1] for line in live or lines]
        least = (min(known) if live else max(known)) if known else NONE
        return max(least, *(cut.until for cut in self.state.cuts), NONE)

    def _is_void(self, source: SourceState, start: int, end: int) -> bool:
        """Tell whether [start, end) of a source reaches into what was given up on."""
        return any(
            start < cut.until and end > cut.since
            for cut in self.state.cuts
            if cut.process.is_capture or (cut.process, cut.capture) == (source.process, source.capture)
        )

    def at_once(self) -> tuple[Process, Process] | None:
        """Return two processes that are a source at the same time, or that both give its clock.

        One that has no boundaries counts as well: what it says of time lets kernels pass that the
        other, not heard of yet, would have cut apart.
        """
        if self._clocks:
            return self._clocks[0], self._clocks[1]
        lives: dict[tuple[Process, str], Lifetime] = {}
        for source in self.state.sources:
            key = (source.process, source.capture)
            if key in self.lifetimes:
                lives[key] = self.lifetimes[key]
        for line in self._all_lines():
            if line.source is not None:
                lives[line.source.process, line.source.capture] = self._lifetime(line)
        latest: tuple[int, Process] | None = None
        for low, high, process in sorted((*life, process) for (process, _), life in lives.items()):
            if latest and low < latest[0]:
                return latest[1], process
            latest = max(latest, (high, process)) if latest else (high, process)
        return None

    def _known(self, line: _Line) -> tuple[int, int]:
        """Return the time [from, to) in which `line` decides.

        While its process has events no other may be a source, so what it says there is final;
        before and after that another one may come.
        """
        if self.closed or line.source is None:
            return NONE, END_OF_TIME
        low, high = self._lifetime(line)
        return low, high if line.source.ended else min(high, line.source.watermark)

    def _lifetime(self, line: _Line) -> Lifetime:
        low, high = line.low, line.high
        if line.source is not None:
            key = (line.source.process, line.source.capture)
            first, last = self.lifetimes.get(key, (low, high))
            low, high = min(low, first), max(high, last)
        return low, high

    def _all_lines(self) -> list[_Line]:
        if self._lines is None:
            if self.by == "times":
                self._lines = [self._fixed()]
            elif self.by == "file":
                self._lines = [] if self._anchor is None else [self._fixed()]
            elif self.from_events:
                self._lines = [line for line in map(self._line, self.state.sources) if line]
            else:
                self._lines = []
        return self._lines

    def _fixed(self) -> _Line:
        edges = [
            Edge(time, self._purpose, opens, 0, application=self.by == "file")
            for span in self._spans.times
            for time, opens in zip(span, (True, False), strict=True)
        ]
        times = [edge.placed(self._anchor) for edge in edges]
        spans = sorted(
            Span(start, end, counts=True)
            for start, end in zip(times[::2], times[1::2], strict=True)
            if start is not None and end is not None and end > start
        )
        return _Line(None, spans, _reach(spans), NONE, END_OF_TIME)

    def _line(self, source: SourceState) -> _Line | None:
        opened = sorted(
            (time, span) for span, edge in source.openings.items() for time in self._times((edge,))
        )
        if not opened:
            return None
        ends = self._ends(source, opened)
        whole = [not self._is_void(source, s, e) for (s, _), e in zip(opened, ends, strict=True)]
        opened, ends = [*compress(opened, whole)], [*compress(ends, whole)]
        if not opened:
            return None
        counts: list[bool | None] = [True] * len(opened)
        if self._purpose == "steady":
            counts = steadiness(
                [
                    None if end == END_OF_TIME else end - start
                    for (start, _), end in zip(opened, ends, strict=True)
                ],
                warmup=self._spans.warmup,
                tolerance=self._spans.tolerance,
                history=self._spans.history,
                ended=source.ended or self.closed,
            )
        spans = [Span(start, end, count) for (start, _), end, count in zip(opened, ends, counts, strict=True)]
        latest = max(end for end in (opened[-1][0], *ends) if end != END_OF_TIME)
        return _Line(source, spans, _reach(spans), opened[0][0], latest)

    def _ends(self, source: SourceState, opened: list[tuple[int, int]]) -> list[int]:
        following = [*(time for time, _ in opened[1:]), END_OF_TIME]
        found = []
        for (start, span), after in zip(opened, following, strict=True):
            closing = source.closings.get(span)
            end = closing.placed(self._anchor) if closing else None
            if end is not None:
                found.append(max(end, start))
            else:
                found.append(after if self._until_next else END_OF_TIME)
        return found

    @property
    def _until_next(self) -> bool:
        spans = self._spans
        return spans.until == "next" or (spans.by == "marks" and not spans.end)

    def _times(self, edges: Iterable[Edge]) -> Iterator[int]:
        for edge in edges:
            time = edge.placed(self._anchor)
            if time is not None:
                yield time


def _reach(spans: list[Span]) -> list[int]:
    reach, largest = [], NONE
    for span in spans:
        largest = max(largest, span.end)
        reach.append(largest)
    return reach


def _inside(line: _Line, instant: int) -> bool | None:
    """Return whether a span that counts holds `instant`."""
    answer: bool | None = False
    at = bisect_right(line.spans, instant, key=lambda span: span.start) - 1
    while at >= 0 and line.reach[at] > instant:
        span = line.spans[at]
        if span.end > instant:
            if span.counts:
                return True
            if span.counts is None:
                answer = None
        at -= 1
    return answer
