"""Reads the rows of SQLite tables off the file's pages, all rows of many pages together.

SQLite's own way, value by value, takes most of the time of reading a capture. Its file format is
fixed for ever and simple where it matters: rows lie in the leaf pages of a tree, each with a
header of types. Here numpy follows the headers of some ten thousand rows at once, more than
twice as fast. It only does the plain case: whatever is odd about a row (a value of another type,
a row longer than a page, a row from before a column was added) raises `OddError`, and these rows are
asked of SQLite instead.

Numbers in comments are section numbers of https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.columns import Int64s
from schemas.errors import InputError
from schemas.types import NONE
from stream.producers.columnar import Column, Texts

JOB_BYTES: Final = 16 << 20
"""Bytes of pages that are one thread's work."""

_PIECE_BYTES: Final = 1 << 20
"""Bytes of pages handled together: their arrays stay within the second-level cache."""

_INTERIOR, _LEAF = 5, 13
_UTF8: Final = 1
_MAX_DEPTH: Final = 20

_SIZES: Final = np.zeros(128, np.int64)
_SIZES[:8] = (0, 1, 2, 3, 4, 6, 8, 8)
_SIZES[12:] = (np.arange(12, 128) - 12) >> 1
_SHIFTS: Final = np.maximum(0, 64 - 8 * _SIZES[:10])
_CONSTANTS: Final = np.array([NONE, 0, 0, 0, 0, 0, 0, 0, 0, 1], np.int64)
"""What integers of no bytes are: NULL, 0 and 1 (2.1)."""

_Bytes = npt.NDArray[np.uint8]


class OddError(Exception):
    """Something here is not the plain case; SQLite is to be asked."""


