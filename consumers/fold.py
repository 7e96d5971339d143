"""One session as the sink holds it: deltas and boundaries folded together, whatever their order.

Sums stand under a slot of time. Slots 0 to 3 are time that needs no name any more (bit 0: steady,
bit 1: measured); the others are one window each. Statistics of groups and row counters stay in a
window's slot only until it is decided what that window is; totals and kernels without context
stay as long as the ledger lists the window. So memory follows groups, not windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from consumers.admission import Groups, numbered
from consumers.sinkstate import ProcessState, SessionState, add_header, add_small
from consumers.spans import PurposeSpans
from consumers.statistics import BUCKET_BITS, LOCAL_BITS, MAX_SLOTS, SumTable, slot_of
from schemas.columns import Int64s
from schemas.config import Config, duration_ns
from schemas.deltas import Delta
from schemas.types import END_OF_TIME, NONE, Class, Process
from schemas.windows import WindowsRecord

STEADY: Final = 1
MEASURED: Final = 2
CLASSES: Final = len(Class)


class Session:
    """All that is known of one session; see the module's docstring."""

    def __init__(self, config: Config, name: str) -> None:
        self.config = config
        self.state = SessionState(name)
        self.measured = PurposeSpans("measured", config.windows.measured)
        self.steady = PurposeSpans("steady", config.windows.steady)
        self.measured.state, self.steady.state = self.state.measured, self.state.steady
        cut = self.measured.cuts_time or self.steady.cuts_time
        self.length = 0 if cut else duration_ns(config.windows.length)
        """Of windows in ns; 0: spans cut the timeline."""
        self.groups = Groups(self.state.processes, config.limits.groups)
        self.totals = SumTable(np.add, np.add)
        """Local number: process x classes + class. Kernels, ns."""
        self.unknown = SumTable(np.add, np.add)
        """Local number: see `SessionState.unknown`. Kernels, ns."""
        self.stats = SumTable(np.add, np.add, np.minimum, np.maximum)
        """Local number: group << BUCKET_BITS. Count, total, min, max."""
        self.buckets = SumTable(np.add)
        """Local number: group << BUCKET_BITS | bucket. Count."""
        self.rows = SumTable(np.add)
        """Local number: see `SessionState.rows`. Count."""
        self._index()

    def _index(self) -> None:
        """Make the look-ups that follow from the state."""
        state = self.state
        self._process_ids = {p.process: i for i, p in enumerate(state.processes)}
        self._unknown_ids = {pair: i for i, pair in enumerate(state.unknown)}
        self._row_ids = {row: i for i, row in enumerate(state.rows)}
        self._decided: dict[int, int] = {}

    # -- taking in -------------------------------------------------------------------------

    def add_windows(self, record: WindowsRecord) -> None:
        """Take in one record of WINDOWS."""
        state = self.state
        state.partitions = max(state.partitions, record.partitions)
        if record.closed:
            state.closed.add(record.partition)
        if record.anchor is not None:
            anchor = (record.process, record.capture, record.anchor)
            if anchor not in state.anchors:
                state.anchors.append(anchor)
        if record.decision is not None:
            state.decisions = sorted({*state.decisions, record.decision})
        for spans in (self.measured, self.steady):
            spans.add(record)
        self._update_spans()

    def _update_spans(self) -> None:
        # Of each process the first counts, as it came: all of its anchors stand in one partition.
        first: dict[Process, int] = {}
        for process, _, anchor in self.state.anchors:
            first.setdefault(process, anchor)
        for spans in (self.measured, self.steady):
            spans.update(anchors=first, closed=self.windows_closed)

    @property
    def windows_closed(self) -> bool:
        """Whether every partition has said all its boundaries."""
        return bool(self.state.partitions) and len(self.state.closed) >= self.state.partitions

    @property
    def complete(self) -> bool:
        """Whether everything is in: every linker has seen the end and nothing is undecided."""
        return self.windows_closed and len(self.state.ended) >= self.state.partitions

    def add_delta(self, delta: Delta) -> None:
        """Take in one delta of this session."""
        header = delta.header
        state = self.state
        for name, count in header.counters.items():
            state.counters[name] = state.counters.get(name, 0) + count
        if header.session_end:
            state.partitions = max(state.partitions, header.session_end)
            state.ended.add(header.partition)
            self._update_spans()
        number = self._process(header.process)
        add_header(state.processes[number], header)
        self._note_lifetimes(state.processes[number])
        texts = list(delta.strings)
        self._add_totals(number, delta, texts)
        self._add_groups(number, delta, texts)
        self._add_rows(number, delta, texts)
        add_small(state.processes[number], delta, texts)

    def _note_lifetimes(self, process: ProcessState) -> None:
        for capture in process.captures.values():
            if capture.first is not None and capture.last is not None:
                for spans in (self.measured, self.steady):
                    spans.lifetimes[process.process, capture.capture] = (capture.first, capture.last)

    def _process(self, process: Process) -> int:
        number = self._process_ids.get(process)
        if number is None:
            number = self._process_ids[process] = len(self.state.processes)
            self.state.processes.append(ProcessState(process))
        return number

    def _add_totals(self, number: int, delta: Delta, texts: list[str]) -> None:
        columns = delta.columns
        windows = columns["total.window"]
        if len(windows):
            keys = (self._window_slots(windows) << LOCAL_BITS) + number * CLASSES
            self.totals.add(keys + columns["total.class"], columns["total.kernels"], columns["total.ns"])
        windows = columns["unknown.window"]
        if len(windows):
            kernels = columns["unknown.kernel"]
            local = np.zeros(len(texts), np.int64)
            for i in np.unique(kernels).tolist():
                pair = (number, self.groups.string(texts[i]))
                local[i] = numbered(pair, self._unknown_ids, self.state.unknown)
            keys = (self._window_slots(windows) << LOCAL_BITS) | local[kernels]
            self.unknown.add(keys, columns["unknown.kernels"], columns["unknown.ns"])

    def _add_rows(self, number: int, delta: Delta, texts: list[str]) -> None:
        columns = delta.columns
        windows = columns["rows.window"]
        if not len(windows):
            return
        local = [
            numbered((number, counter, texts[fields]), self._row_ids, self.state.rows)
            for counter, fields in zip(
                columns["rows.counter"].tolist(), columns["rows.fields"].tolist(), strict=True
            )
        ]
        keys = (self._flag_slots(windows) << LOCAL_BITS) | np.array(local, np.int64)
        self.rows.add(keys, columns["rows.count"])

    def _add_groups(self, number: int, delta: Delta, texts: list[str]) -> None:
        columns = delta.columns
        if not len(columns["group.device"]):
            return
        groups = self.groups.admit(number, delta, texts)
        if not len(columns["stat.group"]):
            return
        keys = self._flag_slots(columns["stat.window"]) << LOCAL_BITS
        keys |= groups[columns["stat.group"]] << BUCKET_BITS
        self.stats.add(keys, *(columns[f"stat.{name}"] for name in ("count", "total", "min", "max")))
        if len(columns["bucket.stat"]):
            self.buckets.add(keys[columns["bucket.stat"]] | columns["bucket.bucket"], columns["bucket.count"])

    # -- windows ---------------------------------------------------------------------------

    def _window_slots(self, instants: Int64s) -> Int64s:
        """Return the slot of the window each instant is in."""
        return self._mapped(instants, self._window_slot)

    def _flag_slots(self, instants: Int64s) -> Int64s:
        """Return what each instant's window is as a slot, the window's own if not decided yet."""

        def slot(instant: int) -> int:
            flags = self.flags(instant)
            if flags is not None:
                return flags
            self.state.undecided.add(instant)
            return self._window_slot(instant)

        return self._mapped(instants, slot)

    def _mapped(self, instants: Int64s, slot: Callable[[int], int]) -> Int64s:
        if self.length:
            before_cuts = instants == NONE
            instants = np.where(before_cuts, NONE, instants // self.length * self.length)
        windows, inverse = np.unique(instants, return_inverse=True)
        return np.array([slot(w) for w in windows.tolist()], np.int64)[inverse]

    def _window_slot(self, instant: int) -> int:
        state = self.state
        slot = state.windows.get(instant)
        if slot is None:
            if state.free:
                slot = state.free.pop()
            else:
                slot, state.next_slot = state.next_slot, state.next_slot + 1
            if slot >= MAX_SLOTS:
                raise OverflowError(f"more than {MAX_SLOTS} windows undecided in one session")
            state.windows[instant] = slot
        return slot

    def flags(self, instant: int) -> int | None:
        """Return what the window of an instant is (bits STEADY and MEASURED); None: not decided."""
        flags = self._decided.get(instant)
        if flags is None:
            measured, steady = self.measured.holds(instant), self.steady.holds(instant)
            if measured is None or steady is None:
                return None
            flags = self._decided[instant] = MEASURED * measured + STEADY * steady
        return flags

    def settle(self) -> None:
        """Fold windows that are decided into what they are, and old ones out of the list.

        When this is called has no bearing on any figure.
        """
        state = self.state
        decided = {}
        for instant in list(state.undecided):
            flags = self.flags(instant)
            if flags is not None:
                decided[state.windows[instant]] = flags
                state.undecided.discard(instant)
        if decided:
            for table in (self.stats, self.buckets, self.rows):
                table.move(decided)
        self._name_by_cuts()
        self._forget_windows()
        self._decided.clear()

    def _name_by_cuts(self) -> None:
        """Name windows by the cut they begin at, where that is certain."""
        if self.length:
            return
        state = self.state
        known_to = min(self.measured.known_to(), self.steady.known_to())
        cuts: Int64s | None = None
        moved: dict[int, int] = {}
        for instant in sorted(i for i in state.windows if NONE < i < known_to):
            if instant in state.undecided:
                continue
            if cuts is None:
                cuts = self.cuts()
            name = cut_before(cuts, instant)
            if name == instant:
                continue
            slot = state.windows.pop(instant)
            if name in state.windows:
                moved[slot] = state.windows[name]
                state.free.append(slot)
            else:
                state.windows[name] = slot
        if moved:
            self.totals.move(moved)
            self.unknown.move(moved)

    def _forget_windows(self) -> None:
        """Let go of windows that later ones have pushed out of the list, and of empty ones."""
        state = self.state
        if len(state.windows) <= self.config.limits.windows:
            return
        filled = set(np.unique(slot_of(self.totals.rows()[0])).tolist())
        known_to = END_OF_TIME if self.length else min(self.measured.known_to(), self.steady.known_to())
        certain = sorted(i for i, slot in state.windows.items() if i < known_to and slot in filled)
        gone = set(certain[: -self.config.limits.windows])
        gone.update(i for i, slot in state.windows.items() if slot not in filled)
        moved = {}
        for instant in sorted(gone - state.undecided):
            flags = self.flags(instant)
            if flags is not None:
                moved[state.windows.pop(instant)] = flags
        for table in (self.totals, self.unknown):
            table.move(moved)
        state.free.extend(moved)

    def cuts(self) -> Int64s:
        """Return where spans cut the timeline: int64, ascending, UTC ns."""
        return np.unique(np.array([*self.measured.cuts(), *self.steady.cuts()], np.int64))

    def slot_flags(self) -> dict[int, int]:
        """Return what each window's slot is as far as is known: undecided ones are not steady."""
        flags = {}
        for instant, slot in self.state.windows.items():
            measured, steady = self.measured.holds(instant), self.steady.holds(instant)
            flags[slot] = MEASURED * bool(measured) + STEADY * bool(steady)
        return flags

    # -- state -----------------------------------------------------------------------------

    def tables(self) -> dict[str, SumTable]:
        """Return the tables of sums by name."""
        return {
            "total": self.totals,
            "unknown": self.unknown,
            "stat": self.stats,
            "bucket": self.buckets,
            "rows": self.rows,
        }

    def restored(self) -> None:
        """Make the look-ups again, after state, groups and tables were put in place."""
        self._index()
        self.measured.state, self.steady.state = self.state.measured, self.state.steady
        self._update_spans()
        for process in self.state.processes:
            self._note_lifetimes(process)


def cut_before(cuts: Int64s, instant: int) -> int:
    """Return the last cut at or before an instant, NONE if there is none."""
    at = int(np.searchsorted(cuts, instant, "right"))
    return int(cuts[at - 1]) if at else NONE
