"""What sessions the topics hold, from the linkers' states and the events that are not linked yet.

Only what is bounded is read: each linker's changelog, which is compacted, and of the events behind
what it has linked at most `SCAN_BYTES`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.state import LINKER, read_lane_state, read_linker, read_retired
from schemas.errors import DecodeError, TransportError
from schemas.events import decode
from schemas.facts import PROCESS_NAME, PROCESS_RANK
from schemas.records import Topic
from schemas.types import NONE, Kind, Offset, Partition, Process
from stream.kafka.changelog import Head, Restoring
from stream.transport import TopicPartition, link_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schemas.events import Header
    from stream.kafka.client import Fetched, Place
    from stream.kafka.transport import KafkaTransport

SCAN_BYTES: Final = 32 << 20
"""Of events of a partition that are not linked yet."""

_POLL_SECONDS: Final = 0.5
_POLL_RECORDS: Final = 100


@dataclass
class ProcessView:
    """One (capture, process) of a session; times in UTC ns, or of the capture if it has no UTC."""

    process: Process
    capture: str
    partition: int
    utc: bool
    watermark: int
    ended: bool
    changed_at: float
    """When a linker last had news of it, or it was last published; seconds since 1970."""
    linked: bool = True
    name: str = ""
    rank: str = ""


@dataclass
class SessionView:
    """One session."""

    label: str
    digests: set[str] = field(default_factory=set)
    processes: dict[tuple[Process, str], ProcessView] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    """Partitions whose linker has seen its end, or whose events hold it."""
    told: set[int] = field(default_factory=set)
    """Partitions whose linker has decided all there was."""
    retired: set[int] = field(default_factory=set)
    """Partitions whose linker knows no more of it than its label."""

    def state(self, partitions: int) -> str:
        """Return in a word how far it is."""
        if len(self.retired) >= partitions:
            return "over"
        if len(self.told | self.retired) >= partitions:
            return "final"
        return "ending" if self.ended else "open"


@dataclass
class Survey:
    """All sessions, and what was not looked into."""

    partitions: int
    sessions: dict[str, SessionView] = field(default_factory=dict)
    not_linked: int = 0
    """Events that are not linked yet, in records."""
    not_seen: int = 0
    """Of those, how many were not looked into."""

    def session(self, label: str) -> SessionView:
        """Return the view of a session, a new one if there was none."""
        return self.sessions.setdefault(label, SessionView(label))


def survey(transport: KafkaTransport) -> Survey:
    """Return what sessions there are.

    Raises:
        TransportError: the brokers do not answer, or a linker's state cannot be read.

    """
    found = Survey(transport.partitions)
    for number in range(transport.partitions):
        partition = Partition(number)
        head = _from_state(transport, partition, found)
        _from_events(transport, partition, head, found)
    return found


def _from_state(transport: KafkaTransport, partition: Partition, found: Survey) -> Head | None:
    task = link_task(partition)
    place = transport.topics.changelog(task)
    restoring = Restoring(task)
    written: dict[str, float] = {}
    begin = transport.beginnings([place])[place]
    for record in _read(transport, place, begin, lambda _: False):
        restoring.take(record.key, record.value)
        name = (record.key or b"").decode("utf-8", "replace").removeprefix(f"{task}/entry/")
        written[name] = record.timestamp / 1000
    try:
        restored = restoring.finish()
        if restored is None:
            return None
        head, state = restored
        linker = read_linker(state.get(LINKER, b""), None)
        for label in read_retired(state):
            found.session(label).retired.add(partition)
        for entry in linker.sessions:
            view = found.session(entry.name)
            view.digests.add(linker.digest)
            if entry.ended:
                view.ended.add(partition)
            if entry.told_end:
                view.told.add(partition)
            for key in entry.lanes:
                lane = read_lane_state(key, state)
                facts = {fact.key: fact.value for fact in lane.facts}
                view.processes[lane.process, lane.capture] = ProcessView(
                    lane.process,
                    lane.capture,
                    partition,
                    lane.clock.base == "utc",
                    lane.watermark,
                    lane.ended,
                    written.get(key, 0.0),
                    name=facts.get(PROCESS_NAME, ""),
                    rank=facts.get(PROCESS_RANK, ""),
                )
    except DecodeError as error:
        raise TransportError(error.what, where=f"{place.topic}-{place.partition}") from None
    return head


def _from_events(transport: KafkaTransport, partition: Partition, head: Head | None, found: Survey) -> None:
    place = TopicPartition(Topic.EVENTS, partition)
    native = transport.topics.place(place)
    begin = transport.beginnings([native])[native]
    if head is not None:
        begin = max(head.positions().get(place, begin), begin)
    end = transport.ends([native], committed=True)[native]
    found.not_linked += end - begin
    size = seen = 0

    def enough(record: Fetched) -> bool:
        nonlocal size, seen
        size += len(record.value or b"")
        seen += 1
        return size >= SCAN_BYTES

    for record in _read(transport, native, begin, enough):
        try:
            header = decode(record.value or b"").header
        except DecodeError:
            continue  # the linker will make a dead letter of it
        _take(found, partition, header, record.timestamp / 1000)
    found.not_seen += max(end - begin - seen, 0)


def _take(found: Survey, partition: Partition, header: Header, written: float) -> None:
    view = found.session(header.session)
    if header.kind == Kind.SESSION_END:
        view.ended.add(partition)
        return
    key = (header.process, header.capture)
    known = view.processes.get(key)
    if known is None:
        known = view.processes[key] = ProcessView(
            *key, partition, header.clock.base == "utc", NONE, ended=False, changed_at=written,
            linked=False,
        )  # fmt: skip
    known.changed_at = max(known.changed_at, written)


def _read(
    transport: KafkaTransport, place: Place, begin: Offset, enough: Callable[[Fetched], bool]
) -> Iterator[Fetched]:
    """Yield the records of a partition from an offset to its end, or until it is enough."""
    end = transport.ends([place], committed=True)[place]
    deadline = time.monotonic() + transport.connection.times.restore
    with transport.connection.consumer("survey") as consumer:
        consumer.seek({place: begin})
        while consumer.positions()[place] < end:
            if time.monotonic() > deadline:
                raise TransportError(
                    "takes too long to read", where=f"{place.topic}-{place.partition}", hint="try again"
                )
            for record in consumer.poll(_POLL_SECONDS, _POLL_RECORDS):
                if record.offset >= end:
                    return
                yield record
                if enough(record):
                    return
