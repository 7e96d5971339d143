"""Runs the tasks of the partitions that are ours, for as long as nobody says stop.

    transport = KafkaTransport(connection, topics, group="gpu-ledger.link")
    with transport, Membership(connection, "gpu-ledger.link", topics.name(Topic.EVENTS)) as membership:
        Service(transport, membership, make_task, notice=print).run(stopped)

    def make_task(partition):            # of linkers; those of EVENTS are shared out
        n = transport.partitions
        return Task(link_task(partition), partial(Linker, config, partition), link_inputs(partition, n), pace)

    def make_task(partition):            # of the sink: a group on `topics.sink_state`, one partition
        return Task(SINK, partial(Sink, config), sink_inputs(transport.partitions), pace)

More than one sink may run: one has the partition, the others wait for it to go. `stopped` is asked
between steps (a SIGTERM handler sets what it reads); then what is applied is committed and the
group is left.

What goes wrong, and what is done:

    fenced             another process has the task: let it go, try again once the group has changed or
                       a session time has passed and it is still ours
    brokers away       let all go, wait (half a second, twice as long each time, up to 10 s), claim again
    not allowed        raise: only a person can change that
    records are gone   raise: whatever went on would skip them in silence
    state unreadable   raise
    a processor fails  raise: it would do so again
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from schemas.errors import FencedError, NotAllowedError, RecordsGoneError, TransportError
from schemas.types import Partition
from stream.kafka.membership import Membership
from stream.kafka.transport import KafkaTransport
from stream.runner import IDLE_SECONDS, Runner, Task
from stream.transport import Failpoint, pass_point

LAST_IDLE_SECONDS: Final = 0.05
"""A service with nothing to do asks less and less often: every poll of every task costs some 0.3 ms."""

FIRST_WAIT_SECONDS: Final = 0.5
LAST_WAIT_SECONDS: Final = 10.0


class Service:
    """Tasks of partitions, claimed as the group shares these out.

    `runners` are those at work, by partition: their processors show how far they are.
    """

    def __init__(
        self,
        transport: KafkaTransport,
        membership: Membership,
        make_task: Callable[[Partition], Task],
        *,
        notice: Callable[[str], None] = lambda _: None,
        failpoint: Failpoint = pass_point,
    ) -> None:
        self.runners: dict[Partition, Runner] = {}
        self._transport = transport
        self._membership = membership
        self._make_task = make_task
        self._notice = notice
        self._failpoint = failpoint
        self._waits: dict[Partition, _Wait] = {}

    @property
    def ready(self) -> bool:
        """Whether every partition that is ours has been restored, and there is one."""
        owned = self._membership.owned
        return bool(owned) and owned <= self.runners.keys()

    def run(self, stopped: Callable[[], bool], *, progress: Callable[[], None] | None = None) -> None:
        """Work until `stopped`. `progress` is called after every round, and after the last commit.

        Raises:
            NotAllowedError: the brokers do not let us.
            RecordsGoneError: records that are still needed have been deleted.
            GpuLedgerError: a state cannot be read, or belongs to another configuration.

        """
        idle = IDLE_SECONDS
        try:
            while not stopped():
                moved = self.round()
                if progress is not None:
                    progress()
                idle = IDLE_SECONDS if moved else min(idle * 1.5, LAST_IDLE_SECONDS)
                if not moved:
                    time.sleep(idle)
            for partition, runner in list(self.runners.items()):
                try:
                    runner.commit()
                except TransportError as error:
                    self._failed(partition, error)
            if progress is not None:
                progress()
        finally:
            self.close()

    def round(self) -> bool:
        """Claim and let go what the group says, then let every task work a step; return whether any did.

        Raises:
            GpuLedgerError: as `run`.

        """
        self._membership.beat()
        self._membership.check()
        self._follow_group()
        moved = False
        for partition, runner in list(self.runners.items()):
            try:
                moved |= runner.step()
            except (NotAllowedError, RecordsGoneError):
                raise
            except TransportError as error:
                self._failed(partition, error)
        return moved

    def close(self) -> None:
        """Let go of all tasks without committing."""
        for partition in list(self.runners):
            self._let_go(partition, commit=False)

    def _follow_group(self) -> None:
        owned = self._membership.owned
        for partition in [p for p in self.runners if p not in owned]:
            self._let_go(partition, commit=True)
        for partition in map(Partition, sorted(owned - self.runners.keys())):
            wait = self._waits.get(partition)
            if wait is not None and not wait.over(self._membership.changes):
                continue
            try:
                self._claim(partition)
            except (NotAllowedError, RecordsGoneError):
                raise
            except TransportError as error:
                self._failed(partition, error)
            self._membership.beat()

    def _claim(self, partition: Partition) -> None:
        runner = Runner(self._transport, self._make_task(partition), failpoint=self._failpoint)
        self.runners[partition] = runner
        self._waits.pop(partition, None)
        self._notice(f"{runner.task.name}: restored")

    def _failed(self, partition: Partition, error: TransportError) -> None:
        if runner := self.runners.pop(partition, None):
            runner.close()
        wait = self._waits.setdefault(partition, _Wait())
        if isinstance(error, FencedError):
            wait.until_change(self._membership.changes, self._transport.connection.times.session)
        else:
            wait.longer()
        name = self._make_task(partition).name
        self._notice(f"{name}: {error.line()}; trying again in {wait.seconds:.1f} s")

    def _let_go(self, partition: Partition, *, commit: bool) -> None:
        runner = self.runners.pop(partition)
        with contextlib.closing(runner), contextlib.suppress(TransportError):
            if commit:
                runner.commit()
        self._waits.pop(partition, None)


class _Wait:
    """When to claim a partition again after that, or its task, has failed."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._until = 0.0
        self._changes: int | None = None

    def longer(self) -> None:
        """Wait, longer than the last time."""
        self.seconds = min(max(self.seconds * 2, FIRST_WAIT_SECONDS), LAST_WAIT_SECONDS)
        self._until = time.monotonic() + self.seconds
        self._changes = None

    def until_change(self, changes: int, seconds: float) -> None:
        """Wait until the group has changed, or for so long."""
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._changes = changes

    def over(self, changes: int) -> bool:
        """Return whether it is time."""
        changed = self._changes is not None and changes != self._changes
        return changed or time.monotonic() >= self._until
