"""`publish`: write the events of captures to a folder of segments."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from schemas.errors import OutputError
from stream.cli.labels import label_of
from stream.cli.logs import configure
from stream.cli.progress import Progress
from stream.cli.publishing import Job, publish_captures

PARTITIONS: Final = 4
"""Of a new folder: so many linkers can share it."""


def command(options: argparse.Namespace) -> int:
    """Publish the captures as one session; a second time it changes nothing."""
    from stream.segments import Segments

    configure(options.log_format)
    label = label_of(options.captures, options.label)
    try:
        options.to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be made: {error.strerror}", where=str(options.to)) from None
    Segments.create(options.to, partitions=options.partitions or PARTITIONS).close()
    job = Job(
        captures=tuple(options.captures),
        session=label,
        folder=options.to,
        durable=True,
        cpu_ops=options.cpu_ops,
        log_format=options.log_format,
        end_session=not options.keep_open,
    )
    with Progress(shown=options.log_format == "console" and sys.stderr.isatty()) as bar:
        published = publish_captures(job, bar.update)
    sys.stdout.write(
        f"{label}: {published.records:,} records, {published.bytes / 1e6:,.1f} MB, in {options.to}\n"
    )
    return 0
