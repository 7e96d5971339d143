"""What a capture lacks and what else a reader of the figures should know, in words and numbers."""

from __future__ import annotations

from collections import Counter
from typing import Final

from schemas.types import NONE, Kind
from stream.producers import exportfacts
from stream.producers.capture import Source
from stream.producers.export import Database

STRAYS: Final = (
    "GPU rows name no process and several processes called CUDA: "
    "these rows are linked to no launch; export with a version that writes globalPid"
)
NO_KERNELS: Final = "GPU kernels: no table of them, or no rows in it"
NO_LAUNCHES: Final = "CUDA calls: kernels cannot be linked to the threads that launched them"
NO_RANGES: Final = "NVTX ranges: no kernel can have a context"

_COPIES: Final = {
    0: "unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "unified HtoD",
    12: "unified DtoH",
    13: "unified DtoD",
}
_MEMORY: Final = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device static",
    6: "Managed static",
    7: "Unknown",
}

_TABLES: Final = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel_rows",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "runtime_rows",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy_rows",
    "CUPTI_ACTIVITY_KIND_MEMSET": "memset_rows",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "graph_trace_rows",
    "NVTX_EVENTS": "nvtx_rows",
}
_COUNTED_BY_NSYS: Final = ("kernel_rows", "runtime_rows", "memcpy_rows", "memset_rows")


def operation(verb: str, codes: list[int]) -> str:
    """Return what a memory operation is called, in Kineto's manner: "Memcpy HtoD (Pinned -> Device)".

    `codes` are nsys's: of a copy its kind and the kinds of memory it goes from and to, of a set
    the kind of memory. What is not known is left out.
    """
    kinds = codes
    if verb == "Memcpy":
        kind, *kinds = codes
        verb = f"Memcpy {_COPIES.get(kind, f'kind {kind}')}" if kind != NONE else "Memcpy"
    memory = [_MEMORY.get(kind, f"kind {kind}") for kind in kinds if kind != NONE]
    return f"{verb} ({' -> '.join(memory)})" if memory and len(memory) == len(kinds) else verb


def describe(source: Source, database: Database, found: Counter[str]) -> None:
    """Fill `counts`, `missing` and `notes` of an nsys capture whose rows have been read.

    Counts: rows of each table, what was left out by reason, `collected` (CUDA events nsys says it
    collected) and `exported` (the rows it means by that).
    """
    for table, name in _TABLES.items():
        if table in database.tables:
            source.counts[name] = found[table]
    left_out = ("launches_unused", "backtraces", "time_unusable", "names_unknown", "without_thread")
    source.counts |= {name: found[name] for name in left_out if found[name]}
    collected, doubts = exportfacts.said_of_collection(database)
    exported = sum(source.counts.get(name, 0) for name in _COUNTED_BY_NSYS)
    if collected is not None:
        source.counts |= {"collected": collected, "exported": exported}
        if collected != exported:
            source.notes.append(
                f"nsys says it collected {collected:,} CUDA events, {exported:,} are in the export"
            )
    source.notes += [f"nsys says: {doubt}" for doubt in doubts]
    describe_kinds(source)
    if opaque := source.rows_of(Kind.GRAPHS):
        source.notes.append(
            f"{opaque:,} CUDA graph launches were traced whole: their kernels are not in the capture; "
            "trace with --cuda-graph-trace=node to have them"
        )


def describe_kinds(source: Source) -> None:
    """Add to `missing` the kinds of events that a capture of any format should have."""
    for kind, words in (
        (Kind.KERNELS, NO_KERNELS),
        (Kind.LAUNCHES, NO_LAUNCHES),
        (Kind.RANGE_OPENINGS, NO_RANGES),
    ):
        if not source.rows_of(kind) and not (kind is Kind.LAUNCHES and source.counts.get("launches_unused")):
            source.missing.append(words)
