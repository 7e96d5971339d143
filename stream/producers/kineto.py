"""Reads PyTorch profiler (Kineto) traces: one JSON file a rank, maybe gzip, times exact."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from schemas import facts
from schemas.columns import cut_name
from schemas.events import Clock
from schemas.types import DURATION_LIMIT, NONE, TIME_LIMIT, Kind, Process
from stream.producers import wording
from stream.producers.capture import FactRow, Progress, Source, SourceOptions, digest_of, process_of
from stream.producers.exportfacts import thread_facts
from stream.producers.runs import RUN_ROWS
from stream.producers.tracejson import (
    Args,
    Event,
    Trace,
    args_of,
    events_of,
    integer_of,
    name_of,
    nanoseconds_of,
    read_trace,
)

_NO_PROCESS: Final = 1 << 48
"""Stands for a process the trace does not name: vm 1, pid 0."""

_UTC_SINCE: Final = 10**18
"""Times before September 2001 count from something else than 1970."""

_REPORT_EVENTS: Final = 1 << 14
_CATEGORIES: Final = {
    b'"kernel"': Kind.KERNELS,
    b'"Kernel"': Kind.KERNELS,
    b'"gpu_memcpy"': Kind.MEMORY,
    b'"Memcpy"': Kind.MEMORY,
    b'"gpu_memset"': Kind.MEMORY,
    b'"Memset"': Kind.MEMORY,
    b'"cuda_runtime"': Kind.LAUNCHES,
    b'"Runtime"': Kind.LAUNCHES,
    b'"cuda_driver"': Kind.LAUNCHES,
    b'"user_annotation"': Kind.RANGE_OPENINGS,
}
_OPTIONS: Final = ("record_shapes", "with_stack", "with_flops", "with_modules", "profile_memory")

Row = tuple[int, ...]


class _Found:
    """What the events of a trace come to, before it is known which process they are of."""

    def __init__(self) -> None:
        self.rows: dict[Kind, list[Row]] = {kind: [] for kind in _CATEGORIES.values()}
        self.range_pids: list[bytes] = []
        self.gpu_ids: set[int] = set()
        self.caller_pids: Counter[bytes] = Counter()
        self.cpu_pids: list[bytes] = []
        self.process_names: dict[bytes, str] = {}
        self.thread_names: list[tuple[bytes, int, str]] = []
        self.first: int | None = None
        self.counts: Counter[str] = Counter()


class KinetoSource(Source):
    """A trace that the PyTorch profiler wrote: one process, the GPUs it used."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.format = "kineto"
        # Whether times are in UTC shows when they have been read; nearly all are.
        self.clock = Clock("utc", 0)
        self._name_ids: dict[bytes, int] = {}

    def read(self, progress: Progress) -> str:
        """Read the events into sorted rows; return the host, which traces do not say."""
        with ThreadPoolExecutor(1, "digest") as pool:
            digest = pool.submit(digest_of, self.path)
            trace = read_trace(self.path)
            found = self._sift(trace, progress)
            self.capture = digest.result()
        base = integer_of(trace.base) or 0
        shift = self._set_clock(base, found.first)
        pid = _process_pid(found)
        key = (
            _NO_PROCESS
            if pid is None
            else ((integer_of(msgspec.Raw(pid)) or 0) & 0xFFFFFF) << 24 or _NO_PROCESS
        )
        self._fill(found, key, shift, pid)
        self.format = f"kineto {bytes(trace.schema).decode('utf-8', 'backslashreplace')}".strip()
        self._describe(trace, found, process_of("", key), pid)
        return ""

    def _set_clock(self, base: int, first: int | None) -> int:
        """Set what times rest on; return what makes UTC of them."""
        zero = base + first if first is not None else base
        if _UTC_SINCE <= zero < TIME_LIMIT:
            self.clock = Clock("utc", zero)
        else:
            self.clock = Clock()
            self.missing.append("the times in UTC: they count from an unknown moment")
        return base if abs(base) < TIME_LIMIT else 0

    def _sift(self, trace: Trace, progress: Progress) -> _Found:
        """Take what is needed out of the events, times still relative to the trace's base."""
        found = _Found()
        categories = dict(_CATEGORIES)
        if self.options.cpu_ops:
            categories |= {b'"cpu_op"': Kind.RANGE_OPENINGS, b'"Operator"': Kind.RANGE_OPENINGS}
        total = len(trace.events or ())
        for number, event in enumerate(events_of(trace)):
            if not number % _REPORT_EVENTS:
                progress("reading", number, total)
            phase = bytes(event.ph)
            if phase == b'"M"':
                _take_metadata(found, event)
            elif phase == b'"X"':
                time = nanoseconds_of(event.ts)
                if time is not None and abs(time) < TIME_LIMIT:
                    found.first = time if found.first is None else min(found.first, time)
                kind = categories.get(bytes(event.cat))
                if kind is not None:
                    self._take(found, kind, event, time)
        progress("reading", total, total)
        return found

    def _take(self, found: _Found, kind: Kind, event: Event, time: int | None) -> None:
        duration = nanoseconds_of(event.dur)
        if (
            time is None
            or abs(time) >= TIME_LIMIT // 2
            or (duration is not None and abs(duration) >= DURATION_LIMIT)
        ):
            found.counts["time_unusable"] += 1
            return
        rows = found.rows[kind]
        name = self._name_id(event.name)
        if kind is Kind.RANGE_OPENINGS:
            end = NONE if duration is None else time + duration
            rows.append((time, end, 0, _number(event.tid, 0), 0, name))
            found.range_pids.append(bytes(event.pid))
            return
        args = args_of(event)
        correlation = _number(args.correlation, NONE)
        if kind is Kind.LAUNCHES:
            found.caller_pids[bytes(event.pid)] += 1
            rows.append((time, 0, _number(event.tid, 0), correlation, name))
            return
        if duration is None:
            found.counts["time_unusable"] += 1
            return
        found.gpu_ids.add(correlation)
        device = _number(args.device, _number(event.pid, NONE))
        place = (time, duration, 0, device, _number(args.stream, _number(event.tid, NONE)), correlation, name)
        rows.append((*place, *(_graph(args) if kind is Kind.KERNELS else (max(0, _number(args.bytes, 0)),))))

    def _name_id(self, raw: msgspec.Raw) -> int:
        written = bytes(raw)
        found = self._name_ids.get(written)
        if found is None:
            found = self._names.one(name_of(raw) if written else b"")
            if len(self._name_ids) < RUN_ROWS:
                self._name_ids[written] = found
        return found

    def _fill(self, found: _Found, key: int, shift: int, pid: bytes | None) -> None:
        """Make sorted rows, all of one process, of what was found."""
        launches = found.rows[Kind.LAUNCHES]
        used = [row for row in launches if row[3] in found.gpu_ids and row[3] != NONE]
        found.counts["launches_unused"] += len(launches) - len(used)
        found.rows[Kind.LAUNCHES] = used
        callers = {*found.caller_pids, *found.cpu_pids} | ({pid} if pid is not None else set())
        if callers:
            ranges = found.rows[Kind.RANGE_OPENINGS]
            found.rows[Kind.RANGE_OPENINGS] = [
                row for row, of in zip(ranges, found.range_pids, strict=True) if of in callers
            ]
        for kind, rows in found.rows.items():
            columns = self._runs[kind].columns
            for part, low in enumerate(range(0, len(rows), RUN_ROWS)):
                run = np.array(rows[low : low + RUN_ROWS], np.int64).reshape(-1, len(columns))
                run[:, 0] += shift
                run[:, columns.index("process")] = key
                if kind is Kind.RANGE_OPENINGS:
                    run[run[:, 1] != NONE, 1] += shift
                good = np.abs(run[:, 0]) < TIME_LIMIT
                if kind is Kind.RANGE_OPENINGS:
                    good &= (run[:, 1] == NONE) | (np.abs(run[:, 1]) < TIME_LIMIT)
                found.counts["time_unusable"] += len(run) - int(np.count_nonzero(good))
                self._runs[kind].add((0, part), run[good])
            rows.clear()

    def _describe(self, trace: Trace, found: _Found, process: Process, pid: bytes | None) -> None:
        at = self.clock.zero
        self.counts |= {name: number for name, number in sorted(found.counts.items()) if number}
        wording.describe_kinds(self)

        def say(key: str, value: str) -> None:
            self._facts.append(FactRow(process, at, NONE, key, cut_name(value)))

        if pid is not None and pid in found.process_names:
            say(facts.PROCESS_NAME, found.process_names[pid])
        for of, thread, name in found.thread_names:
            if of == pid:
                self._facts += thread_facts(process, thread, cut_name(name), at)
        distributed = _object(trace.distributed)
        for key, value in ((facts.PROCESS_RANK, "rank"), (facts.PROCESS_WORLD_SIZE, "world_size")):
            number = distributed.get(value)
            if isinstance(number, int):
                say(key, str(number))
        devices = _objects(trace.devices)
        for device in devices:
            if isinstance(device.get("id"), int):
                known = {k: v for k, v in device.items() if k != "id" and isinstance(v, int | str)}
                say(facts.DEVICE, msgspec.json.encode({"device": device["id"]} | known).decode())
        self.metadata |= _metadata(trace, devices)


