"""Publishing captures: in this process, or in a child while this one links what comes.

The child tells its parent how far it has come and what went wrong; it ends with its parent.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Self, cast

from schemas import errors
from schemas.errors import GpuLedgerError, InputError
from schemas.records import Output
from stream.cli import ChildFaultError, fault_text

if TYPE_CHECKING:
    from stream.producers.publish import Published
    from stream.segments import Segments
    from stream.transport import Transport

Progress = Callable[[str, int, int], None]
"""Called with what is going on ("reading", "publishing"), rows done and rows in all."""

_STOP_SECONDS: Final = 5.0
"""How long a child that was told to end may take before it is made to."""


_TELL_SECONDS: Final = 0.1
"""How often a child tells how far it has come: as often as a person looks."""


_PARENT_ONLY: Final = (signal.SIGINT, signal.SIGHUP)
"""The terminal sends these to both; the parent ends the child by SIGTERM when it is time."""


class Job(NamedTuple):
    """What is to be published: captures, as one session."""

    captures: tuple[Path, ...]
    session: str
    cpu_ops: bool
    end_session: bool = True


class Folders(NamedTuple):
    """Where the events go, and where temporary files do."""

    segments: Path
    partitions: int
    temporary: Path
    durable: bool


def publish_captures(
    job: Job,
    opened: Callable[[], contextlib.AbstractContextManager[Transport]],
    progress: Progress,
    temporary: Path | None = None,
) -> Published:
    """Read the captures and write their events to a transport, which is `opened` once they are read.

    Temporary files go to `temporary`; None: where the system keeps them.

    Raises:
        InputError: one of them is none, or is damaged.
        OutputError: there is no space for temporary files.
        TransportError: the folder cannot be written, or another process publishes to it; or the
            brokers did not take all of it in time.

    """
    from stream.producers.publish import prepare, publish
    from stream.producers.source import SourceOptions, open_sources

    with contextlib.ExitStack() as stack:
        sources = open_sources(job.captures, SourceOptions(cpu_ops=job.cpu_ops, folder=temporary))
        for source in sources:
            stack.callback(source.close)
        prepared = prepare(sources, progress)
        from stream.runner import RecordWriter

        with opened() as transport, RecordWriter(transport) as writer:

            def write(outputs: list[Output]) -> None:
                for output in outputs:
                    writer.write(output)

            return publish(
                prepared,
                job.session,
                write,
                transport.partitions,
                progress=progress,
                end_session=job.end_session,
            )


class _Failure(NamedTuple):
    """How an error of the child comes to the parent."""

    kind: str
    what: str
    where: str
    hint: str


class _Fault(NamedTuple):
    """A fault of our own in the child."""

    text: str
    trace: str


_Message = tuple[str, int, int] | _Failure | _Fault


class Publisher:
    """A child process that publishes to a folder of segments.

    Use as a context manager: leaving it ends the child.

    Raises, from `ended`: what `publish_captures` raised in the child; InputError if it was killed.
    """

    def __init__(self, job: Job, folders: Folders, progress: Progress) -> None:
        self._progress = progress
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        self._child = context.Process(
            target=_publish_in_child,
            args=(job, folders, sender, os.getpid()),
            name="gpu-ledger-publish",
            daemon=True,  # ended with this process, even if a signal strikes before `with` is entered
        )
        # From its first moment: until it can say what it ignores, Python has Ctrl-C end in a traceback.
        # Python's own helper process would undo that if it were started meanwhile.
        resource_tracker.ensure_running()
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_ONLY)
        try:
            self._child.start()
        except FileNotFoundError:
            raise InputError("the working directory is gone", hint="change to another one") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        sender.close()

    def ended(self) -> bool:
        """Return whether all has been published; hand progress on, raise what went wrong."""
        over = not self._child.is_alive()
        while (message := self._next()) is not None:
            self._take(message)
        if over and self._child.exitcode:
            raise _killed(self._child.exitcode)
        return over

    def _next(self) -> _Message | None:
        """Return what the child has said next; None if there is nothing, or no child any more."""
        try:
            return cast("_Message", self._receiver.recv()) if self._receiver.poll() else None
        except (EOFError, OSError):  # the latter if it was killed before it read what we sent
            return None

    def _take(self, message: _Message) -> None:
        match message:
            case _Failure(kind, what, where, hint):
                raise getattr(errors, kind)(what, where=where, hint=hint)
            case _Fault(text, trace):
                fault = ChildFaultError(text)
                fault.add_note(trace)
                raise fault
            case (title, done, total):
                self._progress(title, done, total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child.is_alive():
            self._child.terminate()
            self._child.join(_STOP_SECONDS)
            if self._child.is_alive():
                self._child.kill()
        self._child.join()
        self._child.close()
        self._receiver.close()


def _killed(code: int) -> GpuLedgerError:
    if code < 0:
        name = signal.Signals(-code).name
        hint = "the machine probably ran out of memory" if -code == signal.SIGKILL else ""
        return InputError(f"the process that reads the captures was killed by {name}", hint=hint)
    return InputError(f"the process that reads the captures ended with {code}")


def _publish_in_child(job: Job, folders: Folders, sender: Connection, parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    told = ""
    told_at = 0.0

    def progress(title: str, done: int, total: int) -> None:
        nonlocal told, told_at
        now = time.monotonic()
        if title == told and now - told_at < _TELL_SECONDS:
            return
        told, told_at = title, now
        if os.getppid() != parent:
            _leave(folders)
        sender.send((title, done, total))

    message: _Message
    # What reading does not need is imported while it goes on.
    threading.Thread(target=importlib.import_module, args=("stream.segments",), daemon=True).start()

    def opened() -> Segments:
        from stream.segments import Segments

        return Segments.create(folders.segments, partitions=folders.partitions, durable=folders.durable)

    try:
        publish_captures(job, opened, progress, folders.temporary)
    except GpuLedgerError as error:
        message = _Failure(type(error).__name__, error.what, error.where, error.hint)
    except OSError as fault:
        if os.getppid() != parent:  # which is why nobody can be told how far we are
            _leave(folders)
        message = _Fault(fault_text(fault), traceback.format_exc())
    except MemoryError:
        message = _Failure(InputError.__name__, "out of memory while reading the captures", "", "")
    except Exception as fault:  # noqa: BLE001  (it is raised again in the parent)
        message = _Fault(fault_text(fault), traceback.format_exc())
    else:
        if os.getppid() != parent:
            _leave(folders)
        return
    with contextlib.suppress(OSError):
        sender.send(message)


def _leave(folders: Folders) -> NoReturn:
    """End at once, since nobody waits for the outcome: the parent was killed and cleaned up nothing."""
    for folder in (folders.temporary, folders.segments):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
