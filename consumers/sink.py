"""The sink: deltas and boundaries in, ledgers out.

It folds the records of all partitions, in whatever order they come, into one `Session` each.
Everything that depends on all of them (roles, keys of row counters, what is steady) is applied
when a ledger is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from consumers.figures import Cast
from consumers.fold import Session
from consumers.grouping import GroupTable, group_table
from consumers.report import ledger_of
from consumers.sinkentries import read_session, write_session
from schemas.config import Config
from schemas.deltas import decode_delta
from schemas.errors import DecodeError, DigestMismatchError
from schemas.ledger import Ledger, encode_ledger
from schemas.records import Output, Record, Topic
from schemas.windows import decode_windows

STATE_VERSION: Final = 1
SINK: Final = "sink"
"""Key of the entry that says what sessions there are."""

RETIRED_LABELS: Final = 10_000
"""So many labels of sessions that are over and forgotten are remembered."""


class _State(msgspec.Struct):
    version: int
    digest: str
    unreadable: int
    sessions: list[str]
    told: dict[str, bool]
    retired: list[str] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)


class Sink:
    """The processor of DELTAS and WINDOWS (see `schemas.records.Processor`).

    A ledger goes to SNAPSHOTS once it is final, with `every_change` whenever a flush finds
    something new.
    """

    def __init__(self, config: Config, *, every_change: bool = False) -> None:
        self._config = config
        self._digest = config.digest
        self._every_change = every_change
        self._sessions: dict[str, Session] = {}
        self._changed: set[str] = set()
        self._told: dict[str, bool] = {}
        self._unreadable = 0
        self._retired: dict[str, None] = {}
        self.fresh: set[str] = set()
        """Sessions of which something new has come; for whoever writes their files to clear."""

    def apply(self, record: Record) -> None:
        """Take one record in.

        A record that cannot be read is counted: it was made by a linker of ours, so the log is
        damaged, and from then on no ratio is shown.

        Raises:
            DigestMismatchError: it was made under another configuration.

        """
        if record.value is None:
            return
        try:
            if record.topic == Topic.WINDOWS:
                windows = decode_windows(record.value)
                if windows.session in self._retired:
                    return
                self._session(windows.session, windows.config_digest).add_windows(windows)
                self._changed.add(windows.session)
            else:
                delta = decode_delta(record.value)
                if delta.header.session in self._retired:
                    return
                self._session(delta.header.session, delta.header.config_digest).add_delta(delta)
                self._changed.add(delta.header.session)
        except DecodeError:
            self._unreadable += 1
            self._changed.update(self._sessions)

    def _session(self, name: str, digest: str) -> Session:
        if digest != self._digest:
            raise DigestMismatchError(
                f"session {name!r} runs under configuration {digest}, not {self._digest}",
                hint="go on with that one, or replay the events under the new one",
            )
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session(self._config, name)
        return session

    def flush(self) -> list[Output]:
        """Return the ledgers due since the last flush, to be written to SNAPSHOTS."""
        outputs = []
        for name in sorted(self._changed):
            self._sessions[name].settle()
            if not self._every_change and not self.is_complete(name):
                continue
            ledger = self.ledger(name)
            if self._every_change or (ledger.final and not self._told.get(name)):
                self._told[name] = ledger.final
                outputs.append(Output(Topic.SNAPSHOTS, None, name.encode(), encode_ledger(ledger)))
        self.fresh |= self._changed
        self._changed.clear()
        return outputs

    def snapshot(self) -> dict[str, bytes]:
        """Return the state after the last `flush` as entries (see `consumers.sinkentries`)."""
        state = _State(
            STATE_VERSION, self._digest, self._unreadable, [*self._sessions], self._told, [*self._retired]
        )
        entries = {SINK: _encoder.encode(state)}
        for session in self._sessions.values():
            entries.update(write_session(session))
        return entries

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Take over a state that `snapshot` made.

        Raises:
            DecodeError: it is none, or of a newer version.
            DigestMismatchError: it was made under another configuration.

        """
        try:
            known = _decoder.decode(state[SINK])
        except (msgspec.DecodeError, ValueError, RecursionError, KeyError) as error:
            raise DecodeError(f"state of the sink: {error}") from None
        if known.version > STATE_VERSION:
            raise DecodeError(
                f"state of the sink has version {known.version}, this program reads {STATE_VERSION}"
            )
        if known.digest != self._digest:
            raise DigestMismatchError(
                f"state of the sink was made under configuration {known.digest}, not {self._digest}",
                hint="go on with that one, or replay the events under the new one",
            )
        self._sessions = {label: read_session(self._config, label, state) for label in known.sessions}
        self._unreadable, self._told = known.unreadable, known.told
        self._retired = dict.fromkeys(known.retired)
        self.fresh = set(self._sessions)
        self._changed.clear()

    @property
    def sessions(self) -> list[str]:
        """The labels of all sessions seen, sorted."""
        return sorted(self._sessions)

    def is_complete(self, session: str) -> bool:
        """Tell whether every linker has seen the end of a session and nothing is undecided."""
        return session in self._sessions and self._sessions[session].complete

    def retire(self, keep: int) -> list[str]:
        """Forget all sessions whose final ledger has been told, but the last `keep`; return their labels.

        Their labels are remembered (the last `RETIRED_LABELS`), so that nothing more is taken in.
        """
        final = [name for name, is_final in self._told.items() if is_final]
        gone = final[: max(len(final) - keep, 0)]
        for name in gone:
            del self._sessions[name], self._told[name]
            self._changed.discard(name)
            self.fresh.discard(name)
            self._retired[name] = None
        while len(self._retired) > RETIRED_LABELS:
            del self._retired[next(iter(self._retired))]
        return gone

    def ledger(self, session: str) -> Ledger:
        """Return the ledger of all taken in so far; KeyError: nothing of such a session came.

        `run` is the label, `generated_at` and `seconds` are not set: who writes it knows them.
        """
        return ledger_of(self._sessions[session], unreadable=self._unreadable)

    def groups(self, session: str) -> GroupTable:
        """Return the rows of `groups.csv`; KeyError: nothing of such a session came."""
        known = self._sessions[session]
        return group_table(known, Cast(known))
