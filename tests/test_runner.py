"""The runner: wherever it is stopped, starting again gives what an undisturbed run gives."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Final

import pipeline
import pytest
from pipeline import PARTITIONS, Result

from schemas.errors import DecodeError, TransportError
from schemas.records import Output, Record, Topic
from schemas.types import Partition
from stream.runner import Driver, Pace, RecordWriter, Runner, Task
from stream.segments import Segments
from stream.transport import POINTS, PUBLISH, SINK, TopicPartition, every, link_inputs

EVENTS: Final = TopicPartition(Topic.EVENTS, Partition(0))
ALL_POINTS: Final = tuple(f"{when} {point}" for point in POINTS for when in ("before", "after"))


class CrashError(BaseException):
    """Stands for the end of the process: nothing handles it."""


class CrashOnce:
    """A failpoint that notes the points it passes and crashes at one of them, if so asked."""

    def __init__(self, at: int | None = None) -> None:
        self.passed: list[str] = []
        self._at = at

    def __call__(self, name: str) -> None:
        """Pass a point."""
        self.passed.append(name)
        if len(self.passed) - 1 == self._at:
            raise CrashError(name)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self.now


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return what the pipeline gives when nothing happens to it."""
    folder = tmp_path_factory.mktemp("undisturbed") / "log"
    pipeline.work(folder)
    return pipeline.result(folder)


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Return a way to start processes that have everything imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "stream.runner", "stream.segments"])
    return context


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Segments]:
    """Return a new log of the pipeline's."""
    with Segments.create(tmp_path / "log", partitions=PARTITIONS, durable=False) as segments:
        yield segments


def events(count: int) -> list[Output]:
    """Return that many records of four bytes for EVENTS-0."""
    return [Output(Topic.EVENTS, Partition(0), b"key", b"%04d" % i) for i in range(count)]


def committed(log: Segments, topic: Topic = Topic.EVENTS) -> int:
    """Return how many records of a topic are committed."""
    return sum(len(list(log.records(place))) for place in every(topic, PARTITIONS))


def committed_in(folder: Path) -> int:
    """Return how many events are committed in a folder that others write."""
    with Segments.open(folder) as log:
        return committed(log)


def linker(pace: Pace) -> Task:
    """Return the task of partition 0, which here reads events only."""
    return pipeline.tasks(pace)[0]._replace(inputs=(EVENTS,))


# Crashes


def test_the_pipeline_does_what_its_tests_need(undisturbed: Result) -> None:
    """Every partition has its records, in several commits and segments, and every task a state."""
    assert [len(undisturbed[f"{topic}-0"] or ()) for topic in ("events", "deltas", "windows")] == [4, 4, 1]
    state = undisturbed[SINK]
    assert isinstance(state, Mapping)
    assert set(state) == {"events", "deltas-0", "deltas-1", "windows-0", "windows-1"}


def test_a_crash_anywhere_changes_nothing(tmp_path: Path, undisturbed: Result) -> None:
    """For every single time the pipeline passes a point: crash there, start again, same outcome."""
    counting = CrashOnce()
    pipeline.work(tmp_path / "count", counting)
    assert set(counting.passed) == set(ALL_POINTS)

    for at, point in enumerate(counting.passed):
        folder = tmp_path / str(at)
        with pytest.raises(CrashError):
            pipeline.work(folder, CrashOnce(at))
        pipeline.work(folder)
        assert pipeline.result(folder) == undisturbed, f"crash {at} at {point}"


def test_crash_after_crash_changes_nothing(tmp_path: Path, undisturbed: Result) -> None:
    """A process that gets only a little further every time gets there all the same."""
    crashes = 0
    for allowed in range(30, 10_000, 3):
        try:
            pipeline.work(tmp_path / "log", CrashOnce(allowed))
            break
        except CrashError:
            crashes += 1

    assert crashes > 3
    assert pipeline.result(tmp_path / "log") == undisturbed


@pytest.mark.parametrize("point", ALL_POINTS)
def test_sigkill_at_every_point_changes_nothing(
    tmp_path: Path, undisturbed: Result, processes: ForkServerContext, point: str
) -> None:
    """A real process, really killed at a point, leaves what its successor can go on from."""
    folder = tmp_path / "log"
    for times in (1, 4):
        child = processes.Process(target=pipeline.work_until, args=(folder, point, times))
        child.start()
        child.join(30)
        assert child.exitcode == -signal.SIGKILL
    pipeline.work(folder)

    assert pipeline.result(folder) == undisturbed


