"""`link`: linkers of the partitions that a consumer group gives to this process."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from consumers.linker import Linker
from schemas.records import Topic
from schemas.types import Partition
from stream.cli.connecting import logger
from stream.cli.logs import configure
from stream.cli.serving import Stop, serve
from stream.config_file import load_config
from stream.guard import Guard
from stream.patience import Patience
from stream.runner import Pace, Runner, Task
from stream.transport import link_inputs, link_task

if TYPE_CHECKING:
    from schemas.config import Config
    from stream.kafka.service import Service
    from stream.kafka.transport import KafkaTransport

LOOK_SECONDS: Final = 0.5
"""How often to ask whether something has been waited for long enough."""


def command(options: argparse.Namespace) -> int:
    """Link until a signal says stop."""
    configure(options.log_format)
    config = load_config(options.config)
    pace = Pace(commit_seconds=options.commit_interval)

    def make_task(transport: KafkaTransport, partition: Partition) -> Task:
        inputs = link_inputs(partition, transport.partitions)
        return Task(link_task(partition), partial(Linker, config, partition), inputs, pace)

    watch = Watch(config, options.max_dead_letters, options.keep_ended)
    serve(options, "link", lambda transport: transport.topics.name(Topic.EVENTS), make_task, watch.look)
    return 0


class Watch:
    """What is seen to between the rounds of linkers: dead letters, waits that are over, old sessions."""

    def __init__(self, config: Config, max_dead_letters: int, keep_ended: int) -> None:
        self._config = config
        self._max_dead_letters = max_dead_letters
        self._keep_ended = keep_ended
        self._watched: dict[Partition, _Watched] = {}
        self._looked_at = 0.0

    def look(self, service: Service, _: Stop) -> None:
        """See to all linkers that are at work.

        Raises:
            DeadLettersError: one of them finds too much that it cannot read.

        """
        now = time.monotonic()
        due = now - self._looked_at >= LOOK_SECONDS
        if due:
            self._looked_at = now
        before, self._watched = self._watched, {}
        for partition, runner in service.runners.items():
            watched = before.get(partition)
            if watched is None or watched.runner is not runner:
                watched = _Watched(runner, self._config, self._max_dead_letters)
            self._watched[partition] = watched
            watched.count()
            if due:
                watched.decide(now)
                watched.retire(self._keep_ended)


class _Watched:
    """One linker at work."""

    def __init__(self, runner: Runner, config: Config, max_dead_letters: int) -> None:
        self.runner = runner
        self._linker = cast("Linker", runner.processor)
        self._guard = Guard(max_dead_letters)
        self._patience = Patience(config)
        self._counted = (0, 0)

    def count(self) -> None:
        records, letters = self.runner.records, self._linker.dead_letters
        new = (records - self._counted[0], letters - self._counted[1])
        if new != (0, 0):
            self._counted = (records, letters)
            self._guard.count(*new, where=self.runner.task.name)

    def decide(self, now: float) -> None:
        linker = self._linker
        made = self._patience.look(now, linker.waits(), linker.open_captures(), linker.pending)
        for session, decision in made:
            linker.decide(session, decision)
            self.runner.touch()
            what = "waits no longer for boundaries of" if decision.kind == "cut" else "hears nothing of"
            who = f"process {decision.process.pid}" if decision.process.global_pid else "a source to come"
            logger().warning(f"{session}: {what} {who} ({decision.reason})", task=self.runner.task.name)

    def retire(self, keep: int) -> None:
        for session in self._linker.retire(keep):
            self.runner.touch()
            logger().info(f"{session}: ended, and forgotten", task=self.runner.task.name)
