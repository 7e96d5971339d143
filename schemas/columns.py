"""The one container of every binary record: prologue, msgpack header, columns, strings.

    offset  size  field (little-endian)
         0     4  magic "GPUL"
         4     1  major version: another one is refused
         5     1  minor version: a newer one is read past
         6     2  record type (`RecordType`)
         8     4  header length in bytes
        12     4  body length in bytes (columns and strings)
        16     4  CRC-32 (zlib's) of the whole record with this field as zero
        20    12  zero
        32        header, then zeros to the next multiple of 64, then the body

Columns are one-dimensional int64 to the outside. Inside, one is delta-coded when that makes it
narrower, stored in the narrowest of 1, 2, 4 or 8 bytes and byte-shuffled (all first bytes, then
all second bytes, ...), which is what a general compressor behind it likes best. A column whose
values are all the same takes no bytes. Every column starts at a multiple of 64.
A record can be read alone: it has its own string table.
"""

from __future__ import annotations

import enum
import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, overload

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.errors import DecodeError

Int64s = npt.NDArray[np.int64]
"""A one-dimensional array of int64."""

Flags = npt.NDArray[np.bool_]
"""A one-dimensional array of bool."""

MAGIC: Final = b"GPUL"
MAJOR: Final = 1
MINOR: Final = 0
MAX_NAME_BYTES: Final = 32 * 1024
"""Longer names are cut by `cut_name`."""

_PROLOGUE: Final = struct.Struct("<4sBBHIII12x")
_CRC_AT: Final = 16
_ALIGN: Final = 64
_MAX_STRINGS: Final = 1 << 20
_MAX_COLUMNS: Final = 512
"""A column takes some 500 bytes even where its record gives it none, so their number is bounded ..."""
_MAX_STATE_COLUMNS: Final = 1 << 20
"""... except in states: only their own writer reads them, and they have columns by process."""
_WIDTHS: Final = (1, 2, 4, 8)


class RecordType(enum.IntEnum):
    """What a record is for; one topic holds one type."""

    EVENTS = 1
    DELTA = 2
    STATE = 3


class ColumnEntry(msgspec.Struct, array_like=True, frozen=True):
    """Where a column lies: `offset` and `size` in bytes from the start of the body.

    `width` 0 is a column whose values all equal `base`. Of a `delta` column, row 0 is `first`
    and the others hold differences from the row before; every stored value has `base` taken off.
    """

    name: Annotated[str, msgspec.Meta(max_length=64)]
    rows: int
    width: int
    delta: bool
    base: int
    first: int
    offset: int
    size: int


class _Directory(msgspec.Struct, frozen=True):
    columns: Annotated[tuple[ColumnEntry, ...], msgspec.Meta(max_length=_MAX_COLUMNS)]
    strings: int
    strings_offset: int
    strings_size: int
    header: msgspec.Raw


class _StateDirectory(_Directory, frozen=True):
    columns: Annotated[tuple[ColumnEntry, ...], msgspec.Meta(max_length=_MAX_STATE_COLUMNS)]


_directory_decoder = msgspec.msgpack.Decoder(_Directory)
_state_directory_decoder = msgspec.msgpack.Decoder(_StateDirectory)
_directory_encoder = msgspec.msgpack.Encoder()


class Strings(Sequence[str]):
    """The string table of a record, decoded one by one when asked for."""

    __slots__ = ("_blob", "_ends")

    def __init__(self, blob: bytes, ends: Int64s) -> None:
        self._blob = blob
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        start = int(self._ends[index - 1]) if index else 0
        return self._blob[start : int(self._ends[index])].decode()

    def pick(self, indexes: Int64s) -> list[str]:
        """Return the strings at `indexes`, which lie within the table, faster than one by one."""
        starts = np.concatenate(([0], self._ends))[indexes].tolist()
        blob = self._blob
        return [blob[a:b].decode() for a, b in zip(starts, self._ends[indexes].tolist(), strict=True)]

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends.tolist():
            yield self._blob[start:end].decode()
            start = end


class Unpacked(msgspec.Struct, frozen=True):
    """A record taken apart: raw msgpack `header`, `columns` by name, `strings`."""

    record_type: int
    minor: int
    header: msgspec.Raw
    columns: dict[str, Int64s]
    strings: Strings