def test_sigkill_at_any_time_changes_nothing(tmp_path: Path, processes: ForkServerContext) -> None:
    """Publishing and linking in two processes, either killed again and again at odd moments."""
    folder, whole = tmp_path / "log", tmp_path / "whole"
    count = 300
    for path in (folder, whole):
        Segments.create(path, partitions=PARTITIONS).close()
    dice = random.Random(1)

    def start(which: int) -> ForkServerProcess:
        child = (
            processes.Process(target=pipeline.publish_slowly, args=(folder, count))
            if which == 0
            else processes.Process(target=pipeline.keep_linking, args=(folder,))
        )
        child.start()
        return child

    running = [start(which) for which in range(2)]
    kills = 0
    deadline = time.monotonic() + 60
    while (done := committed_in(folder)) < count:
        assert time.monotonic() < deadline, f"{done} of {count} records after {kills} kills"
        time.sleep(dice.uniform(0, 0.2))
        victim = dice.randrange(2)
        running[victim].kill()
        running[victim].join()
        kills += 1
        running[victim] = start(victim)
    assert kills > 1
    for child in running:
        child.kill()
        child.join()
    for path in (folder, whole):
        with Segments.open(path) as log:
            pipeline.publish(log, count)
            pipeline.link(log)

    assert pipeline.result(folder) == pipeline.result(whole)


def test_a_frozen_process_keeps_its_task(log: Segments, processes: ForkServerContext) -> None:
    """A process that hangs still holds its tasks: a second one is refused, not let in beside it."""
    child = processes.Process(target=pipeline.keep_linking, args=(log.folder,))
    child.start()
    assert child.pid is not None
    try:
        while not (log.folder / "commits" / f"{SINK}.lock").exists():
            time.sleep(0.005)
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(TransportError, match=f"already run by process {child.pid}"):
            Driver(log, pipeline.tasks())
    finally:
        child.kill()
        child.join()
    Driver(log, pipeline.tasks()).close()


# Committing


def test_commits_follow_bytes(log: Segments) -> None:
    """A runner commits once the values it took in have reached a size."""
    with RecordWriter(log, pace=Pace(commit_bytes=1)) as writer:
        for output in events(9):
            writer.write(output)
    assert writer.commits == 9
    with Runner(log, linker(Pace(commit_bytes=12, commit_seconds=1e9, poll_bytes=1))) as runner:
        while runner.step():
            pass
        assert (runner.commits, runner.records, runner.value_bytes) == (3, 9, 36)


def test_commits_follow_time(log: Segments) -> None:
    """What was taken in is committed once enough time has passed, nothing new or not."""
    clock = Clock()
    pace = Pace(commit_bytes=1 << 30, commit_seconds=2)
    with RecordWriter(log) as writer, Runner(log, linker(pace), clock=clock) as runner:
        writer.write(events(1)[0])
        writer.commit()
        assert runner.step()
        clock.now = 1.9
        assert not runner.step()
        assert committed(log, Topic.DELTAS) == 0
        clock.now = 2
        assert not runner.step()
        assert committed(log, Topic.DELTAS) == 1
        clock.now = 10
        assert not runner.step()
        assert runner.commits == 1


def test_a_state_is_taken_after_its_outputs(log: Segments) -> None:
    """A processor is asked for its outputs first: its state need not hold them as well."""
    with RecordWriter(log) as writer:
        writer.write(events(1)[0])
    calls: list[str] = []

    class Asked(pipeline.Chain):
        def flush(self) -> list[Output]:
            calls.append("flush")
            return super().flush()

        def snapshot(self) -> dict[str, bytes]:
            calls.append("snapshot")
            return super().snapshot()

    with Runner(log, Task("link-0", lambda: Asked(0), (EVENTS,))) as runner:
        assert runner.step()
        assert runner.commit()
        assert not runner.commit()
    assert calls == ["flush", "snapshot"]


