"""The seam between what is said and how it moves: claim a task, poll, commit.

A *task* is a unit of work with a name, inputs and outputs. Whoever runs it claims it, and holds
it against everybody else until it closes or dies:

    with transport.claim("link-0", inputs) as claim:      # fence, restore, seek
        if claim.state is not None:
            processor.restore(claim.state)
        while records := claim.poll(1 << 20):
            for record in records:
                processor.apply(record)
        claim.commit(processor.flush(), processor.snapshot())

`commit` makes three things true in one step: the outputs can be read, the state is what the next
claim restores, and that claim's first poll begins behind the last record polled so far. A crash
before that step leaves none of them, one after it all of them. Nobody else can come in between.
The offsets are no argument of it: they are those of what was polled, so all of that must have
been applied. After any error the claim is of no more use: close it, claim again, and what was
committed decides.

What a transport does for `claim`, in this order:

    step      segments folder                         Kafka
    fence     lock the task's file                    init_transactions of `<app>-<task>`
    restore   read the task's manifest, cut its       read the task's changelog partition up to
              outputs back to it                      its read-committed end
    seek      to the offsets in the manifest          to the offsets in the state record
    commit    append, sync, replace the manifest      one transaction: changelog, outputs, and
                                                      every send future awaited
    positions offset behind the last batch read       `consumer.position()`, past control batches

Who may write where is fixed: `owner` gives the one task of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from schemas.records import Output, Record, Topic
from schemas.types import Offset, Partition

PUBLISH: Final = "publish"
"""The task that writes EVENTS."""

SINK: Final = "sink"
"""The task that reads DELTAS and WINDOWS and writes SNAPSHOTS."""

POINTS: Final = ("restore", "poll", "apply", "append", "sync", "manifest", "swap")
"""Names of the effects around which a `Failpoint` is called, in the order they first happen."""

Failpoint = Callable[[str], None]
"""Called with `before <point>` and `after <point>` of every effect, so that a test can crash there.

What it raises is treated like the effect's own failure: an OSError is a fault of the disk."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: Topic
    partition: Partition


def link_task(partition: Partition) -> str:
    """Return the name of the task that links the events of a partition."""
    return f"link-{partition}"


def owner(place: TopicPartition) -> str:
    """Return the name of the one task that may write to a partition."""
    if place.topic is Topic.EVENTS:
        return PUBLISH
    if place.topic is Topic.SNAPSHOTS:
        return SINK
    return link_task(place.partition)


def link_inputs(partition: Partition, partitions: int) -> tuple[TopicPartition, ...]:
    """Return what `link-<partition>` reads: its events, and the windows of everybody."""
    return (TopicPartition(Topic.EVENTS, partition), *every(Topic.WINDOWS, partitions))


def sink_inputs(partitions: int) -> tuple[TopicPartition, ...]:
    """Return what the sink reads: all windows and all deltas."""
    return (*every(Topic.WINDOWS, partitions), *every(Topic.DELTAS, partitions))


def every(topic: Topic, partitions: int) -> tuple[TopicPartition, ...]:
    """Return all partitions of a topic."""
    return tuple(TopicPartition(topic, Partition(p)) for p in range(partitions))


def pass_point(point: str) -> None:
    """Do nothing: the failpoint of everything but tests."""


class Claim(Protocol):
    """A task held by one owner, from restoring to closing."""

    @property
    def state(self) -> Mapping[str, bytes] | None:
        """The state of the last commit before this claim; None if there was none."""

    def poll(self, max_bytes: int) -> list[Record]:
        """Return committed records not returned before, in order within each partition.

        Does not wait: an empty list says that there is nothing now. Takes at least one batch if
        there is one and stops once their size in the log has passed `max_bytes`. Partitions
        take turns. Values may be views: they stay valid as long as they are referred to.

        Raises:
            TransportError: the log cannot be read, is damaged, or no longer has what was asked.

        """

    def positions(self) -> Mapping[TopicPartition, Offset]:
        """Return the offset behind the last record polled, of each input."""

    def commit(self, outputs: Iterable[Output], state: Mapping[str, bytes]) -> None:
        """Make outputs, state and positions true in one step.

        Raises:
            TransportError: nothing, or (where the last step itself is in doubt) everything,
                has been committed; claim again to find out.

        """

    def close(self) -> None:
        """Let go of the task. What was not committed never was. May be called again."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""


class Transport(Protocol):
    """A place records move through."""

    @property
    def partitions(self) -> int:
        """How many partitions every topic has."""

    def claim(self, task: str, inputs: Iterable[TopicPartition]) -> Claim:
        """Take a task over: fence off whoever had it, restore, seek.

        Raises:
            TransportError: another process holds it, or what it left cannot be read.

        """

    def records(self, place: TopicPartition) -> Iterator[Record]:
        """Yield everything committed to a partition up to now, from its beginning."""
