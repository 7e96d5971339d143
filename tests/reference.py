"""The linking rules once more, as simply as they can be said: lists, dictionaries and Python ints.

Nothing here is shared with the linker or the sink, and nothing is fast: every question is answered
by looking at everything. `link` takes a log of EVENTS, one list of batches per partition, and a
configuration; it returns what every kernel became, and all figures that follow from that.

Built-in rewrites and rules on the names of ranges are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

from schemas.config import Config, Rows, Spans
from schemas.events import COLUMNS, TEXT_COLUMNS, Batch
from schemas.types import Kind, Process

NONE = -(2**63)
FOREVER = 2**63 - 1
CONTEXT = "context"
NOT_CAPTURED, OUTSIDE, NO_RANGES = "launch_not_captured", "launch_outside_ranges", "thread_without_ranges"
PURPOSES = ("measured", "steady")
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def nanoseconds(text: str) -> int:
    """Return a duration of the configuration in ns."""
    if text == "0":
        return 0
    number, unit = re.fullmatch(r"([0-9.]+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return int(Fraction(number) * _UNITS[unit])


@dataclass(eq=False)
class Range:
    """A range from its opening on; `end` FOREVER until a closing gives it one."""

    ordinal: int
    time: int
    thread: int
    domain: str
    name: str
    late: bool
    counts: bool = True
    end: int = FOREVER
    crosses: bool = False
    counted: bool = False
    spans: dict[str, str] = field(default_factory=dict)

    def holds(self, time: int) -> bool:
        """Tell whether the range is open at an instant."""
        return self.time <= time < self.end

    @property
    def place(self) -> tuple[int, int]:
        """Return what orders ranges by opening."""
        return self.time, self.ordinal


@dataclass(eq=False)
class Launch:
    """A launch; `reason` is set when its context is fixed."""

    ordinal: int
    time: int
    thread: int
    correlation: int
    name: str
    late: bool
    reason: str = ""
    path: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    used_in: int | None = None
    positions: int = 0
    replayed: bool = False

    @property
    def is_graph(self) -> bool:
        """Whether it launches a graph."""
        return self.name.startswith(("cudaGraphLaunch", "cuGraphLaunch"))


@dataclass(eq=False)
class Work:
    """A kernel, memory operation or opaque graph; `reason` and what follows once it is decided."""

    kind: Kind
    process: Process
    capture: str
    ordinal: int
    time: int
    duration: int
    device: int
    stream: int
    correlation: int
    late: bool
    came_in: int
    name: str = ""
    graph: int = NONE
    node: int = NONE
    bytes: int = 0
    reason: str = ""
    decided: int = NONE
    path: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    position: int = NONE
    window: int = NONE
    launch: Launch | None = None

    @property
    def ns(self) -> int:
        """How long it counts."""
        return max(0, self.duration)

    @property
    def group(self) -> tuple[Any, ...]:
        """Return the group of a kernel within its process, in the order of ties."""
        return self.device, self.context, self.name, self.graph, self.position


@dataclass(eq=False)
class Counted:
    """One row of a row counter."""

    process: Process
    counter: int
    time: int
    fields: dict[str, str]
    window: int = NONE


@dataclass(eq=False)
class Edge:
    """Where a span of a source opens or closes; `span` pairs the two.

    `application`: `time` is one of the application's clock; `since`, in UTC ns, how far back it
    may point.
    """

    lane: Lane
    purpose: str
    opens: bool
    time: int
    span: tuple[Kind, int]
    application: bool = False
    since: int = NONE

    def placed(self, anchor: int | None) -> int | None:
        """Return its time in UTC ns, None if it has none."""
        if not self.application:
            return self.time
        if anchor is None or (self.opens and self.is_late(anchor)):
            return None
        return max(self.time - anchor, self.since)

    def is_late(self, anchor: int | None) -> bool:
        """Tell whether it points further back than it may."""
        return self.application and anchor is not None and self.time - anchor < self.since


@dataclass(eq=False)
class Lane:
    """One (capture, process)."""

    process: Process
    capture: str
    watermark: int = NONE
    ended: bool = False
    advances: int = 0
    first: int | None = None
    last: int | None = None
    seen: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    waiting: list[tuple[Kind, dict[str, Any]]] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    first_range: dict[int, int] = field(default_factory=dict)
    closings: list[dict[str, Any]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    used: list[Launch] = field(default_factory=list)
    marks: list[tuple[int, int, Kind, str, int]] = field(default_factory=list)
    anchors: list[tuple[int, int]] | None = field(default_factory=list)
    open_marks: dict[str, tuple[Kind, int]] = field(default_factory=dict)
    pending: list[Work] = field(default_factory=list)

    def missing(self) -> dict[int, list[tuple[int, int]]]:
        """Return the gaps in the row numbers of each kind."""
        gaps: dict[int, list[tuple[int, int]]] = {}
        for kind, seen in self.seen.items():
            absent = [n for n in range(max(seen, default=-1) + 1) if n not in seen]
            for n in absent:
                intervals = gaps.setdefault(kind, [])
                if intervals and intervals[-1][1] == n:
                    intervals[-1] = (intervals[-1][0], n + 1)
                else:
                    intervals.append((n, n + 1))
        return gaps


@dataclass
class Linked:
    """What came of a log: every decided row, in order of decision within a process."""

    kernels: list[Work] = field(default_factory=list)
    others: list[Work] = field(default_factory=list)
    rows: list[Counted] = field(default_factory=list)
    lanes: dict[tuple[str, Process], Lane] = field(default_factory=dict)
    counters: dict[Process, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    of_session: Counter[str] = field(default_factory=Counter)
    offsets: dict[Process, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    facts: dict[Process, list[tuple[str, int, str, str]]] = field(default_factory=lambda: defaultdict(list))
    edges: list[Edge] = field(default_factory=list)
    anchors: list[tuple[Process, int, int]] = field(default_factory=list)
    """Every reading of the application's clock: process, UTC ns, what it showed."""
    clocks: dict[Process, int] = field(default_factory=dict)
    """What the application's clock shows more than UTC, as processes of `clock.role` said first."""
    graphs: Counter[tuple[Process, int, bool, str]] = field(default_factory=Counter)


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """Return the rows of a batch, their text looked up, each with its ordinal."""
    names = COLUMNS[Kind(batch.kind)]
    columns = []
    for name in names:
        values = batch.columns[name].tolist()
        columns.append([batch.strings[v] for v in values] if name in TEXT_COLUMNS else values)
    return [
        {"ordinal": batch.header.ordinal + i, **dict(zip(names, row, strict=True))}
        for i, row in enumerate(zip(*columns, strict=True))
    ]