def test_a_writer_commits_by_size_by_time_and_at_the_end(log: Segments) -> None:
    """Published records show after so many bytes, after so long, and when the writer is left."""
    clock = Clock()
    with RecordWriter(log, pace=Pace(commit_bytes=8, commit_seconds=2), clock=clock) as writer:
        for output, expected in zip(events(3), (0, 2, 2), strict=True):
            writer.write(output)
            assert committed(log) == expected
        clock.now = 2
        writer.write(events(1)[0])
        assert committed(log) == 4
        writer.write(events(1)[0])
    assert (committed(log), writer.records, writer.value_bytes) == (5, 5, 20)


def test_a_writer_left_by_an_error_commits_nothing_more(log: Segments) -> None:
    """A producer that fails half-way leaves its last commit, not half a slice."""
    writer = RecordWriter(log)
    writer.write(events(1)[0])
    writer.__exit__(CrashError, CrashError(), None)

    assert committed(log) == 0
    log.claim(PUBLISH, ()).close()


def test_a_state_that_cannot_be_restored_lets_go_of_the_task(log: Segments) -> None:
    """An error while restoring leaves the task free for whoever comes next."""

    class Picky(pipeline.Chain):
        def restore(self, state: Mapping[str, bytes]) -> None:
            raise DecodeError(f"state of {len(state)} entries")

    with log.claim("link-0", ()) as claim:
        claim.commit([], {"events": b"1"})
    for _ in range(2):
        with pytest.raises(DecodeError, match="state of 1 entries"):
            Driver(log, [Task("link-0", lambda: Picky(0), link_inputs(Partition(0), PARTITIONS))])


# Driving


def test_a_driver_ends_when_all_is_worked_off(log: Segments) -> None:
    """It does not end before the producer has, then finishes everything, in few commits."""
    asked = 0
    writer = RecordWriter(log)

    def ended() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            for output in events(5):
                writer.write(output)
            writer.commit()
        return asked >= 3

    with Driver(log, pipeline.tasks(Pace(commit_seconds=1e9))) as driver:
        driver.run(ended, idle_seconds=0)
        assert committed(log, Topic.DELTAS) == 5
        assert [runner.records for runner in driver.runners] == [6, 1, 6]
        assert [runner.commits for runner in driver.runners] == [2, 1, 1]
        assert driver.processor(SINK) is driver.runners[2].processor
        with pytest.raises(KeyError):
            driver.processor("nobody")
    writer.close()


def test_a_driver_follows_another_process(log: Segments, processes: ForkServerContext) -> None:
    """Events are linked while another process publishes, and nothing is missed at its end."""
    child = processes.Process(target=pipeline.publish_slowly, args=(log.folder, 40))
    child.start()
    rounds = 0

    def progress() -> None:
        nonlocal rounds
        rounds += 1

    with Driver(log, pipeline.tasks()) as driver:
        driver.run(lambda: not child.is_alive(), progress=progress)
    assert committed(log, Topic.DELTAS) == 40
    assert rounds > 2


def test_a_driver_that_cannot_have_all_tasks_has_none(log: Segments) -> None:
    """If one task is held elsewhere, those claimed before it are let go."""
    with log.claim(SINK, ()):
        with pytest.raises(TransportError, match="task sink is already run"):
            Driver(log, pipeline.tasks())
        for name in ("link-0", "link-1"):
            log.claim(name, ()).close()


def test_what_was_applied_but_not_committed_is_applied_again(log: Segments) -> None:
    """A story: feed three, commit, feed two more, fall over, look; start again, look."""
    with RecordWriter(log) as writer:
        for output in events(5):
            writer.write(output)
            writer.commit()
    pace = Pace(commit_bytes=12, commit_seconds=1e9, poll_bytes=1)
    seen: list[Record] = []

    class Watched(pipeline.Chain):
        def apply(self, record: Record) -> None:
            seen.append(record)
            super().apply(record)

    task = Task("link-0", lambda: Watched(0), (EVENTS,), pace)
    with Runner(log, task) as runner:
        for _ in range(5):
            runner.step()
    assert committed(log, Topic.DELTAS) == 3

    with Runner(log, task) as runner:
        while runner.step():
            pass
        runner.commit()
    assert committed(log, Topic.DELTAS) == 5
    assert [record.offset for record in seen] == [0, 1, 2, 3, 4, 3, 4]
