"""The tables of an Nsight Systems 2026.1 export (schema 3.24), and fast writing into them."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from schemas.errors import OutputError

_TABLES: Final = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
        cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
        gridY INTEGER NOT NULL,
        gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
        staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
        localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
        sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER,
        qmdBulkReleaseDone INTEGER, qmdPreexitDone INTEGER, qmdLastCtaDone INTEGER, graphId INTEGER,
        clusterX INTEGER, clusterY INTEGER, clusterZ INTEGER, clusterSchedulingPolicy INTEGER,
        maxPotentialClusterSize INTEGER, maxActiveClusters INTEGER,
        sharedMemoryRequestedPercentage INTEGER""",
    "CUPTI_ACTIVITY_KIND_RUNTIME": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
        correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMCPY": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER,
        dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
        migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMSET": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER""",
    "NVTX_EVENTS": """
        start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,
        color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,
        uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER,
        floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT""",
    "CUDA_GRAPH_NODE_EVENTS": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
        nameId INTEGER NOT NULL, graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER""",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "DIAGNOSTIC_EVENT": """
        timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL,
        severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER""",
    "ANALYSIS_DETAILS": """
        globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL,
        stopTime INTEGER NOT NULL""",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": """
        utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER""",
    "TARGET_INFO_GPU": """
        vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER,
        l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER,
        pwGpuId INTEGER, uuid TEXT, luid INTEGER, chipName TEXT, cuDevice INTEGER, computeMajor INTEGER,
        computeMinor INTEGER""",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "TARGET_INFO_SYSTEM_ENV": """
        globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL,
        value TEXT NOT NULL""",
    "ENUM_NSYS_EVENT_TYPE": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
}

_EVENT_TYPES: Final = (
    (33, "NvtxCategory"),
    (34, "NvtxMark"),
    (39, "NvtxThread"),
    (59, "NvtxPushPopRange"),
    (60, "NvtxStartEndRange"),
    (75, "NvtxDomainCreate"),
    (76, "NvtxDomainDestroy"),
)

# Values that hardly vary are part of the statement, since binding is what writing costs; -1 stands
# for null in whole columns, which numpy has none of.
INSERT_KERNEL: Final = """INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, 0, ?, ?, ?, ?, ?, ?, 1,
    1, 64, 132, 1, 1, 128, 1, 1, 0, 0, 0, 95813632, ?, 16384, nullif(?, -1), 0, NULL, NULL, NULL,
    nullif(?, -1), 0, 0, 0, 0, 0, 0, NULL)"""
"""start, end, device, stream, correlation, globalPid, names (full, short, mangled), grid, node, graph."""
INSERT_LAUNCH: Final = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, 0, NULL)"
"""start, end, class, globalTid, correlation, name."""
INSERT_COPY: Final = """INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 1, 0, ?, ?, ?, ?, ?, NULL, ?,
    ?, NULL, NULL, NULL, NULL, nullif(?, -1), nullif(?, -1), NULL, 1)"""
"""start, end, device, stream, correlation, globalPid, bytes, kind, source, target, migration cause, node."""
INSERT_SET: Final = """INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?, ?, ?, 1, 0, ?, ?, ?, 0, ?,
    nullif(?, -1), 2)"""
"""start, end, device, stream, correlation, globalPid, bytes, node."""
INSERT_NVTX: Final = """INSERT INTO NVTX_EVENTS VALUES (?, nullif(?, -1), ?, nullif(?, -1), NULL,
    NULL, ?, ?, NULL, nullif(?, -1), ?, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"""
"""start, end, type, range id, text, globalTid, text id, domain."""
INSERT_NODE: Final = "INSERT INTO CUDA_GRAPH_NODE_EVENTS VALUES (?, ?, 77, ?, ?, ?, nullif(?, -1))"
"""start, end, globalTid, name, node, original node."""

EXPORT: Final = {
    "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
    "EXPORT_PRODUCT_VERSION": "2026.1.1.204",
    "EXPORT_SCHEMA_VERSION": "3.24.14",
    "EXPORT_SCHEMA_VERSION_MAJOR": "3",
    "EXPORT_SCHEMA_VERSION_MINOR": "24",
    "EXPORT_SCHEMA_VERSION_MICRO": "14",
    "EXPORT_PLATFORM": "linux-desktop",
    "EXPORT_ARCH": "x64",
    "EXPORT_PARAM_LAZY": "true",
    "EXPORT_PARAM_TIME_NORMALIZE": "false",
    "EXPORT_PARAM_TIME_SHIFT": "0",
    "EXPORT_CONFIG_TIME_SHIFT": "0",
}
CAPTURE: Final = {
    "CUDA_GRAPH_TRACE_OPTIONS:MODE": "Node",
    "CUDA_GRAPH_TRACE_OPTIONS:TRACE_DEVICE_GRAPH_LAUNCH": "true",
    "CUDA_SKIP_SOME_API_CALLS": "true",
    "DISABLE_TIME_SYNC": "false",
}


class Database:
    """A capture being written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        """Return the id of a string in StringIds, written at the end."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def insert(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Run one of the INSERT statements above for every row."""
        self._connection.executemany(statement, rows)

    def fill(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Insert whole rows into a small table."""
        for row in rows:
            self._connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def finish(self) -> None:
        """Write what was kept back and take out tables without rows, as lazy exports do."""
        self.fill("StringIds", ((number, text) for text, number in self._strings.items()))
        self.fill("ENUM_NSYS_EVENT_TYPE", ((number, name, name) for number, name in _EVENT_TYPES))
        self.fill("META_DATA_EXPORT", EXPORT.items())
        self.fill("META_DATA_CAPTURE", CAPTURE.items())
        for table in _TABLES:
            if self._connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is None:
                self._connection.execute(f"DROP TABLE {table}")


@contextlib.contextmanager
def new_database(path: Path) -> Iterator[Database]:
    """Write a new database that takes the place of `path` once it is whole.

    Raises:
        OutputError: it cannot be written; what stood there before is untouched.

    """
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a name is too long
        raise OutputError("is a folder", where=str(path), hint="name a file")
    # Named by chance, so that two that write the same capture do not write the same file.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(
            os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        )  # says why, which SQLite does not
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
            # A crash leaves only the .part file, so nothing need be journalled.
            connection.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE;"
                "PRAGMA cache_size = -16384;"
            )
            connection.execute("BEGIN")
            for table, columns in _TABLES.items():
                connection.execute(f"CREATE TABLE {table} ({columns})")
            database = Database(connection)
            yield database
            database.finish()
            connection.execute("COMMIT")
        os.replace(part, path)  # noqa: PTH105 - Path.replace returns a path nobody wants
    except (OSError, sqlite3.Error) as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise OutputError(
            f"cannot be written: {reason}", where=str(path), hint="name another place"
        ) from error
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