def _take_metadata(found: _Found, event: Event) -> None:
    args = args_of(event)
    pid = bytes(event.pid)
    if bytes(event.name) == b'"process_name"':
        found.process_names.setdefault(pid, _text(args.name))
    elif bytes(event.name) == b'"process_labels"' and bytes(args.labels) == b'"CPU"':
        found.cpu_pids.append(pid)
    elif bytes(event.name) == b'"thread_name"':
        thread = integer_of(event.tid)
        if thread is not None:
            found.thread_names.append((pid, thread, _text(args.name)))


def _process_pid(found: _Found) -> bytes | None:
    """Return the pid of the runtime and driver rows (most of them), else of the process labelled CPU."""
    if found.caller_pids:
        most = max(found.caller_pids.values())
        return min(pid for pid, rows in found.caller_pids.items() if rows == most)
    return found.cpu_pids[0] if found.cpu_pids else None


def _number(raw: msgspec.Raw, otherwise: int) -> int:
    """Return an integer; of text such as "thread 12 (python)" the first in it."""
    number = integer_of(raw)
    if number is None:
        digits = re.search(rb"[0-9]{1,18}", bytes(raw)) if bytes(raw).startswith(b'"') else None
        return int(digits[0]) if digits else otherwise
    return number


def _graph(args: Args) -> tuple[int, int]:
    """Return graph and node as columns, NONE where a kernel is of no graph, which is written as 0."""
    node = integer_of(args.node_id) or 0
    graph = integer_of(args.graph_id) or node >> 32 & 0xFFFFFFFF
    return (graph or NONE, node & 0xFFFFFFFF if node else NONE)


