"""Topics in a folder, in Kafka's own on-disk format: the transport that needs no broker.

    folder/meta.json                     {"format": 1, "partitions": 4}
    folder/events-0/00000000000000000000.log, ...   record batches v2, rolled by size
    folder/commits/link-0                the task's manifest, replaced atomically
    folder/commits/link-0.lock           held (flock) by whoever runs the task

    Segments.create(folder, partitions=4)    makes it, or opens it: UsageError if it has another count
    Segments.open(folder)                    opens what is there; TransportError if nothing is

    durable=False                            no fsync: for folders thrown away after `run`
    transport.partitions, .claim(task, inputs), .records(place): see `stream.transport`

A folder without `meta.json` that holds partition folders (`events-0`, ...) as a broker has them,
or as they were copied out of one, opens as well, for reading only: everything in it counts as
committed but transactions that were aborted or had not ended, and a torn tail. It is read as it
was when it was opened.

A commit:

    1. append   the outputs, behind what is committed
    2. sync     every file appended to, and the folders of new ones
    3. manifest write the new one beside the old one, and sync it
    4. swap     rename it over the old one, and sync the folder

Readers stop where the manifest of a partition's owner says that it ends; a claim cuts the task's
outputs back to there first. So a crash before 4 leaves nothing, one after it everything.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Self

import msgspec

from schemas.errors import DecodeError, TransportError, UsageError
from schemas.records import Output, Record, Topic
from schemas.types import Offset, Partition
from stream.log import partition_for
from stream.manifest import End, ManifestFile, pack_manifest
from stream.partition import Foreign, Reader, Writer, survey, sync_folder
from stream.transport import Failpoint, TopicPartition, owner, pass_point

SEGMENT_BYTES: Final = 128 << 20
"""A segment is left for a new one before it grows larger than this."""

MAX_PARTITIONS: Final = 1024
"""More would be a mistake: every linker reads the windows of all partitions."""

_FORMAT: Final = 1
_AGAIN: Final = "mend that and start again: it resumes from the last commit"


class _Meta(msgspec.Struct, frozen=True):
    format: int
    partitions: int


class Segments:
    """A folder of topics. Holds a manifest file of each task it follows open until closed."""

    def __init__(
        self,
        folder: Path,
        partitions: int,
        *,
        durable: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        failpoint: Failpoint = pass_point,
        events: Segments | None = None,
        foreign: str | None = None,
    ) -> None:
        """Use `create` or `open`. `foreign` is the prefix of the names in a folder not of ours."""
        self.folder = folder
        self._partitions = partitions
        self.durable = durable
        self.segment_bytes = segment_bytes
        self.failpoint = failpoint
        self._events = events
        self._foreign = foreign
        self._manifests: dict[str, ManifestFile] = {}
        self._surveys: dict[TopicPartition, Foreign | None] = {}

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        partitions: int,
        durable: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        failpoint: Failpoint = pass_point,
        events: Segments | None = None,
    ) -> Self:
        """Return the folder with this many partitions, made if it is not there.

        With `events`, that topic is read from another folder, such as an archive.

        Raises:
            UsageError: the folder, or that of `events`, has another partition count.
            TransportError: it cannot be made, or is not one of ours.

        """
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise UsageError(f"{partitions} partitions asked for; 1 to {MAX_PARTITIONS} are possible")
        if events is not None and events.partitions != partitions:
            raise _other_count(events.folder, events.partitions, partitions)
        if _foreign_partitions(folder, ""):
            raise TransportError(
                "folder holds partitions of a broker", where=str(folder), hint="write into another one"
            )
        try:
            (folder / "commits").mkdir(parents=True, exist_ok=True)
            with _locked(folder / "commits" / "meta.lock", blocking=True):
                if not (folder / "meta.json").exists():
                    data = msgspec.json.encode(_Meta(_FORMAT, partitions))
                    _replace(folder / "meta.json", data, durable=durable)
                    if durable:
                        sync_folder(folder.parent)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        meta = _read_meta(folder)
        if meta is None or meta.partitions != partitions:
            raise _other_count(folder, meta.partitions if meta else 0, partitions)
        return cls(
            folder,
            partitions,
            durable=durable,
            segment_bytes=segment_bytes,
            failpoint=failpoint,
            events=events,
        )

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        durable: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        failpoint: Failpoint = pass_point,
        prefix: str = "",
    ) -> Self:
        """Return a folder that is there.

        In a broker's folder, partition folders are called `<prefix><topic>-<partition>`.

        Raises:
            TransportError: there is none, or it cannot be read.

        """
        meta = _read_meta(folder)
        if meta is not None:
            if not (folder / "commits").is_dir():
                raise TransportError(
                    "log has lost its commits",
                    where=str(folder),
                    hint="copy the whole folder, not a part of it",
                )
            return cls(
                folder, meta.partitions, durable=durable, segment_bytes=segment_bytes, failpoint=failpoint
            )
        partitions = _foreign_partitions(folder, prefix)
        if not partitions:
            raise TransportError("no log in this folder", where=str(folder), hint="publish into it first")
        return cls(folder, partitions, failpoint=failpoint, foreign=prefix)

    @property
    def partitions(self) -> int:
        """How many partitions every topic has."""
        return self._partitions

    def claim(self, task: str, inputs: Iterable[TopicPartition]) -> SegmentsClaim:
        """Take a task over: lock it, cut its outputs back to the last commit, seek.

        Raises:
            TransportError: another process holds it, or what it left cannot be read or mended.

        """
        if self._foreign is not None:
            raise TransportError("folder of a broker can only be read", where=str(self.folder))
        return SegmentsClaim(self, task, tuple(inputs))

    def records(self, place: TopicPartition) -> Iterator[Record]:
        """Yield everything committed to a partition up to now, from its beginning.

        Raises:
            TransportError: it cannot be read.

        """
        reader, end = self.reader(place, None), self.end(place)
        while records := reader.read(end, 1)[0]:
            yield from records

    def reader(self, place: TopicPartition, offset: Offset | None) -> Reader:
        """Return a reader of a partition from an offset on; None: from its beginning."""
        if self._events is not None and place.topic is Topic.EVENTS:
            return self._events.reader(place, offset)
        folder = self.partition_folder(place)
        if self._foreign is None:
            return Reader(folder, place, offset)
        found = self._survey(place)
        return Reader(folder, place, offset, contiguous=False, aborted=found.aborted if found else ())

    def end(self, place: TopicPartition) -> End | None:
        """Return where a partition ends now; None as long as nothing is committed to it.

        Raises:
            TransportError: its owner's manifest is damaged.

        """
        if self._events is not None and place.topic is Topic.EVENTS:
            return self._events.end(place)
        if self._foreign is not None:
            found = self._survey(place)
            return found.end if found else None
        task = owner(place)
        if task not in self._manifests:
            self._manifests[task] = ManifestFile(self.manifest_path(task))
        return self._manifests[task].ends().get(place)

    def partition_folder(self, place: TopicPartition) -> Path:
        """Return the folder of a partition's segments."""
        return self.folder / f"{self._foreign or ''}{place.topic}-{place.partition}"

    def manifest_path(self, task: str) -> Path:
        """Return the file a task's commits replace."""
        return self.folder / "commits" / task

    def close(self) -> None:
        """Let go of all files."""
        for manifest in self._manifests.values():
            manifest.close()
        self._manifests.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _survey(self, place: TopicPartition) -> Foreign | None:
        if place not in self._surveys:
            self._surveys[place] = survey(self.partition_folder(place))
        return self._surveys[place]