def link(log: Sequence[Sequence[Batch]], config: Config) -> Linked:
    """Return what becomes of a log of one session, given partition by partition."""
    result = Linked()
    for partition in log:
        for batch in partition:
            if batch.kind == Kind.FACTS:
                for row in rows_of(batch):
                    fact = batch.header.capture, row["thread"], row["key"], row["value"]
                    result.facts[batch.header.process].append(fact)
    for partition in log:
        _link_partition(partition, config, result)
    cut_at = cuts(result, config)
    length = nanoseconds(config.windows.length)
    stamped: list[Work | Counted] = [*result.kernels, *result.rows]
    for counted in stamped:
        counted.window = _window(counted.time, cut_at, length)
    return result


def _window(time: int, cut_at: Sequence[int] | None, length: int) -> int:
    if cut_at is None:
        return time // length * length
    return max((c for c in cut_at if c <= time), default=NONE)


def _link_partition(partition: Sequence[Batch], config: Config, result: Linked) -> None:
    lanes: dict[tuple[Process, str], Lane] = {}
    refused: dict[tuple[Process, str], set[tuple[int, int]]] = defaultdict(set)
    session_ended = False
    for batch in partition:
        header = batch.header
        if header.kind == Kind.SESSION_END:
            session_ended = True
            for _, lane in sorted(lanes.items()):
                result.counters[lane.process]["unended_captures"] += not lane.ended
                lane.ended = True
                _advance(lane, FOREVER, config, result)
            continue
        key = header.process, header.capture
        if session_ended:
            _refuse(lanes.get(key), refused[key], batch, result)
            continue
        lane = lanes.setdefault(key, Lane(*key))
        result.lanes[header.capture, header.process] = lane
        _collect(lane, batch, config, result)
        if header.kind == Kind.CAPTURE_END:
            lane.ended = True
            _advance(lane, FOREVER, config, result)
        elif header.watermark is not None and header.watermark > lane.watermark:
            _advance(lane, header.watermark, config, result)


