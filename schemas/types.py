"""Numbers and keys that must not be mixed up."""

from __future__ import annotations

import enum
from typing import Annotated, Final, NewType

import msgspec

Ns = NewType("Ns", int)
"""Nanoseconds: an instant of session time (UTC where the capture has it) or a span of it."""

Offset = NewType("Offset", int)
"""Position of a record in one partition; never a byte position."""

Partition = NewType("Partition", int)
"""Number of a partition of a topic; never a count of partitions."""

NONE: Final = -(2**63)
"""Stands for "no value" in int64 columns; no id or time of a capture can be this."""

TIME_LIMIT: Final = 2**62
"""Times stay within +-2**62 ns (146 years), so that sums of two never overflow."""

DURATION_LIMIT: Final = 2**50
"""Durations stay within +-2**50 ns (13 days): longer ones are damage, and a few would overflow sums."""

END_OF_TIME: Final = Ns(2**63 - 1)
"""The watermark of a capture that has ended."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number in a msgpack header that fits an int64 column; msgpack alone would let 2**64 - 1 in."""

PID_BITS: Final = 24


class Kind(enum.IntEnum):
    """What the rows of one EVENTS batch are."""

    KERNELS = 1
    LAUNCHES = 2
    RANGE_OPENINGS = 3
    RANGE_CLOSINGS = 4
    MARKS = 5
    MEMORY = 6
    GRAPHS = 7
    FACTS = 8
    WINDOWS = 9
    CAPTURE_END = 10
    SESSION_END = 11


class Class(enum.IntEnum):
    """Where a kernel (or memory operation) ended up; exactly one of these, always."""

    CONTEXT = 0
    LAUNCH_NOT_CAPTURED = 1
    LAUNCH_OUTSIDE_RANGES = 2
    THREAD_WITHOUT_RANGES = 3


CLASS_NAMES: Final = tuple(c.name.lower() for c in Class)
REASONS: Final = CLASS_NAMES[1:]


class Process(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A process: the host it ran on and its `globalPid`, low 24 bits zero.

    The id holds hardware id (bits 56..63), vm id (48..55) and pid (24..47), as Nsight Systems
    writes it; a producer whose source has only a pid shifts it into place. `global_pid == 0`
    stands for the capture itself: it carries facts and ends, never events.
    """

    host: str
    global_pid: int

    @property
    def pid(self) -> int:
        """The operating system's pid: bits 24..47 only, so that vm ids make no twins."""
        return (self.global_pid >> PID_BITS) & 0xFFFFFF

    @property
    def is_capture(self) -> bool:
        """Whether this stands for the capture as a whole."""
        return self.global_pid == 0


def partition_key(session: str, process: Process) -> bytes:
    """Return the record key that keeps a process in one partition."""
    return f"{session}\x00{process.host}\x00{process.global_pid}".encode("utf-8", "backslashreplace")
