"""What moves: topics, records, dead letters, and the shape every processor has."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from schemas.errors import DecodeError
from schemas.types import Offset, Partition


class Topic(enum.StrEnum):
    """The topics of one deployment. All have the same number of partitions.

    The task of EVENTS partition p writes partition p of every topic it writes to, so each
    partition has exactly one writer.
    """

    EVENTS = "events"
    WINDOWS = "windows"
    DELTAS = "deltas"
    STATE = "state"
    SNAPSHOTS = "snapshots"
    DEAD_LETTER = "dead-letter"


class Record(NamedTuple):
    """A committed record as a transport hands it out."""

    topic: Topic
    partition: Partition
    offset: Offset
    key: bytes | None
    value: bytes | memoryview | None


class Output(NamedTuple):
    """A record to be written; `partition` None leaves the choice to the key's hash."""

    topic: Topic
    partition: Partition | None
    key: bytes
    value: bytes


class Processor(Protocol):
    """A pure state machine: no clock, no I/O, no randomness.

    The runner restores it, applies committed records, and now and then commits `flush()`,
    `snapshot()` and the input offsets in one step. After an error it is thrown away and a new
    one restored.
    """

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Take over a state that `snapshot` made; DecodeError if it cannot be read."""

    def apply(self, record: Record) -> None:
        """Take one record in. What cannot be read becomes a dead letter, never an error."""

    def flush(self) -> list[Output]:
        """Return what has come of the records since the last flush."""

    def snapshot(self) -> dict[str, bytes]:
        """Return the state after the last `flush` as entries.

        What stays the same keeps its bytes, so that a transport may write only entries that
        changed; the state is made of the latest of each, less those that are no longer there.
        """


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that could not be read, whole, with where it came from and why."""

    reason: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


_encoder = msgspec.msgpack.Encoder()
_dead_letter_decoder = msgspec.msgpack.Decoder(DeadLetter)


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Return the letter as a record value."""
    return _encoder.encode(letter)


def decode_dead_letter(data: bytes | memoryview) -> DeadLetter:
    """Return the letter in a record value; DecodeError if it is none."""
    try:
        return _dead_letter_decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"dead letter: {error}") from None