def _refuse(lane: Lane | None, refused: set[tuple[int, int]], batch: Batch, result: Linked) -> None:
    """Count rows of an ended session that had not come before."""
    for i in range(batch.header.rows):
        row = batch.kind, batch.header.ordinal + i
        if row in refused or (lane and row[1] in lane.seen[row[0]]):
            result.of_session["repeated_rows"] += 1
        else:
            refused.add(row)
            result.of_session["after_end"] += 1


_LATE = {
    Kind.KERNELS: "late_kernels",
    Kind.LAUNCHES: "late_launches",
    Kind.RANGE_OPENINGS: "late_ranges",
    Kind.RANGE_CLOSINGS: "late_ranges",
    Kind.MEMORY: "late_memory",
}


def _collect(lane: Lane, batch: Batch, config: Config, result: Linked) -> None:
    """Let rows that were not seen before wait for the next advance."""
    counters = result.counters[lane.process]
    if batch.kind not in COLUMNS:
        result.of_session["unknown_kinds"] += 1
        return
    kind = Kind(batch.kind)
    for row in rows_of(batch) if COLUMNS[kind] else ():
        if row["ordinal"] in lane.seen[kind]:
            counters["repeated_rows"] += 1
            continue
        lane.seen[kind].add(row["ordinal"])
        if kind == Kind.FACTS:
            continue
        end = row["time"] + max(0, row.get("duration", 0))
        lane.first = row["time"] if lane.first is None else min(lane.first, row["time"])
        lane.last = end if lane.last is None else max(lane.last, end)
        row["late"] = row["time"] < lane.watermark
        if row["late"] and kind in _LATE:
            counters[_LATE[kind]] += 1
        lane.waiting.append((kind, row))
        if kind == Kind.MARKS and (shown := reading(config.clock.mark, row["name"])) is not None:
            result.anchors.append((lane.process, row["time"], shown))
            if lane.anchors is not None:
                lane.anchors.append((row["time"], shown))


def _advance(lane: Lane, watermark: int, config: Config, result: Linked) -> None:
    """Take in what waits, then decide all that a watermark allows."""
    before = lane.watermark
    lane.watermark = max(lane.watermark, watermark)
    lane.advances += 1
    _take_in(lane, config)
    _close(lane, result)
    _bound_by_ranges(lane, before, config, result)
    _bound_by_marks(lane, before, config, result)
    _tell_clock(lane, config, result)
    _fix_contexts(lane, config)
    _count_ranges(lane, config, result)
    _decide(lane, config, result)
    _count_crossings(lane, result)
    age = nanoseconds(config.limits.launch_age)
    lane.ranges = [r for r in lane.ranges if r.end >= lane.watermark]
    lane.launches = [n for n in lane.launches if n.used_in is None and n.time + age >= lane.watermark]


def _take_in(lane: Lane, config: Config) -> None:
    """Make of what waits what it is."""
    for kind, row in lane.waiting:
        if kind == Kind.RANGE_OPENINGS:
            opened = Range(**row)
            opened.counts = _in_domain(opened.domain, config)
            lane.ranges.append(opened)
            if opened.counts:
                earliest = lane.first_range.get(opened.thread, FOREVER)
                lane.first_range[opened.thread] = min(earliest, opened.time)
        elif kind == Kind.RANGE_CLOSINGS:
            lane.closings.append(row)
        elif kind == Kind.LAUNCHES:
            lane.launches.append(Launch(**row))
        elif kind in (Kind.MARKS, Kind.WINDOWS):
            lane.marks.append((row["time"], row["ordinal"], kind, row["name"], row.get("duration", NONE)))
        elif kind in (Kind.KERNELS, Kind.MEMORY, Kind.GRAPHS):
            if kind == Kind.MEMORY:
                row["name"] = row.pop("operation")
            work = Work(kind=kind, process=lane.process, capture=lane.capture, came_in=lane.advances, **row)
            lane.pending.append(work)
    lane.waiting = []


