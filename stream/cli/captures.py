"""Which files are meant, and what the session of them is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from schemas.errors import InputError, UsageError

SUFFIXES: Final = (".sqlite", ".sqlite3", ".db", ".json", ".json.gz", ".nsys-rep")
"""Files of a folder that are taken for captures; a file that is named is taken whatever its name."""

MAX_LABEL: Final = 200
"""Of a session's label, which stands in the key of every record."""


def find_captures(paths: Sequence[Path]) -> list[Path]:
    """Return the files that are meant; of a folder, those in it that look like captures.

    Raises:
        InputError: a folder has none, or cannot be read.

    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        try:
            inside = sorted(p for p in path.iterdir() if _looks_like_one(p))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
        # An export lies beside the report it was made of: then the report itself is not meant.
        exports = [p for p in inside if p.suffix != ".nsys-rep"]
        if not inside:
            raise InputError(
                "a folder without captures",
                where=str(path),
                hint="captures end in .sqlite (nsys export --type sqlite), .json or .json.gz",
            )
        found += exports or inside
    return found


def _looks_like_one(path: Path) -> bool:
    # What `synth` writes beside a capture is the truth about it, not another capture.
    return path.name.endswith(SUFFIXES) and not path.name.endswith(".truth.json") and path.is_file()


def label_of(paths: Sequence[Path], given: str | None) -> str:
    """Return the session's label: the one given, else what the captures' names have in common.

    Raises:
        UsageError: the label given is empty, too long or not printable.

    """
    if given is not None:
        if not given.strip() or len(given) > MAX_LABEL or not given.isprintable():
            raise UsageError(f"--label must be 1 to {MAX_LABEL} printable characters")
        return given
    names = [_stem(path) for path in paths]
    common = os.path.commonprefix(names)  # noqa: RUF071  (characters are what names have in common)
    if len(set(names)) > 1:
        common = common.rstrip("0123456789").rstrip("-_. ")
    text = common or paths[0].resolve().parent.name or "session"
    clean = "".join(c if c.isprintable() else "_" for c in text)
    return clean[:MAX_LABEL] or "session"


def _stem(path: Path) -> str:
    name = path.resolve().name if path.name in ("", ".", "..") else path.name
    for suffix in (".kineto.json.gz", ".pt.trace.json.gz", ".pt.trace.json", ".kineto.json", *SUFFIXES):
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name
