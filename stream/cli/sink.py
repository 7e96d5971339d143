"""`sink`: the ledgers of all sessions on Kafka, kept up to date in files."""

from __future__ import annotations

import argparse
import hashlib
import time
import urllib.parse
from collections.abc import Collection
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec

from consumers.files import check_parquet, prepare_folder, write_report
from consumers.sink import Sink
from schemas.types import Partition
from stream.cli.connecting import logger
from stream.cli.logs import configure
from stream.cli.serving import Stop, serve
from stream.config_file import load_config
from stream.runner import Pace, Task
from stream.transport import SINK, sink_inputs

if TYPE_CHECKING:
    from stream.kafka.service import Service
    from stream.kafka.transport import KafkaTransport

_MAX_NAME: Final = 200
"""Bytes of a folder's name: file systems take 255."""


def command(options: argparse.Namespace) -> int:
    """Fold until a signal says stop, or with --until-final until all is final."""
    configure(options.log_format)
    config = load_config(options.config)
    if options.parquet:
        check_parquet()
    prepare_folder(options.out)
    pace = Pace(commit_seconds=options.commit_interval)

    def make_task(transport: KafkaTransport, _: Partition) -> Task:
        return Task(SINK, partial(Sink, config), sink_inputs(transport.partitions), pace)

    writer = _Writer(options)
    serve(options, "sink", lambda transport: transport.topics.sink_state, make_task, writer.look)
    return 0


def folder_name(label: str) -> str:
    """Return what the folder of a session is called: its label, what is unsafe in it percent-encoded."""
    name = urllib.parse.quote(label, safe=" +,=@~()[]{}", errors="backslashreplace")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _MAX_NAME:
        digest = hashlib.blake2b(label.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
        name = f"{name[: _MAX_NAME - 20]}...{digest}"
    return name


class _Writer:
    """Writes the files of sessions in which something is new: now and then, and when one is final.

    Only what has been committed is written: a sink that another one has taken over from commits
    nothing any more, so it cannot put older files in the place of newer ones.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began = time.monotonic()
        self._written_at = float("-inf")
        self._final: set[str] = set()

    def look(self, service: Service, stop: Stop) -> None:
        """Write what is due; with --until-final ask for the end once all is final.

        Raises:
            OutputError: files cannot be written.

        """
        runner = next(iter(service.runners.values()), None)
        if runner is None or runner.dirty:
            return
        sink = cast("Sink", runner.processor)
        now = time.monotonic()
        due = {name for name in sink.fresh if sink.is_complete(name)}
        if stop.asked or now - self._written_at >= self._options.interval:
            due, self._written_at = set(sink.fresh), now
        self._write(sink, due)
        for label in () if stop.asked else sink.retire(self._options.keep_ended):
            runner.touch()
            logger().info(f"{label}: final, and forgotten")
        if self._options.until_final and self._over(sink):
            stop.ask()

    def _write(self, sink: Sink, sessions: Collection[str]) -> None:
        wanted = self._options.session
        for label in sorted(sessions):
            sink.fresh.discard(label)
            if wanted is None or label in wanted:
                self._write_session(sink, label)

    def _write_session(self, sink: Sink, label: str) -> None:
        folder: Path = self._options.out / folder_name(label)
        ledger = msgspec.structs.replace(
            sink.ledger(label),
            generated_at=datetime.now().astimezone().strftime("%Y-%m-%dT%H:%M:%S%z"),
            seconds=time.monotonic() - self._began,
        )
        prepare_folder(folder)
        write_report(folder, ledger, sink.groups(label), parquet=self._options.parquet)
        if ledger.final and label not in self._final:
            self._final.add(label)
            logger().info(f"{label}: final, {ledger.kernel_events:,} kernels, in {folder}")

    def _over(self, sink: Sink) -> bool:
        """Return whether all that was asked for is final and written."""
        wanted = self._options.session or sink.sessions
        return bool(wanted) and self._final.issuperset(wanted)