def _in_domain(domain: str, config: Config) -> bool:
    wanted = config.context.domains
    return domain not in config.context.exclude_domains and (not wanted or domain in wanted)


def _close(lane: Lane, result: Linked) -> None:
    """Give ranges their ends; a closing waits for its opening until its own time has passed."""
    waiting = []
    for closing in lane.closings:
        opened = [r for r in lane.ranges if r.ordinal == closing["opening"]]
        if opened:
            opened[0].end = min(opened[0].end, closing["time"])
        elif closing["time"] < lane.watermark:
            result.counters[lane.process]["unmatched_closings"] += 1
        else:
            waiting.append(closing)
    lane.closings = waiting


def _bound_by_ranges(lane: Lane, before: int, config: Config, result: Linked) -> None:
    """Let the ranges of a source cut the time of everybody, unless they come too late to do so."""
    counters = result.counters[lane.process]
    for purpose in PURPOSES:
        source: Spans = getattr(config.windows, purpose)
        if source.by != "ranges" or role_of(lane.process, result, config) != source.role:
            continue
        for r in sorted(lane.ranges, key=lambda r: r.place):
            if not (r.counts and r.time < lane.watermark and re.search(source.name, r.name)):
                continue
            span = Kind.RANGE_OPENINGS, r.ordinal
            state = r.spans.get(purpose, "")
            if not state and r.time < before:
                counters["late_boundaries"] += 1
                r.spans[purpose] = "closed"
            elif not state:
                r.spans[purpose] = "open"
                result.edges.append(Edge(lane, purpose, opens=True, time=r.time, span=span))
            if r.spans[purpose] != "open" or source.until == "next":
                continue
            end = r.end
            if end == FOREVER and lane.watermark == FOREVER:
                end = max(r.time, before, lane.last or before)
            if end < lane.watermark:
                if end < before:
                    counters["late_boundaries"] += 1
                r.spans[purpose] = "closed"
                end = max(r.time, end, before)
                result.edges.append(Edge(lane, purpose, opens=False, time=end, span=span))


def _bound_by_marks(lane: Lane, before: int, config: Config, result: Linked) -> None:
    """Let marks and announced windows of a source cut everybody's time."""
    due = sorted(mark for mark in lane.marks if mark[0] < lane.watermark)
    lane.marks = [mark for mark in lane.marks if mark[0] >= lane.watermark]
    for purpose in PURPOSES:
        source: Spans = getattr(config.windows, purpose)
        if source.by != "marks" or role_of(lane.process, result, config) != source.role:
            continue
        for time, ordinal, kind, name, duration in due:
            opens = re.search(source.name, name) is not None
            if not opens and not (source.end and re.search(source.end, name)):
                continue
            edge = Edge(lane, purpose, opens, time, (kind, ordinal))
            shown = reading(source.name if opens else source.end, name)
            if before == FOREVER:
                result.counters[lane.process]["late_boundaries"] += 1
                continue
            if shown is not None:
                edge.application, edge.time = True, shown
                edge.since = max(time, before) - nanoseconds(source.slack)
            elif time < before:
                result.counters[lane.process]["late_boundaries"] += 1
                edge.time = before
                if opens:
                    continue
            if not opens:
                if purpose in lane.open_marks:
                    result.edges.append(replace(edge, span=lane.open_marks.pop(purpose)))
                continue
            result.edges.append(edge)
            if duration >= 0:
                result.edges.append(replace(edge, opens=False, time=edge.time + duration))
            else:
                lane.open_marks[purpose] = edge.span


def reading(pattern: str, name: str) -> int | None:
    """Return what the application's clock showed, if a mark says so."""
    found = re.search(pattern, name)
    return int(found["ns"]) if found and found.groupdict().get("ns") else None


def _tell_clock(lane: Lane, config: Config, result: Linked) -> None:
    """Tie the application's clock to UTC by the first reading that time has passed."""
    due = [anchor for anchor in lane.anchors or () if anchor[0] < lane.watermark]
    if not due or not any(in_application_clock(purpose, config) for purpose in PURPOSES):
        return
    lane.anchors = None
    if role_of(lane.process, result, config) == config.clock.role:
        time, shown = min(due)
        result.clocks.setdefault(lane.process, shown - time)


