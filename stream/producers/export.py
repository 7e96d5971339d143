"""An Nsight Systems SQLite export as a database: opening it, its tables, what it says of itself.

Its schema changes from version to version, tables without rows are left out, and columns come and
go: so everything is looked up by name, and nothing follows from a version number.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from schemas.errors import InputError, OutputError
from stream.producers.capture import unreadable
from stream.producers.columnar import uri_of

_MARKS_OF_AN_EXPORT: Final = (
    "CUPTI_ACTIVITY_KIND_",
    "NVTX_EVENTS",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "TARGET_INFO_",
)
_SUFFIX: Final = re.compile(r"_V(\d+)$")
_HEADER_BYTES: Final = 100
_SMALLEST_PAGE: Final = 512


class Table(NamedTuple):
    """A table that has rows: its quoted name, columns, and the rowids its rows lie between.

    `low` is None where rows have no ids (a view); the table is then read in one go. `root` is the
    page its tree of rows begins at and `places` says where in a row each column stands; a column
    that is not stored in rows has no place, and without plain rows `root` is 0.
    """

    name: str
    columns: frozenset[str]
    low: int | None
    high: int
    root: int
    places: Mapping[str, int]

    @property
    def rows(self) -> int:
        """How many rows there are at most; 0 if that is not known."""
        return 0 if self.low is None else self.high - self.low + 1

    def present(self, *names: str) -> tuple[str, ...]:
        """Return those of `names` that are columns."""
        return tuple(name for name in names if name in self.columns)


class Database:
    """The export, opened for reading only; the file and its folder are left as they are.

    A file with a write-ahead log or a rollback journal beside it is not all there is: both are
    copied to a temporary folder in `folder` first, and SQLite puts them together there.

    Raises:
        InputError: no database, a truncated one, or none that Nsight Systems exported.

    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path = path
        self._parent = folder
        self.files = [path, *(beside for beside in _beside(path) if _size(beside))]
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._connection: sqlite3.Connection | None = None
        try:
            self.uri = self._prepare()
            self._connection = sqlite3.connect(self.uri, uri=True, check_same_thread=False)
            self._connection.text_factory = bytes
            self.tables = self._find_tables()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.close()
            raise self.error(error) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the database; delete the copy, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a small query; text is bytes.

        Raises:
            InputError: SQLite cannot read it.

        """
        if self._connection is None:
            raise AssertionError("the database is closed")
        try:
            return self._connection.execute(sql).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self.error(error) from None

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield rows of a small table that may not be there, None for columns that are not."""
        found = self.tables.get(table)
        if found is None or not found.columns.intersection(columns):
            return
        names = ", ".join(coalesced(found.present(column)) for column in columns)
        yield from self.query(f"SELECT {names} FROM {found.name}")

    def error(self, error: Exception) -> InputError:
        """Return what SQLite says as an error of the input.

        UnicodeDecodeError is what becomes of a message that quotes bytes of a damaged schema.
        """
        if isinstance(error, UnicodeDecodeError):
            error = sqlite3.DatabaseError(error.object.decode("utf-8", "backslashreplace"))
        what = {
            "file is not a database": "is not an SQLite database",
            "database disk image is malformed": "is damaged or was cut: SQLite finds it malformed",
        }.get(str(error), f"SQLite cannot read it: {error}")
        return InputError(what, where=str(self.path), hint="export it again")

    def _prepare(self) -> str:
        """Return the URI to open, after what can be seen from outside has been checked."""
        try:
            with self.path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
        except OSError as error:
            raise unreadable(self.path, error) from None
        if len(self.files) == 1:
            self._check_size(header)
            return uri_of(self.path, immutable=True)
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="gpu-ledger-", dir=self._parent)
            for part in self.files:
                shutil.copyfile(part, Path(self._folder.name) / part.name)
        except OSError as error:
            raise OutputError(
                f"cannot copy it with its journal to a temporary folder: {error.strerror or error}",
                where=str(self.path),
                hint="set TMPDIR to a folder with more space",
            ) from None
        copy = Path(self._folder.name) / self.path.name
        return uri_of(copy, immutable=False).replace("mode=ro", "mode=rw")

    def _check_size(self, header: bytes) -> None:
        if len(header) < _HEADER_BYTES:
            raise InputError(
                "is cut: it ends within its first page", where=str(self.path), hint="copy it again"
            )
        page = int.from_bytes(header[16:18], "big")
        page = 65536 if page == 1 else page
        if page < _SMALLEST_PAGE or page & (page - 1):
            return  # no header of SQLite's, which will say so itself
        pages = int.from_bytes(header[28:32], "big")
        size = self.path.stat().st_size
        # The count is only meant if the last writer knew of it, says SQLite's file format.
        if header[24:28] == header[92:96] and pages and page * pages > size:
            raise InputError(
                f"is cut: it has {size:,} of {page * pages:,} bytes",
                where=str(self.path),
                hint="copy it again",
            )

    def _find_tables(self) -> dict[str, Table]:
        if self._connection is None:
            raise AssertionError("the database is closed")
        found = self._connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        names = [name.decode("utf-8", "replace") for (name,) in found if isinstance(name, bytes)]
        if not any(name.startswith(_MARKS_OF_AN_EXPORT) for name in names):
            raise InputError(
                "is an SQLite database, but not one exported by Nsight Systems",
                where=str(self.path),
                hint="make one with `nsys export --type sqlite REPORT.nsys-rep`",
            )
        tables: dict[str, Table] = {}
        # Of a table and the same with a suffix such as _V2, the one with rows counts; of two, the newer.
        for name in sorted(names, key=_version):
            table = self._look_at(name)
            if table is not None:
                tables[_SUFFIX.sub("", name)] = table
        return tables

    def _look_at(self, name: str) -> Table | None:
        if self._connection is None or name.startswith("sqlite_"):
            return None
        table = quoted(name)
        columns, places = self._columns(table)
        if not self._connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():
            return None
        try:
            low, high = self._connection.execute(
                f"SELECT (SELECT min(rowid) FROM {table}), (SELECT max(rowid) FROM {table})"
            ).fetchone()
        except sqlite3.OperationalError:
            low = high = None
        if not isinstance(low, int) or not isinstance(high, int):
            return Table(table, columns, None, 0, 0, {})
        plain = self._connection.execute(
            "SELECT rootpage FROM sqlite_master "
            "WHERE type = 'table' AND name = ? AND sql NOT LIKE '%WITHOUT%ROWID%'",
            (name,),
        ).fetchone()
        return Table(table, columns, low, high, plain[0] if plain and places else 0, places)

    def _columns(self, table: str) -> tuple[frozenset[str], dict[str, int]]:
        """Return the columns of a table, and the places of those stored in its rows."""
        if self._connection is None:
            raise AssertionError("the database is closed")
        found = self._connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
        names = [row[1].decode("utf-8", "replace") for row in found]
        if any(hidden for *_, hidden in found):
            return frozenset(names), {}
        # An INTEGER PRIMARY KEY is the row's id and stands before the row, not in it.
        stored = [not (row[5] and row[2].upper() == b"INTEGER") for row in found]
        return frozenset(names), {name: i for i, name in enumerate(names) if stored[i]}


def _version(name: str) -> tuple[int, str]:
    suffix = _SUFFIX.search(name)
    return (int(suffix[1]) if suffix else 0, name)


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def coalesced(columns: Sequence[str]) -> str:
    """Return as SQL the first of columns that is not NULL; "NULL" for none."""
    names = ", ".join(map(quoted, columns))
    return f"COALESCE({names})" if len(columns) > 1 else names or "NULL"


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
