"""The topics of a deployment: their names, how they are made, and whether they are as they should be.

    topics = Topics(prefix="gpu-ledger.")
    wanted = topics.plan(partitions=12, replication=3, retention_ms=...)
    with connection.admin() as admin:
        create(admin, wanted)           # those that are not there; those that are stay as they are
        differences(admin, wanted)      # ["gpu-ledger.state: cleanup.policy is delete, not compact", ...]
        describe(admin, topics)         # what is there
        delete(admin, topics)           # all of it

The prefix names the deployment: it is also in the transactional ids, which keep two processes from
running the same task, and so everything that writes to the same topics shares them.

    topic        partitions  kept
    events       n           for the retention
    windows      n           for ever: a linker that starts later needs all cuts of the timeline
    deltas       n           for the retention
    state        n           compacted: the changelog of linker n, one key an entry
    sink-state   1           compacted: the changelog of the sink
    snapshots    n           compacted: the last ledger of every session
    dead-letter  n           for 30 days or the retention, whichever is longer; large records fit
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from schemas.errors import TransportError, UsageError
from schemas.records import Topic
from stream.kafka.client import MAX_RECORD_BYTES, Admin, Place, TopicInfo
from stream.transport import SINK, TopicPartition

DEFAULT_PREFIX: Final = "gpu-ledger."
DEFAULT_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
MAX_PARTITIONS: Final = 1024
MAX_MESSAGE_BYTES: Final = 1_048_588
"""The brokers' own default."""

_DEAD_LETTER_MS: Final = 30 * 24 * 3600 * 1000
_CHANGELOG: Final = {
    "cleanup.policy": "compact",
    # Restoring reads all that is not compacted yet: segments are small and cleaned early.
    "segment.bytes": str(32 << 20),
    "min.cleanable.dirty.ratio": "0.2",
    "max.compaction.lag.ms": str(15 * 60 * 1000),
}
_SNAPSHOTS: Final = {"cleanup.policy": "compact", "max.compaction.lag.ms": str(60 * 60 * 1000)}


class TopicPlan(NamedTuple):
    """A topic as it should be; `replication` -1 leaves it to the brokers."""

    name: str
    partitions: int
    replication: int
    settings: dict[str, str]


