"""Writes events to Kafka: in order, each partition by itself, and never past one that failed.

Publishers are many and hold no task, so nothing fences them: they write idempotently, without
transactions (one that froze inside a transaction would stop every reader). What has been delivered
before a failure stays; publishing the same again goes on behind it, since readers skip rows they
have seen by their ordinals. That holds only if nothing is ever delivered *behind* something lost,
whose rows would come late then: so the next records of a partition leave when those before them are
acknowledged, not earlier.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Self

from schemas.errors import TransportError
from schemas.records import Output, Record, Topic
from schemas.types import Offset
from stream.kafka.client import BATCH_BYTES, Connection, Place, Producer, Sent
from stream.kafka.topics import Topics
from stream.log import partition_for
from stream.transport import PUBLISH, TopicPartition

NOTICE_SECONDS: Final = 5.0
"""Without an acknowledgement for so long, a person is told, and again after twice as long."""

_LOOK_SECONDS: Final = 0.05
_RECORD_OVERHEAD: Final = 128
"""More than what Kafka's format adds to a record and a batch."""


class Delivered(NamedTuple):
    """What has been acknowledged by the brokers."""

    records: int
    value_bytes: int


class _Lane:
    """A partition: what waits, and what has been sent and is not acknowledged."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.waiting: deque[Output] = deque()
        self.sent: deque[tuple[Sent, Output]] = deque()


class PublishClaim:
    """What a `RecordWriter` commits to: see `stream.transport.Claim`. It reads nothing.

    `commit` returns once all is delivered. It is not one step: if it fails, some may be delivered.
    """

    state = None

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        partitions: int,
        notice: Callable[[str], None],
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._notice = notice
        self._servers = connection.servers
        self._limit = connection.times.delivery
        self._producer: Producer = connection.producer(PUBLISH, None)
        self._delivered = Delivered(0, 0)
        self._usable = True

    @property
    def delivered(self) -> Delivered:
        """What has been acknowledged since the claim was made."""
        return self._delivered

    def poll(self, max_bytes: int) -> list[Record]:  # noqa: ARG002  (the seam's)
        """Return nothing: publishing has no inputs."""
        return []

    def positions(self) -> Mapping[TopicPartition, Offset]:
        """Return nothing: publishing has no inputs."""
        return {}

    def commit(self, outputs: Iterable[Output], state: Mapping[str, bytes]) -> None:
        """Deliver all records: in order within each partition.

        Raises:
            TransportError: some were not delivered in time; the text counts them.
            ValueError: a record is not for EVENTS, or there is a state, which is kept nowhere.

        """
        if not self._usable:
            raise TransportError(f"claim of {PUBLISH} has failed or was closed")
        if state:
            raise ValueError(f"{PUBLISH} keeps no state")
        self._usable = False
        self._deliver(self._sort(outputs))
        self._usable = True

    def close(self) -> None:
        """Let go. What was not acknowledged may or may not arrive."""
        self._usable = False
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _sort(self, outputs: Iterable[Output]) -> list[_Lane]:
        lanes: dict[int, _Lane] = {}
        for output in outputs:
            partition = output.partition
            if partition is None:
                partition = partition_for(output.key, self._partitions)
            if output.topic is not Topic.EVENTS or not 0 <= partition < self._partitions:
                raise ValueError(f"{PUBLISH} may not write to {output.topic}-{partition}")
            place = self._topics.place(TopicPartition(Topic.EVENTS, partition))
            lanes.setdefault(partition, _Lane(place)).waiting.append(output)
        return list(lanes.values())

    def _deliver(self, lanes: list[_Lane]) -> None:
        """Deliver in rounds: one batch of each partition, and the next when all are acknowledged."""
        patience = _Patience(self._notice, self._limit)
        while lanes:
            for lane in lanes:
                self._send_batch(lane)
            self._producer.push()
            while sending := [lane for lane in lanes if lane.sent]:
                before = self._delivered
                for lane in sending:
                    self._collect(lane, lanes)
                if self._delivered != before:
                    patience.renew()
                elif not self._producer.wait(sending[0].sent[0][0], _LOOK_SECONDS):
                    patience.look(*_left(lanes))
            self._producer.pushed()
            lanes = [lane for lane in lanes if lane.waiting]

    def _send_batch(self, lane: _Lane) -> None:
        """Hand over what fits into one batch, so that all of it is written or none."""
        size = 0
        while lane.waiting:
            output = lane.waiting[0]
            size += len(output.key) + len(output.value) + _RECORD_OVERHEAD
            if lane.sent and size > BATCH_BYTES:
                break
            lane.sent.append((self._producer.send(lane.place, output.key, output.value), output))
            lane.waiting.popleft()

    def _collect(self, lane: _Lane, lanes: list[_Lane]) -> None:
        """Count what has been acknowledged."""
        while lane.sent and lane.sent[0][0].done:
            try:
                self._producer.confirm(lane.sent[0][0], 0)
            except TransportError as error:
                records, value_bytes = _left(lanes)
                raise TransportError(
                    f"gave up publishing: {self._delivered.records:,} records "
                    f"({self._delivered.value_bytes / 1e6:,.1f} MB) were delivered, {records:,} "
                    f"({value_bytes / 1e6:,.1f} MB) were not, nor any after them ({error.what})",
                    where=self._servers,
                    hint="publish the same again: what was delivered is not counted twice",
                ) from None
            _, output = lane.sent.popleft()
            self._delivered = Delivered(
                self._delivered.records + 1, self._delivered.value_bytes + len(output.value)
            )


class _Patience:
    """Tells a person that nothing goes on, and that it goes on again."""

    def __init__(self, notice: Callable[[str], None], limit: float) -> None:
        self._notice = notice
        self._limit = limit
        self._since = time.monotonic()
        self._next = NOTICE_SECONDS

    def renew(self) -> None:
        """Note that something was delivered."""
        now = time.monotonic()
        if self._next > NOTICE_SECONDS:
            self._notice(f"brokers answer again after {now - self._since:.0f} s")
        self._since, self._next = now, NOTICE_SECONDS

    def look(self, records: int, value_bytes: int) -> None:
        """Tell, if it is time to, how long nothing has been delivered."""
        waited = time.monotonic() - self._since
        if waited >= self._next:
            self._next *= 2
            self._notice(
                f"brokers have acknowledged nothing for {waited:.0f} s: {records:,} records "
                f"({value_bytes / 1e6:,.1f} MB) wait; giving up in {max(self._limit - waited, 0):.0f} s"
            )


def _left(lanes: list[_Lane]) -> tuple[int, int]:
    """Return how many records, and bytes of values, have not been acknowledged."""
    left = [output for lane in lanes for output in (*(o for _, o in lane.sent), *lane.waiting)]
    return len(left), sum(len(output.value) for output in left)
