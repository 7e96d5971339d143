"""What the session of some captures is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from schemas.errors import UsageError

_SUFFIXES: Final = (
    *(".kineto.json.gz", ".pt.trace.json.gz", ".json.gz", ".kineto.json", ".pt.trace.json", ".json"),
    *(".sqlite", ".sqlite3", ".db", ".nsys-rep"),
)
"""What a capture's name ends in and its session's does not; longer ones first."""

MAX_LABEL: Final = 200
"""Of a session's label, which stands in the key of every record."""


def label_of(paths: Sequence[Path], given: str | None) -> str:
    """Return the session's label: the one given, else what the captures' names have in common.

    Raises:
        UsageError: the label given is empty, too long or not printable.

    """
    if given is not None:
        check_name("--label", given)
        return given
    names = [_stem(path) for path in paths]
    common = os.path.commonprefix(names)  # noqa: RUF071  (characters are what names have in common)
    if len(set(names)) > 1:
        common = common.rstrip("0123456789").rstrip("-_. ")
    text = common or paths[0].resolve().parent.name or "session"
    clean = "".join(c if c.isprintable() else "_" for c in text)
    return clean[:MAX_LABEL] or "session"


def check_name(option: str, given: str) -> None:
    """See that what an option calls something can stand in keys, in ledgers and on a terminal.

    Raises:
        UsageError: it is empty, too long or not printable.

    """
    if not given.strip() or len(given) > MAX_LABEL or not given.isprintable():
        raise UsageError(f"{option} must be 1 to {MAX_LABEL} printable characters")


def _stem(path: Path) -> str:
    name = path.resolve().name if path.name in ("", ".", "..") else path.name
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name
