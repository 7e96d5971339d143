"""kafka-python behind types: the only module, beside `stream.log`, that touches it.

    connection = Connection("broker:9092", security)
    with connection.admin() as admin:         topics, offsets
    with connection.consumer("name") as c:    c.seek({place: offset}); c.poll(...); c.positions()
    with connection.producer("name", "transactional-id") as p:
        p.fence()                             nobody else with that id can commit any more
        p.begin(); sends = [p.send(...)]; [p.confirm(s, timeout) for s in sends]; p.commit(timeout)

Every default of kafka-python that can lose data is set here, and nowhere else. Any error is a
TransportError (or one of its kinds) that says what happened in one line and holds no secret; after
one inside a transaction the producer is of no more use: close it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import ssl
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Self

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, structs
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.net.compat import KafkaNetClient
from kafka.protocol.consumer import IsolationLevel, OffsetSpec

from schemas.errors import FencedError, NotAllowedError, RecordsGoneError, TransportError
from schemas.types import Offset
from stream.kafka.oauth import token
from stream.kafka.properties import OAuth, Security

BATCH_BYTES: Final = 1_000_000
"""Records of a partition share a batch up to this: just below a broker's default limit of 1 MiB."""

PUSH_SECONDS: Final = 0.5
"""So long a producer without transactions waits for a `push`; handing a batch over takes far less."""

MAX_RECORD_BYTES: Final = 64 << 20
"""What a producer hands over at most: dead letters hold whole records, whatever their size."""

FETCH_BYTES: Final = 16 << 20
PARTITION_FETCH_BYTES: Final = 4 << 20
"""What a consumer holds ready at most, of each broker and each partition (or one larger batch)."""

_ASK_AGAIN_SECONDS: Final = 0.1
_AGAIN: Final = "start again: it resumes from the last commit"


class Place(NamedTuple):
    """A partition of a topic as the brokers know it."""

    topic: str
    partition: int


class Fetched(NamedTuple):
    """A record as a consumer returns it."""

    place: Place
    offset: Offset
    key: bytes | None
    value: bytes | None
    timestamp: int
    """When it was written, in ms since 1970, by the clock of who wrote it."""


class Times(NamedTuple):
    """How long things may take, in seconds, before they are given up."""

    connect: float = 30.0
    """Reaching the first broker."""
    request: float = 15.0
    """One request to one broker."""
    delivery: float = 45.0
    """From handing a record over to its being acknowledged; also committing, and fencing."""
    transaction: float = 60.0
    """After this the brokers end a transaction that nobody has ended: what a dead task holds up."""
    session: float = 10.0
    """A member of a group that is silent for so long is out of it."""
    restore: float = 300.0
    """Reading a task's state."""
    progress: float = 30.0
    """Reading a task's state without getting one record further."""


class TopicInfo(NamedTuple):
    """What the brokers say of a topic. `identity` changes when it is deleted and made again."""

    name: str
    identity: str
    partitions: int
    replication: int


