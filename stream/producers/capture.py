"""What every source of events is: sorted rows of a capture, cut into batches slice by slice."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from schemas import facts
from schemas.columns import Int64s, cut_name
from schemas.errors import InputError
from schemas.events import COLUMNS, Batch, Clock, Header
from schemas.types import END_OF_TIME, NONE, Kind, Process
from stream.producers.names import Names
from stream.producers.runs import SAMPLE_ROWS, Runs
from stream.producers.spill import Spill

BATCH_ROWS: Final = 1 << 14
"""A batch has at most so many rows: records stay under their limit and arrays within the cache."""

Progress = Callable[[str, int, int], None]
"""Called now and then with what is going on ("reading", "publishing"), rows done and rows in all."""

_RAW: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.RANGE_OPENINGS: ("time", "end", "process", "thread", "domain", "name"),
    Kind.LAUNCHES: ("time", "process", "thread", "correlation", "name"),
    Kind.MARKS: ("time", "process", "thread", "domain", "name"),
    Kind.MEMORY: ("time", "duration", "process", "device", "stream", "correlation", "operation", "bytes"),
    Kind.GRAPHS: ("time", "duration", "process", "device", "stream", "correlation", "graph"),
    Kind.KERNELS: (
        *("time", "duration", "process", "device", "stream", "correlation", "name", "graph", "node"),
    ),
}
"""Columns of the sorted rows of each kind, in the order a slice publishes them. `name` and
`operation` are ids of `Names`, `domain` is the source's own id."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How captures are read; nothing here changes what is published, but for `cpu_ops`."""

    cpu_ops: bool = False
    """Kineto: whether `cpu_op` rows are ranges too."""
    threads: int = 2
    """How many threads read one capture."""
    memory: int = 128 << 20
    """Bytes of sorted rows kept in memory; what is beyond goes to a temporary file."""
    folder: Path | None = None
    """Where temporary files go; None: where the system keeps them."""


class FactRow(NamedTuple):
    """One fact of a process, or of the capture; `thread` is NONE unless it is a thread's."""

    process: Process
    time: int
    thread: int
    key: str
    value: str


CAPTURE: Final = Process("", 0)
"""Stands for the capture itself."""


