"""Brokers that fail: killed, frozen, led by others, out of records. Nothing lost, nothing doubled, or a clear stop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import kafka_deployment as d
import pytest
from kafka_broker import Cluster, Node

from schemas.errors import FencedError, RecordsGoneError, TransportError
from schemas.records import Output, Topic
from schemas.types import Offset, Partition
from stream.kafka import publishing
from stream.kafka.client import Place, Times
from stream.kafka.transport import KafkaTransport
from stream.runner import Runner
from stream.transport import PUBLISH, TopicPartition, link_inputs

PATIENT = Times(connect=40, request=4, delivery=40, transaction=50, session=3, progress=30)
IMPATIENT = Times(connect=20, request=1, delivery=2, transaction=10, session=3, progress=15)


@pytest.fixture(scope="module")
def one(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:  # noqa: ARG001  (skips)
    """Return a cluster of one node that tests may do anything to."""
    with Cluster.start(tmp_path_factory.mktemp("one")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:  # noqa: ARG001
    """Return a cluster of three nodes that tests may do anything to."""
    with Cluster.start(tmp_path_factory.mktemp("three"), nodes=3) as cluster:
        yield cluster


def hitting(point: str, times: int, hit: Callable[[], None]) -> Callable[[str], None]:
    """Return a failpoint that does something at the n-th passing of a point."""
    passed = 0

    def fail(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == times:
            hit()

    return fail


def work_off_again(transport: KafkaTransport) -> None:
    """Link and fold all there is; after an error start again, as a supervisor would."""
    deadline = time.monotonic() + 90
    while True:
        try:
            d.work_off(transport, [d.linker(transport, 0), d.sink_task(transport)], seconds=60)
        except TransportError:
            assert time.monotonic() < deadline, "no recovery in time"
            time.sleep(0.2)
        else:
            return


def check(transport: KafkaTransport) -> None:
    """Fail unless the ledger is the one of a run without trouble, and every commit is there once."""
    work_off_again(transport)
    assert d.check_changelogs(transport) >= 1
    assert d.ledger(transport) == d.ledger_in_memory(transport.partitions)


@pytest.mark.parametrize("point", ["before send", "before commit", "after poll"])
def test_a_broker_that_is_killed_and_comes_back_loses_nothing(one: Cluster, point: str) -> None:
    """The only broker goes in the middle of the work and is started again: all goes on from the commits."""
    node = one.nodes[0]

    def power_cut() -> None:
        node.kill()
        threading.Thread(target=node.start).start()

    with d.deployment(one.servers, times=PATIENT, failpoint=hitting(point, 3, power_cut)) as made:
        d.publish(made, d.small_session(1))
        check(made)
        node.wait()


def test_publishing_waits_for_a_broker_that_comes_back(one: Cluster) -> None:
    """A publisher waits while the broker is gone, says so, and all of it arrives, in order."""
    told: list[str] = []
    node = one.nodes[0]
    with d.deployment(one.servers, times=PATIENT, notice=told.append) as made:
        session = d.small_session(1)
        d.publish(made, session[:20])
        with made.claim(PUBLISH, ()) as claim:
            claim.commit(session[20:30], {})
            node.freeze()
            threading.Timer(publishing.NOTICE_SECONDS + 2, node.thaw).start()
            claim.commit(session[30:], {})
        assert [line for line in told if "acknowledged nothing for 5 s" in line]
        assert [line for line in told if "answer again" in line]
        assert d.values(made, Topic.EVENTS) == [output.value for output in session]
        check(made)


def test_publishing_gives_up_with_a_count_and_can_be_done_again(one: Cluster) -> None:
    """Past its time limit a publisher says what was delivered and what not; again, and nothing is doubled."""
    node = one.nodes[0]
    with d.deployment(one.servers, times=IMPATIENT) as made:
        session = d.small_session(1)
        with made.claim(PUBLISH, ()) as claim:
            claim.commit(session[:25], {})
            node.freeze()
            try:
                with pytest.raises(TransportError) as caught:
                    claim.commit(session[25:], {})
            finally:
                node.thaw()
        line = caught.value.line()
        assert (
            f"gave up publishing: 25 records (0.0 MB) were delivered, {len(session) - 25} (0.0 MB) were not"
            in line
        )
        assert "publish the same again" in line
        time.sleep(1)
        d.publish(made, session)
        check(made)


@pytest.mark.parametrize("point", ["before send", "before commit"])
def test_the_leader_of_a_partition_dies(three: Cluster, point: str) -> None:
    """With three nodes the others go on: no error reaches anybody, nothing is lost or doubled."""
    killed: list[Node] = []

    with d.deployment(three.servers, 1, replication=3, times=PATIENT) as made:
        d.publish(made, d.small_session(1))
        topic = Topic.STATE if point == "before send" else Topic.DELTAS
        node = leader(three, made, made.topics.place(TopicPartition(topic, Partition(0))))

        def kill() -> None:
            killed.append(node)
            node.kill()

        made.failpoint = hitting(point, 3, kill)
        check(made)
        assert killed
        node.start()


def test_one_record_of_a_transaction_is_not_delivered(three: Cluster) -> None:
    """If a single record runs into its time limit, nothing of its transaction counts.

    kafka-python would commit the rest: the leader of DELTAS stands still, those of all else answer.
    """
    with d.deployment(three.servers, 1, replication=3, times=IMPATIENT) as made:
        place = made.topics.place(TopicPartition(Topic.DELTAS, Partition(0)))
        node = leader(three, made, place)
        with made.claim("link-0", link_inputs(Partition(0), 1)) as claim:
            delta = Output(Topic.DELTAS, Partition(0), b"k", b"v")
            claim.commit([delta], {"n": b"1"})
            node.freeze()
            try:
                with pytest.raises(TransportError):
                    claim.commit([delta], {"n": b"2"})
            finally:
                node.thaw()
        wait_for_recovery(made)
        with made.claim("link-0", link_inputs(Partition(0), 1)) as claim:
            assert claim.state == {"n": b"1"}
        assert d.values(made, Topic.DELTAS) == [b"v"]


def wait_for_recovery(transport: KafkaTransport) -> None:
    """Return once the brokers answer again for a task."""
    deadline = time.monotonic() + 40
    while True:
        try:
            transport.claim("link-0", link_inputs(Partition(0), 1)).close()
        except TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return


def leader(cluster: Cluster, transport: KafkaTransport, place: Place) -> Node:
    """Return the node that leads a partition."""
    with transport.connection.admin() as admin:
        number = admin.leaders([place])[place]
    return next(node for node in cluster.nodes if node.number == number)


def test_a_transaction_that_times_out_on_the_broker_is_void(kafka: str) -> None:
    """The brokers end a transaction that takes too long; committing it then fails, and nothing of it counts."""
    times = d.TIMES._replace(transaction=1.0)
    with d.deployment(kafka, times=times) as made:
        d.publish(made, d.small_session(1))
        made.failpoint = hitting("before commit", 2, lambda: time.sleep(4))
        with pytest.raises(FencedError):
            d.work_off(made, [d.linker(made, 0)])
        check(made)


def test_retention_that_has_eaten_the_restored_offset_stops_the_task(kafka: str) -> None:
    """Records that were not linked yet are gone: a clear stop, however often it is started."""
    with d.deployment(kafka) as made:
        session = d.small_session(1)
        d.publish(made, session[:20])
        d.work_off(made, [d.linker(made, 0)])
        d.publish(made, session[20:])
        events = made.topics.place(TopicPartition(Topic.EVENTS, Partition(0)))
        with made.connection.admin() as admin:
            admin.delete_records({events: Offset(25)})
        for _ in range(2):
            with pytest.raises(RecordsGoneError) as caught:
                d.work_off(made, [d.linker(made, 0)])
            assert caught.value.line() == (
                f"{events.topic}-0: link-0 goes on at record 20, but retention has deleted all before record 25; "
                "going on would skip them: make the topics anew and publish or replay again, with a longer retention"
            )


def test_retention_that_overtakes_a_running_task_stops_it(kafka: str) -> None:
    """A task that is too slow for the retention stops as well, and does not jump to what is left."""
    with d.deployment(kafka) as made:
        session = d.small_session(1)
        d.publish(made, session[:5])
        events = made.topics.place(TopicPartition(Topic.EVENTS, Partition(0)))
        with made.claim("link-0", [TopicPartition(Topic.EVENTS, Partition(0))]) as claim:
            seen = 0
            while seen < 5:
                seen += len(claim.poll(1))
            claim.poll(1)
            # What it fetches next must not be on its way already.
            time.sleep(0.7)
            d.publish(made, session[5:30])
            with made.connection.admin() as admin:
                admin.delete_records({events: Offset(29)})
            with contextlib.suppress(RecordsGoneError):
                deadline = time.monotonic() + 15
                while time.monotonic() < deadline:
                    for record in claim.poll(1):
                        assert record.offset == seen, "records were skipped"
                        seen += 1
                    if seen == 30:
                        pytest.skip("all was fetched before it was deleted")


def test_topics_made_anew_are_noticed(kafka: str) -> None:
    """An input that ends before the offset to go on from was replaced: a clear stop."""
    with d.deployment(kafka) as made:
        d.publish(made, d.small_session(1)[:20])
        d.work_off(made, [d.linker(made, 0)])
        name = made.topics.name(Topic.EVENTS)
        with made.connection.admin() as admin:
            admin.delete([name])
            deadline = time.monotonic() + 10
            while admin.topics([name]) and time.monotonic() < deadline:
                time.sleep(0.05)
            admin.create(name, 1, 1, {})
        with pytest.raises(RecordsGoneError, match="goes on at record 20, but the partition ends at 0"):
            d.work_off(made, [d.linker(made, 0)])


def test_a_changelog_that_lost_an_entry_is_not_gone_on_from(kafka: str) -> None:
    """The head's count and digest notice entries that are missing: no silent start from half a state."""
    with d.deployment(kafka) as made:
        inputs = link_inputs(Partition(0), 1)
        with made.claim("link-0", inputs) as claim:
            claim.commit([], {"a": b"1"})
            claim.commit([], {"a": b"1", "b": b"2"})
        state = made.topics.changelog("link-0")
        with made.connection.producer("foreign", None) as foreign:
            sent = foreign.send(state, b"link-0/entry/a", None)
            foreign.push()
            foreign.confirm(sent, 5)
        with pytest.raises(
            RecordsGoneError, match="does not come to the state of commit 2: 1 entries instead of 2"
        ):
            made.claim("link-0", inputs)


