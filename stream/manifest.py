"""A task's manifest: what is committed, in one file that is replaced in one step.

    offset  size  field (little-endian)
         0     4  magic "GPLM"
         4     4  format version, 1
         8     4  head length in bytes
        12     4  CRC-32 of the head
        16        head (msgpack, see `Manifest`), then the state (msgpack, a map of its entries)

Readers who only follow the outputs read the head and leave the state alone.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import msgspec

from schemas.errors import DecodeError, TransportError
from schemas.records import Topic
from schemas.types import Offset, Partition
from stream.transport import TopicPartition

_MAGIC: Final = b"GPLM"
_VERSION: Final = 1
_PROLOGUE: Final = struct.Struct("<4sIII")
_FIRST_READ: Final = 16 * 1024
_RESTART: Final = "copy the folder back from where it is whole, or start with an empty one"


class End(msgspec.Struct, frozen=True, array_like=True):
    """Where a partition ends: in the segment that begins at offset `segment`, `size` bytes on.

    `next_offset` is that of the record that will come next.
    """

    segment: Offset
    size: int
    next_offset: Offset


class Written(msgspec.Struct, frozen=True, array_like=True):
    """A partition the task writes, and up to where that is committed."""

    topic: Topic
    partition: Partition
    end: End


class Read(msgspec.Struct, frozen=True, array_like=True):
    """A partition the task reads, and the offset it goes on from."""

    topic: Topic
    partition: Partition
    offset: Offset


class Manifest(msgspec.Struct, frozen=True):
    """The head: everything but the state. `commit` counts the task's commits from 1."""

    task: str
    commit: int
    outputs: tuple[Written, ...]
    inputs: tuple[Read, ...]
    state_size: int
    state_crc: int

    def ends(self) -> dict[TopicPartition, End]:
        """Return where each output ends."""
        return {TopicPartition(w.topic, w.partition): w.end for w in self.outputs}

    def offsets(self) -> dict[TopicPartition, Offset]:
        """Return where each input goes on."""
        return {TopicPartition(r.topic, r.partition): r.offset for r in self.inputs}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Manifest)
_state_decoder = msgspec.msgpack.Decoder(dict[str, bytes])


def pack_manifest(
    task: str,
    commit: int,
    ends: dict[TopicPartition, End],
    offsets: dict[TopicPartition, Offset],
    state: Mapping[str, bytes],
) -> bytes:
    """Return a whole manifest file."""
    entries = _encoder.encode(state)
    head = _encoder.encode(
        Manifest(
            task,
            commit,
            tuple(Written(place.topic, place.partition, end) for place, end in sorted(ends.items())),
            tuple(Read(place.topic, place.partition, offset) for place, offset in sorted(offsets.items())),
            len(entries),
            zlib.crc32(entries),
        )
    )
    return b"".join((_PROLOGUE.pack(_MAGIC, _VERSION, len(head), zlib.crc32(head)), head, entries))


def head_end(data: bytes) -> int:
    """Return where the state begins in the manifest file that `data` begins.

    Raises:
        DecodeError: it is no manifest, or of another version.

    """
    if len(data) < _PROLOGUE.size:
        raise DecodeError(f"manifest of {len(data)} bytes is cut")
    magic, version, size, _ = _PROLOGUE.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError("file is not a manifest")
    if version != _VERSION:
        raise DecodeError(f"manifest has format version {version}, this program reads {_VERSION}")
    return _PROLOGUE.size + int(size)


def unpack_head(data: bytes) -> Manifest:
    """Return the head of the manifest file that `data` begins, up to `head_end` at least.

    Raises:
        DecodeError: it is no manifest, of another version, or damaged.

    """
    head = data[_PROLOGUE.size : head_end(data)]
    if zlib.crc32(head) != _PROLOGUE.unpack_from(data)[3]:
        raise DecodeError("manifest fails its CRC")
    try:
        manifest: Manifest = _decoder.decode(head)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"manifest: {error}") from None
    return manifest


class ManifestFile:
    """Follows a manifest that another process may replace at any time.

    The file looked at last is kept open, so that its inode cannot be given to a later one: if
    the path still leads to that inode, nothing has been committed since. That costs one `stat`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._inode = (-1, -1)
        self._head: Manifest | None = None
        self._ends: dict[TopicPartition, End] = {}
        self._state_at = 0

    def head(self) -> Manifest | None:
        """Return what is committed now; None as long as nothing is.

        Raises:
            TransportError: the manifest is unreadable or damaged.

        """
        try:
            stat = os.stat(self._path)  # noqa: PTH116  a Path method costs ten times as much
            if (stat.st_dev, stat.st_ino) != self._inode:
                self._open()
        except FileNotFoundError:
            if self._head is None:
                return None
            raise TransportError("manifest has gone", where=str(self._path), hint=_RESTART) from None
        except OSError as error:
            raise TransportError(f"cannot read manifest: {error.strerror}", where=str(self._path)) from error
        except DecodeError as error:
            raise TransportError(error.what, where=str(self._path), hint=_RESTART) from None
        return self._head

    def ends(self) -> dict[TopicPartition, End]:
        """Return where each output of the task ends now; empty as long as nothing is committed.

        Raises:
            TransportError: as `head`.

        """
        self.head()
        return self._ends

    def state(self) -> dict[str, bytes] | None:
        """Return the state that goes with the last `head`; None if that was None.

        Raises:
            TransportError: it is unreadable or damaged.

        """
        if self._head is None or self._file is None:
            return None
        try:
            data = read_at(self._file, self._head.state_size, self._state_at)
        except OSError as error:
            raise TransportError(f"cannot read state: {error.strerror}", where=str(self._path)) from error
        try:
            if len(data) == self._head.state_size and zlib.crc32(data) == self._head.state_crc:
                state: dict[str, bytes] = _state_decoder.decode(data)
                return state
        except (msgspec.DecodeError, ValueError):
            pass
        raise TransportError("state in manifest is damaged", where=str(self._path), hint=_RESTART)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._inode = (-1, -1)
        self._head = None
        self._ends = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> None:
        file = os.open(self._path, os.O_RDONLY)
        try:
            data = os.pread(file, _FIRST_READ, 0)
            end = head_end(data)
            head = unpack_head(data if len(data) >= end else read_at(file, end, 0))
            stat = os.fstat(file)
        except BaseException:
            os.close(file)
            raise
        if self._file is not None:
            os.close(self._file)
        self._file, self._inode = file, (stat.st_dev, stat.st_ino)
        self._head, self._ends, self._state_at = head, head.ends(), end


def read_at(file: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes from `offset`; fewer only at the end of the file.

    Raises:
        OSError: as `os.pread`, which alone may return less than there is.

    """
    data = os.pread(file, size, offset)
    while len(data) < size and (more := os.pread(file, size - len(data), offset + len(data))):
        data += more
    return data
