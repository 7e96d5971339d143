"""Random small captures, and the many logs of EVENTS that say the same about them.

A `Story` is what happened and how it was told: rows of every process, each within the advance of
the watermark it came with. `told` turns a story into batches, cut and ordered in any way that
keeps rows in place relative to the advances, which no figure may depend on. Times are a few
hundred ns, so that ranges cross, instants coincide and launches lie on the edge of the limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from msgspec import structs

from schemas import facts
from schemas.config import (
    ClockConfig,
    Config,
    Context,
    Limits,
    Rewrite,
    RoleRule,
    Roles,
    Rows,
    Spans,
    Windows,
)
from schemas.events import COLUMNS, TEXT_COLUMNS, Batch, Clock, Header
from schemas.types import END_OF_TIME, NONE, Kind, Process

SESSION = "session"
AGE, WAIT, LAST = 40, 10, 240
"""`launch_age`, `launch_wait` and about the last instant of a capture, in ns."""

OTHER_IDS = 10
"""From here on ids of copies and opaque graphs: CUPTI gives each an id of its own, we count on none."""
AHEAD = 1_000
"""What the application's clock shows more than UTC, about."""
SLACK = 20
Row = dict[str, Any]


@dataclass(frozen=True)
class Slice:
    """The rows, by kind, that come with one advance; `watermark` None: with the capture's end."""

    rows: dict[Kind, list[Row]]
    watermark: int | None


@dataclass(frozen=True)
class Lane:
    """What one (capture, process) has to tell; `ends`: its capture's end comes before `after`."""

    process: Process
    capture: str
    slices: list[Slice]
    ends: bool
    after: dict[Kind, list[Row]]


@dataclass(frozen=True)
class Story:
    """The lanes of one session, by process; those of one process are told one slice at a time."""

    lanes: list[Lane]
    turns: dict[Process, list[int]] = field(default_factory=dict)
    """For each process, whose turn it is: indexes into its lanes, over and over."""


# --- rows

names = st.sampled_from(["step 1", "step 2", "forward", "forward ep=1", "gemm ep=2 #3", ""])
instants = st.integers(0, LAST)
threads = st.sampled_from([1, 1, 1, 2])
ids = st.sampled_from([0, 1, 1, 2, 3, NONE])

ranges = st.tuples(
    instants,
    st.sampled_from([0, 0, 1, 5, 20, 60, 150]) | st.none() | st.integers(-5, LAST),
    threads | st.just(NONE),
    st.sampled_from(["", "", "", "nccl"]),
    names,
)
launches = st.tuples(
    instants,
    threads,
    ids,
    st.sampled_from(["cudaLaunchKernel", "cudaLaunchKernel", "cudaGraphLaunch_v10000", "cuGraphLaunch"]),
)
lags = st.sampled_from([-WAIT - 1, -WAIT, -WAIT + 1, -1, 0, 0, 1, 2, 7, AGE - 1, AGE, AGE + 1])
lags |= st.integers(-WAIT - 2, AGE + 2)
works = st.tuples(
    st.sampled_from([*range(8), *range(8), None, None]),  # which launch it belongs to
    lags,
    st.sampled_from([5, 5, 1, 0, -3, 40]) | st.integers(0, 30),
    st.integers(0, 1),
    st.integers(0, 1),
    ids,
    st.sampled_from(["k1", "k2", "k3"]),
)
marks = st.tuples(
    instants,
    st.sampled_from(["begin", "begin", "end", "begin {}", "begin {}", "end {}", "clock_anchor:{}", "mark"]),
    st.sampled_from([0, 0, -1, 3, -7, -SLACK, -SLACK - 1, 30, -60]),
    st.sampled_from([None, None, None, 0, 5, 60, -4]),
)
"""When, what, how much later than that (in the application's clock), and how long if announced."""
kinds_of_work = st.sampled_from([Kind.KERNELS] * 8 + [Kind.MEMORY, Kind.GRAPHS])


