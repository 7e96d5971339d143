"""The folder results go to: made and tried before any work, and taken away if nothing comes of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from consumers.files import prepare_folder


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Make the folder and try to write there; take away what was made if the work fails.

    Raises:
        OutputError: it cannot be made, is no folder, or cannot be written to.

    """
    # Not `Path.exists`, which raises where a name is too long; `prepare_folder` says what is wrong.
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        prepare_folder(folder)
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):  # something else stands in it by now: leave it
                path.rmdir()
        raise
