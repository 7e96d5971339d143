"""Exactly once, whatever happens where: a crash and a freeze before and after every effect.

Random kills prove little: they miss most of the moments that matter. So a child process that links
and folds is killed, or stopped, at numbered points, against a real broker; another process takes its
tasks over, and a stopped one comes back when it is no longer wanted.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import kafka_deployment as d
import pytest

from schemas.errors import FencedError, TransportError
from schemas.records import Output, Topic
from stream.kafka.topics import Topics
from stream.kafka.transport import POINTS, KafkaTransport
from stream.runner import Runner

TIMES_PASSED: Final = {
    "send": 6,
    "future": 9,
    "poll": 4,
    "apply": 3,
    "begin": 3,
    "offsets": 3,
    "commit": 3,
    "swap": 3,
}
"""At which passing it happens: in the middle, for what happens often."""

GROUP: Final = "t.group"
_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(["kafka_deployment"])


class UnfencedTopics(Topics):
    """A deployment whose tasks nobody fences: the mistake that this suite must not miss."""

    def transactional_id(self, task: str) -> str:
        """Return another one for every process."""
        return f"{super().transactional_id(task)}-{os.getpid()}"


def transport_for(servers: str, prefix: str, *, fenced: bool, **options: Any) -> KafkaTransport:
    """Return a transport whose tasks are fenced, or not."""
    transport = d.transport_of(servers, prefix, group=GROUP, **options)
    if not fenced:
        transport.topics = UnfencedTopics(prefix)
    return transport


def work_until_hit(
    servers: str, prefix: str, point: str, action: signal.Signals, pipe: Connection, *, fenced: bool
) -> None:
    """Link and fold, and be hit by a signal at a point; if that can be survived, go on and tell the end."""
    passed = 0
    times = TIMES_PASSED.get(point.partition(" ")[2], 1)

    def fail(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == times:
            os.kill(os.getpid(), action)

    try:
        with contextlib.ExitStack() as stack:
            transport = stack.enter_context(transport_for(servers, prefix, fenced=fenced, failpoint=fail))
            tasks = [d.linker(transport, 0), d.sink_task(transport)]
            runners = [stack.enter_context(Runner(transport, task, failpoint=fail)) for task in tasks]
            idle_since = time.monotonic()
            while time.monotonic() - idle_since < 2:
                if sum(runner.step() for runner in runners) + sum(runner.commit() for runner in runners):
                    idle_since = time.monotonic()
                time.sleep(0.002)
    except TransportError as error:
        pipe.send((type(error).__name__, passed >= times))
    else:
        pipe.send(("nothing left", passed >= times))


@contextlib.contextmanager
def child(
    servers: str, prefix: str, point: str, action: signal.Signals, *, fenced: bool
) -> Iterator[tuple[BaseProcess, Connection]]:
    """Give a process that works until it is hit."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = _forkserver.Process(
        target=work_until_hit, args=(servers, prefix, point, action, sender), kwargs={"fenced": fenced}
    )
    process.start()
    sender.close()
    try:
        yield process, receiver
    finally:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid or 0, signal.SIGCONT)
        process.join()
        receiver.close()


def wait_until_hit(process: BaseProcess, action: signal.Signals) -> None:
    """Return once a process is dead, or stopped."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if action == signal.SIGKILL and process.exitcode is not None:
            assert process.exitcode == -signal.SIGKILL, "the point was never passed"
            return
        if action == signal.SIGSTOP:
            assert process.exitcode is None, "the point was never passed"
            if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return
        time.sleep(0.005)
    pytest.fail("the point was not passed in time")


def work_off(transport: KafkaTransport) -> None:
    """Link and fold all there is, as often as a stopped one that comes back fences us."""
    for _ in range(4):
        try:
            d.work_off(transport, [d.linker(transport, 0), d.sink_task(transport)])
        except FencedError:
            continue
        return
    pytest.fail("fenced again and again")


def scenario(servers: str, point: str, action: signal.Signals, *, fenced: bool = True) -> str:
    """Work until hit, take over, let the stopped one come back, work on; return what became of it.

    Fails unless the ledger is the one of a run without trouble, and every commit is there once.
    """
    session = d.small_session(1)
    third = len(session) // 3
    parts: tuple[list[Output], ...] = (session[:third], session[third : 2 * third], session[2 * third :])
    with d.deployment(servers) as made:
        prefix = made.topics.prefix
        with transport_for(servers, prefix, fenced=fenced) as transport:
            d.publish(transport, parts[0])
            work_off(transport)
            d.publish(transport, parts[1])
            with child(servers, prefix, point, action, fenced=fenced) as (process, receiver):
                wait_until_hit(process, action)
                if action == signal.SIGSTOP:
                    work_off(transport)
                    os.kill(process.pid or 0, signal.SIGCONT)
                d.publish(transport, parts[2])
                work_off(transport)
                became = "killed"
                if action == signal.SIGSTOP:
                    assert receiver.poll(20), "the stopped one goes on for ever"
                    became, hit = receiver.recv()
                    assert hit
            assert d.check_changelogs(transport) >= 4
            assert len(d.values(transport, Topic.DEAD_LETTER)) == 0
            sink = d.work_off(transport, [d.sink_task(transport)])[0]
            assert d.said(sink) == d.ledger_in_memory(1)
    return became


@pytest.mark.parametrize("point", [f"{when} {point}" for point in POINTS for when in ("before", "after")])
def test_a_crash_at_any_point_changes_nothing(kafka: str, point: str) -> None:
    """Killed anywhere, the next process goes on: the same ledger, every commit there once."""
    assert scenario(kafka, point, signal.SIGKILL) == "killed"


@pytest.mark.parametrize("point", [f"{when} {point}" for point in POINTS for when in ("before", "after")])
def test_a_frozen_process_that_comes_back_changes_nothing(kafka: str, point: str) -> None:
    """Stopped anywhere while another takes over: it comes back, can commit nothing, and says so."""
    became = scenario(kafka, point, signal.SIGSTOP)
    # Before it has fenced anybody it is not late: it may well take the tasks over and find them done.
    assert became == "FencedError" or point == "before fence"


@pytest.mark.parametrize("point", ["after poll", "before begin"])
def test_without_fencing_this_suite_fails(kafka: str, point: str) -> None:
    """The suite notices tasks that are not fenced: what they do twice is counted twice."""
    with pytest.raises(AssertionError, match=r"commit \d+ where \d+ was due"):
        scenario(kafka, point, signal.SIGSTOP, fenced=False)
