"""The folder results go to: made and tried before any work, and never left half-written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import OutputError


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """Make the folder and try to write there; take away what was made if the work fails.

    Raises:
        OutputError: it cannot be made, is no folder, or cannot be written to.

    """
    made = _make(folder)
    try:
        _try(folder)
        yield folder
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):  # something else stands in it by now: leave it
                path.rmdir()
        raise


def _make(folder: Path) -> list[Path]:
    """Make the folder and its parents; return those that were not there, innermost first."""
    missing = []
    try:
        for path in (folder, *folder.parents):
            if path.exists():
                break
            missing.append(path)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _refused(folder, error) from None
    return missing


def _try(folder: Path) -> None:
    try:
        handle, name = tempfile.mkstemp(prefix=".gpu-ledger-", dir=folder)
        try:
            # A full disk takes the name but not the bytes.
            os.write(handle, b"\0" * 4096)
            os.fsync(handle)
        finally:
            os.close(handle)
            os.unlink(name)  # noqa: PTH108  (mkstemp gives a name)
    except OSError as error:
        raise _refused(folder, error) from None


def _refused(folder: Path, error: Exception) -> OutputError:
    reason = getattr(error, "strerror", None) or str(error)
    return OutputError(f"cannot be written to: {reason}", where=str(folder), hint="give --out another folder")
