"""Opens captures by what is in them, whatever they are called."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from schemas.errors import InputError
from stream.producers.capture import Progress, Source, SourceOptions, unreadable
from stream.producers.kineto import KinetoSource
from stream.producers.nsys import NsysSource
from stream.producers.tracejson import has_events

__all__ = ["Progress", "Source", "SourceOptions", "find_captures", "open_source", "open_sources"]

_SQLITE: Final = b"SQLite format 3\0"
_GZIP: Final = b"\x1f\x8b"
_SUFFIXES: Final = (".sqlite", ".sqlite3", ".db", ".json", ".json.gz")
_TRACE_WITHIN: Final = 1 << 16
"""Where a trace's events begin, if it is one as the profiler writes it."""
_OTHER_JSON_BYTES: Final = 64 << 20
"""Longer JSON is not looked through to tell that it is none."""
_REPORTS: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_FORMATS: Final = "give an Nsight Systems SQLite export or a PyTorch profiler (Kineto) trace"


def open_source(path: Path, options: SourceOptions | None = None) -> Source:
    """Open a capture: an nsys SQLite export or a Kineto trace (JSON, maybe gzip).

    Raises:
        InputError: it cannot be read, or is neither.

    """
    options = options or SourceOptions()
    start = _start_of(path)
    if start == _SQLITE:
        return NsysSource(path, options)
    name = path.name.lower()
    if name.endswith(_REPORTS):
        raise InputError(
            "is a report, which only Nsight Systems reads",
            where=str(path),
            hint=f"run `nsys export --type sqlite {path.name}` and give the .sqlite file",
        )
    if not start:
        raise InputError("is empty", where=str(path), hint="copy or export it again")
    if start.startswith(_GZIP) or start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return KinetoSource(path, options)
    if name.endswith(_SUFFIXES[:3]):
        raise InputError("is not an SQLite database", where=str(path), hint="export it again")
    if name.endswith(_SUFFIXES[3:]):
        raise InputError("is not JSON", where=str(path), hint=_FORMATS)
    raise InputError("is no capture of a known format", where=str(path), hint=_FORMATS)


def open_sources(paths: Iterable[Path], options: SourceOptions | None = None) -> list[Source]:
    """Open captures and all those in folders; together they keep to the memory of one.

    Raises:
        InputError: one cannot be read or is no capture, or a folder has none.

    """
    options = options or SourceOptions()
    found = [capture for path in paths for capture in find_captures(path)]
    each = msgspec.structs.replace(options, memory=options.memory // max(1, len(found)))
    sources: list[Source] = []
    try:
        for path in found:
            sources.append(open_source(path, each))  # noqa: PERF401 -- those opened are closed on failure
    except BaseException:
        for source in sources:
            source.close()
        raise
    return sources


def find_captures(path: Path) -> list[Path]:
    """Return the captures in a folder (not in those within it) by name, or the file itself.

    JSON that is whole but no trace, such as a ledger, is no capture of a folder.

    Raises:
        InputError: the folder cannot be read or has none.

    """
    try:
        if not path.is_dir():
            return [path]
        found = sorted(
            file
            for file in path.iterdir()
            if file.name.lower().endswith(_SUFFIXES) and file.is_file() and not _is_other_json(file)
        )
    except OSError as error:
        raise unreadable(path, error) from None
    if not found:
        raise InputError("is a folder without captures", where=str(path), hint=_FORMATS)
    return found


def _is_other_json(path: Path) -> bool:
    """Tell whether a file is whole JSON of another kind; what is damaged is left to be complained of."""
    if not path.name.lower().endswith(".json"):
        return False
    with path.open("rb") as file:
        data = file.read(_TRACE_WITHIN)
        if b'"traceEvents"' in data or file.seek(0, 2) > _OTHER_JSON_BYTES:
            return False
        file.seek(0)
        data = file.read()
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return "traceEvents" not in found if isinstance(found, dict) else not has_events(found)


def _start_of(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError("is a folder", where=str(path), hint="give the captures in it")
        if not stat.S_ISREG(mode):
            raise InputError("is not a regular file", where=str(path), hint=_FORMATS)
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    except OSError as error:
        raise unreadable(path, error) from None