def pack(
    record_type: RecordType,
    header: object,
    columns: Mapping[str, Int64s],
    strings: Sequence[str] = (),
    *,
    keep: str = "",
) -> bytes:
    """Return one record.

    `columns` are int64, one-dimensional, of any lengths. `strings` must be valid UTF-8 text
    of at most `MAX_NAME_BYTES` each (see `cut_name`). At most 512 columns (a state: 2**20),
    their names at most 64 characters. `keep` names a column that is stored even if its values
    are all the same, so that a record's size bounds its rows.
    """
    entries: list[ColumnEntry] = []
    parts: list[bytes] = []
    position = 0

    def place(data: bytes) -> tuple[int, int]:
        nonlocal position
        start = position
        parts.append(data)
        pad = -len(data) % _ALIGN
        if pad:
            parts.append(bytes(pad))
        position += len(data) + pad
        return start, len(data)

    blobs = [s.encode() for s in strings]
    lengths = np.fromiter(map(len, blobs), np.int64, len(blobs))
    shrunk = {n: _shrink(v, keep=n == keep) for n, v in columns.items()}
    shrunk[_LENGTHS] = _shrink(lengths, keep=True)
    # A reader takes no column of more rows than the record has bytes: constant ones lean on
    # another that is stored, and where there is none the longest is stored itself.
    longest = max(columns, key=lambda n: len(columns[n]), default=keep)
    if columns and len(columns[longest]) > sum(len(data) for *_, data in shrunk.values()):
        shrunk[longest] = _shrink(columns[longest], keep=True)
    for name, (width, delta, base, first, data) in shrunk.items():
        rows = len(lengths if name == _LENGTHS else columns[name])
        offset, size = place(data)
        entries.append(ColumnEntry(name, rows, width, delta, base, first, offset, size))
    strings_offset, strings_size = place(b"".join(blobs))
    raw_header = msgspec.Raw(_directory_encoder.encode(header))
    head = _directory_encoder.encode(
        _Directory(tuple(entries), len(blobs), strings_offset, strings_size, raw_header)
    )
    pad = -(_PROLOGUE.size + len(head)) % _ALIGN
    tail = b"".join((head, bytes(pad), *parts))
    start = _PROLOGUE.pack(MAGIC, MAJOR, MINOR, record_type, len(head), position, 0)
    crc = zlib.crc32(tail, zlib.crc32(start))
    return b"".join((start[:_CRC_AT], crc.to_bytes(4, "little"), start[_CRC_AT + 4 :], tail))


_LENGTHS: Final = "strings.length"


def unpack(data: bytes | memoryview) -> Unpacked:
    """Take a record apart.

    What is decoded takes at most 16 times `len(data)` and a constant for each of up to 512
    columns. Columns of unknown names are returned like the rest.

    Raises:
        DecodeError: not a record of ours, another major version, cut, damaged, or lying.

    """
    view = memoryview(data)
    if len(view) < _PROLOGUE.size:
        raise DecodeError(f"record of {len(view)} bytes is shorter than its prologue")
    magic, major, minor, record_type, head_size, body_size, crc = _PROLOGUE.unpack_from(view)
    if magic != MAGIC:
        raise DecodeError("record does not begin with the magic of gpu-ledger")
    if major != MAJOR:
        raise DecodeError(f"record has format version {major}.{minor}, this program reads {MAJOR}.x")
    body_at = _PROLOGUE.size + head_size
    body_at += -body_at % _ALIGN
    if body_at + body_size != len(view):
        raise DecodeError(f"record has {len(view)} bytes, its prologue says {body_at + body_size}")
    actual = zlib.crc32(view[:_CRC_AT])
    actual = zlib.crc32(view[_CRC_AT + 4 :], zlib.crc32(b"\0\0\0\0", actual))
    if actual != crc:
        raise DecodeError("record fails its CRC")
    decoder = _state_directory_decoder if record_type == RecordType.STATE else _directory_decoder
    try:
        directory = decoder.decode(view[_PROLOGUE.size : _PROLOGUE.size + head_size])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"record header: {error}") from None
    return _unpack_body(record_type, minor, directory, view[body_at:], len(view))


