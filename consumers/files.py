"""The report's files: written beside the old ones, then put in their place.

Nothing here is half written: all files are complete and synced under temporary names before the
first of them gets its own. `groups.csv` is CSV as RFC 4180 has it (UTF-8, fields with commas,
quotes or line breaks are quoted) with two rules for the text in it, so that it opens in anything:

- A text that a spreadsheet could take for a formula (it begins with `=`, `+`, `-`, `@`, a tab or
  a carriage return), and one that begins with `'`, gets a `'` before it. To have the name back,
  take one leading `'` off. `groups.parquet` and `ledger.json` hold names as they are.
- NUL, which many readers take for the end of the file, is written as U+2400.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from schemas.errors import OutputError, UsageError
from schemas.ledger import Ledger, encode_ledger

if TYPE_CHECKING:
    from consumers.grouping import GroupTable

LEDGER_FILE: Final = "ledger.json"
GROUPS_FILE: Final = "groups.csv"
PARQUET_FILE: Final = "groups.parquet"

_TEXTS: Final = ("host", "role", "context", "kernel")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "'")
_NUL: Final = "\u2400"
_MODE: Final = 0o666
_STEP: Final = 4096


def prepare_folder(folder: Path) -> None:
    """Make the output folder if need be and see that files can be written there.

    To be called before any work is done.

    Raises:
        OutputError: they cannot.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\n")
    except OSError as error:
        raise _cannot_write(folder, error) from None


def check_parquet() -> None:
    """See that Parquet can be written.

    Raises:
        UsageError: pyarrow is not installed.

    """
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415 - 40 MB that only --parquet needs
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed", hint="pip install pyarrow"
        ) from None


def write_report(folder: Path, ledger: Ledger, groups: GroupTable, *, parquet: bool = False) -> list[Path]:
    """Write `ledger.json` and `groups.csv` (and `groups.parquet`) into a folder that exists.

    Returns the files written. A `groups.parquet` of an earlier report is taken away if there is
    no new one: it would not go with the others.

    Raises:
        OutputError: they cannot be written; what stood there before is untouched.
        UsageError: pyarrow is not installed.

    """
    if parquet:
        check_parquet()
    # The ledger comes last: when it is new, so is all that goes with it.
    writers: dict[str, Callable[[Path], None]] = {GROUPS_FILE: lambda path: _write_csv(path, groups)}
    if parquet:
        writers[PARQUET_FILE] = lambda path: _write_parquet(path, groups)
    writers[LEDGER_FILE] = lambda path: _write_bytes(path, encode_ledger(ledger))
    _replace(folder, writers)
    if not parquet:
        with contextlib.suppress(OSError):
            (folder / PARQUET_FILE).unlink()
    return [folder / name for name in writers]


def _replace(folder: Path, writers: Mapping[str, Callable[[Path], None]]) -> None:
    made: dict[str, Path] = {}
    try:
        for name, write in writers.items():
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
            os.close(handle)
            made[name] = Path(temporary)
            write(made[name])
            _sync(made[name])
        for name in writers:
            target = folder / name
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        for name, path in list(made.items()):
            path.chmod(_MODE & ~_umask())
            path.replace(folder / name)
            del made[name]
        _sync(folder)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    finally:
        for path in made.values():
            with contextlib.suppress(OSError):
                path.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(folder: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(
        f"cannot write the report: {reason}",
        where=str(folder),
        hint="free some space or give another --out" if error.errno == errno.ENOSPC else "give another --out",
    )


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _write_csv(path: Path, groups: GroupTable) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        write_csv(file, groups)


def write_csv(file: TextIO, groups: GroupTable) -> None:
    """Write the rows as CSV, a header line first; see the module's docstring."""
    writer = csv.writer(_Lines(file), lineterminator="\r\n")
    writer.writerow(groups.columns)
    columns = [_cells(name, values) for name, values in groups.columns.items()]
    writer.writerows(zip(*columns, strict=True))


class _Lines:
    r"""Ends lines with a newline only, yet has csv quote carriage returns as well.

    The csv module quotes only those line breaks that its line terminator is made of.
    """

    def __init__(self, file: TextIO) -> None:
        self._write = file.write

    def write(self, line: str) -> int:
        """Write one line, which ends with a carriage return and a newline."""
        return self._write(f"{line[:-2]}\n")


def _cells(name: str, values: list[Any]) -> Iterable[Any]:
    if name in _TEXTS:
        safe: dict[str, str] = {text: safe_text(text) for text in set(values)}
        return map(safe.__getitem__, values)
    if name == "steady":
        return ("true" if value else "false" for value in values)
    return values


def safe_text(text: str) -> str:
    """Return a text as it stands in CSV; see the module's docstring."""
    text = text.replace("\0", _NUL)
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_text(groups: GroupTable) -> str:
    """Return the rows as CSV."""
    buffer = io.StringIO()
    write_csv(buffer, groups)
    return buffer.getvalue()


def _write_parquet(path: Path, groups: GroupTable) -> None:
    import pyarrow as pa  # noqa: PLC0415 - 40 MB that only --parquet needs
    import pyarrow.parquet as pq  # noqa: PLC0415

    kinds = {name: pa.string() for name in _TEXTS} | {"steady": pa.bool_()}
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in groups.columns])
    pq.write_table(pa.table(groups.columns, schema=schema), path, compression="zstd")
