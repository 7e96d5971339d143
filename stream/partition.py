"""The folder of one partition: segment files, read up to a committed end and appended to.

`Reader` and `Writer` know nothing of tasks or manifests: an `End` says up to where things are
committed. `survey` finds that end, and what to leave out, where no manifest tells: in a folder
copied out of a broker.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from schemas.errors import DecodeError, TransportError
from schemas.records import Record
from schemas.types import Offset
from stream.log import BATCH_BYTES, Batch, batch_size, batches, pack_batches
from stream.manifest import End, read_at
from stream.transport import TopicPartition

_SEGMENT: Final = re.compile(r"([0-9]{20})\.log")
_LENGTH_BYTES: Final = 12
_DAMAGED: Final = "copy the folder anew from where it is whole"
_MIN_CHUNK: Final = 64 << 10
_MAX_CHUNK: Final = 4 << 20


class Foreign(NamedTuple):
    """What `survey` finds: the end, and the base offsets of batches that were never committed."""

    end: End
    aborted: frozenset[Offset]


def segment_path(folder: Path, base: Offset) -> Path:
    """Return the file of the segment that begins at `base`."""
    return folder / f"{base:020d}.log"


def segments(folder: Path) -> list[Offset]:
    """Return the base offsets of a partition's segments in order; none if there is no folder.

    Raises:
        TransportError: the folder cannot be listed.

    """
    try:
        names = os.listdir(folder)  # noqa: PTH208  strings are all that is wanted
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TransportError(f"cannot list partition: {error.strerror}", where=str(folder)) from error
    return sorted(Offset(int(match[1])) for name in names if (match := _SEGMENT.fullmatch(name)))


class Reader:
    """Reads a partition onwards from an offset (None: from wherever it begins).

    Holds no file open between reads: following many partitions takes no descriptors. `contiguous`
    says that every offset must be there, as in folders of ours: a broker's compaction and
    markers leave gaps. `aborted` holds the base offsets of batches to leave out.
    """

    def __init__(
        self,
        folder: Path,
        place: TopicPartition,
        offset: Offset | None,
        *,
        contiguous: bool = True,
        aborted: Collection[Offset] = (),
    ) -> None:
        self._folder = folder
        self._place = place
        self._contiguous = contiguous
        self._aborted = aborted
        self._segment: Offset | None = None
        self._at = 0
        self.offset = offset
        """Of the record to be read next; None as long as that is wherever the partition begins."""

    def read(self, end: End | None, max_bytes: int) -> tuple[list[Record], int]:
        """Return records before `end` and how many bytes their batches take in the log.

        At least one batch if there is one, and no more once `max_bytes` is passed.

        Raises:
            TransportError: the log is damaged, has lost records, or cannot be read.

        """
        records: list[Record] = []
        taken = 0
        while end is not None and (self.offset is None or self.offset < end.next_offset):
            try:
                if self._segment is None:
                    self._seek()
                taken = self._read_segment(end, max_bytes, records, taken)
            except OSError as error:
                raise TransportError(f"cannot read: {error.strerror}", where=str(self._path)) from error
            except DecodeError as error:
                where = f"{self._path}, byte {self._at}"
                raise TransportError(error.what, where=where, hint=_DAMAGED) from None
            if records and taken >= max_bytes:
                break
        return records, taken

    @property
    def _path(self) -> Path:
        return self._folder if self._segment is None else segment_path(self._folder, self._segment)

    def _seek(self) -> None:
        """Find the segment to begin with."""
        bases = segments(self._folder)
        if not bases:
            raise DecodeError("partition has no segments left")
        if self.offset is None:
            self.offset = bases[0]
        elif self.offset < bases[0]:
            raise TransportError(
                f"record {self.offset} is asked for, but the partition begins at {bases[0]}",
                where=str(self._folder),
                hint="retention has passed it; start anew without the old state",
            )
        self._segment = max(base for base in bases if base <= self.offset)

    def _read_segment(self, end: End, max_bytes: int, records: list[Record], taken: int) -> int:
        """Read on in one segment and return `taken` with what that took. DecodeError if damaged."""
        last = self._segment == end.segment
        with opened(self._path) as file:
            limit = end.size if last else os.fstat(file).st_size
            while self._at < limit:
                data = self._read_chunk(file, limit, max_bytes)
                for batch in batches(data):
                    count = len(records)
                    self._take(batch, records)
                    self._at += batch.size
                    # What is passed over (before the offset, aborted) is no reason to stop: an
                    # empty answer says that there is nothing more.
                    taken += batch.size if len(records) > count else 0
                    if records and taken >= max_bytes:
                        return taken
        if not last:
            self._next_segment(end)
        elif self._contiguous and self.offset != end.next_offset:
            raise DecodeError(f"log ends before record {self.offset} instead of {end.next_offset}")
        else:
            self.offset = end.next_offset
        return taken

    def _read_chunk(self, file: int, limit: int, max_bytes: int) -> memoryview:
        """Return bytes that hold at least one whole batch."""
        wanted = min(max(max_bytes, _MIN_CHUNK), _MAX_CHUNK, limit - self._at)
        data = read_at(file, wanted, self._at)
        size = batch_size(data)
        if size is not None and len(data) < size <= limit - self._at:
            data = read_at(file, size, self._at)
        if size is None or len(data) < size:
            raise DecodeError(f"log is cut {limit - self._at} bytes before its committed end")
        return memoryview(data)

    def _take(self, batch: Batch, records: list[Record]) -> None:
        """Add the records of a batch that are not read yet, and step behind it."""
        offset = self.offset or Offset(0)
        if self._contiguous and batch.base_offset > offset:
            raise DecodeError(f"records {offset} to {batch.base_offset - 1} are missing")
        if batch.next_offset <= offset:
            return
        if not batch.control and batch.base_offset not in self._aborted:
            topic, partition = self._place
            records += [
                Record(topic, partition, entry.offset, entry.key, entry.value)
                for entry in batch.entries()
                if entry.offset >= offset
            ]
        self.offset = batch.next_offset

    def _next_segment(self, end: End) -> None:
        bases = segments(self._folder)
        following = [base for base in bases if (self._segment or Offset(0)) < base <= end.segment]
        if not following or (self._contiguous and following[0] != self.offset):
            raise DecodeError(f"segment with record {self.offset} is missing")
        self._segment = following[0]
        self._at = 0


class Writer:
    """Appends to a partition behind `end`; None if nothing of it was ever committed.

    Whatever lies behind `end` when it is made was never committed and is taken away.
    """

    def __init__(self, folder: Path, end: End | None, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file: int | None = None
        self._dirty: list[int] = []
        self._names_dirty = False
        self.end = end or End(Offset(0), 0, Offset(0))
        self._repair(end)

    def append(self, records: Iterable[tuple[bytes, bytes]], timestamp: int) -> None:
        """Append (key, value) records stamped `timestamp` ms; nobody sees them yet.

        Raises:
            OSError: it cannot be written.
            DecodeError: a record is too large.

        """
        for packed in pack_batches(records, self.end.next_offset, timestamp, BATCH_BYTES):
            segment, at = self.end.segment, self.end.size
            if at and at + len(packed.data) > self._segment_bytes:
                self._leave_segment()
                segment, at = packed.base_offset, 0
            if self._file is None:
                self._file = self._open(segment, new=not at)
            view = memoryview(packed.data)
            while view:
                written = os.pwrite(self._file, view, at)
                view, at = view[written:], at + written
            self.end = End(segment, at, packed.next_offset)

    def sync(self) -> None:
        """Make what was appended outlast a loss of power.

        Raises:
            OSError: it may not.

        """
        for file in (*self._dirty, self._file):
            if file is not None:
                os.fdatasync(file)
        if self._names_dirty:
            sync_folder(self._folder)
            sync_folder(self._folder.parent)
            self._names_dirty = False
        self.settle()

    def close(self) -> None:
        """Let go of all files."""
        self._leave_segment()
        self.settle()

    def settle(self) -> None:
        """Let go of full segments without syncing them."""
        for file in self._dirty:
            os.close(file)
        self._dirty.clear()

    def _repair(self, end: End | None) -> None:
        """Cut back to the committed end. TransportError if some of that is missing."""
        size = 0
        for base in segments(self._folder):
            path = segment_path(self._folder, base)
            try:
                if end is None or base > end.segment:
                    path.unlink()
                elif base == end.segment:
                    size = path.stat().st_size
                    if size > end.size:
                        os.truncate(path, end.size)
            except OSError as error:
                raise TransportError(f"cannot repair: {error.strerror}", where=str(path)) from error
        if end is not None and size < end.size:
            raise TransportError(
                f"{end.size - size} bytes that were committed are missing",
                where=str(segment_path(self._folder, end.segment)),
                hint=_DAMAGED,
            )

    def _open(self, segment: Offset, *, new: bool) -> int:
        self._folder.mkdir(exist_ok=True)
        self._names_dirty = True
        flags = os.O_WRONLY | (os.O_CREAT | os.O_TRUNC if new else 0)
        return os.open(segment_path(self._folder, segment), flags, 0o644)

    def _leave_segment(self) -> None:
        if self._file is not None:
            self._dirty.append(self._file)
        self._file = None


def survey(folder: Path) -> Foreign | None:
    """Look through a partition that no manifest describes; None if it is empty.

    Follows control batches: a transaction without a marker counts as aborted, since in a copy it
    will never end. A batch that is cut or fails its CRC at the very end of the last segment is a
    torn write, and left out, with a warning.

    Raises:
        TransportError: it cannot be read, or is damaged elsewhere.

    """
    end: End | None = None
    aborted: set[Offset] = set()
    running: dict[int, list[Offset]] = {}
    bases = segments(folder)
    for base in bases:
        path = segment_path(folder, base)
        at, next_offset = 0, max(base, end.next_offset if end else base)
        try:
            with opened(path) as file:
                size = os.fstat(file).st_size
                while (batch := _whole_batch(file, at, size, last=base == bases[-1])) is not None:
                    if batch.control:
                        transaction = running.pop(batch.producer_id, [])
                        if not batch.commits():
                            aborted.update(transaction)
                    elif batch.transactional:
                        running.setdefault(batch.producer_id, []).append(batch.base_offset)
                    at, next_offset = at + batch.size, batch.next_offset
        except OSError as error:
            raise TransportError(f"cannot read segment: {error.strerror}", where=str(path)) from error
        except DecodeError as error:
            raise TransportError(error.what, where=f"{path}, byte {at}", hint=_DAMAGED) from None
        if at < size:
            import structlog  # noqa: PLC0415  (takes longer to import than a small capture to link)

            structlog.get_logger().warning("left out a torn tail", file=str(path), bytes=size - at)
        end = End(base, at, next_offset)
    for transaction in running.values():
        aborted.update(transaction)
    return Foreign(end, frozenset(aborted)) if end is not None else None


def _whole_batch(file: int, at: int, size: int, *, last: bool) -> Batch | None:
    """Return the batch at a byte of a segment; None at its end or, if `last`, before a torn tail.

    DecodeError if anything else stands there.
    """
    if at >= size:
        return None
    length: int | None = 0
    try:
        length = batch_size(read_at(file, _LENGTH_BYTES, at))
        if length is not None and at + length <= size:
            batch = Batch(memoryview(read_at(file, length, at)))
            if batch.whole:
                return batch
        problem = DecodeError("record batch is cut or fails its CRC")
    except DecodeError as error:
        problem = error
    cut = length is None or at + length >= size
    # A broker that allocates files in advance leaves zeros behind the last batch.
    if last and (cut or _only_zeros(file, at, size)):
        return None
    raise problem


def _only_zeros(file: int, at: int, size: int) -> bool:
    while at < size:
        data = read_at(file, min(_MAX_CHUNK, size - at), at)
        if not data or data.count(0) < len(data):
            return not data
        at += len(data)
    return True


def sync_folder(folder: Path) -> None:
    """Make names in a folder outlast a loss of power.

    Raises:
        OSError: they may not.

    """
    with opened(folder) as file:
        os.fsync(file)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file or folder for reading, as a descriptor.

    Raises:
        OSError: it cannot be opened.

    """
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)
