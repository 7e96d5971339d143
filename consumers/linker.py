"""The linker: one partition's events in, additive deltas and window boundaries out.

It holds only what is in flight. Each (capture, process) is a `Lane`, each session has a
`Timeline`; what an advance of a lane decides stays with it until the next flush, which stamps it
with windows and sums it into deltas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from consumers import counters as counting
from consumers.contexts import Contexts, Names
from consumers.counters import Counters
from consumers.lane import ROWS, Lane, LaneState
from consumers.seen import Seen
from consumers.state import (
    LINKER,
    RETIRED,
    RETIRED_LABELS,
    VERSION,
    LinkerState,
    Refused,
    SessionState,
    lane_key,
    read_lane_state,
    read_linker,
    read_retired,
    read_tables,
    write_lane,
    write_linker,
    write_retired,
)
from consumers.summing import records, sum_rows
from consumers.tables import Table, concat, empty, rows_of, take
from consumers.timeline import Timeline
from schemas.config import Config
from schemas.deltas import CaptureState, Delta, DeltaHeader, encode_delta
from schemas.errors import DecodeError
from schemas.events import Batch, decode
from schemas.records import DeadLetter, Output, Record, Topic, encode_dead_letter
from schemas.types import END_OF_TIME, NONE, Kind, Partition, Process, partition_key
from schemas.windows import Decision, WindowsRecord, decode_windows, encode_windows

_COMPACT_ABOVE: Final = 1 << 20
"""Interned texts and contexts above which a flush throws out those that nothing refers to."""


_SESSION_COUNTERS: Final = ("dead_letters", "unknown_kinds", "repeated_rows", "after_end")
"""Counters of `schemas.deltas.COUNTERS` that are told of the session, not of a process."""


class Wait(NamedTuple):
    """Rows of a session wait for boundaries that a source has yet to give.

    `since` is how far the source has come, `until` up to where boundaries would have to be given
    up for the `pending` rows to wait no longer (UTC ns). A process with `global_pid` 0 stands for
    a source that has yet to come.
    """

    session: str
    process: Process
    capture: str
    since: int
    until: int
    pending: int


class OpenCapture(NamedTuple):
    """A (capture, process) that has not ended, and its watermark (UTC ns)."""

    session: str
    process: Process
    capture: str
    watermark: int


class _Session(msgspec.Struct):
    """What a linker knows of one session beside its lanes."""

    timeline: Timeline
    lanes: dict[tuple[Process, str], Lane]
    ended: int = 0
    """The partition count, once the end of the session has come."""
    told_end: bool = False
    dead_letters: int = 0
    unknown_kinds: int = 0
    repeated_rows: int = 0
    after_end: int = 0
    refused: dict[tuple[Process, str], dict[int, Seen]] = {}
    """Rows that came, or came after the end, of every (process, capture) that had any of the latter."""


class Linker:
    """The processor of one EVENTS partition (see `schemas.records.Processor`)."""

    def __init__(self, config: Config, partition: int) -> None:
        self._config = config
        self._digest = config.digest
        self._partition = Partition(partition)
        self.dead_letters = 0
        """Written since it was made: for whoever decides that these are too many."""
        self._reset()

    def _reset(self) -> None:
        self._names = Names()
        self._contexts = Contexts(self._config)
        self._counters = Counters(self._config, self._contexts, self._names)
        self._sessions: dict[str, _Session] = {}
        self._outputs: list[Output] = []
        self._advances = 0
        self._homeless = 0
        self._retired: dict[str, None] = {}
        """Ended sessions that are forgotten but for their names, in order."""

    # -- records in ------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """Take in a record of EVENTS or WINDOWS; what cannot be read becomes a dead letter."""
        try:
            value = b"" if record.value is None else record.value
            if record.topic == Topic.WINDOWS:
                windows = decode_windows(value)
                # What this linker wrote it has applied already.
                if windows.partition != self._partition and windows.session not in self._retired:
                    self._session(windows.session).timeline.apply(windows)
            else:
                self._apply_batch(decode(value))
        except DecodeError as error:
            self._bury(record, error.what)

    def _session(self, name: str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(Timeline(self._config), {})
            session.dead_letters, self._homeless = self._homeless, 0
        return session

    def _bury(self, record: Record, reason: str) -> None:
        value = None if record.value is None else bytes(record.value)
        letter = DeadLetter(reason, record.topic.value, record.partition, record.offset, record.key, value)
        key = record.key or b""
        self._output(Topic.DEAD_LETTER, key, encode_dead_letter(letter))
        self.dead_letters += 1
        # Whose it was is not known, so it counts against every session it may be of.
        owner = key.split(b"\0")[0].decode("utf-8", "replace")
        sessions = [self._sessions[owner]] if owner in self._sessions else [*self._sessions.values()]
        for session in sessions:
            session.dead_letters += 1
        self._homeless += not sessions

    def _apply_batch(self, batch: Batch) -> None:
        header = batch.header
        if header.session in self._retired:
            return
        session = self._session(header.session)
        if session.ended:
            self._refuse(session, batch)
            return
        if header.kind == Kind.SESSION_END:
            for _, lane in sorted(session.lanes.items(), key=lambda item: item[0]):
                lane.count("unended_captures", not lane.state.ended)
                lane.state.ended = True
                self._advance(session, header.session, lane, END_OF_TIME)
            session.ended = max(header.partitions, 1)
            closed = WindowsRecord(
                header.session, self._digest, self._partition, closed=True, partitions=session.ended
            )
            self._say(session, closed)
            return
        lane = self._lane(session, batch)
        if header.kind not in Kind.__members__.values():
            session.unknown_kinds += 1
        else:
            lane.collect(batch)
        watermark = header.watermark
        if header.kind == Kind.CAPTURE_END:
            lane.state.ended = True
            self._advance(session, header.session, lane, END_OF_TIME)
        elif watermark is not None and watermark > lane.state.watermark:
            self._advance(session, header.session, lane, watermark)

    def _refuse(self, session: _Session, batch: Batch) -> None:
        """Count the rows of an ended session that never came before.

        Its figures are final, what is missing from them included: rows that were missing stay so.
        """
        header = batch.header
        if not header.rows:
            return
        key = (header.process, header.capture)
        lane = session.lanes.get(key)
        kinds = session.refused.setdefault(key, {})
        seen = kinds.get(header.kind)
        if seen is None:
            before = lane.state.seen.get(header.kind) if lane else None
            seen = kinds[header.kind] = Seen(before.high, [*before.missing]) if before else Seen()
        new = sum(high - low for low, high in seen.take(header.ordinal, header.rows))
        session.after_end += new
        session.repeated_rows += header.rows - new

    def _lane(self, session: _Session, batch: Batch) -> Lane:
        header = batch.header
        key = (header.process, header.capture)
        lane = session.lanes.get(key)
        if lane is None:
            state = LaneState(header.capture, header.process, header.clock)
            lane = session.lanes[key] = self._new_lane(state)
        return lane

    def _new_lane(self, state: LaneState) -> Lane:
        return Lane(self._config, self._contexts, self._names, self._counters, state)

    def _advance(self, session: _Session, name: str, lane: Lane, watermark: int) -> None:
        self._advances += 1
        said = lane.advance(watermark, self._advances)
        if said is not None:
            record = msgspec.structs.replace(
                said, session=name, config_digest=self._digest, partition=self._partition
            )
            self._say(session, record)

    def _say(self, session: _Session, record: WindowsRecord) -> None:
        """Write to WINDOWS; what is written holds here at once, and for others once committed."""
        session.timeline.apply(record)
        self._output(Topic.WINDOWS, record.session.encode(), encode_windows(record))

    def _output(self, topic: Topic, key: bytes, value: bytes) -> None:
        self._outputs.append(Output(topic, self._partition, key, value))

    # -- deltas out ------------------------------------------------------------------------

    def flush(self) -> list[Output]:
        """Return deltas of all that was decided since the last flush, and what else is due."""
        for name, session in list(self._sessions.items()):
            told = session.told_end
            self._flush_session(name, session)
            if session.told_end and not told:
                # In order of their ends: `retire` goes by it, in every partition alike.
                self._sessions[name] = self._sessions.pop(name)
        outputs, self._outputs = self._outputs, []
        if len(self._names.texts) + len(self._contexts.parents) > _COMPACT_ABOVE:
            self.restore(self.snapshot())
        return outputs

    def _flush_session(self, name: str, session: _Session) -> None:
        by_process: dict[Process, list[Lane]] = {}
        for (process, _), lane in session.lanes.items():
            if lane.touched or lane.rows or lane.counted:
                by_process.setdefault(process, []).append(lane)
        for process, lanes in sorted(by_process.items()):
            self._flush_process(name, process, session.timeline, lanes)
        header = DeltaHeader(name, self._digest, self._partition)
        counters = {name: getattr(session, name) for name in _SESSION_COUNTERS}
        for name_of_counter in counters:
            setattr(session, name_of_counter, 0)
        header = msgspec.structs.replace(header, counters={k: v for k, v in counters.items() if v})
        waiting = any(lane.rows or lane.counted for lane in session.lanes.values())
        session.timeline.forget_before(_needed(session))
        if session.ended and not session.told_end and session.timeline.all_closed and not waiting:
            session.told_end = True
            header = msgspec.structs.replace(header, session_end=session.ended)
        if header.counters or header.session_end:
            self._output(Topic.DELTAS, name.encode(), encode_delta(Delta(header, {}, ())))

    def _flush_process(self, session: str, process: Process, timeline: Timeline, lanes: list[Lane]) -> None:
        rows = concat([t for lane in lanes for t in lane.rows] or [empty(ROWS)])
        ready = (rows["kind"] != Kind.KERNELS) | (rows["start"] < timeline.watermark)
        counted = self._counted(lanes, rows, timeline)
        news = ready.any() or rows["new"].any() or rows_of(counted) or any(lane.touched for lane in lanes)
        if not news:
            return
        sums = sum_rows(
            rows | {"window": timeline.windows(rows["start"])}, ready, self._contexts, self._names
        )
        _keep_waiting(lanes, timeline.watermark)
        header = self._delta_header(session, process, lanes)
        for record in records(header, sums, counted, self._contexts, self._names):
            self._output(Topic.DELTAS, partition_key(session, process), record)

    def _counted(self, lanes: list[Lane], rows: Table, timeline: Timeline) -> Table:
        """Return what row counters counted and whose window is known, the window among it."""
        new = take(rows, rows["new"] == 1)
        for lane in lanes[:1]:
            lane.counted.append(self._counters.count_kernels(new))
        counted = counting.merge([t for lane in lanes for t in lane.counted])
        ready = counted["start"] < timeline.watermark
        for lane in lanes:
            lane.counted = []
        if not ready.all():
            lanes[0].counted = [take(counted, ~ready)]
        counted = take(counted, ready)
        return counted | {"window": timeline.windows(counted["start"])}

    def _delta_header(self, session: str, process: Process, lanes: list[Lane]) -> DeltaHeader:
        counters: dict[str, int] = {}
        offsets: dict[int, int] = {}
        for lane in lanes:
            for name, number in lane.counts.items():
                counters[name] = counters.get(name, 0) + number
            for device, least in lane.clock_offsets.items():
                offsets[device] = min(offsets.get(device, least), least)
        header = DeltaHeader(
            session,
            self._digest,
            self._partition,
            process,
            facts=tuple(f for lane in lanes for f in lane.facts),
            anchors=tuple(a for lane in lanes for a in lane.anchors),
            roles=tuple(r for lane in lanes for r in lane.roles),
            captures=tuple(_capture_state(lane) for lane in lanes),
            counters=counters,
            clock_offsets=offsets,
        )
        for lane in lanes:
            lane.told()
        return header

    # -- what only a clock can decide ------------------------------------------------------

    def waits(self) -> list[Wait]:
        """Return whom rows wait for, that could otherwise be stamped with their windows."""
        found = []
        for name, session in self._sessions.items():
            tables = [t for lane in session.lanes.values() for t in (*lane.rows, *lane.counted)]
            watermark = session.timeline.watermark
            late = [int(t["start"].max()) for t in tables if rows_of(t) and t["start"].max() >= watermark]
            if late:
                pending = sum(map(rows_of, tables))
                for process, capture, since in session.timeline.holders():
                    found.append(Wait(name, process, capture, since, max(late) + 1, pending))
        return found

    def open_captures(self) -> list[OpenCapture]:
        """Return every (capture, process) that has not ended, but those called silent since they spoke."""
        return [
            OpenCapture(name, process, capture, lane.state.watermark)
            for name, session in self._sessions.items()
            if not session.ended
            for (process, capture), lane in session.lanes.items()
            if not lane.state.ended and lane.state.silent_at != lane.state.watermark
        ]

    @property
    def pending(self) -> int:
        """Rows that are not decided, or not stamped with a window."""
        lanes = [lane for session in self._sessions.values() for lane in session.lanes.values()]
        return sum(lane.pending + sum(map(rows_of, lane.rows)) for lane in lanes)

    def decide(self, session: str, decision: Decision) -> None:
        """Take in what was given up on by the clock on the wall, and write it with the next flush."""
        lane = self._session(session).lanes.get((decision.process, decision.capture))
        if decision.kind == "silent" and lane is not None:
            lane.state.silent_at = decision.since
        record = WindowsRecord(session, self._digest, self._partition, decision=decision)
        self._say(self._session(session), record)

    def retire(self, keep: int) -> list[str]:
        """Forget all sessions whose end has been told, but the last `keep`; return their labels.

        Their labels are remembered (the last `RETIRED_LABELS`), so that nothing more is taken in.
        """
        told = [name for name, session in self._sessions.items() if session.told_end]
        gone = told[: max(len(told) - keep, 0)]
        for name in gone:
            del self._sessions[name]
            self._retired[name] = None
        while len(self._retired) > RETIRED_LABELS:
            del self._retired[next(iter(self._retired))]
        return gone

    # -- state -----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, bytes]:
        """Return the state after a flush (see `consumers.state`)."""
        entries: dict[str, bytes] = {}
        sessions = []
        for name, session in self._sessions.items():
            keys = []
            for lane in session.lanes.values():
                keys.append(key := lane_key(name, lane.state))
                entries.update(write_lane(key, lane, self._names, self._contexts))
            refused = [Refused(*key, kinds) for key, kinds in session.refused.items()]
            sessions.append(
                SessionState(
                    name, session.timeline.state, keys, session.ended, session.told_end, refused=refused
                )
            )
        state = LinkerState(VERSION, self._digest, self._partition, sessions, self._advances, self._homeless)
        entries[LINKER] = write_linker(state)
        if self._retired:
            entries[RETIRED] = write_retired(self._retired)
        return entries

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Take over a state that `snapshot` made.

        Raises:
            DecodeError: it is not one, not whole, or of a newer version.
            DigestMismatchError: it was made under another configuration.

        """
        header = read_linker(state.get(LINKER, b""), self._digest)
        self._reset()
        self._advances = header.advances
        self._homeless = header.homeless
        self._retired = read_retired(state)
        for entry in header.sessions:
            timeline = Timeline(self._config)
            timeline.restore(entry.timeline)
            session = _Session(timeline, {}, entry.ended, entry.told_end)
            session.refused = {(r.process, r.capture): r.kinds for r in entry.refused}
            self._sessions[entry.name] = session
            for key in entry.lanes:
                lane = self._new_lane(read_lane_state(key, state))
                lane.restore_tables(read_tables(key, state, self._names, self._contexts))
                session.lanes[lane.state.process, lane.state.capture] = lane


