"""From linked rows to deltas: everything of one process, summed by window and group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from consumers.contexts import ROOT, Contexts, Names
from consumers.counters import COUNTED
from consumers.tables import Table, combine, rows_of, runs_of, take
from schemas.columns import Int64s
from schemas.deltas import TABLES, Delta, DeltaHeader, encode_delta
from schemas.events import MAX_RECORD_BYTES
from schemas.quantiles import bucket_of
from schemas.types import NONE, Class, Kind

GROUP: Final = ("device", "plain", "name", "graph", "position")
_GROUPS_A_RECORD: Final = 4096


class Sums(NamedTuple):
    """The tables of a delta before its strings are numbered; `group` is in order of admission."""

    total: Table
    unknown: Table
    group: Table
    stat: Table
    bucket: Table
    memory: Table
    graph: Table
    opaque: Table


def sum_rows(rows: Table, ready: np.ndarray, contexts: Contexts, names: Names) -> Sums:  # type: ignore[type-arg]
    """Sum linked rows; `window` is among their columns.

    Rows that are not `ready` have no window yet: they only introduce their groups.
    """
    kernels = rows["kind"] == Kind.KERNELS
    rows = rows | {"plain": contexts.plain(rows["context"])}
    decided = take(rows, ready)
    worked = take(decided, decided["kind"] == Kind.MEMORY)
    opaque = take(decided, decided["kind"] == Kind.GRAPHS)
    ran = take(decided, decided["kind"] == Kind.KERNELS)
    unknown = take(ran, ran["class"] != Class.CONTEXT)
    in_graph = take(ran, ran["by_node"] != NONE)
    group, stat, bucket = _groups(take(rows, kernels), ready[kernels], contexts, names)
    return Sums(
        total=_sum_by(ran, ("window", "class"), kernels=None, ns="duration"),
        unknown=_sum_by(unknown, ("window", "class", "name"), kernels=None, ns="duration"),
        group=group,
        stat=stat,
        bucket=bucket,
        memory=_sum_by(worked, ("name", "class"), count=None, ns="duration", bytes="bytes"),
        graph=_sum_by(in_graph, ("graph", "by_node"), replays="replay", kernels=None),
        opaque=_sum_by(opaque, ("graph", "class"), count=None, ns="duration"),
    )


def _sum_by(rows: Table, key: tuple[str, ...], **sums: str | None) -> Table:
    """Return the sums of columns by key, a count where no column is named."""
    keys = combine(*(rows[name] for name in key)) if rows_of(rows) else np.zeros(0, np.int64)
    order = np.argsort(keys, kind="stable")
    begins = runs_of(keys[order])
    result = {name: rows[name][order][begins] for name in key}
    ends = np.append(begins[1:], len(order))
    for name, column in sums.items():
        if column is None:
            result[name] = ends - begins
        else:
            values = rows[column][order]
            result[name] = np.add.reduceat(values, begins) if len(begins) else values
    return result


def _groups(rows: Table, ready: np.ndarray, contexts: Contexts, names: Names) -> tuple[Table, Table, Table]:  # type: ignore[type-arg]
    """Return the groups in order of admission, and their statistics by window."""
    keys = combine(*(rows[name] for name in GROUP)) if rows_of(rows) else np.zeros(0, np.int64)
    uniques, firsts, code = np.unique(keys, return_index=True, return_inverse=True)
    admitted = _admission(rows, code, len(uniques), contexts, names)
    number = np.empty(len(uniques), np.int64)
    number[admitted] = np.arange(len(uniques))
    at = firsts[admitted]
    group = {name: rows[name][at] for name in GROUP}
    group["first"] = np.bincount(code, rows["new"], len(uniques)).astype(np.int64)[admitted] > 0
    code = number[code][ready]
    window, duration = rows["window"][ready], rows["duration"][ready]
    windows, window_code = np.unique(window, return_inverse=True)
    buckets = bucket_of(duration)
    key = combine(code, window_code, buckets)
    order = np.argsort(key, kind="stable")
    code, window_code, duration = code[order], window_code[order], duration[order]
    cells = code * len(windows) + window_code
    begins = runs_of(cells)
    stat = {"group": code[begins], "window": windows[window_code[begins]]}
    stat["count"] = np.diff(begins, append=len(cells))
    for name, fold in (("total", np.add), ("min", np.minimum), ("max", np.maximum)):
        stat[name] = fold.reduceat(duration, begins) if len(begins) else duration
    parts = runs_of(key[order])
    bucket = {
        "stat": np.searchsorted(begins, parts, "right") - 1,
        "bucket": buckets[order][parts],
        "count": np.diff(parts, append=len(key)),
    }
    return group, stat, bucket


def _admission(rows: Table, code: Int64s, groups: int, contexts: Contexts, names: Names) -> Int64s:
    """Return the groups in the order they are admitted in.

    That of their first new row's decision, ties by key; groups without new rows come last.
    """
    new = np.flatnonzero(rows["new"] == 1)
    decided = np.full(groups, len(code), np.int64)
    order = new[np.lexsort((rows["due"][new], rows["advance"][new]))]
    np.minimum.at(decided, code[order], np.arange(len(order)))
    admitted = np.argsort(decided, kind="stable")
    count = int((decided < len(code)).sum())
    first = order[decided[admitted[:count]]]
    tie = (np.diff(rows["due"][first]) == 0) & (np.diff(rows["advance"][first]) == 0)
    for low, high in _runs_of_ties(tie):
        part = admitted[low:high]
        at = first[low:high]
        text = [
            (
                int(rows["device"][i]),
                contexts.plain_names(int(rows["plain"][i])),
                names.texts[int(rows["name"][i])],
                int(rows["graph"][i]),
                int(rows["position"][i]),
            )
            for i in at.tolist()
        ]
        admitted[low:high] = part[sorted(range(len(text)), key=text.__getitem__)]
    return admitted


def _runs_of_ties(tie: np.ndarray) -> Iterator[tuple[int, int]]:  # type: ignore[type-arg]
    edges = np.flatnonzero(np.diff(np.concatenate(([0], tie.astype(np.int8), [0]))))
    for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield low, high + 1


def records(
    header: DeltaHeader, sums: Sums, counted: Table, contexts: Contexts, names: Names
) -> Iterator[bytes]:
    """Yield a process's sums as delta records within the size limit; `counted` has a window."""
    rows = _sum_by(counted, ("window", "counter", "fields"), count=None)
    groups = rows_of(sums.group)
    bounds = [*range(0, groups, _GROUPS_A_RECORD), groups] if groups else [0, 0]
    small = sums._asdict() | {"rows": rows}
    for low, high in zip(bounds, bounds[1:], strict=False):
        yield from _fitting(header, small, low, high, contexts, names)
        header = DeltaHeader(
            header.session, header.config_digest, header.partition, header.process
        )
        small |= {
            name: {c: v[:0] for c, v in table.items()}
            for name, table in small.items()
            if name not in ("group", "stat", "bucket")
        }