def in_application_clock(purpose: str, config: Config) -> bool:
    """Tell whether spans are in the application's clock."""
    source: Spans = getattr(config.windows, purpose)
    return source.by == "file" or (source.by == "marks" and "?P<ns>" in source.name + source.end)


def _open_at(lane: Lane, thread: int, time: int, config: Config) -> list[Range]:
    """Return the ranges open at an instant on a thread, outermost first."""
    holding = [r for r in lane.ranges if r.counts and r.holds(time)]
    of_process = [r for r in holding if r.thread == NONE and config.context.process_ranges]
    of_thread = [r for r in holding if r.thread == thread != NONE]
    by_place = [sorted(ranges, key=lambda r: r.place) for ranges in (of_process, of_thread)]
    return [*by_place[0], *by_place[1]]


def _fix_contexts(lane: Lane, config: Config) -> None:
    """Fix the context of every launch that the watermark has passed."""
    for launch in lane.launches:
        if launch.reason or launch.time >= lane.watermark:
            continue
        path = _open_at(lane, launch.thread, launch.time, config)[: config.context.depth]
        launch.path = tuple(r.name for r in path)
        launch.context = tuple(rewritten(name, config)[0] for name in launch.path)
        threads = [launch.thread, NONE] if config.context.process_ranges else [launch.thread]
        had_ranges = any(lane.first_range.get(t, FOREVER) <= launch.time for t in threads)
        launch.reason = CONTEXT if path else OUTSIDE if had_ranges else NO_RANGES


def rewritten(name: str, config: Config) -> tuple[str, dict[str, str]]:
    """Return a range name as contexts show it, and the fields it gives away."""
    assert not config.context.default_rewrites
    fields: dict[str, str] = {}
    for rule in config.context.rewrites:
        if found := re.search(rule.match, name):
            fields |= captured(found)
        name = re.sub(rule.match, rule.replace, name)
    return name, fields


def captured(found: re.Match[str]) -> dict[str, str]:
    """Return the named captures that took part in a match."""
    return {name: text for name, text in found.groupdict().items() if text is not None}


def _count_ranges(lane: Lane, config: Config, result: Linked) -> None:
    """Count what row counters ask for among the ranges that the watermark has passed."""
    for r in sorted(lane.ranges, key=lambda r: r.place):
        if r.counted or r.time >= lane.watermark:
            continue
        r.counted = True
        if not r.counts or r.thread == NONE:
            continue
        around = _open_at(lane, r.thread, r.time, config)[: config.context.depth]
        # A range has the last word on itself, even if it is too short to be open at all.
        _count("ranges", lane, r, [*(o.name for o in around), r.name], config, result)


def _count(
    what: str,
    lane: Lane,
    row: Range | Work,
    path: Sequence[str],
    config: Config,
    result: Linked,
) -> None:
    """Count a row for every counter it matches; `path` are the ranges open when it starts."""
    for number, rows in enumerate(config.rows):
        fields = _fields(rows, row.name, path, config)
        if rows.count == what and fields is not None:
            result.rows.append(Counted(lane.process, number, row.time, fields))


def _fields(rows: Rows, name: str, path: Sequence[str], config: Config) -> dict[str, str] | None:
    """Return the fields a row is counted under, None if it is not counted."""
    found = re.search(rows.match, name)
    if not found:
        return None
    fields: dict[str, str] = {}
    for text in path:
        fields |= rewritten(text, config)[1]
    if rows.context:
        matching = [m for m in (re.search(rows.context, text) for text in path) if m]
        if not matching:
            return None
        fields |= captured(matching[-1])
    return fields | captured(found)


def _decide(lane: Lane, config: Config, result: Linked) -> None:
    """Decide, one at a time, the row whose time comes first, until none is due."""
    decided: list[Work] = []
    wait = nanoseconds(config.limits.launch_wait)
    while True:
        due = []
        for work in lane.pending:
            work.launch = _launch_of(work, lane.launches, config)
            work.decided = max(work.time, work.launch.time) if work.launch else work.time + wait
            if work.decided < lane.watermark:
                due.append(work)
        if not due:
            break
        work = min(due, key=lambda w: (w.decided, w.time, w.kind, w.ordinal))
        lane.pending.remove(work)
        _settle(lane, work, config, result)
        decided.append(work)
    _place(decided)
    for work in decided:
        if work.kind == Kind.KERNELS:
            _count("kernels", lane, work, work.path, config, result)
    kernels = [w for w in decided if w.kind == Kind.KERNELS]
    result.kernels += sorted(kernels, key=lambda w: (w.decided, w.group))
    result.others += [w for w in decided if w.kind != Kind.KERNELS]