@st.composite
def _events(draw: st.DrawFn) -> list[tuple[Kind, Row]]:
    """Return rows of one process, ids given, closings naming the index of their opening."""
    events: list[tuple[Kind, Row]] = []
    row: Row
    for index, (start, length, thread, domain, name) in enumerate(draw(st.lists(ranges, max_size=8))):
        events.append(
            (Kind.RANGE_OPENINGS, {"time": start, "thread": thread, "domain": domain, "name": name})
        )
        if length is not None:
            events.append((Kind.RANGE_CLOSINGS, {"time": start + length, "opening": index}))
    launched = draw(st.lists(launches, max_size=8))
    for time, thread, correlation, name in launched:
        row = {"time": time, "thread": thread, "correlation": correlation, "name": name}
        events.append((Kind.LAUNCHES, row))
    numbered = draw(st.booleans())
    shared = draw(st.booleans())
    cause = 0, 0, NONE, ""
    for number, (which, lag, duration, device, stream, correlation, name) in enumerate(
        draw(st.lists(works, max_size=12))
    ):
        kind = draw(kinds_of_work)
        time = lag + LAST // 2
        row = {"device": device, "stream": stream, "correlation": correlation}
        in_graph = False
        if which is not None and launched:
            cause = launched[which % len(launched)]
            time, row["correlation"], in_graph = cause[0] + lag, cause[2], "Graph" in cause[3]
        if kind != Kind.KERNELS and not shared and row["correlation"] != NONE:
            row["correlation"] = OTHER_IDS + number
            if which is not None and launched:
                other = {"time": cause[0], "thread": cause[1], "correlation": row["correlation"]}
                events.append((Kind.LAUNCHES, other | {"name": "cudaMemcpyAsync"}))
        row |= {"time": time, "duration": duration}
        if kind == Kind.KERNELS:
            row |= {"name": name, "graph": NONE, "node": NONE}
            if in_graph and numbered:
                row |= {"graph": 7, "node": number % 3}
        elif kind == Kind.MEMORY:
            row |= {"operation": name, "bytes": 8 * duration}
        else:
            row["graph"] = number % 2
        events.append((kind, row))
    return events + draw(_marks())


@st.composite
def _marks(draw: st.DrawFn) -> list[tuple[Kind, Row]]:
    """Return marks and announced windows of one process."""
    events: list[tuple[Kind, Row]] = []
    for time, name, later, duration in draw(st.lists(marks, max_size=6)):
        row = {"time": time, "name": name.format(time + AHEAD + later)}
        if duration is None:
            events.append((Kind.MARKS, row | {"thread": 1, "domain": ""}))
        else:
            events.append((Kind.WINDOWS, row | {"duration": duration}))
    return events


@st.composite
def _lane(draw: st.DrawFn, process: Process, capture: str, rank: int) -> Lane:
    """Return a lane: its rows spread over its advances, most of them in time."""
    watermarks = sorted(draw(st.sets(st.integers(1, LAST + 20), max_size=4)))
    ends = draw(st.booleans())
    places = len(watermarks) + 1
    told: list[list[tuple[Kind, Row]]] = [[] for _ in range(places + 1)]
    told[0] += [(Kind.FACTS, row) for row in _facts(process, rank)]
    events = draw(_events())
    opening = -1
    for kind, row in events:
        place = sum(watermark <= row["time"] for watermark in watermarks)
        # Now and then a row comes early, or late, or after its capture's end.
        place += draw(st.sampled_from([0] * 10 + [-1, 1, 2]))
        place = min(max(place, 0), places)
        if kind == Kind.RANGE_OPENINGS:
            opening += 1
            row = row | {"number": opening}  # noqa: PLW2901
        told[place].append((kind, row))
    _number(told)
    _delay(draw, told)
    slices = [
        Slice(_by_kind(rows), watermark) for rows, watermark in zip(told, [*watermarks, None], strict=False)
    ]
    return Lane(process, capture, slices, ends, _by_kind(told[places]))


def _facts(process: Process, rank: int) -> list[Row]:
    said = {facts.PROCESS_NAME: f"python-{process.pid}", facts.PROCESS_RANK: str(rank)}
    return [{"time": 0, "thread": NONE, "key": key, "value": value} for key, value in said.items()]


