"""One (capture, process): its events in flight, and the decisions each advance of time allows.

A lane collects rows until its watermark advances; then everything collected is one set, so the
order in which it arrived has no meaning. What an advance decides leaves as linked rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from consumers import launches as launching
from consumers.boundaries import Boundaries, BoundaryState
from consumers.contexts import ROOT, Contexts, Names, captures
from consumers.counters import COUNTED, Counters
from consumers.ranges import NOWHERE, OPEN, contexts_at, newly_crossing
from consumers.seen import Seen
from consumers.tables import Table, concat, empty, pick, rows_of, runs_of, take
from schemas.columns import Flags, Int64s
from schemas.config import Config, duration_ns
from schemas.deltas import Anchor, Fact, RoleMatch
from schemas.events import Batch, Clock
from schemas.types import END_OF_TIME, NONE, Class, Kind, Process
from schemas.windows import WindowsRecord

UNRESOLVED: Final = -2
"""The context of a launch whose start the watermark has not passed."""

WORK: Final = (
    "start", "duration", "device", "stream", "correlation", "name", "graph", "node", "bytes",
    "kind", "ordinal", "late", "lost",
)  # fmt: skip
"""What GPUs did: kernels, memory operations (`name` is the operation) and opaque graphs.
`lost`: some other work was decided on a launch that this could have had."""
LAUNCHES: Final = (
    "start", "thread", "correlation", "is_graph", "ordinal", "context", "class", "served", "replayed",
)  # fmt: skip
"""`served`: kernels that have a position in this replay so far; `replayed`: it has any kernel."""
RANGES: Final = ("start", "end", "thread", "ordinal", "name", "purposes", "counters", "crossing")
"""`name`: a number of `Names`, or -1 - i: string i of those that came since the last advance.
`purposes` and `counters` are bits: spans it is of, row counters that still have to count it."""
CLOSINGS: Final = ("end", "opening")
ROWS: Final = (
    "advance", "due", "start", "duration", "device", "class", "context", "name", "graph",
    "position", "by_node", "kind", "bytes", "replay", "new",
)  # fmt: skip
"""Linked rows. `due`: when the decision fell; `context`: a node of `Contexts`; `graph` and
`position` as groups have them; `by_node`: 1 if the source numbered it, 0 if it is of a graph all
the same, else NONE; `replay`: 1 for the first kernel of a replay; `new`: 1 until the
row's group has been in a delta."""

_GRAPH_LAUNCH: Final = ("cudaGraphLaunch", "cuGraphLaunch")
_WORK_KINDS: Final = (Kind.KERNELS, Kind.MEMORY, Kind.GRAPHS)
_NOBODY: Final = object()


class RoleCandidate(msgspec.Struct, array_like=True, order=True):
    """A range whose name matched a role rule."""

    time: int
    ordinal: int
    fields: dict[str, str]


class LaneState(msgspec.Struct):
    """What a lane must remember beside its tables."""

    capture: str
    process: Process
    clock: Clock
    watermark: int = NONE
    ended: bool = False
    first: int = OPEN
    last: int = NONE
    seen: dict[int, Seen] = {}
    first_range: dict[int, int] = {}
    facts: list[Fact] = []
    boundaries: BoundaryState = msgspec.field(default_factory=BoundaryState)
    roles: dict[int, RoleCandidate | None] = {}
    """By role rule: the first range that matched it since the last advance, None once told."""
    silent_at: int | None = None
    """The watermark at which it was last called silent."""