def _launch_of(work: Work, launches: Iterable[Launch], config: Config) -> Launch | None:
    """Return the earliest launch that may have caused the work and is not used up."""
    fitting = [n for n in launches if n.used_in is None and _fits(work, n, config)]
    return min(fitting, key=lambda n: (n.time, n.ordinal), default=None)


def _fits(work: Work, launch: Launch, config: Config) -> bool:
    age, wait = nanoseconds(config.limits.launch_age), nanoseconds(config.limits.launch_wait)
    same_id = work.correlation == launch.correlation != NONE
    return same_id and work.time - age <= launch.time <= work.time + wait


def _settle(lane: Lane, work: Work, config: Config, result: Linked) -> None:
    """Give the work its class and context, and take what is used up."""
    launch, counters = work.launch, result.counters[lane.process]
    if launch:
        work.reason, work.path, work.context = launch.reason, launch.path, launch.context
    else:
        work.reason = NOT_CAPTURED
    work.position = work.node
    if launch and not launch.is_graph:
        launch.used_in = lane.advances
        lane.used.append(launch)
    if work.kind != Kind.KERNELS:
        return
    counters["negative_durations"] += work.duration < 0
    counters["zero_durations"] += work.duration == 0
    if launch:
        lag = work.time - launch.time
        counters["launched_after_start"] += lag < 0
        offsets = result.offsets[lane.process]
        offsets[work.device] = min(offsets.get(work.device, lag), lag)
    elif any(n.used_in >= work.came_in and _fits(work, n, config) for n in lane.used if n.used_in):
        counters["second_kernels"] += 1
    if work.node != NONE or (launch and launch.is_graph):
        key = lane.process, work.graph, work.node != NONE
        result.graphs[(*key, "kernels")] += 1
        if launch and launch.is_graph and not launch.replayed:
            launch.replayed = True
            result.graphs[(*key, "replays")] += 1


def _place(decided: Sequence[Work]) -> None:
    """Give kernels of graph replays whose source does not number them their place in the replay."""
    to_place = [
        w
        for w in decided
        if w.kind == Kind.KERNELS and w.launch and w.launch.is_graph and w.node == NONE and not w.late
    ]
    for work in sorted(to_place, key=lambda w: (w.time, w.time + w.duration, w.stream, w.name, w.ordinal)):
        assert work.launch
        work.position = work.launch.positions
        work.launch.positions += 1


def _count_crossings(lane: Lane, result: Linked) -> None:
    """Count ranges that began within another of their thread and outlived it, each once."""
    ranges = [r for r in lane.ranges if r.counts and r.thread != NONE]
    for inner in ranges:
        for outer in ranges:
            closed = outer.end < lane.watermark
            crosses = outer.time < inner.time < outer.end < inner.end
            if outer.thread == inner.thread and closed and crosses and not inner.crosses:
                inner.crosses = True
                result.counters[lane.process]["crossing_ranges"] += 1


# --- windows


def anchor(result: Linked) -> int | None:
    """Return what the application's clock shows more than UTC, None if nobody or several say."""
    return next(iter(result.clocks.values())) if len(result.clocks) == 1 else None


def cuts(result: Linked, config: Config) -> list[int] | None:
    """Return where the timeline is cut, None if at multiples of a length.

    With two sources at once nothing is said of windows: it is not cut at all then.
    """
    if all(getattr(config.windows, purpose).by in ("all", "none") for purpose in PURPOSES):
        return None
    if any(clash(purpose, result, config) for purpose in PURPOSES):
        return []
    found = {time for purpose in PURPOSES for span in fixed(purpose, result, config) for time in span}
    return sorted(found | {t for e in result.edges if (t := e.placed(anchor(result))) is not None})