def _needed(session: _Session) -> int:
    """Return the earliest instant whose window may still be asked for by what comes in time."""
    instants = [lane.state.watermark for lane in session.lanes.values()]
    for lane in session.lanes.values():
        instants += [int(table["start"].min()) for table in (*lane.rows, *lane.counted) if rows_of(table)]
    return min(instants, default=NONE)


def _keep_waiting(lanes: list[Lane], watermark: int) -> None:
    """Keep the rows whose window is not known; their groups have been told of."""
    for lane in lanes:
        kept = []
        for table in lane.rows:
            waits = (table["kind"] == Kind.KERNELS) & (table["start"] >= watermark)
            if waits.any():
                rows = take(table, waits)
                kept.append(rows | {"new": np.zeros(rows_of(rows), np.int64)})
        lane.rows = [concat(kept)] if kept else []


def _capture_state(lane: Lane) -> CaptureState:
    state = lane.state
    seen_any = state.first <= state.last
    return CaptureState(
        capture=state.capture,
        clock=state.clock,
        watermark=state.watermark,
        ended=state.ended,
        first=state.first if seen_any else None,
        last=state.last if seen_any else None,
        missing={kind: seen.missing for kind, seen in state.seen.items() if seen.missing},
        pending=lane.pending + sum(map(rows_of, lane.rows)),
    )
