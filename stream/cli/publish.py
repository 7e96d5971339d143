"""`publish`: write the events of captures to a folder of segments, or to Kafka."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schemas.errors import InputError, OutputError, UsageError, printable
from stream.cli.labels import label_of
from stream.cli.logs import configure
from stream.cli.progress import Progress
from stream.cli.publishing import Job, publish_captures

if TYPE_CHECKING:
    from stream.kafka.transport import KafkaTransport
    from stream.segments import Segments
    from stream.transport import Transport

PARTITIONS: Final = 4
"""Of a new folder: so many linkers can share it."""


def command(options: argparse.Namespace) -> int:
    """Publish the captures as one session; a second time it changes nothing."""
    configure(options.log_format)
    if (options.to is None) == (options.bootstrap_server is None):
        raise UsageError("give either --to DIR or --bootstrap-server HOST:PORT")
    label = label_of(options.captures, options.label)
    job = Job(
        captures=tuple(options.captures),
        session=label,
        cpu_ops=options.cpu_ops,
        end_session=not options.keep_open,
    )
    with contextlib.ExitStack() as stack:
        transport: Transport
        if options.to is None:
            transport, where = stack.enter_context(_kafka(options)), f"{options.topic_prefix}events"
        else:
            transport, where = stack.enter_context(_folder(options.to, options.partitions)), options.to
        bar = stack.enter_context(Progress(shown=options.log_format == "console" and sys.stderr.isatty()))
        published = publish_captures(job, lambda: contextlib.nullcontext(transport), bar.update)
    size = f"{published.records:,} records, {published.bytes / 1e6:,.1f} MB"
    sys.stdout.write(f"{label}: {size}, in {printable(str(where))}\n")
    return 0


@contextlib.contextmanager
def _folder(folder: Path, partitions: int | None) -> Iterator[Segments]:
    from stream.segments import Segments

    new = not os.path.lexists(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be made: {error.strerror}", where=str(folder)) from None
    try:
        with Segments.create(folder, partitions=partitions or PARTITIONS) as transport:
            yield transport
    except InputError:
        # Captures are read before anything is written: a folder made for them holds nothing.
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _kafka(options: argparse.Namespace) -> KafkaTransport:
    from stream.cli.connecting import connection_of, notice, topics_of
    from stream.kafka.client import Times
    from stream.kafka.transport import KafkaTransport

    if options.partitions is not None:
        raise UsageError(
            "--partitions goes with --to: topics have as many as they were made with",
            hint="see `gpu-ledger topics create --help`",
        )
    patience = options.delivery_timeout
    times = Times(connect=min(Times().connect, patience), delivery=patience)
    return KafkaTransport(connection_of(options, times), topics_of(options), notice=notice())
