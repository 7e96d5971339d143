"""The report's files."""

from __future__ import annotations

import csv
import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from handmade import SESSION, Kernel, delta, end, fold, process
from hypothesis import given
from hypothesis import strategies as st

from consumers import files
from consumers.files import check_parquet, csv_text, prepare_folder, safe_text, write_report
from consumers.grouping import GroupTable
from consumers.sink import Sink
from schemas.config import Config
from schemas.errors import OutputError, UsageError
from schemas.ledger import GROUP_COLUMNS, decode_ledger

CONFIG = Config()
HOSTILE = [
    "two\nlines",
    "carriage\rreturn",
    'quotes "and", commas',
    "nul\0inside",
    "=cmd()",
    "+1",
    "-1",
    "@x",
    "\ttab",
    "'quoted",
    "",
    "x" * 1_000_000,
    "snowman \u2603 and \U0001f600",
    "right to left \u202e",
    "[]",
    "a;b",
]


def sink_of(names: list[str], host: str = "") -> Sink:
    """Return a sink with a kernel of each name in a context of that name."""
    kernels = [Kernel(0, 10, (name, name), name) for name in names]
    return fold(CONFIG, [delta(CONFIG, process(7, host), kernels), *end(CONFIG)])


def write(folder: Path, sink: Sink, **how: Any) -> list[Path]:
    """Write the report of a sink."""
    return write_report(folder, sink.ledger(SESSION), sink.groups(SESSION), **how)


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def name_of(cell: str) -> str:
    """Return the name in a cell, as the documentation says how to have it back."""
    return cell.removeprefix("'")


def test_hostile_names_stay_valid_csv(tmp_path: Path) -> None:
    """Any name is one cell, and can be had back."""
    assert {p.name for p in write(tmp_path, sink_of(HOSTILE))} == {"ledger.json", "groups.csv"}
    csv.field_size_limit(10_000_000)
    with (tmp_path / "groups.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file, strict=True)]
    assert sorted(name_of(row["kernel"]) for row in rows) == sorted(
        n.replace("\0", "\u2400") for n in HOSTILE
    )
    assert sorted(msgspec.json.decode(row["context"])[1] for row in rows) == sorted(HOSTILE)
    assert all(len(row) == len(GROUP_COLUMNS) and None not in row for row in rows)
    assert decode_ledger((tmp_path / "ledger.json").read_bytes()).kernel_events == len(HOSTILE)


@given(st.text(st.sampled_from("=+-@\t\r\n'\",a\0\u2603"), max_size=5))
def test_no_cell_is_a_formula(name: str) -> None:
    """No text begins with what a spreadsheet takes for one; without NUL, none is changed for good."""
    cell = safe_text(name)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert name_of(cell) == name.replace("\0", "\u2400")


def test_a_hostile_host_is_neutralised_as_well() -> None:
    """Every column of text is treated alike."""
    assert csv_text(sink_of(["k"], host="=host").groups(SESSION)).splitlines()[1].startswith("'=host,7,0,")


def test_lines_end_with_a_newline_only() -> None:
    """So that line tools see no carriage return in the last column."""
    text = csv_text(sink_of(["k", "b\rc"]).groups(SESSION))
    assert text.endswith("\n")
    assert "\r\n" not in text
    assert '"b\rc"' in text


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    """New files take the old ones' place; nothing else is left in the folder."""
    write(tmp_path, sink_of(["old"]))
    old = contents(tmp_path)
    write(tmp_path, sink_of(["new"]))
    new = contents(tmp_path)
    assert set(old) == set(new) == {"ledger.json", "groups.csv"}
    assert b"old" in old["groups.csv"]
    assert b"old" not in new["groups.csv"]


@pytest.mark.parametrize("name", ["mkstemp", "fsync", "replace", "write_csv", "encode_ledger"])
def test_a_failure_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A full disk or a missing permission is one line, and what stood there stands there still."""
    write(tmp_path, sink_of(["old"]))
    before = contents(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    where: Any = {"mkstemp": tempfile, "fsync": os, "replace": Path}.get(name, files)
    monkeypatch.setattr(where, name, fail)
    with pytest.raises(OutputError) as caught:
        write(tmp_path, sink_of(["new"]))
    monkeypatch.undo()
    assert contents(tmp_path) == before
    assert caught.value.line() == (
        f"{tmp_path}: cannot write the report: No space left on device; free some space or give another --out"
    )


def test_a_folder_in_the_way_is_found_before_anything_is_replaced(tmp_path: Path) -> None:
    """A folder called `ledger.json` does not cost the old `groups.csv`."""
    (tmp_path / "ledger.json").mkdir()
    (tmp_path / "groups.csv").write_text("old")
    with pytest.raises(OutputError, match="Is a directory"):
        write(tmp_path, sink_of(["new"]))
    assert (tmp_path / "groups.csv").read_text() == "old"
    assert len([*tmp_path.iterdir()]) == 2


def test_the_folder_is_made(tmp_path: Path) -> None:
    """With its parents, and left empty."""
    folder = tmp_path / "a" / "b"
    prepare_folder(folder)
    prepare_folder(folder)
    assert [*folder.iterdir()] == []


def test_a_folder_that_cannot_be_written_to_is_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any work is done, and in one line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        prepare_folder(tmp_path / "file")
    with pytest.raises(OutputError):
        prepare_folder(tmp_path / "file" / "folder")

    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OutputError, match="Permission denied; give another --out"):
        prepare_folder(tmp_path)


def test_files_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    """They are not as private as temporary files are."""
    mask = os.umask(0o027)
    try:
        paths = write(tmp_path, sink_of(["k"]))
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o640}


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    """With names as they are, and nulls where CSV has nothing."""
    parquet = pytest.importorskip("pyarrow.parquet")
    sink = sink_of(HOSTILE)
    assert [p.name for p in write(tmp_path, sink, parquet=True)] == [
        "groups.csv",
        "groups.parquet",
        "ledger.json",
    ]
    table = parquet.read_table(tmp_path / "groups.parquet")
    assert table.column_names == [*GROUP_COLUMNS]
    assert GroupTable(table.to_pydict()) == sink.groups(SESSION)
    write(tmp_path, sink)
    assert set(contents(tmp_path)) == {"ledger.json", "groups.csv"}


def test_parquet_without_pyarrow_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install; nothing is written."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"pip install pyarrow"):
        check_parquet()
    with pytest.raises(UsageError):
        write(tmp_path, sink_of(["k"]), parquet=True)
    assert contents(tmp_path) == {}