class Connection(NamedTuple):
    """Where the brokers are and how to speak to them."""

    servers: str
    security: Security = Security()
    client_id: str = "gpu-ledger"
    times: Times = Times()

    def admin(self) -> Admin:
        """Return a client for topics and offsets; TransportError if no broker can be reached."""
        return Admin(self)

    def consumer(self, name: str, *, committed: bool = True) -> Consumer:
        """Return a consumer of partitions given to it; TransportError if no broker can be reached.

        With `committed`, records of transactions that were aborted or have not ended are not read.
        """
        return Consumer(self, name, committed=committed)

    def producer(self, name: str, transactional_id: str | None) -> Producer:
        """Return a producer; TransportError if no broker can be reached.

        Without a transactional id it sends nothing before it is told to `push`.
        """
        return Producer(self, name, transactional_id)

    def member(self, name: str, group: str, topic: str, listener: object) -> Member:
        """Return a member of a consumer group; TransportError if no broker can be reached."""
        return Member(self, name, group, topic, listener)

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings that all clients share."""
        times = self.times
        settings: dict[str, Any] = {
            "bootstrap_servers": [server.strip() for server in self.servers.split(",") if server.strip()],
            "client_id": f"{self.client_id}-{name}",
            "bootstrap_timeout_ms": _ms(times.connect),
            "request_timeout_ms": _ms(times.request),
            "retry_backoff_ms": 20,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": 1000,
            "security_protocol": self.security.protocol,
        }
        if self.security.protocol.endswith("SSL"):
            settings["ssl_context"] = _ssl_context(self.security)
        if self.security.mechanism:
            settings["sasl_mechanism"] = self.security.mechanism
        if self.security.oauth is not None:
            settings["sasl_oauth_token_provider"] = _token_provider(self.security.oauth)
        elif self.security.mechanism:
            settings["sasl_plain_username"] = self.security.username
            settings["sasl_plain_password"] = _Secret(self.security.password)
        return settings


class _Secret(str):
    """A text that does not show in what prints the settings it is in."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class Admin:
    """Topics and their offsets. One request at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        with _speaking(connection):
            self._client = _connect(KafkaAdminClient, connection, connection.settings("admin"))

    def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return those of the topics that exist.

        Raises:
            TransportError: the brokers do not answer, or do not let us see one of them.

        """
        with _speaking(self._connection):
            found = self._asked(lambda: self._client.describe_topics(list(names)))
            topics = {}
            for topic in found:
                error = kafka_errors.for_code(topic["error_code"])
                if error is kafka_errors.UnknownTopicOrPartitionError:
                    continue
                if error is not kafka_errors.NoError:
                    raise error(topic["name"])
                partitions = topic["partitions"]
                topics[topic["name"]] = TopicInfo(
                    topic["name"],
                    str(topic.get("topic_id", "")),
                    len(partitions),
                    min((len(p["replica_nodes"]) for p in partitions), default=0),
                )
        return topics

    def settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics, also those that are the brokers' defaults."""
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        with _speaking(self._connection):
            found = self._asked(lambda: self._client.describe_configs(resources, config_filter="all"))[
                "topic"
            ]
            return {
                name: {key: str(config["value"]) for key, config in configs.items()}
                for name, configs in found.items()
            }

    def create(self, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> None:
        """Make a topic and wait until it is there; `replication` -1 leaves that to the brokers."""
        wanted = {
            "num_partitions": partitions,
            "replication_factor": replication,
            "configs": dict(settings),
        }
        with _speaking(self._connection, where=name):
            self._client.create_topics({name: wanted}, timeout_ms=_ms(self._connection.times.request))
            self._client.wait_for_topics([name], timeout_ms=_ms(self._connection.times.connect))

    def alter(self, name: str, settings: Mapping[str, str]) -> None:
        """Change settings of a topic."""
        with _speaking(self._connection, where=name):
            self._client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, dict(settings))])

    def delete(self, names: Iterable[str]) -> None:
        """Delete topics, with all records."""
        with _speaking(self._connection):
            self._client.delete_topics(list(names), timeout_ms=_ms(self._connection.times.request))

    def delete_records(self, offsets: Mapping[Place, Offset]) -> None:
        """Delete the records before these offsets."""
        with _speaking(self._connection):
            self._client.delete_records({_native(p): offset for p, offset in offsets.items()})

    def leaders(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the number of the node that leads each partition now."""
        wanted = set(places)
        names = sorted({place.topic for place in wanted})
        with _speaking(self._connection):
            return {
                place: partition["leader_id"]
                for topic in self._asked(lambda: self._client.describe_topics(names))
                for partition in topic["partitions"]
                if (place := Place(topic["name"], partition["partition_index"])) in wanted
            }

    def beginnings(self, places: Iterable[Place]) -> dict[Place, Offset]:
        """Return the offset of the first record that partitions still have."""
        return self._offsets(places, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def ends(self, places: Iterable[Place], *, committed: bool = False) -> dict[Place, Offset]:
        """Return the offset behind the last record of partitions.

        With `committed`, that of the first transaction that has not ended, if there is one.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(places, OffsetSpec.LATEST, level)

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """Return the answer to a question, asked again where a connection breaks on the way.

        A broker may close one at any time, and asking twice changes nothing.
        """
        until = time.monotonic() + self._connection.times.connect
        while True:
            try:
                return ask()
            except kafka_errors.KafkaConnectionError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_ASK_AGAIN_SECONDS)

    def close(self) -> None:
        """Let go of the connections."""
        with contextlib.suppress(Exception):
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _offsets(
        self, places: Iterable[Place], spec: OffsetSpec, level: IsolationLevel
    ) -> dict[Place, Offset]:
        wanted = {_native(place): spec for place in places}
        if not wanted:
            return {}
        deadline = time.monotonic() + self._connection.times.connect
        with _speaking(self._connection):
            while True:
                try:
                    found = self._client.list_partition_offsets(wanted, level)
                    return {Place(*place): Offset(found[place].offset) for place in wanted}
                except kafka_errors.RetriableError:
                    # A leader that has just changed does not know its end for a moment.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)


