"""The standard streams, made fit for use: there even where the shell closed them, and failing in words.

    with standard_streams():
        sys.stdout.write(...)        # OutputError if it cannot be written

What the terminal's encoding does not have is written as an escape.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from schemas.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_FLAGS = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
"""How the place of a closed stream is filled: nothing comes, a result is refused, a message is lost."""


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Put a stream into the place of `sys.stdout` that says what is wrong with it; flush it at the end.

    Raises:
        OutputError: what was written cannot be put where it is to go.
        BrokenPipeError: whoever read it has gone.

    """
    _fill_gaps()
    if sys.stderr is None:  # what it is where the shell closed it
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    before = sys.stdout
    if before is not sys.__stdout__:
        yield  # somebody looks at what we write: let them
        return
    output = io.TextIOWrapper(
        io.BufferedWriter(_Output(1, "w", closefd=False)),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=getattr(before, "line_buffering", False),
    )
    sys.stdout = output
    try:
        try:
            yield
        finally:
            output.flush()
    except (OutputError, BrokenPipeError):
        # What is left would be tried again when the program ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        raise
    finally:
        with contextlib.suppress(OSError, OutputError):
            output.flush()
        sys.stdout = before


class _Output(io.FileIO):
    """Standard output, whose errors a person understands."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(
                f"cannot be written to: {error.strerror}",
                where="standard output",
                hint="free some space or send it elsewhere",
            ) from None


def _fill_gaps() -> None:
    """See that no file we open becomes a standard stream because the shell closed that one."""
    for number, flags in enumerate(_FLAGS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # noqa: FBT003