class Topics:
    """Names of a deployment's topics and of what else the brokers know by name."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        """UsageError if no topic can be called that."""
        allowed = all(c.isascii() and (c.isalnum() or c in "._-") for c in prefix)
        if not allowed or len(prefix) > 200:
            hint = "letters, digits, dots, dashes and underscores, at most 200"
            raise UsageError("no topic can be called that", where=f"prefix {prefix!r}", hint=hint)
        self.prefix = prefix
        self._topics = {self.name(topic): topic for topic in Topic}

    def name(self, topic: Topic) -> str:
        """Return the name of a topic."""
        return f"{self.prefix}{topic}"

    @property
    def sink_state(self) -> str:
        """The topic of the sink's changelog."""
        return f"{self.prefix}sink-state"

    @property
    def all(self) -> list[str]:
        """All names, in the order of the data's way."""
        return [*self._topics, self.sink_state]

    def place(self, place: TopicPartition) -> Place:
        """Return a partition as the brokers know it."""
        return Place(self.name(place.topic), place.partition)

    def topic(self, name: str) -> Topic:
        """Return the topic of a name; KeyError if it is none of ours."""
        return self._topics[name]

    def changelog(self, task: str) -> Place:
        """Return the partition of a task's changelog, which only that task writes."""
        kind, _, partition = task.rpartition("-")
        if kind == "link" and partition.isdecimal():
            return Place(self.name(Topic.STATE), int(partition))
        if task == SINK:
            return Place(self.sink_state, 0)
        raise ValueError(f"{task} keeps no state")

    def transactional_id(self, task: str) -> str:
        """Return what fences a task: the same for all that write to the same topics."""
        return f"{self.prefix}{task}"

    def group(self, kind: str) -> str:
        """Return the default name of the consumer group of linkers (`link`) or sinks (`sink`)."""
        return f"{self.prefix}{kind}"

    def plan(
        self,
        partitions: int,
        replication: int = -1,
        *,
        retention_ms: int = DEFAULT_RETENTION_MS,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> list[TopicPlan]:
        """Return the topics as they should be; `retention_ms` -1 is for ever.

        Raises:
            UsageError: so many partitions make no sense.

        """
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise UsageError(f"{partitions} partitions asked for; 1 to {MAX_PARTITIONS} are possible")
        size = {"max.message.bytes": str(max_message_bytes)}
        kept = {"cleanup.policy": "delete", "retention.ms": str(retention_ms), **size}
        letters_ms = -1 if retention_ms < 0 else max(retention_ms, _DEAD_LETTER_MS)
        settings = {
            # Whatever foreign programs compress with, brokers make it what we can read.
            Topic.EVENTS: kept | {"compression.type": "zstd"},
            Topic.WINDOWS: {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                **size,
            },
            Topic.DELTAS: kept,
            Topic.STATE: _CHANGELOG | size,
            Topic.SNAPSHOTS: _SNAPSHOTS | {"max.message.bytes": str(MAX_RECORD_BYTES)},
            Topic.DEAD_LETTER: {
                "cleanup.policy": "delete",
                "retention.ms": str(letters_ms),
                "max.message.bytes": str(MAX_RECORD_BYTES),
            },
        }
        safe = {"min.insync.replicas": "2"} if replication >= 3 else {}
        plans = [TopicPlan(self.name(t), partitions, replication, settings[t] | safe) for t in Topic]
        return [*plans, TopicPlan(self.sink_state, 1, replication, _CHANGELOG | size | safe)]


class TopicState(NamedTuple):
    """A topic as it is; `info` is None if it is not there."""

    name: str
    info: TopicInfo | None
    settings: dict[str, str]


def describe(admin: Admin, topics: Topics) -> list[TopicState]:
    """Return what is there of a deployment's topics, each, in the order of `Topics.all`."""
    return _look(admin, topics.all)


def create(admin: Admin, plans: Iterable[TopicPlan]) -> list[str]:
    """Make the topics that are not there; return their names.

    Raises:
        TransportError: the brokers refuse one. Those made before stay; doing it again goes on.

    """
    wanted = list(plans)
    there = admin.topics([plan.name for plan in wanted])
    missing = [plan for plan in wanted if plan.name not in there]
    for plan in missing:
        admin.create(plan.name, plan.partitions, plan.replication, plan.settings)
    return [plan.name for plan in missing]


def differences(admin: Admin, plans: Iterable[TopicPlan]) -> list[str]:
    """Return what is not as it should be, a line each."""
    wanted = list(plans)
    lines = []
    for plan, state in zip(wanted, _look(admin, [plan.name for plan in wanted]), strict=True):
        if state.info is None:
            lines.append(f"{plan.name}: is not there")
            continue
        if state.info.partitions != plan.partitions:
            lines.append(f"{plan.name}: has {state.info.partitions} partitions, not {plan.partitions}")
        if plan.replication > 0 and state.info.replication != plan.replication:
            lines.append(f"{plan.name}: is replicated {state.info.replication} times, not {plan.replication}")
        lines += [
            f"{plan.name}: {key} is {state.settings.get(key, 'unknown')}, not {value}"
            for key, value in plan.settings.items()
            if state.settings.get(key) != value
        ]
    return lines


def apply_settings(admin: Admin, plans: Iterable[TopicPlan]) -> None:
    """Give topics that are there the settings they should have; partitions and replicas stay."""
    for plan in plans:
        admin.alter(plan.name, plan.settings)


def delete(admin: Admin, topics: Topics) -> list[str]:
    """Delete a deployment's topics with all that is in them; return the names of those there were."""
    there = list(admin.topics(topics.all))
    if there:
        admin.delete(there)
    return there


def partition_count(admin: Admin, topics: Topics) -> int:
    """Return how many partitions the topics have.

    Raises:
        TransportError: some are not there, or they do not have the same number.

    """
    there = admin.topics(topics.all)
    missing = [name for name in topics.all if name not in there]
    if missing:
        raise TransportError(
            f"topics are not there: {', '.join(missing)}", hint="make them with `gpu-ledger topics create`"
        )
    counts = {there[topics.name(topic)].partitions for topic in Topic}
    if len(counts) > 1:
        text = ", ".join(f"{topics.name(t)} {there[topics.name(t)].partitions}" for t in Topic)
        raise TransportError(
            f"topics have different numbers of partitions: {text}",
            hint="the number never changes: make the topics anew under another prefix",
        )
    return counts.pop()


def _look(admin: Admin, names: list[str]) -> list[TopicState]:
    there = admin.topics(names)
    settings = admin.settings(there) if there else {}
    return [TopicState(name, there.get(name), settings.get(name, {})) for name in names]
