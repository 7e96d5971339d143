"""`run`: captures in, ledger out, in two processes over a folder of segments."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from consumers.files import check_parquet, write_report
from schemas.config import Config
from schemas.errors import OutputError, UsageError
from schemas.ledger import encode_ledger
from schemas.types import Partition
from stream.cli.labels import label_of
from stream.cli.logs import configure
from stream.cli.output import output_folder
from stream.cli.progress import Progress
from stream.cli.publishing import Job, Publisher
from stream.cli.summary import MAX_CONTEXTS, ContextTime, Style, summary
from stream.config_file import load_config

if TYPE_CHECKING:
    from consumers.grouping import GroupTable
    from consumers.sink import Sink

PARTITIONS: Final = 1
"""One process links all of them: more would only make batches smaller."""


def command(options: argparse.Namespace) -> int:
    """Make the ledger of the captures, write and show it."""
    began = time.monotonic()
    if options.parquet and options.out is None:
        raise UsageError("--parquet says how to write to --out, which is not given")
    if options.parquet:
        check_parquet()
    config = load_config(options.config)
    configure(options.log_format)
    label = label_of(options.captures, options.label)

    with contextlib.ExitStack() as stack:
        if options.out is not None:
            stack.enter_context(output_folder(options.out))
        segments = stack.enter_context(_segments_folder(options.keep_events))
        bar = stack.enter_context(Progress(shown=options.log_format == "console" and sys.stderr.isatty()))
        job = Job(
            captures=tuple(options.captures),
            session=label,
            cpu_ops=options.cpu_ops,
            log_format=options.log_format,
        )
        durable = options.keep_events is not None
        with Publisher(job, bar.update) as publisher:
            sink = _link(publisher, segments, options.partitions or PARTITIONS, config, durable=durable)
        ledger = msgspec.structs.replace(
            sink.ledger(label),
            run=options.run or label,
            generated_at=datetime.now().astimezone().strftime("%Y-%m-%dT%H:%M:%S%z"),
            seconds=time.monotonic() - began,
        )
        groups = sink.groups(label)
        if options.out is not None:
            write_report(options.out, ledger, groups, parquet=options.parquet)
    if options.json:
        sys.stdout.write(encode_ledger(ledger).decode())
        return 0
    sys.stdout.write(summary(ledger, _contexts(groups), Style.of(sys.stdout)) + "\n")
    return 0


def _link(publisher: Publisher, folder: Path, partitions: int, config: Config, *, durable: bool) -> Sink:
    """Link and fold while the child publishes; return the sink that has it all."""
    # The child has been started: while it imports and reads, this process imports, too.
    from stream.segments import Segments

    transport = Segments.create(folder, partitions=partitions, durable=durable)
    publisher.begin(folder, durable=durable)
    from consumers.linker import Linker
    from consumers.sink import Sink
    from stream.runner import Driver, Task
    from stream.transport import SINK, link_inputs, link_task, sink_inputs

    sink = Sink(config)
    tasks = [
        *(
            Task(link_task(p), partial(Linker, config, p), link_inputs(p, partitions))
            for p in map(Partition, range(partitions))
        ),
        Task(SINK, lambda: sink, sink_inputs(partitions)),
    ]
    with transport, Driver(transport, tasks) as driver:
        driver.run(publisher.ended)
    return sink


def _contexts(groups: GroupTable) -> list[ContextTime]:
    """Sum the groups by context; those without one are left out."""
    sums: dict[str, tuple[int, int]] = {}
    columns = groups.columns
    for text, count, ns in zip(columns["context"], columns["count"], columns["total_ns"], strict=True):
        kernels, total = sums.get(text, (0, 0))
        sums[text] = (kernels + count, total + ns)
    sums.pop("[]", None)
    top = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))[:MAX_CONTEXTS]
    return [ContextTime(tuple(msgspec.json.decode(text)), *sums) for text, sums in top]


@contextlib.contextmanager
def _segments_folder(kept: Path | None) -> Iterator[Path]:
    """Give a folder for the segments: removed at the end, or put where it is to be kept.

    Raises:
        OutputError: it cannot be made, or there is something where it is to be kept.

    """
    if kept is not None and kept.exists() and (not kept.is_dir() or any(kept.iterdir())):
        raise OutputError("is not empty", where=str(kept), hint="give --keep-events a new folder")
    parent = Path(tempfile.gettempdir()) if kept is None else kept.parent
    # Named before it is made, so that a signal finds it wherever it strikes.
    folder = parent / f"{'' if kept is None else '.'}gpu-ledger-{secrets.token_hex(8)}"
    try:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot be written to: {error.strerror}", where=str(parent)) from None
        yield folder
        if kept is not None:
            folder.chmod(0o755)
            folder.replace(kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