def test_a_transaction_left_open_in_a_changelog_is_a_clear_stop(kafka: str) -> None:
    """If a foreign program holds a changelog up, restoring ends with an error instead of waiting for ever."""
    times = d.TIMES._replace(progress=2.0, transaction=30.0)
    with d.deployment(kafka, times=times) as made:
        with made.claim("link-0", ()) as claim:
            claim.commit([], {"a": b"1"})
        with made.connection.producer("foreign", "foreign") as foreign:
            foreign.fence()
            foreign.begin()
            foreign.confirm(foreign.send(made.topics.changelog("link-0"), b"k", b"v"), 5)
            with pytest.raises(TransportError, match="can be read up to record 3 of 4 only"):
                made.claim("link-0", ())
        # It ends it, and so does the brokers' own limit.
        with made.connection.producer("foreign", "foreign") as foreign:
            foreign.fence()
        with made.claim("link-0", ()) as claim:
            assert claim.state == {"a": b"1"}


def test_missing_topics_are_one_line(kafka: str) -> None:
    """Without topics the error names them and says how to make them; brokers make none by themselves."""
    with pytest.raises(TransportError) as caught:
        d.transport_of(kafka, "nothing.here.")
    assert caught.value.line().startswith("topics are not there: nothing.here.events, ")
    assert caught.value.hint == "make them with `gpu-ledger topics create`"


