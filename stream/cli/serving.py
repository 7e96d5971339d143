"""What `link` and `sink` have in common: a place in a group, tasks, readiness, and a clean end.

The first SIGTERM (or Ctrl-C) lets the loop finish its step, commit and leave the group; if that
takes too long, or another signal comes, the process ends where it stands: what was not committed
then never was, and the next owner goes on from the last commit.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from schemas.types import Partition
from stream.cli import Stopped
from stream.cli.connecting import connection_of, logger, notice, topics_of
from stream.health import Health
from stream.kafka.membership import Membership
from stream.kafka.service import Service
from stream.kafka.transport import KafkaTransport
from stream.runner import Task

STOP_SECONDS: Final = 20.0
"""How long a commit may take that was under way, or due, when the end was asked for."""

TIDY_SECONDS: Final = 10.0


class Stop:
    """Whether a signal has asked for the end."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Return whether it is time to end."""
        return self.asked

    def ask(self) -> None:
        """Ask for the end."""
        self.asked = True


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Give what signals set, instead of having them end the process where it stands."""
    stop = Stop()

    def end(number: int, _frame: FrameType | None) -> None:
        if stop.asked:
            raise Stopped(number)
        stop.ask()
        signal.signal(signal.SIGALRM, lambda *_: _give_up(number))
        signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_up(number: int) -> None:
    raise Stopped(number)


def serve(
    options: argparse.Namespace,
    kind: str,
    shared_by: Callable[[KafkaTransport], str],
    make_task: Callable[[KafkaTransport, Partition], Task],
    progress: Callable[[Service, Stop], None],
) -> None:
    """Run the tasks of a group until a signal, or `progress`, asks for the end; all is committed then.

    `shared_by` names the topic whose partitions are shared out; `progress` is called after every
    round.

    Raises:
        GpuLedgerError: there is no going on without a person.

    """
    connection, topics = connection_of(options), topics_of(options)
    group = options.group or topics.group(kind)
    with contextlib.ExitStack() as stack:
        reports = _Reports()
        if options.listen is not None:
            health = stack.enter_context(Health(options.listen, reports.missing))
            logger().info(f"listening on {options.listen[0]}:{health.port}")
        transport = stack.enter_context(KafkaTransport(connection, topics, group=group, notice=notice()))
        membership = stack.enter_context(Membership(connection, group, shared_by(transport)))
        service = Service(transport, membership, lambda p: make_task(transport, p), notice=notice())
        reports.watch(service, membership)

        # Up to here a signal ends the process where it stands: there is nothing to commit.
        with stop_on_signals() as stop:
            tidy = _Tidy()

            def after_round() -> None:
                reports.tell()
                tidy.look()
                progress(service, stop)

            service.run(stop, progress=after_round)


class _Tidy:
    """Gives memory back to the system that is free: what comes and goes leaves gaps, more with every hour."""

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        # Of glibc only; elsewhere there is no such function, and nothing to be done.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def look(self) -> None:
        """Do it if it is time; it takes a few milliseconds."""
        now = time.monotonic()
        if self._trim is not None and now - self._looked_at >= TIDY_SECONDS:
            self._looked_at = now
            self._trim(0)


class _Reports:
    """Readiness, and what keeps us out of the group."""

    def __init__(self) -> None:
        self._service: Service | None = None
        self._membership: Membership | None = None
        self._told = ""

    def watch(self, service: Service, membership: Membership) -> None:
        """Take note of whom to ask."""
        self._service, self._membership = service, membership

    def missing(self) -> str:
        """Return what is missing to be ready; nothing: all tasks that are ours are restored.

        A member of the group that has no partition, since others have them all, has nothing to
        restore and is ready to take over.
        """
        service, membership = self._service, self._membership
        if service is None or membership is None:
            return "connecting to the brokers"
        if membership.trouble:
            return "not in the group"
        if not membership.joined:
            return "joining the group"
        missing = sorted(membership.owned - service.runners.keys())
        return f"restoring {', '.join(map(str, missing))}" if missing else ""

    def tell(self) -> None:
        """Tell what keeps us out of the group, once."""
        trouble = self._membership.trouble if self._membership else ""
        if trouble and trouble != self._told:
            logger().warning(f"not in the group: {trouble}; trying again")
        self._told = trouble
