"""WINDOWS: where the timeline is cut, as far as that comes from the events themselves.

The linker that holds a source of boundaries writes them; every linker and the sink read them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.errors import DecodeError
from schemas.types import NONE, TIME_LIMIT, Int64, Process

Purpose = Literal["measured", "steady"]


class Edge(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One boundary: a span of `purpose` opens or closes at `time`.

    `span` pairs a closing with its opening within (capture, process, purpose). A source whose
    spans last until the next one writes openings only. `time` is UTC ns, or with `application`
    the application's clock, to be brought over by the session's anchor: then `since` is the UTC ns
    before which the edge would be too late to be any.
    """

    time: Int64
    purpose: Purpose
    opens: bool
    span: Int64
    application: bool = False
    since: Int64 = NONE

    def placed(self, anchor: int | None) -> int | None:
        """Return its time in UTC ns, `anchor` being that of the session.

        An opening that is too late has none; a closing that is takes place at `since`. None as
        well where an anchor is needed and not known yet, or where that leads out of all time.
        """
        if not self.application:
            return self.time
        if anchor is None:
            return None
        if self.is_late(anchor):
            return None if self.opens else self.since
        time = self.time - anchor
        return time if -TIME_LIMIT < time < TIME_LIMIT else None

    def is_late(self, anchor: int | None) -> bool:
        """Tell whether it points further back than it may."""
        return self.application and anchor is not None and self.time - anchor < self.since


class Decision(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What was given up on by the clock on the wall: written once, obeyed by all and by replays.

    `cut`: boundaries of this (capture, process) from `since` to before `until` (UTC ns) are none,
    whenever they come, and nobody waits for them; a process with `global_pid` 0 stands for
    whichever source there may be. `silent`: its watermark has stayed at `since`; nothing follows
    from it. `reason`: what was exceeded, `windows.max_wait` or `limits.pending`.
    """

    kind: Literal["cut", "silent"]
    process: Process
    capture: str
    since: Int64
    until: Int64
    reason: Literal["max_wait", "pending"]


class WindowsRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one source of boundaries has to say, or that a partition has no more to say.

    `purposes` are those this (capture, process) is a source of, `watermark` says that every edge
    of it before this time (UTC ns) has been written.
    `anchor` is what the application's clock shows more than UTC, in ns, by the first anchor of the
    process that `clock.role` names.
    `ended`: there will be no more of it. `closed` is true when the linker of `partition` has seen
    the end of the session; once all `partitions` have closed, all edges are known.
    """

    session: str
    config_digest: str
    partition: Int64
    process: Process = Process("", 0)
    capture: str = ""
    purposes: tuple[Purpose, ...] = ()
    edges: tuple[Edge, ...] = ()
    anchor: Int64 | None = None
    watermark: Int64 | None = None
    ended: bool = False
    closed: bool = False
    partitions: Int64 = 0
    decision: Decision | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WindowsRecord)


def encode_windows(record: WindowsRecord) -> bytes:
    """Return the record as a record value."""
    return _encoder.encode(record)


def decode_windows(data: bytes | memoryview) -> WindowsRecord:
    """Return the record in a record value; DecodeError if it is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"windows record: {error}") from None