def _unpack_body(
    record_type: int, minor: int, directory: _Directory, body: memoryview, record_size: int
) -> Unpacked:
    if not 0 <= directory.strings_offset <= len(body) - max(directory.strings_size, 0):
        raise DecodeError("string table lies outside the record")
    if directory.strings_size < 0:
        raise DecodeError("string table has a negative size")
    columns: dict[str, Int64s] = {}
    stored = directory.strings_size
    for entry in directory.columns:
        if not (0 <= entry.rows <= record_size and entry.width in (0, *_WIDTHS)):
            raise DecodeError(f"column {entry.name!r} has {entry.rows} rows of width {entry.width}")
        if entry.size != entry.rows * entry.width or not 0 <= entry.offset <= len(body) - entry.size:
            raise DecodeError(f"column {entry.name!r} lies outside the record")
        stored += entry.size
        if stored > len(body) or entry.name in columns:
            raise DecodeError(f"column {entry.name!r} overlaps another one")
        if not (-(2**63) <= entry.base < 2**63 and -(2**63) <= entry.first < 2**63):
            raise DecodeError(f"column {entry.name!r} has a base out of range")
        columns[entry.name] = _grow(entry, body[entry.offset : entry.offset + entry.size])
    lengths = columns.pop(_LENGTHS, np.zeros(0, np.int64))
    return Unpacked(record_type, minor, directory.header, columns, _strings(directory, body, lengths))


def _strings(directory: _Directory, body: memoryview, lengths: Int64s) -> Strings:
    count = directory.strings
    if count != len(lengths) or count > _MAX_STRINGS:
        raise DecodeError("string table does not have the length it says")
    if count and not lengths.flags.writeable:
        raise DecodeError("string table has lengths that are not stored")
    size = directory.strings_size
    if count and (int(lengths.min()) < 0 or int(lengths.max()) > size):
        raise DecodeError("string table has a length out of range")
    ends = np.cumsum(lengths, out=lengths) if count else lengths
    if (int(ends[-1]) if count else 0) != size:
        raise DecodeError("string table is not as long as its strings")
    blob = bytes(body[directory.strings_offset : directory.strings_offset + size])
    try:
        blob.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"string table is not UTF-8: {error.reason}") from None
    if count and (np.frombuffer(blob + b"\0", np.uint8)[ends] & 0xC0 == 0x80).any():
        raise DecodeError("string table cuts a character in two")
    return Strings(blob, ends)


def _shrink(values: Int64s, *, keep: bool) -> tuple[int, bool, int, int, bytes]:
    """Return (width, delta, base, first, bytes) of the narrower of the two codings."""
    if not len(values):
        return 0, False, 0, 0, b""
    low, high = int(values.min()), int(values.max())
    if low == high and not keep:
        return 0, False, low, 0, b""
    width = _width(high - low)
    if width > 1 and len(values) > 1:
        # Differences wrap modulo 2**64 and so does their sum: exact for any int64.
        steps = np.diff(values)
        step_low = int(steps.min())
        step_width = _width(int(steps.max()) - step_low)
        if step_width < width:
            stored = np.zeros(len(values), np.int64)
            np.subtract(steps, np.int64(step_low), out=stored[1:])
            return step_width, True, step_low, int(values[0]), _shuffle(stored, step_width)
    return width, False, low, 0, _shuffle(values - np.int64(low), width)


def _width(span: int) -> int:
    return next(w for w in _WIDTHS if span < 1 << (8 * w))


def _shuffle(stored: Int64s, width: int) -> bytes:
    planes = stored.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8)[:, :width]
    return planes.T.tobytes()


def _grow(entry: ColumnEntry, data: memoryview) -> Int64s:
    if not entry.width:
        # A constant column is a view of one value: it takes no memory whatever it claims.
        return np.broadcast_to(np.int64(entry.base), entry.rows)
    planes = np.frombuffer(data, np.uint8).reshape(entry.width, entry.rows)
    values = np.zeros((entry.rows, 8), np.uint8)
    values[:, : entry.width] = planes.T
    result = values.reshape(-1).view("<i8").astype(np.int64, copy=False)
    result += np.int64(entry.base)
    if entry.delta and entry.rows:
        result[0] = entry.first
        np.cumsum(result, out=result)
    return result


def cut_name(text: str) -> str:
    """Return `text` as it may stand in a string table: valid, and at most 32 KiB of UTF-8.

    Lone surrogates are backslash-escaped. What is longer is cut at a character, its length and
    a digest appended, so that two long names stay two names.
    """
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= MAX_NAME_BYTES:
        return data.decode()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    note = f"... ({len(data)} bytes, {digest})"
    return data[: MAX_NAME_BYTES - len(note)].decode("utf-8", "ignore") + note