class Lane:
    """The state machine of one (capture, process); see the module's docstring."""

    def __init__(
        self, config: Config, contexts: Contexts, names: Names, counters: Counters, state: LaneState
    ) -> None:
        self.state = state
        self._contexts = contexts
        self._names = names
        self._counters = counters
        self._age = duration_ns(config.limits.launch_age)
        self._wait = duration_ns(config.limits.launch_wait)
        self._depth = config.context.depth
        self._domains = frozenset(config.context.domains)
        self._excluded = frozenset(config.context.exclude_domains)
        self._process_ranges = config.context.process_ranges
        self._role_rules = [
            (i, re.compile(rule.range)) for i, rule in enumerate(config.roles.rules) if rule.range
        ]
        self._boundaries = Boundaries(config, state.boundaries)
        self.work = empty(WORK)
        self.launches = empty(LAUNCHES)
        self.ranges = empty(RANGES)
        self.closings = empty(CLOSINGS)
        self._new: dict[str, list[Table]] = {"work": [], "launches": [], "ranges": [], "closings": []}
        self._texts: list[Sequence[str]] = []
        self._text_begins: list[int] = [0]
        # What has come of it since the last flush; the linker takes it away.
        self.rows: list[Table] = []
        self.counted: list[Table] = []
        self.roles: list[RoleMatch] = []
        self.facts: list[Fact] = []
        self.anchors: list[Anchor] = []
        self.counts: dict[str, int] = {}
        self.clock_offsets: dict[int, int] = {}
        self.touched = False

    def count(self, counter: str, number: int) -> None:
        """Add to one of `schemas.deltas.COUNTERS`."""
        if number:
            self.counts[counter] = self.counts.get(counter, 0) + int(number)

    @property
    def pending(self) -> int:
        """Rows that wait for a decision."""
        return rows_of(self.work) + sum(map(rows_of, self._new["work"]))

    def told(self) -> None:
        """Forget what a delta has taken away (rows and counted are the linker's to keep or drop)."""
        self.facts = []
        self.anchors = []
        self.roles = []
        self.counts = {}
        self.clock_offsets = {}
        self.touched = False

    def tables(self) -> dict[str, Table]:
        """Return all rows the lane holds, collected ones not decided about included."""
        held = {
            "work": [self.work, *self._new["work"]],
            "launches": [self.launches, *self._new["launches"]],
            "ranges": [self._named(t) for t in (self.ranges, *self._new["ranges"])],
            "closings": [self.closings, *self._new["closings"]],
            "rows": self.rows or [empty(ROWS)],
            "counted": self.counted or [empty(COUNTED)],
        }
        return {name: concat(tables) for name, tables in held.items()}

    def restore_tables(self, tables: dict[str, Table]) -> None:
        """Take over what `tables` returned."""
        self.work, self.launches = tables["work"], tables["launches"]
        self.ranges, self.closings = tables["ranges"], tables["closings"]
        self.rows = [tables["rows"]] if rows_of(tables["rows"]) else []
        self.counted = [tables["counted"]] if rows_of(tables["counted"]) else []

    def _named(self, ranges: Table) -> Table:
        """Return ranges with names that outlive the batches they came in."""
        names = [self._names.id(text) for text in self._texts_of(ranges["name"])]
        return ranges | {"name": np.array(names, np.int64)}

    # -- collecting ------------------------------------------------------------------------

    def collect(self, batch: Batch) -> None:
        """Take in the rows of a batch that have not been seen."""
        header = batch.header
        self.touched = True
        seen = self.state.seen.setdefault(header.kind, Seen())
        new = seen.take(header.ordinal, header.rows)
        self.count("repeated_rows", header.rows - sum(high - low for low, high in new))
        for low, high in new:
            part = slice(low - header.ordinal, high - header.ordinal)
            columns = {name: values[part] for name, values in batch.columns.items()}
            ordinals = np.arange(low, high)
            self._collect(header.kind, columns, ordinals, batch.strings)

    def _collect(self, kind: int, columns: Table, ordinals: Int64s, strings: Sequence[str]) -> None:
        if kind == Kind.FACTS:
            self._collect_facts(columns, strings)
            return
        time = columns["time"]
        late = int((time < self.state.watermark).sum())
        self._extend(time, columns.get("duration"))
        if kind in _WORK_KINDS:
            if kind != Kind.GRAPHS:
                self.count("late_kernels" if kind == Kind.KERNELS else "late_memory", late)
            self._collect_work(kind, columns, ordinals, strings)
        elif kind == Kind.LAUNCHES:
            self.count("late_launches", late)
            is_graph = _matching(columns["name"], strings, lambda s: s.startswith(_GRAPH_LAUNCH))
            self._add("launches", LAUNCHES, start=time, thread=columns["thread"], ordinal=ordinals,
                      correlation=columns["correlation"], is_graph=is_graph, context=UNRESOLVED)  # fmt: skip
        elif kind == Kind.RANGE_OPENINGS:
            self.count("late_ranges", late)
            self._collect_openings(columns, ordinals, strings)
        elif kind == Kind.RANGE_CLOSINGS:
            self.count("late_ranges", late)
            self._add("closings", CLOSINGS, end=time, opening=columns["opening"])
        elif kind in (Kind.MARKS, Kind.WINDOWS):
            self._boundaries.collect_marks(kind, columns, ordinals, strings)
            self.anchors += self._boundaries.take_anchors()

    def _extend(self, time: Int64s, duration: Int64s | None) -> None:
        ends = time if duration is None else time + np.maximum(duration, 0)
        self.state.first = min(self.state.first, int(time.min()))
        self.state.last = max(self.state.last, int(ends.max()))

    def _add(self, table: str, names: Sequence[str], **columns: Int64s | int) -> None:
        rows = next(len(v) for v in columns.values() if not isinstance(v, int))
        full = {name: columns.get(name, 0) for name in names}
        self._new[table].append(
            {k: np.full(rows, v, np.int64) if isinstance(v, int) else v for k, v in full.items()}
        )

    def _collect_facts(self, columns: Table, strings: Sequence[str]) -> None:
        for time, thread, key, value in zip(
            *(columns[c].tolist() for c in ("time", "thread", "key", "value")), strict=True
        ):
            fact = Fact(self.state.capture, time, thread, strings[key], strings[value])
            self.facts.append(fact)
            if fact.key.startswith(("process.", "thread.")):
                self.state.facts.append(fact)

    def _collect_work(self, kind: int, columns: Table, ordinals: Int64s, strings: Sequence[str]) -> None:
        names: Int64s | int
        if kind == Kind.GRAPHS:
            names = self._names.id("")
        else:
            index = columns["name" if kind == Kind.KERNELS else "operation"]
            numbers = np.zeros(len(strings), np.int64)
            used = _used(index)
            numbers[used] = [self._names.id(text) for text in pick(strings, used)]
            names = numbers[index]
        self._add(
            "work", WORK, start=columns["time"], ordinal=ordinals, name=names, kind=int(kind),
            late=(columns["time"] < self.state.watermark).astype(np.int64),
            graph=columns.get("graph", NONE), node=columns.get("node", NONE), bytes=columns.get("bytes", 0),
            **{c: columns[c] for c in ("duration", "device", "stream", "correlation")},
        )  # fmt: skip

    def _collect_openings(self, columns: Table, ordinals: Int64s, strings: Sequence[str]) -> None:
        if self._domains or self._excluded:
            keep = _matching(columns["domain"], strings, self._counts_domain).astype(bool)
            # Their closings must still find them.
            self._add("ranges", RANGES, start=columns["time"][~keep], end=OPEN, thread=NOWHERE,
                      ordinal=ordinals[~keep], name=self._names.id(""))  # fmt: skip
            columns, ordinals = take(columns, keep), ordinals[keep]
            if not len(ordinals):
                return
        time, thread, name = columns["time"], columns["thread"], columns["name"]
        first_range = self.state.first_range
        order = np.argsort(thread, kind="stable")
        begins = runs_of(thread[order])
        for owner, start in zip(
            thread[order][begins].tolist(), np.minimum.reduceat(time[order], begins).tolist(), strict=True
        ):
            first_range[owner] = min(first_range.get(owner, OPEN), start)
        purposes: Int64s | int = 0
        counters: Int64s | int = 0
        if self._boundaries.of_ranges or self._counters.of_ranges:
            used = _used(name)
            texts = pick(strings, used)
            bits = np.zeros(len(strings), np.int64)
            if self._boundaries.of_ranges:
                bits[used] = [self._boundaries.purposes_of(t) for t in texts]
                purposes = bits[name]
            if self._counters.of_ranges:
                bits = np.zeros(len(strings), np.int64)
                bits[used] = [self._counters.matching(t) for t in texts]
                counters = np.where(thread == NONE, 0, bits[name])
        if len(self._untold_roles()):
            self._propose_roles(time, ordinals, name, strings)
        base = self._text_begins[-1]
        self._texts.append(strings)
        self._text_begins.append(base + len(strings))
        self._add("ranges", RANGES, start=time, end=OPEN, thread=thread, ordinal=ordinals,
                  name=-1 - base - name, purposes=purposes, counters=counters)  # fmt: skip

    def _untold_roles(self) -> list[tuple[int, re.Pattern[str]]]:
        return [(i, p) for i, p in self._role_rules if self.state.roles.get(i, _NOBODY) is not None]

    def _propose_roles(self, time: Int64s, ordinals: Int64s, name: Int64s, strings: Sequence[str]) -> None:
        """Look for the first range that matches each role rule not told of yet."""
        for rule, pattern in self._untold_roles():
            used = _used(name)
            matches = zip(used.tolist(), map(pattern.search, pick(strings, used)), strict=True)
            found = {i: match for i, match in matches if match}
            rows = np.flatnonzero(np.isin(name, list(found)))
            if len(rows):
                row = rows[np.lexsort((ordinals[rows], time[rows]))[0]]
                fields = dict(captures(found[int(name[row])]))
                candidate = RoleCandidate(int(time[row]), int(ordinals[row]), fields)
                known = self.state.roles.get(rule)
                self.state.roles[rule] = min(candidate, known) if known else candidate

    def _settle_roles(self) -> None:
        for rule, candidate in self.state.roles.items():
            if candidate is not None:
                self.roles.append(RoleMatch(rule, candidate.fields))
                self.state.roles[rule] = None

    def _counts_domain(self, domain: str) -> bool:
        return domain not in self._excluded and (not self._domains or domain in self._domains)

    def _texts_of(self, names: Int64s) -> list[str]:
        """Return the texts of `name`s of ranges."""
        begins = np.array(self._text_begins)
        tables = np.searchsorted(begins, -1 - names, "right") - 1
        texts = [""] * len(names)
        for table in np.unique(tables).tolist():
            rows = np.flatnonzero(tables == table)
            if table < 0:
                found = [self._names.texts[n] for n in names[rows].tolist()]
            else:
                found = pick(self._texts[table], -1 - names[rows] - begins[table])
            for row, text in zip(rows.tolist(), found, strict=True):
                texts[row] = text
        return texts

    def _elements(self, ranges: Table) -> Int64s:
        uniques, inverse = np.unique(ranges["name"], return_inverse=True)
        found = [*map(self._contexts.element, self._texts_of(uniques))]
        return np.array(found, np.int64)[inverse]

    # -- advancing -------------------------------------------------------------------------

    def advance(self, watermark: int, number: int) -> WindowsRecord | None:
        """Decide all that `watermark` allows; `number` counts the advances of the linker.

        Returns what there is to say to WINDOWS, session and digest left empty, if anything.
        """
        state = self.state
        before, state.watermark = state.watermark, max(state.watermark, watermark)
        self.touched = True
        for name, tables in self._new.items():
            if tables:
                setattr(self, name, concat([getattr(self, name), *tables]))
                tables.clear()
        self._close_ranges()
        said = self._boundaries.advance(self, before)
        self.count("late_boundaries", self._boundaries.late)
        self._boundaries.late = 0
        self._settle_roles()
        self._resolve()
        self._count_ranges()
        self._decide(number)
        self._leave()
        return said

    def _close_ranges(self) -> None:
        closings, ranges = self.closings, self.ranges
        if not rows_of(closings):
            return
        order = np.argsort(ranges["ordinal"], kind="stable")
        ordered = ranges["ordinal"][order]
        at = np.searchsorted(ordered, closings["opening"])
        known = at < len(ordered)
        known[known] = ordered[at[known]] == closings["opening"][known]
        ranges["end"] = ranges["end"].copy()
        np.minimum.at(ranges["end"], order[at[known]], closings["end"][known])
        waits = ~known & (closings["end"] >= self.state.watermark)
        self.count("unmatched_closings", int((~known & ~waits).sum()))
        self.closings = take(closings, waits)

    def _resolve(self) -> None:
        """Fix the context and class of every launch the watermark has passed."""
        launches = self.launches
        due = np.flatnonzero((launches["context"] == UNRESOLVED) & (launches["start"] < self.state.watermark))
        if not len(due):
            return
        threads, starts = launches["thread"][due], launches["start"][due]
        context = self._contexts_at(threads, starts)
        first = self.state.first_range
        uniques, inverse = np.unique(threads, return_inverse=True)
        everywhere = first.get(NONE, OPEN) if self._process_ranges else OPEN
        firsts = np.array([min(first.get(t, OPEN), everywhere) for t in uniques.tolist()], np.int64)
        had_ranges = firsts[inverse] <= starts
        launches["context"], launches["class"] = launches["context"].copy(), launches["class"].copy()
        launches["context"][due] = context
        launches["class"][due] = np.where(
            context != ROOT,
            Class.CONTEXT,
            np.where(had_ranges, Class.LAUNCH_OUTSIDE_RANGES, Class.THREAD_WITHOUT_RANGES),
        )

    def _contexts_at(self, threads: Int64s, times: Int64s) -> Int64s:
        return contexts_at(
            self.ranges, threads, times, self._contexts, self._depth, self._elements,
            process_ranges=self._process_ranges,
        )  # fmt: skip

    def _count_ranges(self) -> None:
        """Hand ranges that row counters ask for to them, with the context they open into."""
        ranges = self.ranges
        due = np.flatnonzero((ranges["counters"] != 0) & (ranges["start"] < self.state.watermark))
        if not len(due):
            return
        asked = take(ranges, due)
        contexts = self._contexts_at(asked["thread"], asked["start"])
        names = self._texts_of(asked["name"])
        self.counted.append(self._counters.count_ranges(asked, names, contexts, self._elements(asked)))
        ranges["counters"] = ranges["counters"].copy()
        ranges["counters"][due] = 0

    def _decide(self, number: int) -> None:
        """Decide all work that is due, in order of these times, and let used launches go."""
        work = self.work
        if not rows_of(work):
            return
        self.launches = launches = launching.in_order(self.launches)
        watermark, wait = self.state.watermark, self._wait
        found = launching.earliest(launches, work["correlation"], work["start"], self._age, wait)
        due_at = _due(work["start"], found, launches, wait)
        due = (due_at < watermark) | (watermark == END_OF_TIME)
        used = np.zeros(rows_of(launches), bool)
        is_graph = launches["is_graph"].astype(bool)
        single = due & (found >= 0)
        single[single] = ~is_graph[found[single]]
        takers = np.bincount(found[single], minlength=len(used))
        contested = takers > 1
        used[takers == 1] = True
        if contested.any():
            self._share_out(work, launches, found, due, contested, used)
            due_at = _due(work["start"], found, launches, wait)
            due &= (due_at < watermark) | (watermark == END_OF_TIME)
        self._mark_losers(work, launches, found, due, used)
        self._emit(work, np.flatnonzero(due), found, due_at, number)
        self.work = take(work, ~due)
        self.launches = take(self.launches, ~used)

    def _share_out(
        self,
        work: Table,
        launches: Table,
        found: Int64s,
        due: Flags,
        contested: Flags,
        used: Flags,
    ) -> None:
        """Decide again, one by one, about all work whose id is that of a contested launch."""
        ids = np.unique(launches["correlation"][contested])
        at = np.minimum(np.searchsorted(ids, work["correlation"]), len(ids) - 1)
        rows = np.flatnonzero(due & (ids[at] == work["correlation"]) & (found >= 0))
        used[found[rows]] = False
        found[rows] = launching.share_out(
            launches, work, rows, self._age, self._wait, self.state.watermark, used
        )

    def _mark_losers(
        self,
        work: Table,
        launches: Table,
        found: Int64s,
        due: Flags,
        used: Flags,
    ) -> None:
        """Note which work could have had a launch that other work was decided on."""
        if not used.any():
            return
        open_rows = np.flatnonzero(~due | (found < 0))
        if not len(open_rows):
            return
        gone = launching.earliest(
            take(launches, used), work["correlation"][open_rows], work["start"][open_rows],
            self._age, self._wait,
        )  # fmt: skip
        work["lost"] = work["lost"].copy()
        work["lost"][open_rows[gone >= 0]] = 1

    def _emit(self, work: Table, due: Int64s, found: Int64s, due_at: Int64s, number: int) -> None:
        """Turn the rows `due` of work into linked rows, in order of decision."""
        launches = self.launches
        order = due[np.lexsort((work["ordinal"][due], work["kind"][due], work["start"][due], due_at[due]))]
        work, found, due_at = take(work, order), found[order], due_at[order]
        linked = found >= 0
        at = np.where(linked, found, 0)
        if not rows_of(launches):
            launches = {name: np.zeros(1, np.int64) for name in LAUNCHES}
        kernels = work["kind"] == Kind.KERNELS
        in_graph = linked & kernels & (launches["is_graph"][at] == 1)
        position, replay = self._positions(work, at, in_graph)
        lag = work["start"] - launches["start"][at]
        duration = work["duration"]
        self._count_odd(work, kernels, linked, lag)
        rows = rows_of(work)
        self.rows.append(
            {
                "advance": np.full(rows, number, np.int64),
                "due": due_at,
                "start": work["start"],
                "duration": np.maximum(duration, 0),
                "device": work["device"],
                "class": np.where(linked, launches["class"][at], Class.LAUNCH_NOT_CAPTURED),
                "context": np.where(linked, launches["context"][at], ROOT),
                "name": work["name"],
                "graph": work["graph"],
                "position": position,
                "by_node": np.where(work["node"] != NONE, 1, np.where(in_graph, 0, NONE)),
                "kind": work["kind"],
                "bytes": work["bytes"],
                "replay": replay,
                "new": np.ones(rows, np.int64),
            }
        )

    def _count_odd(self, work: Table, kernels: Flags, linked: Flags, lag: Int64s) -> None:
        duration = work["duration"][kernels]
        self.count("negative_durations", int((duration < 0).sum()))
        self.count("zero_durations", int((duration == 0).sum()))
        self.count("second_kernels", int((kernels & ~linked & (work["lost"] == 1)).sum()))
        both = kernels & linked
        self.count("launched_after_start", int((lag[both] < 0).sum()))
        devices = work["device"][both]
        order = np.argsort(devices, kind="stable")
        begins = runs_of(devices[order])
        if len(begins):
            least = np.minimum.reduceat(lag[both][order], begins).tolist()
            for device, lag_of in zip(devices[order][begins].tolist(), least, strict=True):
                self.clock_offsets[device] = min(self.clock_offsets.get(device, OPEN), lag_of)

    def _positions(self, work: Table, at: Int64s, in_graph: Flags) -> tuple[Int64s, Int64s]:
        """Return each row's position in its graph and whether it is the first of its replay.

        The node's number where the source has it; else, of kernels that came in time, the rank
        within the replay by start, end, stream and name.
        """
        position = work["node"].copy()
        replay = np.zeros(len(at), np.int64)
        rows = np.flatnonzero(in_graph)
        if not len(rows):
            return position, replay
        launches = self.launches
        served = launches["served"] = launches["served"].copy()
        replayed = launches["replayed"] = launches["replayed"].copy()
        firsts, where = np.unique(at[rows], return_index=True)
        replay[rows[where]] = replayed[firsts] == 0
        replayed[firsts] = 1
        ranked = rows[(work["node"][rows] == NONE) & (work["late"][rows] == 0)]
        if len(ranked):
            start = work["start"][ranked]
            end = start + work["duration"][ranked]
            names = work["name"][ranked]
            uniques, inverse = np.unique(names, return_inverse=True)
            texts = [self._names.texts[n] for n in uniques.tolist()]
            by_text = np.argsort(np.argsort(np.array(texts, object), kind="stable"))
            launch = at[ranked]
            order = np.lexsort(
                (work["ordinal"][ranked], by_text[inverse], work["stream"][ranked], end, start, launch)
            )
            ordered = launch[order]
            rank = np.arange(len(order)) - np.searchsorted(ordered, ordered, "left")
            position[ranked[order]] = served[ordered] + rank
            np.add.at(served, launch, 1)
        return position, replay

    def _leave(self) -> None:
        """Let go of what nothing can ask for any more."""
        watermark, ranges = self.state.watermark, self.ranges
        if rows_of(ranges):
            crossing = newly_crossing(ranges, watermark)
            self.count("crossing_ranges", int((crossing & (ranges["crossing"] == 0)).sum()))
            ranges["crossing"] = ranges["crossing"] | crossing
            self.ranges = self._named(take(ranges, ranges["end"] >= watermark))
        self._texts.clear()
        self._text_begins = [0]
        self.launches = take(self.launches, self.launches["start"] + self._age >= watermark)


def _due(start: Int64s, found: Int64s, launches: Table, wait: int) -> Int64s:
    """Return when work is decided: once time has passed it and its launch, or the wait for one."""
    if not rows_of(launches):
        return start + wait
    return np.where(found >= 0, np.maximum(start, launches["start"][found]), start + wait)


def _used(index: Int64s) -> Int64s:
    """Return the distinct values of indexes into a string table."""
    return np.flatnonzero(np.bincount(index))


def _matching(index: Int64s, strings: Sequence[str], test: Callable[[str], bool]) -> Int64s:
    """Return 1 for each row whose string passes `test`, else 0."""
    passes = np.zeros(len(strings), np.int64)
    used = _used(index)
    passes[used] = [test(text) for text in pick(strings, used)]
    return passes[index]
