"""Reads Nsight Systems SQLite exports of any schema version, by columns, in several threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, cast

import numpy as np

from schemas.columns import Int64s
from schemas.types import NONE, Kind
from stream.producers import exportfacts, wording
from stream.producers.capture import Progress, Source, SourceOptions, digest_of, process_of
from stream.producers.columnar import Column, Reader, Texts, integer, text
from stream.producers.export import Database, Table, coalesced, quoted
from stream.producers.exportfacts import PID_MASK
from stream.producers.exporttables import GPU_TABLES, NO_PROCESS, NVTX, RUNTIME, Query, Rows, Tables
from stream.producers.names import StringTable
from stream.producers.pages import OddError, Pages
from stream.producers.runs import RUN_ROWS

_MAX_JOBS: Final = 1 << 10
"""However far apart rowids are, a table is read in at most so many pieces."""

_TABLES: Final = (*GPU_TABLES, NVTX, RUNTIME)


class _Job(NamedTuple):
    """A part of a table: its leaf pages, or else a condition in SQL.

    `number` is its place in the table, `rows` about how many rows it has.
    """

    table: str
    number: int
    rows: int
    leaves: Int64s | None
    condition: str


class NsysSource(Source):
    """A capture that `nsys export --type sqlite` made."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._readers: list[Reader] = []
        self._local = threading.local()
        self._lock = threading.Lock()
        self._database = Database(path, options.folder)
        self._pages: Pages | None = None
        try:
            self._pages = self._open_pages()
            said = exportfacts.export_options(self._database)
            self.format = f"nsys {said.get('EXPORT_SCHEMA_VERSION', '')}".strip()
            self._times = exportfacts.times_of(self._database, said, self.notes, self.missing)
        except BaseException:
            self.close()
            raise
        self.clock = self._times.clock

    def close(self) -> None:
        """Let go of the file and delete temporary ones."""
        while self._readers:
            self._readers.pop().close()
        if self._pages is not None:
            self._pages.close()
        self._database.close()
        super().close()

    def _open_pages(self) -> Pages | None:
        """Return the file's pages, unless a log beside it changes them."""
        if len(self._database.files) > 1:
            return None
        try:
            return Pages(self.path)
        except OddError:
            return None

    def read(self, progress: Progress) -> str:
        """Read all tables into sorted rows; return the host."""
        host = exportfacts.host_of(self._database)
        # The digest has a thread of its own.
        with ThreadPoolExecutor(self.options.threads + 1, "nsys") as pool:
            try:
                digest = pool.submit(digest_of, *self._database.files)
                strings = self._read_strings()
                tables = Tables(str(self.path), self._names, strings, self._times)
                self._read_tables(pool, tables, progress)
                self.capture = digest.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        wording.describe(self, self._database, tables.found)
        self._gather_facts(host, tables, strings)
        return host

    def _read_strings(self) -> StringTable:
        table = self._database.tables.get("StringIds")
        keys = [np.zeros(0, np.int64)]
        ids = [np.zeros(0, np.int64)]
        if table is not None:
            with closing(Reader(self._database.uri, str(self.path))) as reader:
                key_of, value_of = (coalesced(table.present(name)) for name in ("id", "value"))
                sql = f"SELECT {integer(key_of)}, {text(value_of)} FROM {table.name}"
                for key, value in reader.read(sql, frozenset({1})):
                    keys.append(np.array(key))
                    ids.append(self._names.add_table(cast("Texts", value)))
        return StringTable(np.concatenate(keys), np.concatenate(ids))

    def _read_tables(self, pool: ThreadPoolExecutor, tables: Tables, progress: Progress) -> None:
        present = [table for name in _TABLES if (table := self._database.tables.get(name)) is not None]
        total = sum(table.rows for table in present)
        done = 0
        slots = threading.Semaphore(self.options.threads)

        def submit(names: Sequence[str]) -> list[Future[int]]:
            return [pool.submit(self._run, slots, tables, job) for name in names for job in self._jobs(name)]

        def wait(jobs: list[Future[int]]) -> None:
            nonlocal done
            for job in jobs:
                done += job.result()
                progress("reading", done, total)

        gpu = submit(GPU_TABLES)
        ranges = submit([NVTX])
        wait(gpu)
        self._settle_strays(tables)
        tables.gpu_ids.close()
        wait(submit([RUNTIME]) + ranges)

    def _jobs(self, name: str) -> Iterator[_Job]:
        table = self._database.tables.get(name)
        if table is None:
            return
        if self._pages is not None and table.root:
            parts = self._pages.jobs(table.root)
            total, before = sum(map(len, parts)), 0
            for number, leaves in enumerate(parts):
                after = before + len(leaves)
                rows = table.rows * after // total - table.rows * before // total
                yield _Job(name, number, rows, leaves, "")
                before = after
            return
        if table.low is None:
            yield _Job(name, 0, 0, None, "")
            return
        step = max(RUN_ROWS, -(-table.rows // _MAX_JOBS))
        for number, low in enumerate(range(table.low, table.high + 1, step)):
            high = min(low + step - 1, table.high)
            yield _Job(name, number, high - low + 1, None, f"rowid BETWEEN {low} AND {high}")

    def _run(self, slots: threading.Semaphore, tables: Tables, job: _Job) -> int:
        table = self._database.tables[job.table]
        query = tables.query(job.table, table)
        with slots:
            batches = self._batches(table, query, job)
            self._keep(
                (_TABLES.index(job.table), job.number),
                (tables.rows(job.table, query, batch) for batch in batches),
            )
        return job.rows

    def _batches(self, table: Table, query: Query, job: _Job) -> Iterator[list[Column]]:
        """Yield the columns of a job's rows: off the file's pages where they are plain, else by SQL."""
        places = [tuple(table.places.get(name, -1) for name in names) for names in query.columns]
        pages = self._pages
        if pages is None or job.leaves is None or any(-1 in column for column in places):
            condition = job.condition
            if pages is not None and job.leaves is not None:
                condition = _between(*pages.row_ids(job.leaves))
            yield from self._select(table, query, condition)
            return
        for leaves in pages.pieces(job.leaves):
            try:
                columns = pages.read(leaves, places, query.texts)
            except OddError:
                yield from self._select(table, query, _between(*pages.row_ids(leaves)))
            else:
                yield columns

    def _select(self, table: Table, query: Query, condition: str) -> Iterator[list[Column]]:
        columns = [
            text(coalesced(names)) if place in query.texts else integer(coalesced(names))
            for place, names in enumerate(query.columns)
        ]
        sql = f"SELECT {', '.join(columns)} FROM {table.name}"
        return self._reader().read(f"{sql} WHERE {condition}" if condition else sql, query.texts)

    def _keep(self, job: tuple[int, int], made: Iterator[Rows]) -> None:
        """Gather the rows of batches into sorted runs, several only where one would grow too long."""
        gathered: dict[Kind, list[Int64s]] = {}
        sizes: Counter[Kind] = Counter()
        part = 0
        for batch in made:
            for kind, rows in batch:
                gathered.setdefault(kind, []).append(rows)
                sizes[kind] += len(rows)
                if sizes[kind] >= RUN_ROWS:
                    self._runs[kind].add((*job, part), np.concatenate(gathered.pop(kind)))
                    sizes[kind] = 0
                    part += 1
        for kind in list(gathered):
            self._runs[kind].add((*job, part), np.concatenate(gathered.pop(kind)))

    def _reader(self) -> Reader:
        """Return this thread's connection."""
        reader: Reader | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = Reader(self._database.uri, str(self.path))
            self._local.reader = reader
            with self._lock:
                self._readers.append(reader)
        return reader

    def _settle_strays(self, tables: Tables) -> None:
        """Decide whose the GPU rows are that name no process: RUNTIME's only one's, if it has one."""
        if not tables.gpu_ids.has(NONE):
            return
        self._stray = NO_PROCESS
        for name, column in ((RUNTIME, "globalTid"), (NVTX, "globalTid"), ("PROCESSES", "globalPid")):
            keys = self._processes_in(self._database.tables.get(name), column)
            if keys:
                self._stray = keys[0]
                self._stray_linked = len(keys) == 1
                break
        if self._stray_linked:
            tables.gpu_ids.rename(NONE, self._stray)
        else:
            self.notes.append(wording.STRAYS)

    def _processes_in(self, table: Table | None, column: str) -> list[int]:
        if table is None or column not in table.columns:
            return []
        name = quoted(column)
        rows = self._database.query(
            f"SELECT DISTINCT {name} & {PID_MASK} FROM {table.name} WHERE {name} IS NOT NULL"
        )
        keys = {key or NO_PROCESS for (key,) in rows if isinstance(key, int)}
        return sorted(keys, key=lambda key: process_of("", key))

    def _gather_facts(self, host: str, tables: Tables, strings: StringTable) -> None:
        self.metadata |= exportfacts.system_metadata(self._database)
        self._domains = {key: self._names.text(name) for key, (_, name) in tables.domains.items()}
        wanted = {key for (key,) in self._database.rows("ThreadNames", "nameId") if isinstance(key, int)}
        keys = np.array(sorted(wanted), np.int64)
        ids, unknown = strings.look_up(keys)
        found = zip(keys.tolist(), ids.tolist(), unknown.tolist(), strict=True)
        names = {key: self._names.text(name) for key, name, missing in found if not missing}
        self._facts += exportfacts.clock_facts(self._database, self._times)
        self._facts += exportfacts.process_facts(self._database, host, self.clock.zero, names)
        for given in sorted(tables.thread_names):
            process = process_of(host, given.process)
            self._facts += exportfacts.thread_facts(
                process, given.thread, self._names.text(given.name), given.time
            )


def _between(low: int, high: int) -> str:
    return f"rowid BETWEEN {low} AND {high}"