def _number(told: list[list[tuple[Kind, Row]]]) -> None:
    """Give every row its ordinal, in the order of telling, and closings that of their opening."""
    counts: dict[Kind, int] = {}
    openings: dict[int, int] = {}
    for rows in told:
        # Producers publish by time, of equal starts the longer first: here any order will do.
        rows.sort(key=lambda event: event[1]["time"])
        for kind, row in rows:
            row["ordinal"] = counts.get(kind, 0)
            counts[kind] = row["ordinal"] + 1
            if kind == Kind.RANGE_OPENINGS:
                openings[row.pop("number")] = row["ordinal"]
    for rows in told:
        for kind, row in rows:
            if kind == Kind.RANGE_CLOSINGS:
                row["opening"] = openings[row["opening"]]


_CAN_BE_LATE = [
    *[Kind.KERNELS, Kind.LAUNCHES, Kind.RANGE_OPENINGS, Kind.RANGE_CLOSINGS] * 2,
    *(Kind.MEMORY, Kind.GRAPHS, Kind.MARKS, Kind.WINDOWS),
]


def _delay(draw: st.DrawFn, told: list[list[tuple[Kind, Row]]]) -> None:
    """Let some rows go missing: most come with a later advance, some never."""
    for place in range(len(told) - 1):
        if not draw(st.sampled_from([False, False, False, True])):
            continue
        kind = draw(st.sampled_from(_CAN_BE_LATE))
        gone = [event for event in told[place] if event[0] == kind][: draw(st.integers(1, 3))]
        told[place] = [event for event in told[place] if not any(event is g for g in gone)]
        later = draw(st.integers(place + 1, len(told)))
        if later < len(told):
            told[later] += gone


def _by_kind(rows: Iterable[tuple[Kind, Row]]) -> dict[Kind, list[Row]]:
    found: dict[Kind, list[Row]] = {}
    for kind, row in rows:
        found.setdefault(kind, []).append(row)
    return {kind: sorted(rows, key=lambda row: row["ordinal"]) for kind, rows in found.items()}


