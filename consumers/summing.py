"""From linked rows to deltas: everything of one process, summed by window and group."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from consumers.contexts import ROOT, Contexts, Names
from consumers.tables import Table, combine, rows_of, runs_of, take
from schemas.columns import Flags, Int64s
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


def sum_rows(rows: Table, ready: Flags, contexts: Contexts, names: Names) -> Sums:
    """Sum linked rows; `window` is among their columns.

    Rows that are not `ready` have no window yet: they only introduce their groups.
    """
    rows = rows | {"plain": contexts.plain(rows["context"])}
    ran = rows["kind"] == Kind.KERNELS
    group, stat, bucket = _groups(rows, ran, ready, contexts, names)
    ran &= ready
    unknown = np.flatnonzero(ran & (rows["class"] != Class.CONTEXT))
    in_graph = np.flatnonzero(ran & (rows["by_node"] != NONE))
    worked = np.flatnonzero(rows["kind"] == Kind.MEMORY)
    opaque = np.flatnonzero(rows["kind"] == Kind.GRAPHS)
    return Sums(
        total=_sum_by(rows, np.flatnonzero(ran), ("window", "class"), kernels=None, ns="duration"),
        unknown=_sum_by(rows, unknown, ("window", "class", "name"), kernels=None, ns="duration"),
        group=group,
        stat=stat,
        bucket=bucket,
        memory=_sum_by(rows, worked, ("name", "class"), count=None, ns="duration", bytes="bytes"),
        graph=_sum_by(rows, in_graph, ("graph", "by_node"), replays="replay", kernels=None),
        opaque=_sum_by(rows, opaque, ("graph", "class"), count=None, ns="duration"),
    )


def _sum_by(rows: Table, index: Int64s, key: tuple[str, ...], **sums: str | None) -> Table:
    """Return the sums of columns of rows `index` by key, a count where no column is named."""
    columns = {name: rows[name][index] for name in key}
    keys = combine(*columns.values())
    order = np.argsort(keys, kind="stable")
    begins = runs_of(keys[order])
    result = {name: values[order[begins]] for name, values in columns.items()}
    for name, column in sums.items():
        if column is None:
            result[name] = np.diff(begins, append=len(order))
        else:
            result[name] = _fold(np.add, rows[column][index[order]], begins)
    return result


def _groups(
    rows: Table, ran: Flags, ready: Flags, contexts: Contexts, names: Names
) -> tuple[Table, Table, Table]:
    """Return the groups of the rows that `ran`, in order of admission, and statistics by window."""
    used = (*GROUP, "window", "duration", "new", "due", "advance")
    rows = take({name: rows[name] for name in used}, ran)
    ready = ready[ran]
    keys = combine(*(rows[name] for name in GROUP))
    windows, window = np.unique(rows["window"], return_inverse=True)
    # Rows without a window take part as if of one more, which is left out of the statistics.
    window = np.where(ready, window, len(windows))
    duration = rows["duration"]
    buckets = bucket_of(duration)
    key = combine(keys, window, buckets)
    order = np.argsort(key, kind="stable")
    keys, window, duration, key = keys[order], window[order], duration[order], key[order]
    group_begins = runs_of(keys)
    is_new = rows["new"][order]
    admitted = _admission(rows, order, group_begins, contexts, names)
    number = np.empty(len(group_begins), np.int64)
    number[admitted] = np.arange(len(group_begins))
    at = order[group_begins[admitted]]
    group = {name: rows[name][at] for name in GROUP}
    group["first"] = _fold(np.maximum, is_new, group_begins)[admitted]
    begins = runs_of(combine(keys, window))
    of_group = number[np.searchsorted(group_begins, begins, "right") - 1]
    stat = {"group": of_group, "window": np.append(windows, NONE)[window[begins]]}
    stat["count"] = np.diff(begins, append=len(keys))
    for name, fold in (("total", np.add), ("min", np.minimum), ("max", np.maximum)):
        stat[name] = _fold(fold, duration, begins)
    parts = runs_of(key)
    bucket = {
        "stat": np.searchsorted(begins, parts, "right") - 1,
        "bucket": buckets[order][parts],
        "count": np.diff(parts, append=len(key)),
    }
    return group, *_in_order(stat, bucket, window[begins] < len(windows))


def _fold(fold: np.ufunc, values: Int64s, begins: Int64s) -> Int64s:
    result: Int64s = fold.reduceat(values, begins) if len(begins) else values
    return result


def _in_order(stat: Table, bucket: Table, kept: Flags) -> tuple[Table, Table]:
    """Return the `kept` statistics by group, and the buckets in the order of their statistics."""
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(stat["group"][rows], kind="stable")]
    place = np.full(len(kept), -1, np.int64)
    place[rows] = np.arange(len(rows))
    bucket = take(bucket, kept[bucket["stat"]])
    bucket = bucket | {"stat": place[bucket["stat"]]}
    return take(stat, rows), take(bucket, np.argsort(bucket["stat"], kind="stable"))


def _admission(rows: Table, order: Int64s, begins: Int64s, contexts: Contexts, names: Names) -> Int64s:
    """Return the groups (the runs of `order` that begin at `begins`) in order of admission.

    That is the order of their first new row's decision, ties by key; those without one come last.
    """
    new = np.flatnonzero(rows["new"] == 1)
    decided = np.full(rows_of(rows), rows_of(rows), np.int64)
    decided_order = new[np.lexsort((rows["due"][new], rows["advance"][new]))]
    decided[decided_order] = np.arange(len(new))
    first = _fold(np.minimum, decided[order], begins)
    admitted = np.argsort(first, kind="stable")
    introduced = admitted[first[admitted] < rows_of(rows)]
    at = decided_order[first[introduced]]
    tie = (np.diff(rows["due"][at]) == 0) & (np.diff(rows["advance"][at]) == 0)
    for low, high in _runs_of_ties(tie):
        text = [
            (
                int(rows["device"][i]),
                contexts.plain_names(int(rows["plain"][i])),
                names.texts[int(rows["name"][i])],
                int(rows["graph"][i]),
                int(rows["position"][i]),
            )
            for i in at[low:high].tolist()
        ]
        part = admitted[low:high]
        admitted[low:high] = part[sorted(range(len(text)), key=text.__getitem__)]
    return admitted


def _runs_of_ties(tie: Flags) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], tie.astype(np.int8), [0]))))
    for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield low, high + 1


def records(
    header: DeltaHeader, sums: Sums, counted: Table, contexts: Contexts, names: Names
) -> Iterator[bytes]:
    """Yield a process's sums as delta records within the size limit; `counted` has a window."""
    rows = _sum_by(counted, np.arange(rows_of(counted)), ("window", "counter", "fields"), count=None)
    groups = rows_of(sums.group)
    bounds = [*range(0, groups, _GROUPS_A_RECORD), groups] if groups else [0, 0]
    small = sums._asdict() | {"rows": rows}
    for low, high in itertools.pairwise(bounds):
        yield from _fitting(header, small, low, high, contexts, names)
        header, small = _groups_only(header, small)


def _fitting(
    header: DeltaHeader, tables: dict[str, Table], low: int, high: int, contexts: Contexts, names: Names
) -> Iterator[bytes]:
    record = encode_delta(_delta(header, tables, low, high, contexts, names))
    if len(record) <= MAX_RECORD_BYTES or high - low < 2:
        yield record
        return
    half = (low + high) // 2
    yield from _fitting(header, tables, low, half, contexts, names)
    header, tables = _groups_only(header, tables)
    yield from _fitting(header, tables, half, high, contexts, names)


def _groups_only(header: DeltaHeader, tables: dict[str, Table]) -> tuple[DeltaHeader, dict[str, Table]]:
    """Return what the further records of one commit carry: all else went with the first."""
    bare = DeltaHeader(header.session, header.config_digest, header.partition, header.process)
    return bare, {
        name: table if name in ("group", "stat", "bucket") else {c: v[:0] for c, v in table.items()}
        for name, table in tables.items()
    }


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
