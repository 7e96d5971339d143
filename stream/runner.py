"""Drives processors over a transport: restore, poll, apply, and commit by bytes and by time.

The whole of `run`, in the parent of the process that publishes:

    transport = Segments.create(folder, partitions=2, durable=False)
    tasks = [
        *(Task(link_task(p), partial(Linker, config, p, 2), link_inputs(p, 2)) for p in range(2)),
        Task(SINK, partial(Sink, config, 2), sink_inputs(2)),
    ]
    child.start()                                    # the publishing process, see below
    with Driver(transport, tasks) as driver:
        driver.run(lambda: not child.is_alive())     # until that is over *and* all is linked
        sink = driver.processor(SINK)
    if child.exitcode: ...                           # what it had committed was linked all the same

and in the publishing process (spawned):

    with RecordWriter(Segments.open(folder, durable=False)) as writer:
        for output in publish(...):
            writer.write(output)                     # commits by size and time; the rest at the end

Everything is crash-only: an error leaves the `with` without committing; starting again resumes
from the last commits. A processor is made anew by its factory for every claim.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Self

from schemas.records import Output, Processor
from schemas.types import Offset
from stream.transport import PUBLISH, Claim, Failpoint, TopicPartition, Transport, pass_point


class Pace(NamedTuple):
    """How often a task commits, and how much it takes in at once."""

    commit_bytes: int = 32 << 20
    """Commit once this many bytes of record values have been taken in (written) since."""
    commit_seconds: float = 1.0
    """Commit what there is once this long has passed since the last commit."""
    poll_bytes: int = 1 << 20
    """Ask for this much of the log at once: the pause between looking at other tasks."""


PUBLISH_PACE: Final = Pace(commit_bytes=4 << 20, commit_seconds=0.25)
"""Publishing commits often: linking goes on in the meantime in another process."""

IDLE_SECONDS: Final = 0.01
"""How long a driver sleeps when no task has anything to do."""


class Task(NamedTuple):
    """A processor to be run: its name, how to make it, what it reads, and at which pace."""

    name: str
    factory: Callable[[], Processor]
    inputs: tuple[TopicPartition, ...]
    pace: Pace = Pace()


class Runner:
    """One task, claimed, with its processor restored.

    `records` and `value_bytes` count what was applied since it was made, `commits` its commits.
    """

    def __init__(
        self,
        transport: Transport,
        task: Task,
        *,
        failpoint: Failpoint = pass_point,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task = task
        self.records = 0
        self.value_bytes = 0
        self.commits = 0
        self._failpoint = failpoint
        self._clock = clock
        self._dirty = False
        self._pending = 0
        self._claim: Claim = transport.claim(task.name, task.inputs)
        try:
            self.processor = task.factory()
            if (state := self._claim.state) is not None:
                self.processor.restore(state)
        except BaseException:
            self._claim.close()
            raise
        self._committed_at = clock()

    def step(self) -> bool:
        """Poll once, apply what came and commit if that is due; return whether anything came.

        Raises:
            TransportError: the task is to be given up and claimed again.

        """
        records = self._claim.poll(self.task.pace.poll_bytes)
        for record in records:
            self._failpoint("before apply")
            self.processor.apply(record)
            self._failpoint("after apply")
        size = sum(len(record.value or b"") for record in records)
        self.records += len(records)
        self.value_bytes += size
        self._pending += size
        self._dirty |= bool(records)
        pace = self.task.pace
        if self._pending >= pace.commit_bytes or self._clock() - self._committed_at >= pace.commit_seconds:
            self.commit()
        return bool(records)

    def commit(self) -> bool:
        """Commit what has been applied since the last commit; return whether there was any.

        Raises:
            TransportError: the task is to be given up and claimed again.

        """
        if not self._dirty:
            return False
        # In this order: the state is the one after the flush.
        outputs = self.processor.flush()
        self._claim.commit(outputs, self.processor.snapshot())
        self.commits += 1
        self._pending = 0
        self._dirty = False
        self._committed_at = self._clock()
        return True

    @property
    def dirty(self) -> bool:
        """Whether something has been applied that has not been committed."""
        return self._dirty

    def touch(self) -> None:
        """Note that the processor was changed by something other than a record, to be committed as well."""
        self._dirty = True

    def positions(self) -> Mapping[TopicPartition, Offset]:
        """Return the offset behind the last record applied, of each input."""
        return self._claim.positions()

    def close(self) -> None:
        """Let go of the task without committing."""
        self._claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Driver:
    """Several tasks in one process, taking turns."""

    def __init__(
        self, transport: Transport, tasks: Iterable[Task], *, failpoint: Failpoint = pass_point
    ) -> None:
        self.runners: list[Runner] = []
        self._files = contextlib.ExitStack()
        with self._files:
            for task in tasks:
                runner = Runner(transport, task, failpoint=failpoint)
                self.runners.append(self._files.enter_context(runner))
            self._files = self._files.pop_all()

    def run(
        self,
        ended: Callable[[], bool],
        *,
        progress: Callable[[], None] | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Run until `ended` says that nobody else will commit, and all of it has been worked off.

        `progress` is called after every round. All is committed on return.

        Raises:
            TransportError: everything is to be given up and started again.

        """
        while True:
            # Asked before the round: what was committed before the end is then seen in it.
            over = ended()
            moved = False
            for runner in self.runners:
                moved |= runner.step()
            if progress is not None:
                progress()
            if moved:
                continue
            if not over:
                time.sleep(idle_seconds)
            elif not any(runner.commit() for runner in self.runners):
                # One at a time, in order: what it commits may be input of those behind it.
                return

    def processor(self, name: str) -> Processor:
        """Return the processor of a task; KeyError if it has no such task."""
        for runner in self.runners:
            if runner.task.name == name:
                return runner.processor
        raise KeyError(name)

    def close(self) -> None:
        """Let go of all tasks without committing."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RecordWriter:
    """Writes records that do not come from a processor, such as a producer's; it keeps no state.

    Leaving the `with` commits what is left, unless it is left by an error. `records` and
    `value_bytes` count what was written, `commits` the commits. Writing the same records again after
    a crash is how it resumes: readers skip rows they have seen.
    """

    def __init__(
        self,
        transport: Transport,
        task: str = PUBLISH,
        *,
        pace: Pace = PUBLISH_PACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records = 0
        self.value_bytes = 0
        self.commits = 0
        self._pace = pace
        self._clock = clock
        self._outputs: list[Output] = []
        self._pending = 0
        self._claim: Claim = transport.claim(task, ())
        self._committed_at = clock()

    def write(self, output: Output) -> None:
        """Take a record, and commit if that is due.

        Raises:
            TransportError: what was not committed is lost; start again.

        """
        self._outputs.append(output)
        self._pending += len(output.value)
        self.records += 1
        self.value_bytes += len(output.value)
        due = self._clock() - self._committed_at >= self._pace.commit_seconds
        if due or self._pending >= self._pace.commit_bytes:
            self.commit()

    def commit(self) -> None:
        """Commit what was written.

        Raises:
            TransportError: as `write`.

        """
        if self._outputs:
            self._claim.commit(self._outputs, {})
            self.commits += 1
        self._outputs = []
        self._pending = 0
        self._committed_at = self._clock()

    def close(self) -> None:
        """Let go without committing."""
        self._claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()