class Source(ABC):
    """A capture: opened, read by `prepare`, then taken slice by slice.

    After `prepare`: `capture` is the digest of the file's content, `clock` what its times rest on,
    `processes` those that have events, in order; `counts`, `missing` and `notes` what its facts
    say of itself in numbers and words.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path
        self.name = path.name
        self.options = options
        self.capture = ""
        self.format = ""
        self.clock = Clock()
        self.processes: list[Process] = []
        self.counts: dict[str, int] = {}
        self.missing: list[str] = []
        self.notes: list[str] = []
        self.metadata: dict[str, str] = {}
        self.events: dict[Kind, int] = {}
        self._facts: list[FactRow] = []
        self._domains: dict[tuple[int, int], str] = {}
        self._stray = NONE
        self._stray_linked = True
        self._spill = Spill(options.memory, options.folder)
        self._names = Names(self._spill)
        self._runs = {
            kind: Runs(columns, self._spill, self._names, "end" if kind is Kind.RANGE_OPENINGS else "")
            for kind, columns in _RAW.items()
        }
        self._keys = np.zeros(0, np.int64)
        self._by_key: list[Process] = []
        self._samples = np.zeros(0, np.int64)
        self._taken_to = -(2**63)
        self._closings: dict[Process, Int64s] = {}
        self._ordinals: dict[tuple[Process, Kind], int] = {}

    @abstractmethod
    def read(self, progress: Progress) -> str:
        """Fill the runs, facts and what is said of the capture; return the host.

        Raises:
            InputError: the file is not what it seemed, cut, or damaged.

        """

    def prepare(self, progress: Progress = lambda *_: None) -> None:
        """Read the whole capture into sorted rows.

        Raises:
            InputError: the file is not what it seemed, cut, or damaged.
            OutputError: there is no space for temporary files.

        """
        host = self.read(progress)
        keys = set[int]().union(*(runs.processes for runs in self._runs.values()))
        if NONE in keys:
            keys = (keys - {NONE}) | {self._stray}
        self._keys = np.array(sorted(keys), np.int64)
        self._by_key = [process_of(host, key) for key in self._keys.tolist()]
        self.processes = sorted(self._by_key)
        self._samples = np.sort(np.concatenate([runs.samples() for runs in self._runs.values()]))
        self.events = {kind: runs.rows for kind, runs in self._runs.items() if runs.rows}

    @property
    def rows(self) -> int:
        """How many rows there are to take, closings not counted."""
        return sum(self.events.values())

    def rows_of(self, kind: Kind) -> int:
        """Return how many rows of a kind have been read."""
        return self._runs[kind].rows

    def facts(self) -> list[FactRow]:
        """Return what is known of the capture, and of those processes that have events."""
        said = [
            (facts.SOURCE_FORMAT, self.format),
            (facts.SOURCE_FILE, cut_name(self.name)),
            *((facts.METADATA + key, value) for key, value in sorted(self.metadata.items())),
            *((facts.SOURCE_MISSING, words) for words in self.missing),
            *((facts.SOURCE_NOTE, words) for words in self.notes),
            (facts.SOURCE_COUNTS, msgspec.json.encode(self.counts, order="sorted").decode()),
        ]
        own = [FactRow(CAPTURE, self.clock.zero, NONE, key, value) for key, value in said]
        present = {CAPTURE, *self.processes}
        return own + [fact for fact in self._facts if fact.process in present]

    def next_boundary(self, rows: int) -> int | None:
        """Return a time that about `rows` more rows start before; None if no more are left."""
        passed = int(np.searchsorted(self._samples, self._taken_to, "right"))
        place = passed + max(1, rows // SAMPLE_ROWS)
        return int(self._samples[place]) if place < len(self._samples) else None

    def take(self, before: int) -> Iterator[Batch]:
        """Yield all rows not taken yet that are earlier than `before`, process after process.

        Within a process and kind they are in order of time; session and watermark are not set.
        """
        self._taken_to = before
        slices = {kind: self._split(kind, runs.take(before)) for kind, runs in self._runs.items()}
        for process in self.processes:
            for kind in _RAW:
                rows = slices[kind].get(process)
                if rows is None:
                    if kind is Kind.RANGE_OPENINGS:
                        yield from self._close(process, None, 0, before)
                    continue
                base = self._ordinals.get((process, kind), 0)
                for low in range(0, len(rows), BATCH_ROWS):
                    yield self._batch(process, kind, rows[low : low + BATCH_ROWS])
                if kind is Kind.RANGE_OPENINGS:
                    yield from self._close(process, rows, base, before)

    @property
    def drained(self) -> bool:
        """Whether everything has been taken."""
        return not self._closings and all(runs.drained for runs in self._runs.values())

    def close(self) -> None:
        """Let go of the file and delete temporary ones."""
        self._spill.close()

    def next_ordinal(self, process: Process, kind: Kind, rows: int) -> int:
        """Return the ordinal of the next row of a kind, and count `rows` on."""
        ordinal = self._ordinals.get((process, kind), 0)
        self._ordinals[process, kind] = ordinal + rows
        return ordinal

    def _split(self, kind: Kind, rows: Int64s) -> dict[Process, Int64s]:
        if not len(rows):
            return {}
        columns = _RAW[kind]
        place = columns.index("process")
        stray = rows[:, place] == NONE
        if stray.any():
            rows = rows.copy()
            rows[stray, place] = self._stray
            if not self._stray_linked and "correlation" in columns:
                rows[stray, columns.index("correlation")] = NONE
        if len(self._keys) == 1:
            return {self._by_key[0]: rows}
        codes = np.searchsorted(self._keys, rows[:, place]).astype(np.uint32)
        counts = np.bincount(codes, minlength=len(self._keys))
        rows = rows[
            np.argsort(codes.astype(np.uint16) if len(self._keys) < 1 << 16 else codes, kind="stable")
        ]
        ends = np.cumsum(counts)
        return {
            self._by_key[code]: rows[int(ends[code] - counts[code]) : int(ends[code])]
            for code in np.flatnonzero(counts).tolist()
        }

    def _batch(self, process: Process, kind: Kind, rows: Int64s) -> Batch:
        raw = _RAW[kind]
        columns = {name: np.ascontiguousarray(rows[:, raw.index(name)]) for name in COLUMNS[kind]}
        table: list[str] = []
        text = "operation" if kind is Kind.MEMORY else "name"
        if text in columns:
            columns[text], table = self._names.coded(columns[text])
        if "domain" in columns:
            columns["domain"], table = self._with_domains(process, columns["domain"], table)
        return self._stamp(process, kind, columns, table)

    def _with_domains(self, process: Process, ids: Int64s, table: list[str]) -> tuple[Int64s, list[str]]:
        """Return the index of every row's domain, and the table with domains at its end."""
        used = np.unique(ids)
        key = signed(process.global_pid)
        places = {name: i for i, name in enumerate(table)}
        table = list(table)
        codes = []
        for domain in used.tolist():
            name = self._domains.get((key, domain), "" if domain in (0, NONE) else f"domain {domain}")
            if name not in places:
                places[name] = len(table)
                table.append(name)
            codes.append(places[name])
        return np.array(codes, np.int64)[np.searchsorted(used, ids)], table

    def _stamp(self, process: Process, kind: Kind, columns: dict[str, Int64s], table: list[str]) -> Batch:
        rows = len(columns["time"])
        header = Header(
            session="",
            process=process,
            kind=kind,
            capture=self.capture,
            ordinal=self.next_ordinal(process, kind, rows),
            rows=rows,
            clock=self.clock,
        )
        return Batch(header, columns, table)

    def _close(self, process: Process, rows: Int64s | None, base: int, before: int) -> Iterator[Batch]:
        """Yield the closings earlier than `before`; keep those of ranges that go on."""
        waiting = self._closings.pop(process, np.zeros((0, 2), np.int64))
        if rows is not None:
            raw = _RAW[Kind.RANGE_OPENINGS]
            ends = rows[:, raw.index("end")]
            closed = np.flatnonzero(ends != NONE)
            # A range that ends before it starts contains nothing, like one that ends as it starts.
            ends = np.maximum(ends[closed], rows[closed, raw.index("time")])
            waiting = np.concatenate([waiting, np.stack([ends, closed + base], axis=1)])
        now = waiting[:, 0] < before if before != END_OF_TIME else np.ones(len(waiting), bool)
        ready, waiting = waiting[now], waiting[~now]
        if len(waiting):
            self._closings[process] = waiting
        ready = ready[np.lexsort((ready[:, 1], ready[:, 0]))]
        for low in range(0, len(ready), BATCH_ROWS):
            part = ready[low : low + BATCH_ROWS]
            columns = {"time": part[:, 0].copy(), "opening": part[:, 1].copy()}
            yield self._stamp(process, Kind.RANGE_CLOSINGS, columns, [])


def process_of(host: str, key: int) -> Process:
    """Return the process of a signed 64-bit `globalPid`."""
    return Process(host, key & 0xFFFFFFFFFF000000)


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as the signed one of the same bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def digest_of(*paths: Path) -> str:
    """Return the digest of files' content: what a capture is known by; 32 hex digits.

    Raises:
        InputError: one cannot be read.

    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            with path.open("rb") as file:
                while data := file.read(1 << 20):
                    digest.update(data)
        except OSError as error:
            raise unreadable(path, error) from None
    return digest.hexdigest()


def unreadable(path: Path, error: OSError) -> InputError:
    """Return the error for a file the system does not let us read."""
    hint = "check its permissions" if isinstance(error, PermissionError) else ""
    return InputError(f"cannot be read: {error.strerror or error}", where=str(path), hint=hint)