def _fitting(
    header: DeltaHeader, tables: dict[str, Table], low: int, high: int, contexts: Contexts, names: Names
) -> Iterator[bytes]:
    record = encode_delta(_delta(header, tables, low, high, contexts, names))
    if len(record) <= MAX_RECORD_BYTES or high - low < 2:
        yield record
        return
    half = (low + high) // 2
    yield from _fitting(header, tables, low, half, contexts, names)
    bare = DeltaHeader(header.session, header.config_digest, header.partition, header.process)
    rest = {
        name: table if name in ("group", "stat", "bucket") else {c: v[:0] for c, v in table.items()}
        for name, table in tables.items()
    }
    yield from _fitting(bare, rest, half, high, contexts, names)


def _delta(
    header: DeltaHeader, tables: dict[str, Table], low: int, high: int, contexts: Contexts, names: Names
) -> Delta:
    """Return groups `low` to `high` and all of the other tables as one delta."""
    strings = Names()

    def text(numbers: Int64s) -> Int64s:
        uniques, inverse = np.unique(numbers, return_inverse=True)
        return np.array([strings.id(names.texts[n]) for n in uniques.tolist()], np.int64)[inverse]

    group = {name: values[low:high] for name, values in tables["group"].items()}
    stat_low, stat_high = np.searchsorted(tables["stat"]["group"], (low, high))
    stat = {name: values[stat_low:stat_high] for name, values in tables["stat"].items()}
    bucket_low, bucket_high = np.searchsorted(tables["bucket"]["stat"], (stat_low, stat_high))
    bucket = {name: values[bucket_low:bucket_high] for name, values in tables["bucket"].items()}
    context, plain = _context_table(group["plain"], contexts, strings)
    full = {
        "total": tables["total"],
        "unknown": tables["unknown"] | {"kernel": text(tables["unknown"]["name"])},
        "context": context,
        "group": group | {"context": plain, "kernel": text(group["name"])},
        "stat": stat | {"group": stat["group"] - low},
        "bucket": bucket | {"stat": bucket["stat"] - stat_low},
        "rows": tables["rows"] | {"fields": text(tables["rows"]["fields"])},
        "memory": tables["memory"] | {"operation": text(tables["memory"]["name"])},
        "graph": tables["graph"],
        "opaque": tables["opaque"],
    }
    columns = {
        f"{table}.{name}": np.asarray(full[table][name], np.int64)
        for table, wanted in TABLES.items()
        if rows_of(full[table])
        for name in wanted
    }
    return Delta(header, columns, strings.texts)


def _context_table(plains: Int64s, contexts: Contexts, strings: Names) -> tuple[Table, Int64s]:
    """Return the contexts that `plains` need, parents first, and `plains` as rows of that."""
    needed: set[int] = set()
    for plain in np.unique(plains).tolist():
        while plain != ROOT and plain not in needed:
            needed.add(plain)
            plain = contexts.plain_parents[plain]  # noqa: PLW2901
    # A parent was seen before its child, so numbers in ascending order put it first.
    listed = sorted(needed)
    row = {plain: i for i, plain in enumerate(listed)} | {ROOT: -1}
    table = {
        "parent": np.array([row[contexts.plain_parents[p]] for p in listed], np.int64),
        "name": np.array([strings.id(contexts.plain_texts[p]) for p in listed], np.int64),
    }
    uniques, inverse = np.unique(plains, return_inverse=True)
    return table, np.array([row[p] for p in uniques.tolist()], np.int64)[inverse]
