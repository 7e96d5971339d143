"""The rows of `groups.csv`: groups with their statistics, in steady windows and in others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from consumers.figures import Cast
from consumers.fold import STEADY, Session
from consumers.statistics import BUCKET_BITS, local_of, quantiles, reduced, slot_of
from schemas.columns import Int64s
from schemas.ledger import GROUP_COLUMNS, GroupRow
from schemas.types import NONE

_BUCKET: int = (1 << BUCKET_BITS) - 1


class GroupTable(NamedTuple):
    """The rows as columns, in the order of `schemas.ledger.GROUP_COLUMNS`; None: no value.

    Rows are ordered by pid, process, device, context, kernel, graph, position and steady.
    """

    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.columns["host"])

    def rows(self) -> Iterator[GroupRow]:
        """Yield the rows one by one."""
        for values in zip(*self.columns.values(), strict=True):
            yield GroupRow(**dict(zip(self.columns, values, strict=True)))


def steady_slots(session: Session, slots: Int64s) -> Int64s:
    """Return 1 for each slot that is steady time, else 0; `slots` ascending."""
    if session.steady.at_once():
        return np.zeros(len(slots), np.int64)
    flags = session.slot_flags()
    begins = np.flatnonzero(np.diff(slots, prepend=-1))
    steady = [flags.get(slot, slot) & STEADY for slot in slots[begins].tolist()]
    return np.repeat(np.array(steady, np.int64), np.diff(begins, append=len(slots)))


def count_groups(session: Session) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return how many groups have kernels, and (kernels, ns) of each process's `other`."""
    keys, (count, total, _, _) = session.stats.rows()
    others = {p.other: number for number, p in enumerate(session.state.processes) if p.other >= 0}
    groups, (counts, totals) = reduced(local_of(keys) >> BUCKET_BITS, [count, total], [np.add, np.add])
    is_other = np.isin(groups, [*others])
    overflow = {
        others[group]: (kernels, ns)
        for group, kernels, ns in zip(
            groups[is_other].tolist(), counts[is_other].tolist(), totals[is_other].tolist(), strict=True
        )
    }
    return len(groups) - len(overflow), overflow


def group_table(session: Session, cast: Cast) -> GroupTable:
    """Return the rows of all groups that have kernels."""
    keys, values = session.stats.rows()
    code = (local_of(keys) >> BUCKET_BITS << 1) | steady_slots(session, slot_of(keys))
    code, (count, total, low, high) = reduced(code, values, (np.add, np.add, np.minimum, np.maximum))
    keys, (counts,) = session.buckets.rows()
    local = local_of(keys)
    parts = (local >> BUCKET_BITS << 1) | steady_slots(session, slot_of(keys))
    parts, (counts,) = reduced(parts << BUCKET_BITS | (local & _BUCKET), [counts], [np.add])
    found = quantiles(code, low, high, parts >> BUCKET_BITS, parts & _BUCKET, counts)

    group, steady = code >> 1, code & 1
    fields = session.groups.fields()[group]
    process = np.array(session.groups.of_process, np.int64)[group]
    device, context, kernel, graph, position = fields.T
    contexts = _context_texts(session)
    people = sorted((s.process.pid, s.process, i) for i, s in enumerate(cast.all))
    order = np.lexsort(
        (
            steady,
            position,
            graph,
            _ranks(kernel, session.groups.strings)[kernel],
            _ranks(context, contexts)[context],
            device,
            _inverse([i for _, _, i in people])[process],
        )
    )
    who = [cast[i] for i in process[order].tolist()]

    def texts(index: Int64s, of: list[str]) -> list[str]:
        return [of[i] for i in index[order].tolist()]

    columns: dict[str, list[Any]] = {
        "host": [s.process.host for s in who],
        "pid": [s.process.pid for s in who],
        "device": _optional(device[order]),
        "role": [s.role for s in who],
        "context": texts(context, contexts),
        "kernel": texts(kernel, session.groups.strings),
        "graph_id": _optional(graph[order]),
        "position": _optional(position[order]),
        "steady": (steady[order] == 1).tolist(),
        "count": count[order].tolist(),
        "total_ns": total[order].tolist(),
        "min_ns": low[order].tolist(),
        "max_ns": high[order].tolist(),
        "p50_ns": found.p50[order].tolist(),
        "p99_ns": found.p99[order].tolist(),
    }
    return GroupTable({name: columns[name] for name in GROUP_COLUMNS})


def _context_texts(session: Session) -> list[str]:
    """Return each context as a JSON list of its names, outermost first."""
    encode = msgspec.json.encode
    texts = ["[]"]
    for parent, name in session.groups.contexts[1:]:
        above = texts[parent][:-1]
        comma = "," if parent else ""
        texts.append(f"{above}{comma}{encode(session.groups.strings[name]).decode()}]")
    return texts


def _ranks(used: Int64s, texts: list[str]) -> Int64s:
    """Return the place of each text among those used, in order of the texts; others have 0."""
    ranks = np.zeros(len(texts), np.int64)
    for rank, i in enumerate(sorted(np.unique(used).tolist(), key=texts.__getitem__)):
        ranks[i] = rank
    return ranks


def _inverse(order: Iterable[int]) -> Int64s:
    return np.argsort(np.array([*order], np.int64))


def _optional(values: Int64s) -> list[int | None]:
    return [None if v == NONE else v for v in values.tolist()]
