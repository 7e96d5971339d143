"""What is measured inside of one process: `python -m benchmarks.steps [--profile] NAME ARGUMENT...`.

Each prints one JSON object; "seconds" is the time of the work itself, without starting Python.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

Found = dict[str, Any]

NEEDED: Final = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start, end, deviceId, streamId, correlationId, globalPid, demangledName, graphNodeId, graphId"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, eventClass, globalTid, correlationId, nameId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start, end, deviceId, streamId, correlationId, globalPid, bytes",
    "NVTX_EVENTS": "start, end, eventType, text, textId, globalTid, domainId",
    "StringIds": "id, value",
}
"""The columns that a ledger is made of."""


def cursor(capture: str) -> Found:
    """Iterate the needed rows of a capture through Python's own sqlite3, and do nothing with them."""
    began = time.perf_counter()
    rows = 0
    with closing(sqlite3.connect(f"file:{capture}?mode=ro", uri=True)) as connection:
        for table, columns in NEEDED.items():
            for _ in connection.execute(f"SELECT {columns} FROM {table}"):
                pass
    seconds = time.perf_counter() - began
    with closing(sqlite3.connect(f"file:{capture}?mode=ro", uri=True)) as connection:
        for table in NEEDED:
            rows += connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return {"seconds": seconds, "rows": rows}


def synth(path: str, shape: str, kernels: str, groups: str, ranges: str) -> Found:
    """Make a capture up, unless it is there already."""
    import msgspec  # noqa: PLC0415

    from stream.producers.synth import Truth, truth_path, write_capture  # noqa: PLC0415

    began = time.perf_counter()
    target = Path(path)
    if not (target.exists() and truth_path(target).exists()):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_capture(target, kernels=int(kernels), shape=shape, groups=int(groups), ranges=int(ranges))
    truth = msgspec.json.decode(truth_path(target).read_bytes(), type=Truth)
    target.read_bytes() if target.stat().st_size < 1 << 29 else None  # into the page cache
    return {
        "seconds": time.perf_counter() - began,
        "bytes": target.stat().st_size,
        "kernels": truth.kernels,
        "launches": truth.rows.launches,
        "ranges": truth.rows.ranges,
        "groups": truth.groups.example or truth.groups.captured,
    }


def events(folder: str) -> Found:
    """Count what the EVENTS log of a folder of segments holds."""
    from schemas.events import decode  # noqa: PLC0415
    from schemas.records import Topic  # noqa: PLC0415
    from schemas.types import Kind  # noqa: PLC0415
    from stream.segments import Segments  # noqa: PLC0415
    from stream.transport import every  # noqa: PLC0415

    rows: Counter[str] = Counter()
    records = values = size = 0
    with Segments.open(Path(folder)) as transport:
        for place in every(Topic.EVENTS, transport.partitions):
            files = transport.partition_folder(place).glob("*.log")
            size += sum(file.stat().st_size for file in files)
            for record in transport.records(place):
                header = decode(record.value or b"").header
                rows[Kind(header.kind).name.lower()] += header.rows
                records += 1
                values += len(record.value or b"")
    facts = rows.pop(Kind.FACTS.name.lower(), 0)
    return {
        "bytes_on_disk": size,
        "bytes_of_values": values,
        "records": records,
        "events": sum(rows.values()),
        "facts": facts,
        "by_kind": dict(sorted(rows.items())),
    }


def link(folder: str, config: str) -> Found:
    """Apply all records of EVENTS to linkers, with the deltas and states of every commit."""
    from consumers.linker import Linker  # noqa: PLC0415
    from schemas.records import Record, Topic  # noqa: PLC0415
    from schemas.types import Offset, Partition  # noqa: PLC0415
    from stream.config_file import load_config  # noqa: PLC0415
    from stream.runner import Pace  # noqa: PLC0415
    from stream.segments import Segments  # noqa: PLC0415
    from stream.transport import TopicPartition, every  # noqa: PLC0415

    loaded = load_config(Path(config) if config else None)
    with Segments.open(Path(folder)) as transport:
        places = every(Topic.EVENTS, transport.partitions)
        inputs = [[*transport.records(place)] for place in places]
    linkers = [Linker(loaded, p) for p in range(len(places))]
    out: Counter[str] = Counter()
    largest = 0
    began, busy = time.perf_counter(), time.process_time()

    def commit(linker: Linker) -> bool:
        nonlocal largest
        outputs = linker.flush()
        largest = max(largest, sum(len(entry) for entry in linker.snapshot().values()))
        out["commits"] += 1
        for output in outputs:
            out[f"{output.topic}_bytes"] += len(output.value)
            if output.topic == Topic.WINDOWS:
                place = TopicPartition(Topic.WINDOWS, Partition(0))
                for other in linkers:
                    other.apply(Record(*place, Offset(out["windows"]), output.key, output.value))
                out["windows"] += 1
        return bool(outputs)

    for linker, records in zip(linkers, inputs, strict=True):
        pending = 0
        for record in records:
            linker.apply(record)
            pending += len(record.value or b"")
            if pending >= Pace().commit_bytes:
                commit(linker)
                pending = 0
    while sum(commit(linker) for linker in linkers):
        pass
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    return {"seconds": seconds, "cpu_seconds": busy, "largest_state_bytes": largest, **dict(out)}


def chain(folder: str, config: str) -> Found:
    """Go from a folder of segments to the ledger and its group rows, over the runner as `run` does."""
    from consumers.linker import Linker  # noqa: PLC0415
    from consumers.sink import Sink  # noqa: PLC0415
    from schemas.types import Partition  # noqa: PLC0415
    from stream.config_file import load_config  # noqa: PLC0415
    from stream.runner import Driver, Task  # noqa: PLC0415
    from stream.segments import Segments  # noqa: PLC0415
    from stream.transport import SINK, link_inputs, link_task, sink_inputs  # noqa: PLC0415

    loaded = load_config(Path(config) if config else None)
    began = time.perf_counter()
    with Segments.open(Path(folder), durable=False) as transport:
        n = transport.partitions
        partitions = [Partition(p) for p in range(n)]
        tasks = [Task(link_task(p), partial(Linker, loaded, p), link_inputs(p, n)) for p in partitions]
        tasks.append(Task(SINK, partial(Sink, loaded), sink_inputs(n)))
        with Driver(transport, tasks) as driver:
            driver.run(lambda: True)
            sink: Any = driver.processor(SINK)
            [session] = sink.sessions
            ledger = sink.ledger(session)
            groups = sum(1 for _ in sink.groups(session).rows())
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "kernels": ledger.kernel_events, "groups": ledger.groups, "rows": groups}


STEPS: Final[dict[str, Callable[..., Found]]] = {
    "cursor": cursor, "synth": synth, "events": events, "link": link, "chain": chain,
}  # fmt: skip


def main(name: str, *arguments: str) -> None:
    """Take one step; print what it found, and with `--profile` before the name, what took the time."""
    if name != "--profile":
        print(json.dumps(STEPS[name](*arguments)))
        return
    with cProfile.Profile() as profile:
        print(json.dumps(STEPS[arguments[0]](*arguments[1:])))
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