class SegmentsClaim:
    """A task of a folder, held by this process: see `stream.transport.Claim`."""

    def __init__(self, home: Segments, task: str, inputs: tuple[TopicPartition, ...]) -> None:
        self._home = home
        self._task = task
        self._path = home.manifest_path(task)
        self._usable = True
        self._turn = 0
        self._files = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self._files.close)
            self._fence()
            try:
                self._restore()
                self._seek(inputs)
            except OSError as error:
                raise _cannot_write(home.folder, error) from error
            undo.pop_all()

    @property
    def state(self) -> Mapping[str, bytes] | None:
        """The state of the last commit before this claim; None if there was none."""
        return self._state

    def poll(self, max_bytes: int) -> list[Record]:
        """Return committed records not returned before: see `stream.transport.Claim`.

        Raises:
            TransportError: the log cannot be read, is damaged, or no longer has what was asked.

        """
        with self._failing():
            self._home.failpoint("before poll")
            records: list[Record] = []
            taken = 0
            for _ in self._readers:
                place = self._order[self._turn]
                self._turn = (self._turn + 1) % len(self._order)
                more, size = self._readers[place].read(self._home.end(place), max_bytes - taken)
                records += more
                taken += size
                if taken >= max_bytes:
                    break
            self._home.failpoint("after poll")
        return records

    def positions(self) -> Mapping[TopicPartition, Offset]:
        """Return the offset behind the last record polled, of each input that has a beginning."""
        return {p: reader.offset for p, reader in self._readers.items() if reader.offset is not None}

    def commit(self, outputs: Iterable[Output], state: Mapping[str, bytes]) -> None:
        """Make outputs, state and positions true in one step: see `stream.transport.Claim`.

        Raises:
            TransportError: nothing has been committed (or, where the very last step failed,
                perhaps everything); claim again to find out.
            ValueError: an output belongs to another task or to no partition. That is a fault of
                the processor.

        """
        with self._failing():
            self._append(outputs)
            self._sync()
            self._put_manifest(state)
            self._commit += 1

    def close(self) -> None:
        """Let go of the task. What was not committed never was."""
        self._usable = False
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _fence(self) -> None:
        path = self._path.with_name(f"{self._task}.lock")
        try:
            self._files.enter_context(_locked(path, blocking=False))
        except BlockingIOError:
            with contextlib.suppress(OSError):
                holder = path.read_text().strip()
            raise TransportError(
                f"task {self._task} is already run by process {holder or 'unknown'}",
                where=str(self._home.folder),
                hint="stop that one first, or use another folder",
            ) from None
        except OSError as error:
            raise _cannot_write(path, error) from error

    def _restore(self) -> None:
        self._home.failpoint("before restore")
        with ManifestFile(self._path) as manifest:
            head = manifest.head()
            self._state = manifest.state()
            self._offsets = head.offsets() if head else {}
            self._commit = head.commit if head else 0
            self._ends = dict(manifest.ends())
        self._writers: dict[TopicPartition, Writer] = {}
        for topic in Topic:
            for partition in range(self._home.partitions):
                place = TopicPartition(topic, Partition(partition))
                if owner(place) == self._task:
                    folder = self._home.partition_folder(place)
                    writer = Writer(folder, self._ends.get(place), self._home.segment_bytes)
                    self._writers[place] = writer
                    self._files.callback(writer.close)
        self._home.failpoint("after restore")

    def _seek(self, inputs: tuple[TopicPartition, ...]) -> None:
        self._order = inputs
        self._readers: dict[TopicPartition, Reader] = {}
        for place in inputs:
            offset = self._offsets.get(place)
            end = self._home.end(place)
            if offset and (end is None or end.next_offset < offset):
                raise TransportError(
                    f"{place.topic}-{place.partition} ends before record {offset}, where {self._task} is",
                    where=str(self._home.folder),
                    hint="the log was replaced or cut; start anew in an empty folder",
                )
            self._readers[place] = self._home.reader(place, offset)

    def _append(self, outputs: Iterable[Output]) -> None:
        self._home.failpoint("before append")
        grouped: dict[TopicPartition, list[tuple[bytes, bytes]]] = {}
        for topic, partition, key, value in outputs:
            if partition is None:
                partition = partition_for(key, self._home.partitions)  # noqa: PLW2901
            place = TopicPartition(topic, partition)
            if place not in self._writers:
                raise ValueError(f"{self._task} may not write to {topic}-{partition}")
            grouped.setdefault(place, []).append((key, value))
        now = time.time_ns() // 1_000_000
        for place, records in grouped.items():
            self._writers[place].append(records, now)
            self._ends[place] = self._writers[place].end
        self._touched = [self._writers[place] for place in grouped]
        self._home.failpoint("after append")

    def _sync(self) -> None:
        self._home.failpoint("before sync")
        for writer in self._touched:
            writer.sync() if self._home.durable else writer.settle()
        self._home.failpoint("after sync")

    def _put_manifest(self, state: Mapping[str, bytes]) -> None:
        data = pack_manifest(self._task, self._commit + 1, self._ends, dict(self.positions()), state)
        _replace(self._path, data, durable=self._home.durable, failpoint=self._home.failpoint)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn failures into a TransportError, after which the claim is of no more use."""
        if not self._usable:
            raise TransportError(
                f"claim of {self._task} has failed or was closed", where=str(self._home.folder)
            )
        self._usable = False
        try:
            yield
        except OSError as error:
            raise _cannot_write(self._home.folder, error) from error
        except DecodeError as error:
            raise TransportError(error.what, where=str(self._home.folder)) from None
        self._usable = True


@contextlib.contextmanager
def _locked(path: Path, *, blocking: bool) -> Iterator[None]:
    """Hold a lock file, with our process id in it. BlockingIOError if another one does."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        os.truncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)