def test_no_broker_is_one_line() -> None:
    """Where nobody listens the error says so, after the time that was given."""
    with pytest.raises(TransportError) as caught:
        d.transport_of("127.0.0.1:9", "x.", times=d.TIMES._replace(connect=0.5))
    assert caught.value.line().startswith("127.0.0.1:9: no broker answers within 0.5 s; is one there?")


def test_commits_are_bounded_in_flight(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much a commit writes, only so much of it is unacknowledged at a time."""
    most = 0
    limit = 1_000_000
    monkeypatch.setattr("stream.kafka.transport.IN_FLIGHT_BYTES", limit)
    with d.deployment(kafka) as made, made.claim("link-0", ()) as claim:

        def note(name: str) -> None:
            nonlocal most
            if name == "after send":
                most = max(most, claim._in_flight)  # type: ignore[attr-defined]

        made.failpoint = note
        value = bytes(200_000)
        claim.commit([Output(Topic.DELTAS, Partition(0), b"k", value) for _ in range(40)], {})
        assert limit <= most <= limit + len(value) + 1
        assert len(d.values(made, Topic.DELTAS)) == 40


def test_runners_share_a_broker_with_others(kafka: str) -> None:
    """Deployments under other prefixes do not see each other, whatever their tasks are called."""
    with d.deployment(kafka) as first, d.deployment(kafka) as second:
        for made in (first, second):
            d.publish(made, d.small_session(1))
        with Runner(first, d.linker(first, 0)), Runner(second, d.linker(second, 0)):
            pass
        check(first)
        check(second)
