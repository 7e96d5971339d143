"""Linkers that come and go while events flow: the group shares partitions out, fencing keeps them right."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess

import kafka_deployment as d
import pytest

from schemas.errors import RecordsGoneError
from schemas.records import Topic
from schemas.types import Offset, Partition
from stream.kafka.membership import Membership
from stream.kafka.service import Service
from stream.kafka.topics import Topics
from stream.kafka.transport import KafkaTransport
from stream.transport import SINK, TopicPartition

PARTITIONS = 3
SLICES = 60

_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(["kafka_deployment", "stream.kafka.service"])


def serve(servers: str, prefix: str) -> None:
    """Link the partitions that the group gives us, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    group = f"{prefix}link"
    with (
        d.transport_of(servers, prefix, group=group) as transport,
        Membership(transport.connection, group, transport.topics.name(Topic.EVENTS)) as membership,
    ):
        Service(transport, membership, lambda p: d.linker(transport, p)).run(stop.is_set)


@contextlib.contextmanager
def serving(servers: str, prefix: str) -> Iterator[BaseProcess]:
    """Give a process that serves."""
    process = _forkserver.Process(target=serve, args=(servers, prefix))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def linked(transport: KafkaTransport) -> int:
    """Return how many commits the linkers have made."""
    places = [transport.topics.place(TopicPartition(Topic.STATE, Partition(p))) for p in range(PARTITIONS)]
    return sum(transport.ends(places, committed=True).values())


def wait_for_progress(transport: KafkaTransport, seconds: float = 25) -> None:
    """Return once something more has been committed."""
    before, deadline = linked(transport), time.monotonic() + seconds
    while linked(transport) == before:
        assert time.monotonic() < deadline, "nothing goes on"
        time.sleep(0.1)


def test_linkers_join_leave_and_die_while_events_flow(kafka: str) -> None:
    """One to four linkers, ended in good order, killed and frozen in the middle: the same ledger."""
    session = d.small_session(PARTITIONS, slices=SLICES)
    with d.deployment(kafka, PARTITIONS) as made, contextlib.ExitStack() as stack:
        step = -(-len(session) // 7)
        parts = iter([session[i : i + step] for i in range(0, len(session), step)])

        def join() -> BaseProcess:
            return stack.enter_context(serving(kafka, made.topics.prefix))

        def go_on() -> None:
            d.publish(made, next(parts))
            wait_for_progress(made)

        first = join()
        go_on()
        second, third = join(), join()
        go_on()
        assert first.pid is not None
        os.kill(first.pid, signal.SIGTERM)
        go_on()
        second.kill()
        join()
        go_on()
        assert third.pid is not None
        os.kill(third.pid, signal.SIGSTOP)
        go_on()
        os.kill(third.pid, signal.SIGCONT)
        go_on()
        first.join(10)
        assert first.exitcode == 0, "SIGTERM ends a linker in good order"
        d.publish(made, next(parts))
        deadline = time.monotonic() + 60
        while True:
            sink = d.work_off(made, [d.sink_task(made)])[0]
            if sink.sessions and sink.is_complete(d.SESSION):
                break
            assert time.monotonic() < deadline, "the session does not end"
            time.sleep(0.5)
        assert d.said(sink) == d.ledger_in_memory(PARTITIONS, SLICES)
        assert d.check_changelogs(made) > PARTITIONS


def test_a_second_sink_waits_for_the_first_to_go(kafka: str) -> None:
    """Of two sinks one works; when it leaves, the other goes on from its state."""
    with d.deployment(kafka) as made:
        d.publish(made, d.small_session(1))
        d.work_off(made, [d.linker(made, 0)])

        def sink(number: int) -> Membership:
            del number
            return Membership(made.connection, made.topics.group("sink"), made.topics.sink_state)

        with sink(1) as one:
            first = Service(made, one, lambda _: d.sink_task(made))
            run_until(first, lambda: first.ready)
            with sink(2) as two:
                second = Service(made, two, lambda _: d.sink_task(made))
                ready = [first.ready, second.ready]
                deadline = time.monotonic() + 8
                while time.monotonic() < deadline and sum(ready) != 1:
                    first.round()
                    second.round()
                    ready = [first.ready, second.ready]
                assert sum(ready) == 1
                working, waiting = (first, second) if first.ready else (second, first)
                run_until(working, lambda: d.caught_up(made, [*working.runners.values()]))
                for runner in working.runners.values():
                    runner.commit()
                working.close()
                (one if working is first else two).close()
                run_until(waiting, lambda: waiting.ready)
                processor = waiting.runners[Partition(0)].processor
                run_until(waiting, lambda: d.caught_up(made, [*waiting.runners.values()]))
                assert d.said(processor) == d.ledger_in_memory(1)  # type: ignore[arg-type]
                waiting.close()


def run_until(service: Service, done: Callable[[], bool]) -> None:
    """Work until something holds."""
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, "not in time"
        if not service.round():
            time.sleep(0.01)


def test_a_service_says_what_it_waits_for_and_stops_where_it_must(kafka: str) -> None:
    """Records that are gone end a service; it does not try again in silence."""
    told: list[str] = []
    with d.deployment(kafka) as made:
        session = d.small_session(1)
        d.publish(made, session[:20])
        d.work_off(made, [d.linker(made, 0)])
        d.publish(made, session[20:])
        events = made.topics.place(TopicPartition(Topic.EVENTS, Partition(0)))
        with made.connection.admin() as admin:
            admin.delete_records({events: Offset(25)})
        group, topic = made.topics.group("link"), made.topics.name(Topic.EVENTS)
        with Membership(made.connection, group, topic) as membership:
            service = Service(made, membership, lambda p: d.linker(made, p), notice=told.append)
            with pytest.raises(RecordsGoneError, match="retention has deleted"):
                service.run(lambda: False)
        assert not service.runners
        assert not service.ready


def test_a_fenced_task_is_let_go_and_taken_back(kafka: str) -> None:
    """If somebody takes a task over by force, the service lets it go, says so, and has it back later."""
    told: list[str] = []
    with d.deployment(kafka) as made:
        session = d.small_session(1)
        d.publish(made, session[:20])
        group, topic = made.topics.group("link"), made.topics.name(Topic.EVENTS)
        with Membership(made.connection, group, topic) as membership:
            service = Service(made, membership, lambda p: d.linker(made, p), notice=told.append)
            run_until(service, lambda: service.ready)
            with made.claim(d.linker(made, 0).name, ()):
                pass
            d.publish(made, session[20:])
            run_until(service, lambda: any("another process has taken over" in line for line in told))
            run_until(service, lambda: service.ready and d.caught_up(made, [*service.runners.values()]))
            service.run(lambda: True)
        assert d.ledger(made) == d.ledger_in_memory(1)
        assert [line for line in told if line == "link-0: restored"] == ["link-0: restored"] * 2


def test_the_sinks_group_and_the_linkers_are_apart() -> None:
    """Names of groups, topics and transactional ids carry the deployment's prefix."""
    topics = Topics("x.")
    assert topics.group("link") == "x.link"
    assert topics.transactional_id(SINK) == "x.sink"
    assert topics.changelog("link-11") == ("x.state", 11)
    assert topics.changelog(SINK) == ("x.sink-state", 0)
