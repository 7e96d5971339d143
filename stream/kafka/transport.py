"""Tasks on Kafka: a claim is a fence, a commit is a transaction.

    with KafkaTransport(connection, Topics("gpu-ledger.")) as transport:
        with transport.claim("link-0", link_inputs(Partition(0), transport.partitions)) as claim:
            ...                                       # as in stream.transport
    KafkaTransport(...).claim(PUBLISH, ())            # for a RecordWriter: see `PublishClaim`

A claim:

    1. fence    `init_transactions`: the previous owner can commit no more, its open transaction is
                ended, and what it had committed is all there
    2. restore  read the changelog up to the end it has then, committed records only, and hold it
                against the count and digest of its head
    3. seek     to the offsets in that head; if the brokers no longer have one of them, stop

A commit:

    4. begin    the transaction
    5. send     changes of the changelog (the input offsets among them), then the outputs; never more
                than `IN_FLIGHT_BYTES` unacknowledged
    6. future   wait for *every* one: a commit alone would succeed without those that failed
    7. offsets  tell the group's offsets, which only tools that show lag look at
    8. commit   the transaction
    9. swap     take the new state for the one to compare the next with

Any error after the fence makes the claim useless; what is committed decides when it is claimed again.
Input is polled between commits only, so nothing piles up while a commit waits for slow brokers; what
the consumer holds ready is bounded by `stream.kafka.client.FETCH_BYTES`.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Self

from schemas.errors import DecodeError, RecordsGoneError, TransportError
from schemas.records import Output, Record, Topic
from schemas.types import Offset, Partition
from stream.kafka.changelog import Changelog, Head, Restoring
from stream.kafka.client import Connection, Consumer, Fetched, Place, Producer, Sent
from stream.kafka.publishing import PublishClaim
from stream.kafka.topics import Topics, partition_count
from stream.log import partition_for
from stream.transport import PUBLISH, Claim, Failpoint, TopicPartition, owner, pass_point

POINTS: Final = (
    "fence",
    "restore",
    "seek",
    "poll",
    "apply",
    "begin",
    "send",
    "future",
    "offsets",
    "commit",
    "swap",
)
"""Names of the effects around which a `Failpoint` is called, in the order they first happen.

