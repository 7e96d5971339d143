"""A small pipeline whose every result shows a record that was lost, repeated or out of order."""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from schemas.records import Output, Record, Topic
from schemas.types import Partition
from stream.runner import Driver, Pace, RecordWriter, Task
from stream.segments import Segments
from stream.transport import (
    SINK,
    Failpoint,
    TopicPartition,
    every,
    link_inputs,
    link_task,
    pass_point,
    sink_inputs,
)

PARTITIONS = 2
EVENTS = 8
PACE = Pace(commit_bytes=8, commit_seconds=1e9, poll_bytes=1)
"""Commits after two events, never by time."""

Result = dict[str, list[tuple[int, bytes]] | Mapping[str, bytes] | None]


class Chain:
    """Chains digests of each input partition; writes one delta an event and a window every third."""

    def __init__(self, partition: int) -> None:
        self._partition = Partition(partition)
        self._chains: dict[str, bytes] = {}
        self._events = 0
        self._outputs: list[Output] = []

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Take over a state."""
        self._chains = dict(state)
        self._events = int(self._chains.pop("events"))

    def apply(self, record: Record) -> None:
        """Chain a record."""
        name = f"{record.topic}-{record.partition}"
        text = self._chains.get(name, b"") + b"%d" % record.offset + bytes(record.value or b"")
        self._chains[name] = hashlib.blake2b(text, digest_size=8).hexdigest().encode()
        if record.topic is Topic.EVENTS:
            self._events += 1
            self._write(Topic.DELTAS, b"%d %s" % (self._events, self._chains[name]))
            if self._events % 3 == 0:
                self._write(Topic.WINDOWS, b"%d" % self._events)

    def flush(self) -> list[Output]:
        """Return the outputs since the last one."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def snapshot(self) -> dict[str, bytes]:
        """Return the state."""
        return {**self._chains, "events": b"%d" % self._events}

    def _write(self, topic: Topic, value: bytes) -> None:
        self._outputs.append(Output(topic, self._partition, b"key", value))


def tasks(pace: Pace = PACE) -> list[Task]:
    """Return two linkers and a sink."""
    linkers = [
        Task(
            link_task(Partition(p)), functools.partial(Chain, p), link_inputs(Partition(p), PARTITIONS), pace
        )
        for p in range(PARTITIONS)
    ]
    return [*linkers, Task(SINK, functools.partial(Chain, 0), sink_inputs(PARTITIONS), pace)]


def publish(log: Segments, count: int = EVENTS, *, pause: float = 0) -> None:
    """Publish numbers to each partition in turn, those that are not there yet."""
    done = sum(len(list(log.records(place))) for place in every(Topic.EVENTS, PARTITIONS))
    with RecordWriter(log, pace=PACE) as writer:
        for number in range(done, count):
            writer.write(Output(Topic.EVENTS, Partition(number % PARTITIONS), b"key", b"%04d" % number))
            time.sleep(pause)


def work(folder: Path, failpoint: Failpoint = pass_point, *, durable: bool = False) -> None:
    """Publish, link and sink until all is done, or until `failpoint` has it otherwise."""
    with Segments.create(
        folder, partitions=PARTITIONS, durable=durable, segment_bytes=300, failpoint=failpoint
    ) as log:
        publish(log)
        link(log, failpoint=failpoint)


def link(log: Segments, ended: Callable[[], bool] = lambda: True, failpoint: Failpoint = pass_point) -> None:
    """Link and sink what is published until `ended`."""
    with Driver(log, tasks(), failpoint=failpoint) as driver:
        driver.run(ended)


def result(folder: Path) -> Result:
    """Return everything that was committed: records by partition, states by task."""
    with Segments.open(folder) as log:
        places = [TopicPartition(t, Partition(p)) for t in Topic for p in range(PARTITIONS)]
        found: Result = {
            f"{place.topic}-{place.partition}": [
                (r.offset, bytes(r.value or b"")) for r in log.records(place)
            ]
            for place in places
        }
        for task in tasks():
            with log.claim(task.name, task.inputs) as claim:
                found[task.name] = claim.state
    return found


def kill_at(point: str, times: int) -> Failpoint:
    """Return a failpoint that kills this process when a point is passed for the n-th time."""
    passed: list[str] = []

    def fail(name: str) -> None:
        passed.append(name)
        if passed.count(point) == times:
            os.kill(os.getpid(), signal.SIGKILL)

    return fail


def work_until(folder: Path, point: str, times: int) -> None:
    """Work, and be killed at the n-th passing of a point."""
    work(folder, kill_at(point, times), durable=True)


def publish_slowly(folder: Path, count: int) -> None:
    """Publish with a pause after every record."""
    with Segments.open(folder, durable=False) as log:
        publish(log, count, pause=0.003)


def keep_linking(folder: Path) -> None:
    """Link for ever."""
    with Segments.open(folder, durable=False) as log:
        link(log, ended=lambda: False)
