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
from stream.producers.columnar import Reader, Texts, integer, text
from stream.producers.export import Database, Table
from stream.producers.exportfacts import PID_MASK
from stream.producers.exporttables import GPU_TABLES, NO_PROCESS, NVTX, RUNTIME, Rows, Tables
from stream.producers.names import StringTable
from stream.producers.runs import RUN_ROWS

_MAX_JOBS: Final = 1 << 10
"""However far apart rowids are, a table is read in at most so many pieces."""

_TABLES: Final = (*GPU_TABLES, NVTX, RUNTIME)
_FIRST_RUN: Final = {name: place * 2 * _MAX_JOBS for place, name in enumerate(_TABLES)}
"""Where the pieces of each table begin, in the order rows of one kind are published."""


class _Job(NamedTuple):
    """A piece of a table: `run` its place in the order of all, `condition` in SQL, `rows` at most."""

    table: str
    run: int
    condition: str
    rows: int


class NsysSource(Source):
    """A capture that `nsys export --type sqlite` made."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._readers: list[Reader] = []
        self._local = threading.local()
        self._lock = threading.Lock()
        self._database = Database(path)
        options_of_export = exportfacts.export_options(self._database)
        self.format = f"nsys {options_of_export.get('EXPORT_SCHEMA_VERSION', '')}".strip()
        self._times = exportfacts.times_of(self._database, options_of_export, self.notes, self.missing)
        self.clock = self._times.clock

    def close(self) -> None:
        """Let go of the file and delete temporary ones."""
        while self._readers:
            self._readers.pop().close()
        self._database.close()
        super().close()

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
                sql = f"SELECT {integer(table.first('id'))}, {text(table.first('value'))} FROM {table.name}"
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
        first = _FIRST_RUN[name]
        if table.low is None:
            yield _Job(name, first, "", 0)
            return
        step = max(RUN_ROWS, -(-table.rows // _MAX_JOBS))
        for number, low in enumerate(range(table.low, table.high + 1, step)):
            high = min(low + step - 1, table.high)
            yield _Job(name, first + number, f"rowid BETWEEN {low} AND {high}", high - low + 1)

    def _run(self, slots: threading.Semaphore, tables: Tables, job: _Job) -> int:
        table = self._database.tables[job.table]
        query = tables.query(job.table, table)
        sql = f"SELECT {', '.join(query.columns)} FROM {table.name}"
        if job.condition:
            sql += f" WHERE {job.condition}"
        with slots:
            batches = self._reader().read(sql, query.texts)
            self._keep(job.run, (tables.rows(job.table, query, batch) for batch in batches))
        return job.rows

    def _keep(self, run: int, made: Iterator[Rows]) -> None:
        """Gather the rows of batches into sorted runs, several only where one would grow too long."""
        gathered: dict[Kind, list[Int64s]] = {}
        sizes: Counter[Kind] = Counter()
        part = 0
        for batch in made:
            for kind, rows in batch:
                gathered.setdefault(kind, []).append(rows)
                sizes[kind] += len(rows)
                if sizes[kind] >= RUN_ROWS:
                    self._runs[kind].add((run, part), np.concatenate(gathered.pop(kind)))
                    sizes[kind] = 0
                    part += 1
        for kind in list(gathered):
            self._runs[kind].add((run, part), np.concatenate(gathered.pop(kind)))

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
        name = table.first(column)
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
