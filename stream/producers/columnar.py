"""Reads SQLite by columns: the ADBC driver's batches as numpy arrays, without the GIL.

The driver hands out an ArrowArrayStream. Its structures are few and fixed (Arrow's C stream and C
data interfaces), and calling it through ctypes lets go of the GIL, so that two threads read twice
as fast as one; readers that keep the GIL do not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import numpy as np
import numpy.typing as npt

from schemas.columns import Int64s
from schemas.errors import InputError
from schemas.types import NONE

BATCH_ROWS: Final = 16384
"""Rows a batch: a few columns of it fit into the second-level cache."""

_INTEGERS: Final = b"l"
_TEXTS: Final = (b"u", b"z")


class Texts(NamedTuple):
    """A column of text: row `i` is `data[starts[i]:ends[i]]`, bytes of any encoding.

    `starts` and `ends` int64; `data` uint8, which may hold other things besides.
    """

    starts: Int64s
    ends: Int64s
    data: npt.NDArray[np.uint8]


Column = Int64s | Texts


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = (
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ("private_data", ctypes.c_void_p),
)


class _Array(ctypes.Structure):
    pass


_Array._fields_ = (
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ("private_data", ctypes.c_void_p),
)


class _Stream(ctypes.Structure):
    _fields_ = (
        ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)),
        ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("private_data", ctypes.c_void_p),
    )


def uri_of(path: Path, *, immutable: bool) -> str:
    """Return the URI that opens an SQLite file for reading only.

    `immutable` also leaves out locks, and files beside it: only for a file nobody writes to.
    """
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro" + ("&immutable=1" if immutable else "")


class Reader:
    """A connection of one thread, reading query after query.

    Raises:
        InputError: from any method, naming `where`, if SQLite cannot read the file.

    """

    def __init__(self, uri: str, where: str) -> None:
        self._where = where
        self._open: list[Any] = []
        try:
            self._open.append(adbc_driver_sqlite.connect(uri))
            self._open.append(adbc_driver_manager.AdbcConnection(self._open[0]))
        except adbc_driver_manager.Error as error:
            self.close()
            raise self._error(str(error)) from None

    def close(self) -> None:
        """Close the connection."""
        while self._open:
            self._open.pop().close()

    def read(self, query: str, texts: frozenset[int] = frozenset()) -> Iterator[list[Column]]:
        """Yield batches of a query's columns, each int64 or, where its place is in `texts`, text.

        NULL is NONE and the empty text. The arrays are only valid until the next batch. The query
        must give integers (or NULL), and text that is never NULL, in their places: see
        `integer` and `text`.
        """
        statement = adbc_driver_manager.AdbcStatement(self._open[1])
        handle = None
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(query)
            handle, _ = statement.execute_query()
            yield from self._batches(_Stream.from_address(handle.address), texts)
        except adbc_driver_manager.Error as error:
            raise self._error(str(error)) from None
        finally:
            del handle
            statement.close()

    def _batches(self, stream: _Stream, texts: frozenset[int]) -> Iterator[list[Column]]:
        here = ctypes.addressof(stream)
        schema = _Schema()
        self._check(stream, stream.get_schema(here, ctypes.addressof(schema)))
        formats = [schema.children[i].contents.format for i in range(schema.n_children)]
        schema.release(ctypes.addressof(schema))
        odd = [
            f"column {place} of a query is of type {kind!r}"
            for place, kind in enumerate(formats)
            if kind not in (_TEXTS if place in texts else (_INTEGERS,))
        ]
        while True:
            array = _Array()
            self._check(stream, stream.get_next(here, ctypes.addressof(array)))
            if not array.release:
                return
            try:
                if array.length:
                    if odd:
                        raise self._error(odd[0])
                    yield [
                        (_texts if place in texts else _integers)(array.children[place].contents)
                        for place in range(len(formats))
                    ]
            finally:
                array.release(ctypes.addressof(array))

    def _check(self, stream: _Stream, code: int) -> None:
        if code:
            message = stream.get_last_error(ctypes.addressof(stream)) or b"unknown error"
            raise self._error(message.decode("utf-8", "backslashreplace"))

    def _error(self, message: str) -> InputError:
        what = message.rpartition("[SQLite] ")[2].strip() or message
        return InputError(f"SQLite cannot read it: {what}", where=self._where, hint="export it again")


def integer(expression: str) -> str:
    """Return SQL that gives the expression as an integer or NULL, whatever is stored."""
    return f"CAST({expression} AS INTEGER)"


def text(expression: str) -> str:
    """Return SQL that gives the expression as text, "" for NULL."""
    return f"COALESCE(CAST({expression} AS TEXT), '')"


def _buffer(array: _Array, place: int, size: int) -> int:
    address = array.buffers[place]
    return int(address) if address and size else 0


def _view(address: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    if not address or not count:
        return np.zeros(count, kind)
    data = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memoryview(data), kind, count)


def _integers(array: _Array) -> Int64s:
    end = array.offset + array.length
    values: Int64s = _view(_buffer(array, 1, end), np.int64, end)[array.offset :]
    valid = _buffer(array, 0, end)
    if not valid or not array.null_count:
        return values
    bits = np.unpackbits(_view(valid, np.uint8, -(-end // 8)), count=end, bitorder="little")
    return np.where(bits[array.offset :].view(bool), values, np.int64(NONE))


def _texts(array: _Array) -> Texts:
    end = array.offset + array.length
    bounds = _view(_buffer(array, 1, end), np.int32, end + 1)[array.offset :].astype(np.int64)
    return Texts(
        bounds[:-1], bounds[1:], _view(_buffer(array, 2, int(bounds[-1])), np.uint8, int(bounds[-1]))
    )