class Consumer:
    """Reads partitions from given offsets. Never commits, never resets an offset by itself."""

    def __init__(self, connection: Connection, name: str, *, committed: bool) -> None:
        self._connection = connection
        settings = {
            **connection.settings(name),
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
            "isolation_level": "read_committed" if committed else "read_uncommitted",
            "check_crcs": True,
            "fetch_max_bytes": FETCH_BYTES,
            "max_partition_fetch_bytes": PARTITION_FETCH_BYTES,
            "metrics_enabled": False,
        }
        self._places: list[Any] = []
        with _speaking(connection):
            self._client = _connect(KafkaConsumer, connection, settings)

    def seek(self, offsets: Mapping[Place, Offset]) -> None:
        """Read these partitions, and no others, from these offsets on."""
        self._places = [_native(place) for place in offsets]
        with _speaking(self._connection):
            self._client.assign(self._places)
            for place, offset in offsets.items():
                self._client.seek(_native(place), offset)

    def poll(self, seconds: float, max_records: int) -> list[Fetched]:
        """Return what has arrived, in order within each partition; wait for the first of it.

        Raises:
            RecordsGoneError: the brokers no longer have the record that comes next.
            TransportError: records are damaged, or cannot be read.

        """
        if not self._places:
            return []
        with _speaking(self._connection):
            polled = self._client.poll(timeout_ms=_ms(seconds), max_records=max_records)
        return [
            Fetched(
                Place(*native), Offset(record.offset), record.key, record.value, int(record.timestamp or 0)
            )
            for native, records in polled.items()
            for record in records
        ]

    def positions(self) -> dict[Place, Offset]:
        """Return the offset that comes next of every partition, past markers of transactions."""
        with _speaking(self._connection):
            return {
                Place(*native): Offset(self._client.position(native, timeout_ms=0)) for native in self._places
            }

    def close(self) -> None:
        """Let go of the connections."""
        with contextlib.suppress(Exception):
            self._client.close(autocommit=False, timeout_ms=1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Sent:
    """A record on its way."""

    __slots__ = ("future", "size")

    def __init__(self, future: Any, size: int) -> None:
        self.future = future
        self.size = size

    @property
    def done(self) -> bool:
        """Whether it is known what became of it."""
        return bool(self.future.is_done)


class Producer:
    """Writes records: idempotent always, and in transactions if it has a transactional id."""

    def __init__(self, connection: Connection, name: str, transactional_id: str | None) -> None:
        self._connection = connection
        times = connection.times
        linger = PUSH_SECONDS if transactional_id is None else 0.0
        settings = {
            **connection.settings(name),
            "acks": "all",
            "enable_idempotence": True,
            "retries": float("inf"),
            "max_in_flight_requests_per_connection": 5,
            "delivery_timeout_ms": _ms(max(times.delivery, 2 * PUSH_SECONDS)),
            "request_timeout_ms": _ms(max(min(times.request, times.delivery - linger), PUSH_SECONDS)),
            "max_block_ms": _ms(times.delivery),
            "allow_auto_create_topics": False,
            "compression_type": "zstd",
            "batch_size": BATCH_BYTES,
            "linger_ms": _ms(linger),
            "max_request_size": MAX_RECORD_BYTES,
            "metrics_enabled": False,
        }
        if transactional_id is not None:
            settings["transactional_id"] = transactional_id
            settings["transaction_timeout_ms"] = _ms(times.transaction)
        with _speaking(connection):
            self._client = _connect(KafkaProducer, connection, settings)
        if transactional_id is not None:
            _mend(self._client._transaction_manager)

    def fence(self) -> None:
        """Shut out whoever had this transactional id, and end their open transaction.

        Raises:
            TransportError: the brokers did not do so in time.

        """
        with self._speaking():
            self._client.init_transactions()

    def begin(self) -> None:
        """Begin a transaction."""
        with self._speaking():
            self._client.begin_transaction()

    def send(self, place: Place, key: bytes | None, value: bytes | memoryview | None) -> Sent:
        """Hand a record over; what becomes of it is told by `confirm`."""
        size = len(key or b"") + len(value or b"")
        with self._speaking(str(place.topic)):
            future = self._client.send(place.topic, value=value, key=key, partition=place.partition)
        return Sent(future, size)

    def confirm(self, sent: Sent, seconds: float) -> None:
        """Wait until a record is acknowledged.

        Raises:
            TransportError: it was not written (or it is unknown whether it was).

        """
        with self._speaking():
            sent.future.get(timeout=seconds)

    def wait(self, sent: Sent, seconds: float) -> bool:
        """Wait until it is known what became of a record; return whether it is."""
        with contextlib.suppress(kafka_errors.KafkaError):
            sent.future.get(timeout=seconds)
        return sent.done

    def push(self) -> None:
        """Send what was handed over: of each partition in one batch, if it fits into `BATCH_BYTES`."""
        self._client._accumulator.begin_flush()
        self._client._sender.wakeup()

    def pushed(self) -> None:
        """Keep what is handed over from now on until the next `push`."""
        self._client._accumulator._flushes_in_progress.decrement()

    def send_offsets(self, offsets: Mapping[Place, Offset], group: str, seconds: float) -> None:
        """Make group offsets part of the transaction: for tools that show lag, never for us."""
        native = {_native(p): structs.OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
        with self._speaking():
            manager = self._client._transaction_manager
            result = manager.send_offsets_to_transaction(native, group)
            self._wait(result, seconds, "telling the group's offsets")

    def commit(self, seconds: float) -> None:
        """End the transaction so that all of it counts.

        Raises:
            FencedError: somebody else has taken over, or the transaction ran out of time.
            TransportError: it did not, or it is unknown whether it did.

        """
        with self._speaking():
            # What `commit_transaction` does, which would wait for ever for brokers that are gone.
            result = self._client._transaction_manager.begin_commit()
            self._wait(result, seconds, "the commit, whose outcome is unknown,")

    def close(self) -> None:
        """Let go at once: what is not acknowledged is dropped, an open transaction left open."""
        with contextlib.suppress(Exception):
            sender = self._client._sender
            sender.force_close()
            sender.join(2.0)
        with contextlib.suppress(Exception):
            self._client.close(timeout=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait(self, result: Any, seconds: float, what: str) -> None:
        self._client._sender.wakeup()
        if not result.wait(timeout_ms=_ms(seconds)):
            raise kafka_errors.KafkaTimeoutError(f"{what} took more than {seconds:g} s")

    @contextlib.contextmanager
    def _speaking(self, where: str = "") -> Iterator[None]:
        with _speaking(self._connection, where=where):
            try:
                yield
            except kafka_errors.KafkaError:
                # What follows a fatal error only says that there was one.
                manager = self._client._transaction_manager
                if isinstance(manager.last_error, _FENCED):
                    raise manager.last_error from None
                raise


class Member:
    """A member of a consumer group that fetches nothing: it only learns which partitions are its own."""

    def __init__(self, connection: Connection, name: str, group: str, topic: str, listener: object) -> None:
        self._connection = connection
        times = connection.times
        settings = {
            **connection.settings(name),
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            "isolation_level": "read_committed",
            # A fresh one each: instances keep state and must not be shared.
            "partition_assignment_strategy": [RangePartitionAssignor()],
            "session_timeout_ms": _ms(times.session),
            "heartbeat_interval_ms": max(_ms(times.session / 5), 100),
            "max_poll_interval_ms": _ms(max(times.session * 3, 30.0)),
            "metrics_enabled": False,
        }
        with _speaking(connection):
            self._client = _connect(KafkaConsumer, connection, settings)
            self._client.subscribe([topic], listener=_rebalance_listener(listener, self._client))

    def poll(self, seconds: float) -> None:
        """Take part in the group for so long. All partitions are paused: nothing is fetched."""
        with _speaking(self._connection):
            polled = self._client.poll(timeout_ms=_ms(seconds), max_records=1)
            for native in polled:
                self._client.pause(native)

    def close(self, seconds: float) -> None:
        """Leave the group."""
        with contextlib.suppress(Exception):
            self._client.close(autocommit=False, timeout_ms=_ms(seconds))


class Listener:
    """What a `Member` tells. Called on kafka-python's own thread: note it and return."""

    def assigned(self, partitions: frozenset[int]) -> None:
        """Note that these are ours now as well."""

    def revoked(self, partitions: frozenset[int]) -> None:
        """Note that these are no longer ours."""


def _mend(manager: Any) -> None:
    """Change two things that a transactional producer of kafka-python 3.0 does.

    One that finds its epoch outdated takes a new one "to recover", and so fences off whoever has
    taken its task over: here that is the end of it. And a request to a coordinator that cannot be
    connected to is forgotten (`Sender._maybe_send_pending_request` leaves its loop for the `except`
    without putting it back), so that whoever waits for it waits for ever: here it is put back.
    """
    look_up = manager.lookup_coordinator_for_request

    def look_up_and_keep(request: Any) -> None:
        look_up(request)
        if sys.exc_info()[0] is not None:
            manager.retry(request)

    manager._supports_epoch_bump = lambda: False
    manager.lookup_coordinator_for_request = look_up_and_keep


_FENCED: Final = (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError)


def _rebalance_listener(listener: Any, client: Any) -> Any:
    from kafka import ConsumerRebalanceListener  # noqa: PLC0415  (the only user)

    class Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            client.pause(*assigned)
            listener.assigned(frozenset(place.partition for place in assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            listener.revoked(frozenset(place.partition for place in revoked))

        def on_partitions_lost(self, lost: Any) -> None:
            listener.revoked(frozenset(place.partition for place in lost))

    return Rebalance()


class _Causes(logging.Handler):
    """Keeps what kafka-python complained about last: it logs why it cannot connect, and raises nothing.

    Its log goes nowhere else: a person is told one line, by us.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last: deque[tuple[float, str]] = deque(maxlen=50)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        with contextlib.suppress(Exception):
            self._last.append((time.monotonic(), record.getMessage()))

    def since(self, moment: float) -> list[str]:
        """Return the messages that came after a moment, the first one first."""
        return [text for at, text in list(self._last) if at >= moment]


_causes: Final = _Causes()
_logger: Final = logging.getLogger("kafka")
_logger.addHandler(_causes)
_logger.propagate = False
# Its debug log has every byte it sends, passwords among them, and all settings.
_logger.setLevel(logging.WARNING)

_HOPELESS: Final = {
    "Hostname mismatch": ("its certificate is for another host", "check the host name"),
    "IP address mismatch": ("its certificate is for another host", "check the host name"),
    "CERTIFICATE_VERIFY_FAILED": ("its certificate is not trusted", "check ssl.truststore.location"),
    "WRONG_VERSION_NUMBER": ("it does not speak TLS there", "check port and security.protocol"),
    "SaslAuthenticationFailed": ("it refuses user or password", "check sasl.jaas.config"),
    "UnsupportedSaslMechanism": ("it does not offer that sasl.mechanism", "check sasl.mechanism"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("it wants a client certificate", "give ssl.keystore.location"),
}
"""Causes that waiting does not cure, by a word of the message."""

_CONNECT_SECONDS: Final = 2.0


def _connect(kind: Any, connection: Connection, settings: dict[str, Any]) -> Any:
    """Return a client. Try in short turns, to stop at once where waiting is of no use."""
    began = time.monotonic()
    deadline = began + connection.times.connect
    while True:
        left = max(deadline - time.monotonic(), 0.1)
        made: list[Any] = []
        try:
            client = kind(
                **{
                    **settings,
                    "bootstrap_timeout_ms": _ms(min(left, _CONNECT_SECONDS)),
                    "kafka_client": functools.partial(_net_client, made),
                }
            )
        except (kafka_errors.KafkaError, OSError) as error:
            # What has failed to be made leaves a thread and sockets behind, which nobody else has.
            for net_client in made:
                net_client.close()
            causes = [*_causes.since(began), f"{type(error).__name__}: {error}"]
            for word, (what, hint) in _HOPELESS.items():
                if any(word in cause for cause in causes):
                    raise TransportError(
                        f"broker cannot be used: {what}", where=connection.servers, hint=hint
                    ) from None
            if time.monotonic() >= deadline:
                raise TransportError(
                    f"no broker answers within {connection.times.connect:g} s",
                    where=connection.servers,
                    hint=f"is one there? ({_short(causes[0])})",
                ) from None
        else:
            # kafka-python 3.0 drops this setting on its way, and brokers may make topics unasked.
            _cluster(client).config["allow_auto_create_topics"] = False
            return client


def _net_client(made: list[Any], **settings: Any) -> Any:
    client = KafkaNetClient(**settings)
    made.append(client)
    return client


def _cluster(client: Any) -> Any:
    for name in ("_metadata", "_cluster"):
        if hasattr(client, name):
            return getattr(client, name)
    return client._manager.cluster


@contextlib.contextmanager
def _speaking(connection: Connection, *, where: str = "") -> Iterator[None]:
    """Turn kafka-python's errors into ours."""
    try:
        yield
    except _FENCED:
        raise FencedError(
            "another process has taken over, or a transaction ran out of time",
            where=where or connection.servers,
        ) from None
    except (kafka_errors.OffsetOutOfRangeError, kafka_errors.LogTruncationError) as error:
        raise RecordsGoneError(
            f"records that come next are gone: {_short(str(error))}", where=where or connection.servers
        ) from None
    except kafka_errors.AuthorizationError as error:
        raise NotAllowedError(
            f"not allowed: {_short(_name(error))}",
            where=where or connection.servers,
            hint="grant it (kafka-acls.sh)",
        ) from None
    except (kafka_errors.KafkaError, OSError) as error:
        raise TransportError(_short(_name(error)), where=where or connection.servers, hint=_AGAIN) from None


def _name(error: BaseException) -> str:
    text = re.sub(r"^\[Error \d+\] ", "", str(error))
    kind = type(error).__name__.removesuffix("Error")
    return text if kind in text else f"{kind}: {text}" if text else kind


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _native(place: Place) -> Any:
    return structs.TopicPartition(place.topic, place.partition)


def _ssl_context(security: Security) -> ssl.SSLContext:
    """Return what the certificates and keys say; TransportError if they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = security.check_hostname
    try:
        if security.truststore:
            context.load_verify_locations(cadata=security.truststore)
        else:
            context.load_default_certs()
        if security.certificates:
            # OpenSSL reads a key from a file only. This one is readable to us alone, and gone at once.
            with tempfile.NamedTemporaryFile() as file:
                parts = dict.fromkeys((security.key, security.certificates))
                file.write("\n".join(parts).encode())
                file.flush()
                context.load_cert_chain(file.name, password=lambda: security.key_password)
    except (ssl.SSLError, ValueError, OSError) as error:
        what = getattr(error, "reason", None) or type(error).__name__
        hint = "check ssl.truststore, ssl.keystore and ssl.key.password"
        raise TransportError(f"certificates or key cannot be used: {what}", hint=hint) from None
    return context


def _token_provider(oauth: OAuth) -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415  (the only user)

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token(oauth)

        def extensions(self) -> dict[str, str]:
            return {}

    return Provider()