`restore` is called for every poll of the changelog, `send` and `future` for every record."""

IN_FLIGHT_BYTES: Final = 16 << 20
"""So much may be unacknowledged; kafka-python itself knows no bound."""

SETTLE_SECONDS: Final = 2.0
"""Markers of a committed transaction are written in far less."""

_POLL_RECORDS: Final = 16
"""Records are up to 512 KiB: more at a time would overshoot the bytes asked for."""

_RESTORE_POLL_SECONDS: Final = 0.5
_RESTORE_RECORDS: Final = 500
_RECORDS_POLL_SECONDS: Final = 0.1


class KafkaTransport:
    """The topics of one deployment, on brokers."""

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        *,
        group: str | None = None,
        failpoint: Failpoint = pass_point,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Look the topics up. `group` is whose offsets are told with every commit; None: nobody's.

        `notice` is told in a line what a person should know who wonders why nothing happens.

        Raises:
            TransportError: no broker can be reached, or the topics are not there or do not fit.

        """
        self.connection = connection
        self.topics = topics
        self.group = group
        self.failpoint = failpoint
        self.notice = notice
        self._admin = connection.admin()
        try:
            self._partitions = partition_count(self._admin, topics)
        except BaseException:
            self._admin.close()
            raise

    @property
    def partitions(self) -> int:
        """How many partitions every topic has."""
        return self._partitions

    def claim(self, task: str, inputs: Iterable[TopicPartition]) -> Claim:
        """Take a task over: fence off whoever had it, restore, seek.

        Raises:
            RecordsGoneError: the brokers no longer have what comes next of an input.
            TransportError: the brokers do not answer, or what the task left cannot be read.

        """
        if task == PUBLISH:
            return PublishClaim(self.connection, self.topics, self._partitions, self.notice)
        return KafkaClaim(self, task, tuple(inputs))

    def records(self, place: TopicPartition) -> Iterator[Record]:
        """Yield everything committed to a partition up to now, from its beginning.

        The brokers say that a transaction is committed a moment before all of it can be read, so
        what is there is waited for; what nobody commits within `SETTLE_SECONDS` is not.

        Raises:
            TransportError: it cannot be read.

        """
        native = self.topics.place(place)
        end = self.ends([native])[native]
        with self.connection.consumer("records") as consumer:
            consumer.seek(self.beginnings([native]))
            position, progressed = Offset(-1), time.monotonic()
            while (now_at := consumer.positions()[native]) < end:
                if now_at > position:
                    position, progressed = now_at, time.monotonic()
                elif time.monotonic() - progressed > SETTLE_SECONDS:
                    break
                for record in consumer.poll(_RECORDS_POLL_SECONDS, _RESTORE_RECORDS):
                    if record.offset < end:
                        yield Record(place.topic, place.partition, record.offset, record.key, record.value)

    def beginnings(self, places: Iterable[Place]) -> dict[Place, Offset]:
        """Return the offset of the first record that partitions still have."""
        return self._admin.beginnings(places)

    def ends(self, places: Iterable[Place], *, committed: bool = False) -> dict[Place, Offset]:
        """Return the offset behind the last record of partitions; see `stream.kafka.client.Admin`."""
        return self._admin.ends(places, committed=committed)

    def close(self) -> None:
        """Let go of the connections. Claims have their own."""
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class KafkaClaim:
    """A task held by this process until another one fences it: see `stream.transport.Claim`."""

    def __init__(self, home: KafkaTransport, task: str, inputs: tuple[TopicPartition, ...]) -> None:
        self._home = home
        self._task = task
        self._times = home.connection.times
        self._changelog_at = home.topics.changelog(task)
        self._usable = True
        self._files = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self._files.close)
            self._fence()
            self._restore()
            self._seek(inputs)
            undo.pop_all()

    @property
    def state(self) -> Mapping[str, bytes] | None:
        """The state of the last commit before this claim; None if there was none."""
        return self._state

    @property
    def commits(self) -> int:
        """How many commits the task has made, by whomever."""
        return self._changelog.commit

    def poll(self, max_bytes: int) -> list[Record]:
        """Return what has arrived of committed records not returned before.

        An empty list says that nothing has arrived yet; brokers may have more.

        Raises:
            RecordsGoneError: the brokers no longer have what comes next.
            TransportError: the brokers do not answer, or records are damaged.

        """
        with self._failing():
            self._home.failpoint("before poll")
            records: list[Record] = []
            size = 0
            while size < max_bytes and (fetched := self._consumer.poll(0, _POLL_RECORDS)):
                records += map(self._record, fetched)
                size += sum(len(one.key or b"") + len(one.value or b"") for one in fetched)
            self._home.failpoint("after poll")
        return records

    def positions(self) -> Mapping[TopicPartition, Offset]:
        """Return the offset behind the last record polled, of each input."""
        topics = self._home.topics
        return {
            TopicPartition(topics.topic(place.topic), Partition(place.partition)): offset
            for place, offset in self._consumer.positions().items()
        }

    def commit(self, outputs: Iterable[Output], state: Mapping[str, bytes]) -> None:
        """Make outputs, state and positions true in one transaction.

        Raises:
            FencedError: another process has the task now; nothing has been committed.
            TransportError: nothing has been committed, or (where the last step is in doubt)
                everything; claim again to find out.
            ValueError: an output belongs to another task or to no partition. That is a fault of
                the processor.

        """
        with self._failing():
            positions = self.positions()
            point = self._home.failpoint
            point("before begin")
            self._producer.begin()
            point("after begin")
            self._sent: deque[Sent] = deque()
            self._in_flight = 0
            for change in self._changelog.changes(state, positions):
                self._send(self._changelog_at, change.key, change.value)
            for topic, partition, key, value in outputs:
                self._send(self._place(topic, partition, key), key, value)
            self._confirm_down_to(0)
            self._tell_offsets(positions)
            point("before commit")
            self._producer.commit(self._times.delivery)
            point("after commit")
            point("before swap")
            self._changelog.accept()
            point("after swap")

    def close(self) -> None:
        """Let go of the task. What was not committed never was."""
        self._usable = False
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _fence(self) -> None:
        self._home.failpoint("before fence")
        transactional_id = self._home.topics.transactional_id(self._task)
        self._producer: Producer = self._home.connection.producer(self._task, transactional_id)
        self._files.callback(self._producer.close)
        self._producer.fence()
        self._home.failpoint("after fence")

    def _restore(self) -> None:
        """Read the changelog.

        Its end is asked for after the fence, and with uncommitted records: a committed end would
        stop short of a transaction that somebody else has left open.
        """
        place = self._changelog_at
        end = self._home.ends([place])[place]
        self._consumer: Consumer = self._home.connection.consumer(self._task)
        self._files.callback(self._consumer.close)
        self._consumer.seek(self._home.beginnings([place]))
        restoring = Restoring(self._task)
        began = progressed = time.monotonic()
        position = Offset(-1)
        # Not until some record has been seen: the last ones may be markers, or compacted away.
        while (now_at := self._consumer.positions()[place]) < end:
            now = time.monotonic()
            if now_at > position:
                position, progressed = now_at, now
            if now - began > self._times.restore or now - progressed > self._times.progress:
                raise TransportError(
                    f"state of {self._task} can be read up to record {position} of {end} only",
                    where=f"{place.topic}-{place.partition}",
                    hint="is a transaction of another program open, or a broker overloaded?",
                )
            self._home.failpoint("before restore")
            for record in self._consumer.poll(_RESTORE_POLL_SECONDS, _RESTORE_RECORDS):
                restoring.take(record.key, record.value)
            self._home.failpoint("after restore")
        try:
            found = restoring.finish()
        except DecodeError as error:
            where = f"{place.topic}-{place.partition}"
            hint = error.hint or "restore the topic from a copy, or make the topics anew and publish again"
            raise RecordsGoneError(error.what, where=where, hint=hint) from None
        self._head: Head | None = found[0] if found else None
        self._state = found[1] if found else None
        self._changelog = Changelog(self._task, self._head, self._state)

    def _seek(self, inputs: tuple[TopicPartition, ...]) -> None:
        self._home.failpoint("before seek")
        known = self._head.positions() if self._head else {}
        places = [self._home.topics.place(place) for place in inputs]
        beginnings = self._home.beginnings(places)
        ends = self._home.ends(places)
        offsets: dict[Place, Offset] = {}
        for place, native in zip(inputs, places, strict=True):
            # An input without an offset is read from where it begins, wherever that is now.
            offset = known.get(place, beginnings[native])
            if offset < beginnings[native]:
                raise RecordsGoneError(
                    f"{self._task} goes on at record {offset}, but retention has deleted all before "
                    f"record {beginnings[native]}",
                    where=f"{native.topic}-{native.partition}",
                    hint="going on would skip them: make the topics anew and publish or replay again, "
                    "with a longer retention",
                )
            if offset > ends[native]:
                raise RecordsGoneError(
                    f"{self._task} goes on at record {offset}, but the partition ends at {ends[native]}",
                    where=f"{native.topic}-{native.partition}",
                    hint="the topic was made anew or has lost records; make all topics anew",
                )
            offsets[native] = offset
        self._consumer.seek(offsets)
        self._home.failpoint("after seek")

    def _send(self, place: Place, key: bytes, value: bytes | None) -> None:
        self._home.failpoint("before send")
        sent = self._producer.send(place, key, value)
        self._sent.append(sent)
        self._in_flight += sent.size
        self._home.failpoint("after send")
        self._confirm_down_to(IN_FLIGHT_BYTES)

    def _confirm_down_to(self, most: int) -> None:
        """Wait for the oldest records until so many bytes at most are unacknowledged; 0: for all."""
        while self._sent and (self._in_flight > most or most == 0):
            self._home.failpoint("before future")
            sent = self._sent.popleft()
            # The producer gives up first; this is for the case that it does not.
            self._producer.confirm(sent, self._times.delivery * 2)
            self._in_flight -= sent.size
            self._home.failpoint("after future")

    def _tell_offsets(self, positions: Mapping[TopicPartition, Offset]) -> None:
        if self._home.group is None or not positions:
            return
        self._home.failpoint("before offsets")
        offsets = {self._home.topics.place(place): offset for place, offset in positions.items()}
        self._producer.send_offsets(offsets, self._home.group, self._times.delivery)
        self._home.failpoint("after offsets")

    def _place(self, topic: Topic, partition: Partition | None, key: bytes) -> Place:
        if partition is None:
            partition = partition_for(key, self._home.partitions)
        place = TopicPartition(topic, partition)
        if owner(place) != self._task or not 0 <= partition < self._home.partitions:
            raise ValueError(f"{self._task} may not write to {topic}-{partition}")
        return self._home.topics.place(place)

    def _record(self, fetched: Fetched) -> Record:
        topic = self._home.topics.topic(fetched.place.topic)
        return Record(topic, Partition(fetched.place.partition), fetched.offset, fetched.key, fetched.value)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """After any error the claim is of no more use: its transaction may be open, or half sent."""
        if not self._usable:
            raise TransportError(f"claim of {self._task} has failed or was closed")
        self._usable = False
        yield
        self._usable = True
