"""A deployment in memory: linkers by partition and a sink, driven record by record.

It does what the runner does, without files: a task reads its partition of EVENTS and all of
WINDOWS, and what it commits (outputs, state and input offsets) appears in one step. The schedule
says which task reads what next, so that every interleaving can be tried; tasks can be stopped and
restarted from their state after any commit, or killed between commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from consumers.linker import Linker
from consumers.sink import Sink
from schemas.config import Config
from schemas.events import Batch, encode
from schemas.records import Output, Processor, Record, Topic
from schemas.types import Kind, Offset, Partition, partition_key

Log = dict[tuple[Topic, int], list[Record]]
"""Committed records by topic and partition."""


class Restarts(Protocol):
    """Says what becomes of a task."""

    def after_commit(self) -> bool:
        """Tell whether the task is restarted after the commit it just made."""

    def before_commit(self) -> bool:
        """Tell whether the task is killed before the commit it is about to make."""


class Never:
    """Tasks run through."""

    def after_commit(self) -> bool:
        """Return False."""
        return False

    def before_commit(self) -> bool:
        """Return False."""
        return False


@dataclass
class Often:
    """Tasks are stopped after every commit and killed before some."""

    random: Random

    def after_commit(self) -> bool:
        """Return True."""
        return True

    def before_commit(self) -> bool:
        """Return True now and then."""
        return self.random.random() < 0.3


def events(log: Sequence[Sequence[Batch]]) -> Log:
    """Return batches, by partition, as committed records."""
    topic: Log = {}
    for number, batches in enumerate(log):
        records = topic[Topic.EVENTS, number] = []
        for batch in batches:
            header = batch.header
            ends = header.kind == Kind.SESSION_END
            key = header.session.encode() if ends else partition_key(header.session, header.process)
            for value in encode(batch):
                records.append(Record(Topic.EVENTS, Partition(number), Offset(len(records)), key, value))
    return topic


def run_linkers(
    log: Log,
    config: Config,
    *,
    partitions: int,
    random: Random | None = None,
    commit_every: int = 1_000_000,
    restarts: Restarts | None = None,
) -> Log:
    """Run a linker for each partition until there is nothing left to do; return all topics.

    `log` holds EVENTS. Each task commits after `commit_every` records. Without `random` each
    reads all it can in turn.
    """
    whole: Log = {key: [*records] for key, records in log.items()}
    for number in range(partitions):
        for topic in (Topic.WINDOWS, Topic.DELTAS, Topic.DEAD_LETTER):
            whole.setdefault((topic, number), [])
    every_window = [(Topic.WINDOWS, number) for number in range(partitions)]
    tasks = [
        Run(partial(Linker, config, number), [(Topic.EVENTS, number), *every_window], whole, number)
        for number in range(partitions)
    ]
    drive(tasks, random=random, commit_every=commit_every, restarts=restarts or Never())
    return whole


def run_sink(
    log: Log,
    config: Config,
    *,
    random: Random | None = None,
    commit_every: int = 1_000_000,
    restarts: Restarts | None = None,
) -> Sink:
    """Run a sink over all DELTAS and WINDOWS until there is nothing left to do; return it."""
    inputs = [key for key in sorted(log) if key[0] in (Topic.DELTAS, Topic.WINDOWS)]
    run = Run(partial(Sink, config), inputs, dict(log), 0)
    drive([run], random=random, commit_every=commit_every, restarts=restarts or Never())
    assert isinstance(run.processor, Sink)
    return run.processor


class Run:
    """One task as it runs: what it holds and what it has committed."""

    def __init__(
        self, make: Callable[[], Processor], inputs: Iterable[tuple[Topic, int]], log: Log, number: int
    ) -> None:
        self._make = make
        self._inputs = [*inputs]
        self._log = log
        self._number = number
        self._state: dict[str, bytes] | None = None
        self._committed = dict.fromkeys(self._inputs, 0)
        self.restart()

    def restart(self) -> None:
        """Begin again from what was committed."""
        self.processor: Processor = self._make()
        if self._state is not None:
            self.processor.restore(self._state)
        self._offsets = dict(self._committed)
        self.uncommitted = 0

    def readable(self) -> list[tuple[Topic, int]]:
        """Return the inputs that have records it has not applied."""
        return [i for i in self._inputs if self._offsets[i] < len(self._log[i])]

    def read(self, source: tuple[Topic, int]) -> None:
        """Apply the next record of an input."""
        self.processor.apply(self._log[source][self._offsets[source]])
        self._offsets[source] += 1
        self.uncommitted += 1

    def commit(self) -> bool:
        """Commit outputs, state and offsets; tell whether there were outputs."""
        outputs = self.processor.flush()
        self._state = self.processor.snapshot()
        self._committed = dict(self._offsets)
        self.uncommitted = 0
        for output in outputs:
            self._append(output)
        return bool(outputs)

    def _append(self, output: Output) -> None:
        number = self._number if output.partition is None else output.partition
        into = self._log.setdefault((output.topic, number), [])
        into.append(Record(output.topic, Partition(number), Offset(len(into)), output.key, output.value))


def drive(tasks: Sequence[Run], *, random: Random | None, commit_every: int, restarts: Restarts) -> None:
    """Let tasks read and commit until none has anything left to read."""
    while True:
        able = [task for task in tasks if task.readable()]
        if not able:
            committed = [task.commit() for task in tasks if task.uncommitted]
            if not any(committed):
                return
            continue
        task = random.choice(able) if random else able[0]
        readable = task.readable()
        task.read(random.choice(readable) if random else readable[0])
        if task.uncommitted >= commit_every:
            if restarts.before_commit():
                task.restart()
                continue
            task.commit()
            if restarts.after_commit():
                task.restart()


__all__ = ["Log", "Never", "Often", "drive", "events", "run_linkers"]