@st.composite
def stories(draw: st.DrawFn, processes: int = 3) -> Story:
    """Return stories of up to `processes` processes, one of which may be in two captures."""
    lanes: list[Lane] = []
    turns: dict[Process, list[int]] = {}
    for number in range(draw(st.integers(1, processes))):
        # Two processes may have one pid: the vm's number tells them apart.
        process = Process(
            "node", draw(st.sampled_from([0, 1])) << 48 | (number // 2 + 7) << 24 | number << 56
        )
        lanes.append(draw(_lane(process, f"capture {number % 2}", number)))
        # The sources of windows (rank 0 and rank 1) are in one capture only.
        if number > 1 and draw(st.sampled_from([False, False, True])):
            lanes.append(draw(_lane(process, "capture 2", number)))
        turns[process] = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
    return Story(lanes, turns)


# --- configurations

_NS = r"( (?P<ns>\d+))?$"
_SPANS = [
    *(
        Spans(by="ranges", name="step"),
        Spans(by="ranges", name="step", until="next"),
        Spans(by="ranges", name="forward", warmup=1, tolerance=0.5, history=2),
    )
    * 2,
    Spans(by="marks", name="begin"),
    Spans(by="marks", name="begin", end="end", warmup=1, tolerance=1.0, history=1),
    Spans(by="marks", name="begin" + _NS, slack=f"{SLACK}ns"),
    Spans(by="marks", name="begin", end="end" + _NS, slack="0"),
    Spans(by="marks", name="begin" + _NS, end="end" + _NS, slack=f"{SLACK}ns"),
    Spans(by="times", times=((30, 90), (120, 200))),
    Spans(by="times", times=((60, 121),)),
    Spans(by="file", file="spans.json", times=((AHEAD + 30, AHEAD + 90), (AHEAD + 120, AHEAD + 200))),
]


@st.composite
def _spans(draw: st.DrawFn, plain: Spans, roles: st.SearchStrategy[str]) -> Spans:
    """Return where spans come from: nowhere, or from ranges or marks of a role, or from times."""
    spans = draw(st.sampled_from([plain, *_SPANS]))
    return structs.replace(spans, role=draw(roles)) if spans.by in ("ranges", "marks") else spans


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Return configurations with small limits and windows of every kind the reference knows."""
    rewrites = (Rewrite(match=r"step (?P<step>\d+)", replace="step"), Rewrite(match=r" ep=(?P<ep>\d)"))
    rows = (
        Rows(name="steps", count="ranges", match=r"^(?P<what>forward)", key="{pid}"),
        Rows(
            name="inner",
            count="ranges",
            match="gemm|forward",
            context=r"step (?P<outer>\d)",
            key="{rank}:{outer}",
        ),
        Rows(name="kernels", count="kernels", match=r"k(?P<k>[12])", key="{pid}:{k}"),
        Rows(name="within", count="kernels", match="k", context="forward(?: ep=(?P<e>.))?", key="{rank}"),
    )
    # Now and then all processes have one role: several sources at once, and several clocks.
    alike = draw(st.sampled_from([False] * 5 + [True]))
    sources = st.sampled_from(["gpu"] if alike else ["rank0", "rank0", "rank0", "rank1"])
    return Config(
        roles=Roles(rules=(RoleRule(role="gpu", process="python"),) if alike else ()),
        context=Context(
            depth=draw(st.sampled_from([64, 64, 1, 2])),
            exclude_domains=draw(st.sampled_from([(), ("nccl",)])),
            domains=draw(st.sampled_from([(), (), ("",)])),
            process_ranges=draw(st.booleans()),
            default_rewrites=False,
            rewrites=draw(st.sampled_from([(), rewrites, rewrites[:1]])),
        ),
        windows=Windows(
            length=draw(st.sampled_from(["50ns", "1us", "7ns"])),
            measured=structs.replace(
                draw(_spans(draw(st.sampled_from([Spans(by="all"), Spans(by="none")])), sources)),
                **{name: getattr(Spans(by="all"), name) for name in ("warmup", "tolerance", "history")},
            ),
            steady=draw(_spans(Spans(by="none"), sources)),
        ),
        clock=ClockConfig(role=draw(sources)),
        rows=draw(st.sampled_from([(), rows])),
        limits=Limits(
            groups=draw(st.sampled_from([65_536, 1, 2, 4])),
            launch_age=f"{AGE}ns",
            launch_wait=f"{WAIT}ns",
        ),
    )


# --- telling


def batch_of(lane: Lane, kind: Kind, rows: Sequence[Row], watermark: int | None = None) -> Batch:
    """Return rows with consecutive ordinals as a batch."""
    strings: dict[str, int] = {}
    columns = {}
    for name in COLUMNS[kind]:
        values = [row[name] for row in rows]
        if name in TEXT_COLUMNS:
            values = [strings.setdefault(text, len(strings)) for text in values]
        columns[name] = np.array(values, np.int64)
    header = Header(
        session=SESSION,
        process=lane.process,
        kind=kind,
        capture=lane.capture,
        ordinal=rows[0]["ordinal"] if rows else 0,
        rows=len(rows),
        watermark=watermark,
        clock=Clock("utc", 0, 0),
    )
    return Batch(header, columns, list(strings))


def _runs(rows: Sequence[Row], random: Random | None) -> Iterable[list[Row]]:
    """Yield rows as runs of consecutive ordinals, cut anywhere besides."""
    run: list[Row] = []
    for row in rows:
        if run and (row["ordinal"] != run[-1]["ordinal"] + 1 or (random and random.random() < 0.4)):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def _batches(lane: Lane, rows: dict[Kind, list[Row]], random: Random | None) -> list[Batch]:
    batches = [batch_of(lane, kind, run) for kind in sorted(rows) for run in _runs(rows[kind], random)]
    if random:
        random.shuffle(batches)
    return batches


def _mark(lane: Lane, batches: list[Batch], watermark: int, random: Random | None) -> list[Batch]:
    """Put a watermark on the last batch, or on an empty one of its own."""
    if batches and not (random and random.random() < 0.3):
        last = batches[-1]
        header = Header(
            **{f: getattr(last.header, f) for f in Header.__struct_fields__} | {"watermark": watermark}
        )
        return [*batches[:-1], Batch(header, last.columns, last.strings)]
    return [*batches, batch_of(lane, Kind.FACTS, [], watermark)]


def parts(lane: Lane, random: Random | None = None) -> list[list[Batch]]:
    """Return the batches of a lane, one list for each advance and one for what comes after it all."""
    found = []
    for each in lane.slices:
        batches = _batches(lane, each.rows, random)
        if each.watermark is not None:
            batches = _mark(lane, batches, each.watermark, random)
        elif lane.ends:
            batches.append(
                batch_of(lane, Kind.CAPTURE_END, [], random.choice([None, END_OF_TIME]) if random else None)
            )
        found.append(batches)
    return [*found, _batches(lane, lane.after, random)]


def by_process(story: Story, random: Random | None = None) -> dict[Process, list[Batch]]:
    """Return the batches of each process in order, its captures' advances in turn."""
    found: dict[Process, list[Batch]] = {}
    for process in dict.fromkeys(lane.process for lane in story.lanes):
        waiting = [parts(lane, random) for lane in story.lanes if lane.process == process]
        turns, turn = story.turns.get(process, [0]), 0
        batches = found[process] = []
        while any(waiting):
            lane = waiting[turns[turn % len(turns)] % len(waiting)] or next(filter(None, waiting))
            batches += lane.pop(0)
            turn += 1
    return found


def told(
    story: Story, partitions: int = 1, random: Random | None = None, *, repeats: bool = False
) -> list[list[Batch]]:
    """Return a log of the story by partition, ended by the end of the session.

    With `random` batches are cut anywhere, processes interleaved and spread over partitions
    anyhow; with `repeats` some batches, or all of a process, come again at some later time.
    """
    log: list[list[Batch]] = [[] for _ in range(partitions)]
    for number, batches in enumerate(by_process(story, random).values()):
        if random and repeats:
            batches = _with_repeats(batches, random)  # noqa: PLW2901
        into = random.randrange(partitions) if random else number % partitions
        log[into] = interleaved(log[into], batches, random)
    for partition in log:
        header = Header(SESSION, Process("", 0), Kind.SESSION_END, "", partitions=partitions)
        partition.append(Batch(header, {}, []))
    return log


def _with_repeats(batches: list[Batch], random: Random) -> list[Batch]:
    """Return batches with some of them again behind themselves, and perhaps all once more."""
    again = [*batches]
    for batch in batches:
        # A second end of a capture is an advance for rows that came after the first: not here.
        if random.random() < 0.3 and batch.kind != Kind.CAPTURE_END:
            at = next(i for i, b in enumerate(again) if b is batch)
            again.insert(random.randint(at + 1, len(again)), replaced(batch, random))
    return [*again, *batches] if random.random() < 0.3 else again


def of_session(session: str, log: Sequence[Sequence[Batch]]) -> list[list[Batch]]:
    """Return a log as that of another session."""
    return [
        [structs.replace(batch, header=structs.replace(batch.header, session=session)) for batch in batches]
        for batches in log
    ]


def of_kind(kind: int, batch: Batch) -> Batch:
    """Return the batch as one of a kind that nobody knows, without what it says of time."""
    return structs.replace(batch, header=structs.replace(batch.header, kind=kind, watermark=None))


def replaced(batch: Batch, random: Random) -> Batch:
    """Return the batch as it might be told again: the same rows, perhaps fewer of them."""
    rows = batch.header.rows
    if rows < 2 or random.random() < 0.5:
        return batch
    low = random.randrange(rows)
    fields = {f: getattr(batch.header, f) for f in Header.__struct_fields__}
    fields |= {"ordinal": batch.header.ordinal + low, "rows": rows - low}
    return Batch(Header(**fields), {n: v[low:] for n, v in batch.columns.items()}, batch.strings)


def interleaved(left: list[Batch], right: list[Batch], random: Random | None) -> list[Batch]:
    """Return two logs as one, each in its own order."""
    if not random:
        return left + right
    places = sorted(random.randint(0, len(left)) for _ in right)
    merged = [*left]
    for added, (place, batch) in enumerate(zip(places, right, strict=True)):
        merged.insert(place + added, batch)
    return merged