class Pages:
    """The pages of a database nobody writes to and that has no log beside it.

    Raises:
        OddError: the header is not one of a plain database.

    """

    def __init__(self, path: Path) -> None:
        self._where = str(path)
        self._file = os.open(path, os.O_RDONLY)
        header = os.pread(self._file, 100, 0)
        size = int.from_bytes(header[16:18], "big")
        self._page = 65536 if size == 1 else size
        self._usable = self._page - header[20]  # 1.3.4
        self._count = os.fstat(self._file).st_size // max(1, self._page)
        if int.from_bytes(header[56:60], "big") != _UTF8:
            self.close()
            raise OddError("text is not UTF-8")

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def jobs(self, root: int) -> list[Int64s]:
        """Return the numbers of a table's leaf pages, in order of its rows, a part for each job.

        Raises:
            InputError: the tree of pages is broken.

        """
        level = np.array([root], np.int64)
        for _ in range(_MAX_DEPTH):
            if not len(level) or len(level) > self._count:
                break
            if self._load(level[:1])[0] == _LEAF:
                return _parts(level, JOB_BYTES // self._page)
            try:
                level = self._children(level)
            except IndexError:
                break
        raise self._damaged(f"the table at page {root} has no end")

    def pieces(self, leaves: Int64s) -> list[Int64s]:
        """Return leaf pages in parts that `read` handles well."""
        return _parts(leaves, _PIECE_BYTES // self._page)

    def read(self, leaves: Int64s, wanted: Sequence[tuple[int, ...]], texts: frozenset[int]) -> list[Column]:
        """Return the columns of the rows in leaf pages, as a batch of `columnar.Reader.read`.

        Each of `wanted` is the place of a column in the table, or several: the first of them that
        is not NULL counts; or none: the column is NULL.

        Raises:
            InputError: a page is broken.
            OddError: something in these pages is not the plain case.

        """
        data = self._load(leaves)
        try:
            return self._columns(data, len(leaves), wanted, texts)
        except IndexError:
            raise OddError("a page points outside itself") from None

    def row_ids(self, leaves: Int64s) -> tuple[int, int]:
        """Return the ids of the first and the last row in leaf pages; (0, -1) if there are none.

        Raises:
            InputError: a page is broken.

        """
        found: list[int] = []
        for numbers in (leaves, leaves[::-1]):
            for number in numbers.tolist():
                data = self._load(np.array([number], np.int64)).tobytes()
                cells = int.from_bytes(data[3:5], "big")
                if cells:
                    place = 8 + (2 * (cells - 1) if found else 0)
                    try:
                        found.append(_row_id(data, int.from_bytes(data[place : place + 2], "big")))
                    except IndexError:
                        raise self._damaged(f"page {number} points outside itself") from None
                    break
        return (found[0], found[1]) if len(found) == 2 else (0, -1)

    def _damaged(self, why: str) -> InputError:
        return InputError(f"is damaged or was cut: {why}", where=self._where, hint="export it again")

    def _load(self, numbers: Int64s) -> _Bytes:
        """Return pages one behind the other, with eight bytes to spare."""
        if not 1 <= int(numbers.min()) <= int(numbers.max()) <= self._count:
            raise self._damaged("a page number is outside the file")
        size = self._page
        data = np.zeros(len(numbers) * size + 8, np.uint8)
        view = data.data
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
            part = view[low * size : high * size]
            if os.preadv(self._file, [part], (int(numbers[low]) - 1) * size) != len(part):
                raise self._damaged("it ends within a page")
        return data

    def _cells(self, data: _Bytes, pages: int, kind: int, header: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return of each cell where it begins in `data`, where its page does; and cells a page (1.6)."""
        starts = np.arange(pages) * self._page
        if (data[starts] != kind).any():
            raise self._damaged("a page is not what its place in the tree asks for")
        counts = _big16(data, starts + 3)
        before = np.cumsum(counts) - counts
        page = np.repeat(starts, counts)
        pointers = page + header + 2 * (np.arange(len(page)) - np.repeat(before, counts))
        return page + _big16(data, pointers), page, counts

    def _children(self, level: Int64s) -> Int64s:
        """Return the pages below a level of interior pages, in order."""
        data = self._load(level)
        cells, _, counts = self._cells(data, len(level), _INTERIOR, 12)
        children = np.empty(len(cells) + len(level), np.int64)
        last = np.cumsum(counts + 1) - 1
        inner = np.ones(len(children), bool)
        inner[last] = False
        children[inner] = _big32(data, cells)
        children[last] = _big32(data, np.arange(len(level)) * self._page + 8)
        return children

    def _columns(
        self, data: _Bytes, pages: int, wanted: Sequence[tuple[int, ...]], texts: frozenset[int]
    ) -> list[Column]:
        cells, page, _ = self._cells(data, pages, _LEAF, 8)
        payload, at = _varints(data, cells)
        _, at = _varints(data, at)
        if (payload > self._usable - 35).any():
            raise OddError("a row goes on in another page")
        if (at + payload > page + self._usable).any():
            raise OddError("a row goes beyond its page")
        places = {place for column in wanted for place in column}
        fields = _follow(data, at, payload, places)
        columns: list[Column] = []
        for number, column in enumerate(wanted):
            if number in texts:
                columns.append(_texts(data, *fields[column[0]]) if column else _no_texts(len(cells)))
                continue
            columns.append(_first_of(data, [fields[place] for place in column], len(cells)))
        return columns


def _parts(pages: Int64s, size: int) -> list[Int64s]:
    size = max(1, size)
    return [pages[low : low + size] for low in range(0, len(pages), size)]


def _follow(data: _Bytes, at: Int64s, payload: Int64s, places: set[int]) -> dict[int, tuple[Int64s, Int64s]]:
    """Return the type and place of the fields at `places`, of every record (2.1)."""
    sizes = data[at]
    if not len(at):
        return dict.fromkeys(places, (at, at))
    if (sizes >= 128).any():
        raise OddError("a record's header is long")
    end = at + sizes
    here = at + 1
    body = end.copy()
    fields: dict[int, tuple[Int64s, Int64s]] = {}
    for place in range(max(places, default=-1) + 1):
        if (here >= end).any():
            raise OddError("a row is older than a column")
        kind: npt.NDArray[np.integer] = data.take(here)
        if int(kind.max()) < 128:
            size = _SIZES.take(kind)
            here += 1
        else:
            kind, here = _varints(data, here)
            size = np.where(kind < 12, _SIZES[np.minimum(kind, 12)], (kind - 12) >> 1)
        if place in places:
            fields[place] = (kind.astype(np.int64), body.copy())
        body += size
    if (body > at + payload).any():
        raise OddError("a record is shorter than its header says")
    return fields


def _varints(data: _Bytes, at: Int64s) -> tuple[Int64s, Int64s]:
    """Return the numbers at places and where they end (1.6: 7 bits a byte, the highest first)."""
    values = data[at].astype(np.int64)
    at = at + 1
    rows = np.flatnonzero(values >= 128)
    if not len(rows):
        return values, at
    values[rows] &= 127
    for _ in range(7):
        more = data[at[rows]].astype(np.int64)
        at[rows] += 1
        values[rows] = values[rows] << 7 | more & 127
        rows = rows[more >= 128]
        if not len(rows):
            return values, at
    raise OddError("a number is longer than any sensible one")


def _integers(data: _Bytes, kind: Int64s, at: Int64s) -> Int64s:
    if ((kind > 9) | (kind == 7)).any():
        raise OddError("a value is no integer")
    words: npt.NDArray[np.int64] = np.ndarray((len(data) - 7,), ">i8", data.data, strides=(1,))
    values = words[at].astype(np.int64)
    values >>= _SHIFTS.take(kind)
    empty = (kind == 0) | (kind >= 8)
    return np.where(empty, _CONSTANTS.take(kind), values) if empty.any() else values


def _first_of(data: _Bytes, fields: Sequence[tuple[Int64s, Int64s]], rows: int) -> Int64s:
    """Return of each row the first field that is not NULL."""
    if not fields:
        return np.full(rows, NONE, np.int64)
    values = _integers(data, *fields[0])
    for field in fields[1:]:
        absent = values == NONE
        if not absent.any():
            break
        values = np.where(absent, _integers(data, *field), values)
    return values


def _texts(data: _Bytes, kind: Int64s, at: Int64s) -> Texts:
    if ((kind != 0) & ((kind < 13) | (kind & 1 == 0))).any():
        raise OddError("a value is no text")
    return Texts(at, at + np.where(kind == 0, 0, (kind - 13) >> 1), data)


def _no_texts(rows: int) -> Texts:
    nothing = np.zeros(rows, np.int64)
    return Texts(nothing, nothing, np.zeros(0, np.uint8))


def _big16(data: _Bytes, at: Int64s) -> Int64s:
    return data[at].astype(np.int64) << 8 | data[at + 1]


def _big32(data: _Bytes, at: Int64s) -> Int64s:
    return _big16(data, at) << 16 | _big16(data, at + 2)


def _row_id(data: bytes, at: int) -> int:
    """Return the row id of one cell."""
    while data[at] >= 128:
        at += 1
    value = 0
    for place in range(1, 10):
        byte = data[at + place]
        value = value << 8 | byte if place == 9 else value << 7 | byte & 127
        if byte < 128:
            break
    return value - (1 << 64) if value >= 1 << 63 else value