def fixed(purpose: str, result: Linked, config: Config) -> list[tuple[int, int]]:
    """Return the spans that stand in the configuration, in UTC ns."""
    source: Spans = getattr(config.windows, purpose)
    offset = 0 if source.by == "times" else anchor(result)
    return [(s - offset, e - offset) for s, e in source.times] if offset is not None else []


def spans(purpose: str, result: Linked, config: Config) -> list[tuple[int, int, bool]]:
    """Return the spans of a purpose as (start, end, whether they count), by opening."""
    found = [(start, end, True) for start, end in fixed(purpose, result, config)]
    if clash(purpose, result, config):
        return []
    for lane in result.lanes.values():
        found += lane_spans(purpose, lane, result, config)
    return sorted(found)


def sources(purpose: str, result: Linked, config: Config) -> list[Lane]:
    """Return the (capture, process)es with events that may cut time for a purpose."""
    source: Spans = getattr(config.windows, purpose)
    return [
        lane
        for lane in result.lanes.values()
        if source.by in ("ranges", "marks")
        and lane.first is not None
        and role_of(lane.process, result, config) == source.role
    ]


def one_after_the_other(result: Linked, config: Config) -> bool:
    """Tell whether some purpose has several sources, none of them at the same time as another."""
    return any(
        len(sources(purpose, result, config)) > 1 and not clash(purpose, result, config)
        for purpose in PURPOSES
    )


def clash(purpose: str, result: Linked, config: Config) -> bool:
    """Tell whether two sources cut the same time, or two processes give its clock."""
    if in_application_clock(purpose, config) and len(result.clocks) > 1:
        return True
    lives = []
    for lane in sources(purpose, result, config):
        edges = [t for start, end, _ in lane_spans(purpose, lane, result, config) for t in (start, end)]
        times = [lane.first or 0, lane.last or 0, *(t for t in edges if t != FOREVER)]
        lives.append((min(times), max(times)))
    pairs = combinations(sorted(lives), 2)
    return any(later[0] < earlier[1] for earlier, later in pairs)


