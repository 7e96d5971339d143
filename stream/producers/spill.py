"""What does not fit into memory: temporary files that nobody else sees, gone with their object."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import IO, Final, Self

from schemas.errors import OutputError

_BUFFER_BYTES: Final = 1 << 20
"""Small pieces are gathered to this size before they are written."""


class Spill:
    """A budget of memory that the parts of one capture share, and a file for what is beyond it."""

    def __init__(self, memory: int, folder: Path | None = None) -> None:
        self._left = memory
        self._folder = folder
        self._lock = threading.Lock()
        self._files: list[Appended] = []

    def fits(self, size: int) -> bool:
        """Take `size` bytes from the budget; False if it does not have them."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def bytes(self) -> Appended:
        """Return a new row of bytes, in memory as long as it fits."""
        appended = Appended(self, self._folder)
        self._files.append(appended)
        return appended

    def close(self) -> None:
        """Delete what was written."""
        for appended in self._files:
            appended.close()
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Appended:
    """A growing row of bytes that can be read anywhere; safe to use from several threads."""

    def __init__(self, spill: Spill, folder: Path | None) -> None:
        self._spill = spill
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._tail = bytearray()
        self._tail_at = 0
        self._budget = 0
        self._lock = threading.Lock()

    def append(self, data: bytes | memoryview) -> int:
        """Add bytes; return where they begin.

        Raises:
            OutputError: the temporary folder is full or cannot be written to.

        """
        with self._lock:
            at = self._tail_at + len(self._tail)
            self._tail += data
            if len(self._tail) > self._budget:
                self._grow()
            return at

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from `at` on, all of which must have been added."""
        with self._lock:
            if at >= self._tail_at:
                return bytes(self._tail[at - self._tail_at : at - self._tail_at + size])
            if at + size > self._tail_at:
                self._flush()
            if self._file is None:
                raise AssertionError("bytes before the tail without a file")
            return os.pread(self._file.fileno(), size, at)

    def close(self) -> None:
        """Delete the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _grow(self) -> None:
        if self._file is None and self._spill.fits(_BUFFER_BYTES):
            self._budget += _BUFFER_BYTES
            if len(self._tail) > self._budget:
                self._grow()
            return
        self._budget = _BUFFER_BYTES
        if len(self._tail) > _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="gpu-ledger-", dir=self._folder)  # noqa: SIM115 -- closed by `close`
            self._file.write(self._tail)
            self._file.flush()
        except OSError as error:
            where = str(self._folder or tempfile.gettempdir())
            raise OutputError(
                f"cannot write temporary rows: {error.strerror or error}",
                where=where,
                hint="set TMPDIR to a folder with more space",
            ) from None
        self._tail_at += len(self._tail)
        self._tail.clear()
