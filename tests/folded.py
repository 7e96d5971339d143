"""What deltas add up to, as simply as it can be said: dictionaries, added one row at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.deltas import TABLES, Anchor, CaptureState, Delta, Fact, RoleMatch
from schemas.types import CLASS_NAMES, NONE, Process

Group = tuple[Any, ...]


@dataclass
class Stat:
    """Statistics of one group in one window."""

    count: int = 0
    total: int = 0
    low: int = 2**63
    high: int = -1
    buckets: Counter[int] = field(default_factory=Counter)


@dataclass
class Folded:
    """Sums of deltas; windows are named by the cut they begin at."""

    totals: dict[tuple[Process, int, str], tuple[int, ...]] = field(default_factory=dict)
    unknown: dict[tuple[Process, int, str, str], tuple[int, ...]] = field(default_factory=dict)
    groups: dict[tuple[Process, Group, int], Stat] = field(default_factory=lambda: defaultdict(Stat))
    admitted: dict[Process, list[Group]] = field(default_factory=lambda: defaultdict(list))
    rows: Counter[tuple[Process, int, int, str]] = field(default_factory=Counter)
    memory: dict[tuple[Process, str, str], tuple[int, ...]] = field(default_factory=dict)
    graphs: dict[tuple[Process, int, bool], tuple[int, ...]] = field(default_factory=dict)
    opaque: dict[tuple[Process, int, str], tuple[int, ...]] = field(default_factory=dict)
    counters: dict[Process, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    offsets: dict[Process, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    captures: dict[tuple[str, Process], CaptureState] = field(default_factory=dict)
    facts: Counter[tuple[Process, Fact]] = field(default_factory=Counter)
    anchors: Counter[tuple[Process, Anchor]] = field(default_factory=Counter)
    roles: list[tuple[Process, RoleMatch]] = field(default_factory=list)
    ended: Counter[int] = field(default_factory=Counter)


def fold(deltas: Iterable[Delta], cuts: Sequence[int] | None, length: int) -> Folded:
    """Return the sums of deltas; windows begin at `cuts`, None: at multiples of `length`."""
    sums = Folded()
    for delta in deltas:
        _add(sums, delta, cuts, length)
    return sums


def _window(instant: int, cuts: Sequence[int] | None, length: int) -> int:
    if instant == NONE:
        return NONE
    if cuts is None:
        return instant // length * length
    return max((cut for cut in cuts if cut <= instant), default=NONE)


def _rows(delta: Delta, table: str) -> Iterator[dict[str, int]]:
    names = TABLES[table]
    columns = [delta.columns[f"{table}.{name}"].tolist() for name in names]
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def _plus(sums: dict[Any, tuple[int, ...]], key: tuple[Any, ...], *values: int) -> None:
    before = sums.get(key, (0,) * len(values))
    sums[key] = tuple(a + b for a, b in zip(before, values, strict=True))


def _add(sums: Folded, delta: Delta, cuts: Sequence[int] | None, length: int) -> None:
    header, text, process = delta.header, delta.strings, delta.header.process
    for row in _rows(delta, "total"):
        window = _window(row["window"], cuts, length)
        _plus(sums.totals, (process, window, CLASS_NAMES[row["class"]]), row["kernels"], row["ns"])
    for row in _rows(delta, "unknown"):
        window, name = _window(row["window"], cuts, length), text[row["kernel"]]
        _plus(sums.unknown, (process, window, CLASS_NAMES[row["class"]], name), row["kernels"], row["ns"])
    _add_groups(sums, delta, cuts, length)
    for row in _rows(delta, "rows"):
        window = _window(row["window"], cuts, length)
        sums.rows[process, window, row["counter"], text[row["fields"]]] += row["count"]
    for row in _rows(delta, "memory"):
        key = process, text[row["operation"]], CLASS_NAMES[row["class"]]
        _plus(sums.memory, key, row["count"], row["ns"], row["bytes"])
    for row in _rows(delta, "graph"):
        _plus(sums.graphs, (process, row["graph"], row["by_node"] == 1), row["replays"], row["kernels"])
    for row in _rows(delta, "opaque"):
        _plus(sums.opaque, (process, row["graph"], CLASS_NAMES[row["class"]]), row["count"], row["ns"])
    sums.counters[process].update(header.counters)
    for device, offset in header.clock_offsets.items():
        offsets = sums.offsets[process]
        offsets[device] = min(offsets.get(device, offset), offset)
    for state in header.captures:
        sums.captures[state.capture, process] = state
    sums.facts.update((process, fact) for fact in header.facts)
    sums.anchors.update((process, anchor) for anchor in header.anchors)
    sums.roles += [(process, role) for role in header.roles]
    if header.session_end:
        sums.ended[header.partition] += 1


def _add_groups(sums: Folded, delta: Delta, cuts: Sequence[int] | None, length: int) -> None:
    process, text = delta.header.process, delta.strings
    contexts: list[tuple[str, ...]] = []
    for row in _rows(delta, "context"):
        above = contexts[row["parent"]] if row["parent"] >= 0 else ()
        contexts.append((*above, text[row["name"]]))
    groups: list[Group] = []
    for row in _rows(delta, "group"):
        context = contexts[row["context"]] if row["context"] >= 0 else ()
        group = row["device"], context, text[row["kernel"]], row["graph"], row["position"]
        groups.append(group)
        if row["first"] and group not in sums.admitted[process]:
            sums.admitted[process].append(group)
    stats = []
    for row in _rows(delta, "stat"):
        stat = sums.groups[process, groups[row["group"]], _window(row["window"], cuts, length)]
        stat.count += row["count"]
        stat.total += row["total"]
        stat.low, stat.high = min(stat.low, row["min"]), max(stat.high, row["max"])
        stats.append(stat)
    for row in _rows(delta, "bucket"):
        stats[row["stat"]].buckets[row["bucket"]] += row["count"]
