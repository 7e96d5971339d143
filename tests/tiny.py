"""A small Nsight Systems export, written by hand: one process, one thread, kernels in one range."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

PID = 4242
GLOBAL_PID = (1 << 56) | (PID << 24)
GLOBAL_TID = GLOBAL_PID | 4242


def write_export(
    path: Path, kernels: Sequence[str | bytes] = ("gemm",), ranges: Sequence[str | bytes] = ("step",)
) -> Path:
    """Write an export with these kernels, one after the other, all inside these nested ranges."""
    names: dict[str | bytes, int] = {}
    end = 1000 * (len(kernels) + 1)
    with sqlite3.connect(path) as db:
        db.executescript(
            """
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
                deviceId INTEGER NOT NULL, contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
                globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
                graphNodeId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
                eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
                returnValue INTEGER NOT NULL);
            CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
                rangeId INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
                domainId INTEGER);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '', '');
            """
        )

        def name(text: str | bytes) -> int:
            if text not in names:
                names[text] = len(names)
                # Through a cast, so that text may hold what no str can.
                raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
                db.execute("INSERT INTO StringIds VALUES (?, CAST(? AS TEXT))", (names[text], raw))
            return names[text]

        for number, kernel in enumerate(kernels, start=1):
            db.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
                (number * 1000, number * 1000 + 10, GLOBAL_TID, number, name("cudaLaunchKernel_v7000")),
            )
            db.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?, NULL)",
                (number * 1000 + 100, number * 1000 + 600, number, GLOBAL_PID, name(kernel), name(kernel)),
            )
        for depth, text in enumerate(ranges):
            db.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, NULL, ?, NULL, ?, 0)",
                (depth, end - depth, GLOBAL_TID, name(text)),
            )
    db.close()
    return path
