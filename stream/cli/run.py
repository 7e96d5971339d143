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
from schemas.errors import OutputError, TransportError, UsageError, printable
from schemas.ledger import encode_ledger
from schemas.types import Partition
from stream.cli.labels import check_name, label_of
from stream.cli.output import output_folder
from stream.cli.progress import Progress
from stream.cli.publishing import Folders, Job, Publisher
from stream.cli.summary import MAX_CONTEXTS, ContextTime, Style, summary
from stream.config_file import load_config

if TYPE_CHECKING:
    from consumers.grouping import GroupTable
    from consumers.sink import Sink
    from stream.runner import Task

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
    label = label_of(options.captures, options.label)
    if options.run:
        check_name("--run", options.run)
    if options.keep_events is not None:
        _check_kept(options.keep_events, options.out)

    with contextlib.ExitStack() as stack:
        if options.out is not None:
            stack.enter_context(output_folder(options.out))
        temporary = stack.enter_context(_temporary_folder())
        segments = stack.enter_context(_segments_folder(options.keep_events, temporary))
        bar = stack.enter_context(Progress(shown=options.log_format == "console" and sys.stderr.isatty()))
        job = Job(
            captures=tuple(options.captures),
            session=label,
            cpu_ops=options.cpu_ops,
        )
        durable = options.keep_events is not None
        folders = Folders(segments, options.partitions or PARTITIONS, temporary, durable)
        with Publisher(job, folders, bar.update) as publisher:
            sink = _link(publisher, folders, config)
        ledger = msgspec.structs.replace(
            sink.ledger(label),
            run=options.run or label,
            generated_at=datetime.now().astimezone().strftime("%Y-%m-%dT%H:%M:%S%z"),
            seconds=time.monotonic() - began,
        )
        groups = sink.groups(label)
        written = []
        if options.out is not None:
            written = write_report(options.out, ledger, groups, parquet=options.parquet)
    if options.json:
        sys.stdout.write(encode_ledger(ledger).decode())
        return 0
    sys.stdout.write(summary(ledger, _contexts(groups), Style.of(sys.stdout)) + "\n")
    if written:
        names = ", ".join(sorted(path.name for path in written))
        sys.stdout.write("\n" + printable(f"Written to {options.out}: {names}") + "\n")
    return 0


def _link(publisher: Publisher, folders: Folders, config: Config) -> Sink:
    """Link and fold while the child publishes; return the sink that has it all.

    Raises:
        OutputError: the folder of segments cannot be written; nothing is left to go on from.

    """
    # While the child imports and reads, this process imports, too.
    from stream.runner import Driver
    from stream.segments import Segments

    segments, partitions, _, durable = folders
    try:
        with Segments.create(segments, partitions=partitions, durable=durable) as transport:
            sink, tasks = _tasks(config, partitions)
            with Driver(transport, tasks) as driver:
                driver.run(publisher.ended)
    except TransportError as error:
        elsewhere = (
            "give another --keep-events" if folders.durable else "set TMPDIR to a folder with more space"
        )
        raise OutputError(error.what, where=error.where, hint=elsewhere) from None
    return sink


def _tasks(config: Config, partitions: int) -> tuple[Sink, list[Task]]:
    """Return the sink, and what links and folds."""
    from consumers.linker import Linker
    from consumers.sink import Sink
    from stream.runner import Task
    from stream.transport import SINK, link_inputs, link_task, sink_inputs

    sink = Sink(config)
    linkers = [
        Task(link_task(p), partial(Linker, config, p), link_inputs(p, partitions))
        for p in map(Partition, range(partitions))
    ]
    return sink, [*linkers, Task(SINK, lambda: sink, sink_inputs(partitions))]


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


def _check_kept(kept: Path, out: Path | None) -> None:
    """See that the events can be put where they are to be kept.

    Raises:
        UsageError: that is where the report goes.
        OutputError: there is something, or no one can look.

    """
    new = "give --keep-events a new folder"
    try:
        if out is not None and kept.resolve() == out.resolve():
            raise UsageError("--keep-events and --out are the same folder", where=str(kept), hint=new)
        if kept.is_symlink() or (kept.exists() and not kept.is_dir()):
            raise OutputError("is there already and no folder", where=str(kept), hint=new)
        if kept.is_dir() and any(kept.iterdir()):
            raise OutputError("is not empty", where=str(kept), hint=new)
        if kept.is_mount():
            raise OutputError("is where a disk is mounted", where=str(kept), hint="name a folder in it")
    except (OSError, RuntimeError) as error:  # the latter: a link to itself
        raise _cannot_write(kept, error, new) from None


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Give a folder that is removed at the end, for all that both processes need for a while.

    Raises:
        OutputError: it cannot be made.

    """
    hint = "set TMPDIR to a folder that can be written to"
    try:
        parent = Path(tempfile.gettempdir())
    except OSError as error:
        raise OutputError(f"no folder for temporary files: {error.strerror or error}", hint=hint) from None
    # Named before it is made, so that a signal finds it wherever it strikes.
    folder = parent / f"gpu-ledger-{secrets.token_hex(8)}"
    try:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise _cannot_write(parent, error, hint) from None
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _segments_folder(kept: Path | None, temporary: Path) -> Iterator[Path]:
    """Give a folder for the segments: a temporary one, or one put where it is to be kept at the end.

    Raises:
        OutputError: it cannot be made, or not be put there.

    """
    if kept is None:
        yield temporary / "segments"
        return
    hint = "give another --keep-events"
    # Named before it is made, so that a signal finds it wherever it strikes.
    folder = kept.parent / f".gpu-ledger-{secrets.token_hex(8)}"
    try:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise _cannot_write(kept.parent, error, hint) from None
        yield folder
        try:
            folder.chmod(0o755)
            folder.replace(kept)
        except OSError as error:  # such as another run that kept its events there first
            raise _cannot_write(kept, error, hint) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cannot_write(path: Path, error: Exception, hint: str) -> OutputError:
    reason = error.strerror if isinstance(error, OSError) else None
    return OutputError(f"cannot be written to: {reason or error}", where=str(path), hint=hint)