def _text(raw: msgspec.Raw) -> str:
    return cut_name(name_of(raw).decode("utf-8", "backslashreplace")) if bytes(raw) else ""


def _object(raw: msgspec.Raw) -> dict[str, object]:
    try:
        return msgspec.json.decode(raw, type=dict[str, object]) if bytes(raw) else {}
    except msgspec.DecodeError:
        return {}


def _objects(raw: msgspec.Raw) -> list[dict[str, object]]:
    try:
        return msgspec.json.decode(raw, type=list[dict[str, object]]) if bytes(raw) else []
    except msgspec.DecodeError:
        return []


def _metadata(trace: Trace, devices: Iterable[dict[str, object]]) -> dict[str, str]:
    found: dict[str, str] = {}
    gpus = [device["name"] for device in devices if isinstance(device.get("name"), str)]
    if gpus:
        found["gpu"] = cut_name(", ".join(dict.fromkeys(map(str, gpus))))
    for key, raw in (("cuda", trace.cuda_runtime_version), ("driver", trace.cuda_driver_version)):
        if bytes(raw):
            found[key] = _text(raw)
    options = {name: _text(raw) for name in _OPTIONS if bytes(raw := getattr(trace, name))}
    if options:
        found["capture_options"] = msgspec.json.encode(options, order="sorted").decode()
    return found