def lane_spans(purpose: str, lane: Lane, result: Linked, config: Config) -> list[tuple[int, int, bool]]:
    """Return the spans that one (capture, process) gives, by opening."""
    source: Spans = getattr(config.windows, purpose)
    edges = [
        (time, e.span[1], e.span[0], e)
        for e in result.edges
        if e.lane is lane and e.purpose == purpose and (time := e.placed(anchor(result))) is not None
    ]
    opened = sorted(edge[:3] for edge in edges if edge[3].opens)
    ends: dict[tuple[int, int, Kind], int | None] = {}
    for start, ordinal, kind in opened:
        closed = [t for t, *_, e in edges if not e.opens and e.span == (kind, ordinal)]
        ends[start, ordinal, kind] = max(start, *closed) if closed else None
    found = []
    for number, place in enumerate(opened):
        end = ends[place]
        lasts = source.until == "next" or (source.by == "marks" and not source.end)
        if end is None and lasts and number + 1 < len(opened):
            end = opened[number + 1][0]
        found.append((place[0], end))
    if purpose == "measured":
        return [(start, FOREVER if end is None else end, True) for start, end in found]
    lengths = [None if end is None else end - start for start, end in found]
    judged = []
    for k, (start, end) in enumerate(found):
        before = sorted([d for d in lengths[:k] if d is not None][-source.history :])
        steady = False
        if end is not None and before and k >= source.warmup:
            median = before[(len(before) - 1) // 2]
            steady = abs(end - start - median) <= Fraction(str(source.tolerance)) * median
        judged.append((start, FOREVER if end is None else end, steady))
    return judged


def is_in(purpose: str, time: int, result: Linked, config: Config) -> bool:
    """Tell whether an instant, or the window that begins then, lies within a span that counts."""
    by = getattr(config.windows, purpose).by
    if by in ("all", "none"):
        return bool(by == "all")
    return any(start <= time < end and counts for start, end, counts in spans(purpose, result, config))


# --- roles


def role_of(process: Process, result: Linked, config: Config) -> str:
    """Return what a process is called, by its facts; rules on ranges are left out."""
    facts = result.facts[process]
    texts = {key: sorted({v for _, _, k, v in facts if k == key}) for _, _, key, _ in facts}
    ranks = sorted(int(v) for v in texts.get("process.rank", []))
    fields = {"pid": str(process.pid), "host": process.host}
    if ranks:
        fields["rank"] = str(ranks[0])
    for rule in config.roles.rules:
        wanted = {
            "process.name": rule.process,
            "process.command": rule.command,
            "thread.name": rule.thread,
            "process.rank": rule.rank,
        }
        matches = [
            next((m for text in texts.get(key, []) if (m := re.search(pattern, text))), None)
            for key, pattern in wanted.items()
            if pattern
        ]
        if rule.pid:
            matches.append(re.search(rule.pid, str(process.pid)))
        if all(matches):
            for match in matches:
                fields |= captured(match) if match else {}
            return filled(rule.role, fields)
    return f"rank{ranks[0]}" if ranks else f"pid_{process.pid}"


def filled(template: str, fields: dict[str, str]) -> str:
    """Return a template with its fields filled in; every one of them has a value."""
    return re.sub(r"\{(\w+)\}", lambda m: fields[m[1]], template)


# --- figures


def totals(result: Linked) -> dict[tuple[Process, int, str], tuple[int, int]]:
    """Return kernels and ns by (process, window, class)."""
    found: dict[tuple[Process, int, str], tuple[int, int]] = {}
    for kernel in result.kernels:
        key = kernel.process, kernel.window, kernel.reason
        count, ns = found.get(key, (0, 0))
        found[key] = count + 1, ns + kernel.ns
    return found


def unknown(result: Linked) -> Counter[tuple[Process, int, str, str]]:
    """Return how many kernels have no context by (process, window, class, name)."""
    return Counter((k.process, k.window, k.reason, k.name) for k in result.kernels if k.reason != CONTEXT)


def groups(result: Linked) -> dict[tuple[Process, tuple[Any, ...], int], list[int]]:
    """Return the durations of the kernels by (process, group, window)."""
    found: dict[tuple[Process, tuple[Any, ...], int], list[int]] = defaultdict(list)
    for kernel in result.kernels:
        found[kernel.process, kernel.group, kernel.window].append(kernel.ns)
    return found


def admitted(result: Linked, limit: int) -> dict[Process, list[tuple[Any, ...]]]:
    """Return the groups of each process that are not counted under `other`, as they came."""
    found: dict[Process, list[tuple[Any, ...]]] = defaultdict(list)
    for kernel in result.kernels:
        kept = found[kernel.process]
        if kernel.group not in kept and len(kept) < limit:
            kept.append(kernel.group)
    return found


def row_counts(result: Linked) -> Counter[tuple[Process, int, int, str]]:
    """Return the row counters by (process, window, counter, fields as JSON)."""
    return Counter(
        (r.process, r.window, r.counter, json.dumps(r.fields, sort_keys=True, ensure_ascii=False))
        for r in result.rows
    )


def memory(result: Linked) -> dict[tuple[Process, str, str], tuple[int, int, int]]:
    """Return count, ns and bytes of memory operations by (process, operation, class)."""
    found: dict[tuple[Process, str, str], tuple[int, int, int]] = {}
    for work in result.others:
        if work.kind == Kind.MEMORY:
            key = work.process, work.name, work.reason
            count, ns, size = found.get(key, (0, 0, 0))
            found[key] = count + 1, ns + work.ns, size + work.bytes
    return found


def opaque(result: Linked) -> dict[tuple[Process, int, str], tuple[int, int]]:
    """Return count and ns of opaque graph launches by (process, graph, class)."""
    found: dict[tuple[Process, int, str], tuple[int, int]] = {}
    for work in result.others:
        if work.kind == Kind.GRAPHS:
            key = work.process, work.graph, work.reason
            count, ns = found.get(key, (0, 0))
            found[key] = count + 1, ns + work.ns
    return found


def graphs(result: Linked) -> dict[tuple[Process, int, bool], tuple[int, int]]:
    """Return replays and kernels by (process, graph, whether positions are node numbers)."""
    keys = {(process, graph, by_node) for process, graph, by_node, _ in result.graphs}
    return {key: (result.graphs[(*key, "replays")], result.graphs[(*key, "kernels")]) for key in keys}


def nearest_rank(values: Sequence[int], percent: int) -> int:
    """Return a percentile of durations: the smallest that enough of them do not exceed."""
    return min(v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values))
