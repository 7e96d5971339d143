"""Reading SQLite's pages: the same values as SQLite gives, or none at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import InputError
from schemas.types import NONE
from stream.producers.columnar import Reader, Texts, integer, text, uri_of
from stream.producers.pages import OddError, Pages

NUMBERS = st.one_of(
    st.none(),
    st.sampled_from([0, 1, -1, 127, 128, -129, 2**15, 2**23, -(2**31), 2**47, -(2**47) - 1, 2**63 - 1]),
    st.integers(-(2**63) + 1, 2**63 - 1),
)
TEXTS = st.one_of(st.none(), st.text(max_size=9), st.sampled_from(["x" * 57, "y" * 58, "z" * 300]))
ANYTHING = st.one_of(
    NUMBERS, TEXTS, st.floats(allow_nan=False), st.binary(max_size=9), st.just("long" * 2000)
)


def make(path: Path, rows: list[tuple[Any, ...]], page: int, sql: str = "CREATE TABLE t (a, b, c, d)") -> int:
    """Write rows to a table of a new database; return the page the table begins at."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page}")
        connection.execute(sql)
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
        connection.commit()
        return cast(
            "int", connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()[0]
        )


def plain(batches: list[list[Any]]) -> list[tuple[Any, ...]]:
    """Return the rows of batches of columns, text as bytes."""
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        columns = [
            [column.data[low:high].tobytes() for low, high in zip(column.starts, column.ends, strict=True)]
            if isinstance(column, Texts)
            else column.tolist()
            for column in batch
        ]
        rows += zip(*columns, strict=True)
    return rows


def by_pages(path: Path, root: int, wanted: list[tuple[int, ...]]) -> list[tuple[Any, ...]]:
    """Return columns read off the pages; the fourth column of the table is text."""
    with closing(Pages(path)) as pages:
        pieces = [piece for job in pages.jobs(root) for piece in pages.pieces(job)]
        return plain([pages.read(piece, wanted, frozenset({2})) for piece in pieces])


def by_sqlite(path: Path) -> list[tuple[Any, ...]]:
    """Return the same columns as SQLite gives them."""
    columns = f"{integer('a')}, {integer('COALESCE(b, c)')}, {text('d')}, {integer('NULL')}"
    with closing(Reader(uri_of(path, immutable=True), str(path))) as reader:
        return plain(
            [
                [
                    np.array(c) if not isinstance(c, Texts) else Texts(c.starts, c.ends, c.data.copy())
                    for c in batch
                ]
                for batch in reader.read(f"SELECT {columns} FROM t", frozenset({2}))
            ]
        )


WANTED: list[tuple[int, ...]] = [(0,), (1, 2), (3,), ()]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, TEXTS), min_size=1, max_size=60),
    st.sampled_from([512, 4096, 65536]),
    st.integers(1, 40),
)
def test_plain_rows_are_read_as_sqlite_reads_them(
    tmp_path: Path, rows: list[tuple[Any, ...]], page: int, times: int
) -> None:
    """Integers of every width, NULLs, short and long text, one level of pages or several."""
    root = make(tmp_path / "t.db", rows * times, page)
    expected = by_sqlite(tmp_path / "t.db")
    assert len(expected) == len(rows) * times
    try:
        assert by_pages(tmp_path / "t.db", root, WANTED) == expected
    except OddError:
        assert any(len((row[3] or "").encode()) > 200 for row in rows)
        assert page == 512


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING), min_size=1, max_size=20))
def test_odd_rows_are_read_rightly_or_refused(tmp_path: Path, rows: list[tuple[Any, ...]]) -> None:
    """Floats, blobs, text for numbers, rows longer than a page: never a wrong value."""
    root = make(tmp_path / "t.db", rows, 1024)
    try:
        found = by_pages(tmp_path / "t.db", root, WANTED)
    except OddError:
        return
    assert found == by_sqlite(tmp_path / "t.db")


def test_holes_and_freed_pages_are_no_rows(tmp_path: Path) -> None:
    """What was deleted still stands in the file, but not in the tree."""
    path = tmp_path / "t.db"
    root = make(path, [(i, i, i, f"row {i}") for i in range(20_000)], 512)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM t WHERE a % 3 = 0 OR a BETWEEN 5000 AND 9000")
        connection.execute("INSERT INTO t VALUES (-5, NULL, 7, 'new')")
        connection.commit()
    assert by_pages(path, root, WANTED) == by_sqlite(path)


def test_rows_from_before_a_column_was_added_are_refused(tmp_path: Path) -> None:
    """They are shorter, and SQLite knows what stands in the column for them."""
    path = tmp_path / "t.db"
    root = make(path, [(1, 2, 3, "x")], 4096)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE t ADD COLUMN e DEFAULT 5")
    with pytest.raises(OddError):
        by_pages(path, root, [(4,)])


def test_row_ids_bound_the_rows_of_pages(tmp_path: Path) -> None:
    """So that just these rows can be asked of SQLite."""
    path = tmp_path / "t.db"
    root = make(path, [(i, i, i, "x") for i in range(5000)], 512)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE t SET rowid = rowid - 4611686018427387904 WHERE rowid < 100")
        connection.commit()
    with closing(Pages(path)) as pages:
        (leaves,) = pages.jobs(root)
        ids = [pages.row_ids(leaves[i : i + 7]) for i in range(0, len(leaves), 7)]
    assert ids[0][0] == 1 - 4611686018427387904
    assert ids[-1][1] == 5000
    assert all(low <= high for low, high in ids)
    assert all(a[1] < b[0] for a, b in pairwise(ids))


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    """Its one page is a leaf without cells."""
    root = make(tmp_path / "t.db", [], 4096)
    assert by_pages(tmp_path / "t.db", root, WANTED) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(512, 512 * 40 - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_pages_raise_nothing_unforeseen(tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    """Whatever stands in them: values, `OddError`, or the one error for bad input."""
    path = tmp_path / "t.db"
    root = make(path, [(i, None, i * 7, f"row {i}") for i in range(700)], 512)
    data = bytearray(path.read_bytes())
    for place, value in damage:
        data[place % len(data)] = value
    path.write_bytes(data)
    try:
        rows = by_pages(path, root, WANTED)
    except (OddError, InputError):
        return
    assert all(row[3] == NONE for row in rows)