def _replace(path: Path, data: bytes, *, durable: bool, failpoint: Failpoint = pass_point) -> None:
    """Put a file in place of another in one step. OSError if that fails."""
    failpoint("before manifest")
    beside = path.with_name(f"{path.name}.new")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        if durable:
            os.fsync(file)
    finally:
        os.close(file)
    failpoint("after manifest")
    failpoint("before swap")
    beside.replace(path)
    if durable:
        sync_folder(path.parent)
    failpoint("after swap")


def _read_meta(folder: Path) -> _Meta | None:
    path = folder / "meta.json"
    try:
        meta = msgspec.json.decode(path.read_bytes(), type=_Meta)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TransportError(f"cannot read: {error.strerror}", where=str(path)) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise TransportError(f"not a description of a log: {error}", where=str(path)) from None
    if meta.format != _FORMAT or not 1 <= meta.partitions <= MAX_PARTITIONS:
        raise TransportError(
            f"log has format {meta.format} and {meta.partitions} partitions, not format {_FORMAT}",
            where=str(path),
        )
    return meta


def _foreign_partitions(folder: Path, prefix: str) -> int:
    """Return the partition count of a folder without `meta.json`, 0 if it holds no partitions."""
    try:
        if (folder / "meta.json").exists():
            return 0
        names = [path.name.removeprefix(prefix) for path in folder.iterdir() if path.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise TransportError(f"cannot read: {error.strerror}", where=str(folder)) from error
    numbers = [number for name in names for topic, _, number in [name.rpartition("-")] if topic in set(Topic)]
    return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)


def _other_count(folder: Path, found: int, asked: int) -> UsageError:
    return UsageError(
        f"log has {found} partitions, {asked} were asked for",
        where=str(folder),
        hint="the count of a log never changes: use another folder, or ask for the same",
    )


def _cannot_write(path: Path, error: OSError) -> TransportError:
    what = error.strerror or str(error)
    return TransportError(f"cannot write: {what}", where=error.filename or str(path), hint=_AGAIN)
