"""Which ranges were open when: contexts for instants on threads, and ranges that cross.

A range is open from its start to just before its end. That is judged by times alone, so ranges
need not nest. All arithmetic is over the ranges that hold an instant somebody asks for; a
thread's many others cost two binary searches each.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np

from consumers.contexts import ROOT, Contexts
from consumers.tables import Table, runs_of, take
from schemas.columns import Flags, Int64s
from schemas.types import NONE

OPEN = 2**63 - 1
"""The end of a range that has not ended."""

NOWHERE = NONE + 1
"""The thread of ranges whose domain does not count: nothing is ever launched on it."""

_PAIRS = 1 << 21
"""Most (range, stretch of instants) pairs expanded at once: it bounds memory, not results."""


def by_thread(ranges: Table) -> Iterator[tuple[int, Table]]:
    """Yield each thread's ranges in the order in which they were opened."""
    order = np.lexsort((ranges["ordinal"], ranges["start"], ranges["thread"]))
    ordered = take(ranges, order)
    begins = runs_of(ordered["thread"])
    for low, high in zip(begins, [*begins[1:], len(order)], strict=True):
        yield int(ordered["thread"][low]), {k: v[low:high] for k, v in ordered.items()}


def contexts_at(
    ranges: Table,
    threads: Int64s,
    times: Int64s,
    contexts: Contexts,
    depth: int,
    elements: Callable[[Table], Int64s],
    *,
    process_ranges: bool,
) -> Int64s:
    """Return the context (a node of `contexts`) of each (thread, time).

    `ranges` has columns start, end (OPEN: not ended), thread, ordinal; `elements` gives the
    elements of rows of it. With `process_ranges` the ranges of thread NONE come before all others.
    """
    nodes = np.full(len(times), ROOT, np.int64)
    levels = np.zeros(len(times), np.int64)
    of_thread = dict(by_thread(ranges)) if len(ranges["start"]) else {}
    everywhere = of_thread.pop(NONE, None)
    if not len(times):
        return nodes
    order = np.lexsort((times, threads))
    begins = runs_of(threads[order])
    for low, high in zip(begins, [*begins[1:], len(order)], strict=True):
        index = order[low:high]
        own = of_thread.get(int(threads[index[0]]))
        for table in (everywhere if process_ranges else None, own):
            if table is not None:
                _descend(table, times[index], index, nodes, levels, contexts, depth, elements)
    return nodes


def _descend(
    table: Table,
    times: Int64s,
    index: Int64s,
    nodes: Int64s,
    levels: Int64s,
    contexts: Contexts,
    depth: int,
    elements: Callable[[Table], Int64s],
) -> None:
    """Lead `nodes[index]` further down through the ranges of `table`; `times` ascend."""
    first = np.searchsorted(times, table["start"], "left")
    last = np.searchsorted(times, table["end"], "left")
    holds = last > first
    if not holds.any():
        return
    table, first, last = take(table, holds), first[holds], last[holds]
    # Instants between two edges of ranges share a context: one stretch stands for all of them.
    edge = np.zeros(len(times) + 1, bool)
    edge[0] = True
    edge[first] = True
    edge[last] = True
    edge = edge[:-1]
    edge[1:] |= (nodes[index][1:] != nodes[index][:-1]) | (levels[index][1:] != levels[index][:-1])
    stretch_of = np.cumsum(edge) - 1
    begins = np.flatnonzero(edge)
    stretches = len(begins)
    first = stretch_of[first]
    last = np.concatenate((stretch_of, [stretches]))[last]
    pairs = int((last - first).sum())
    if pairs > _PAIRS and stretches > 1:
        half = int(begins[stretches // 2])
        for part in (slice(None, half), slice(half, None)):
            _descend(table, times[part], index[part], nodes, levels, contexts, depth, elements)
        return
    node, level = nodes[index[begins]], levels[index[begins]]
    counts = last - first
    within = np.arange(pairs) - np.repeat(np.cumsum(counts) - counts, counts)
    stretch = np.repeat(first, counts) + within
    element = np.repeat(elements(table), counts)
    order = np.argsort(stretch, kind="stable")
    stretch, element = stretch[order], element[order]
    rank = np.arange(pairs) - np.searchsorted(stretch, stretch, "left")
    for step in range(int(rank.max()) + 1):
        at = rank == step
        here, what = stretch[at], element[at]
        fits = level[here] < depth
        here, what = here[fits], what[fits]
        if not len(here):
            break
        node[here] = contexts.children(node[here], what)
        level[here] += 1
    nodes[index] = node[stretch_of]
    levels[index] = level[stretch_of]


def newly_crossing(ranges: Table, watermark: int) -> Flags:
    """Return for each row whether it crosses a range that began before it and is now closed.

    A range crosses another of its thread if it began strictly within it and outlives it. Ends at
    or after `watermark` are not decided and outlive everything that is.
    """
    crossing = np.zeros(len(ranges["start"]), bool)
    decided_end = np.where(ranges["end"] < watermark, ranges["end"], OPEN)
    index = np.flatnonzero((decided_end > ranges["start"]) & (ranges["thread"] > NOWHERE))
    if not (decided_end[index] != OPEN).any():
        return crossing
    threads = ranges["thread"][index]
    order = np.lexsort((-decided_end[index], ranges["start"][index], threads))
    index = index[order]
    begins = runs_of(threads[order])
    for low, high in zip(begins, [*begins[1:], len(index)], strict=True):
        rows = index[low:high]
        start, end = ranges["start"][rows], decided_end[rows]
        if not _nested(start, end):
            crossing[rows] = _crossing(start, end)
    return crossing


def _nested(start: Int64s, end: Int64s) -> bool:
    """Tell whether ranges (by start, longer first) all lie within one another or apart.

    The depth of each follows from counting. Were they nested, the one around a range would be the
    last before it that is one less deep; the first range that crosses another outlives that one.
    """
    n = len(start)
    depth = np.arange(1, n + 1) - np.searchsorted(np.sort(end), start, "right")
    inner = np.flatnonzero(depth > 1)
    if not len(inner):
        return True
    order = np.argsort(depth, kind="stable")
    key = depth[order] * n + order
    around = order[np.searchsorted(key, (depth[inner] - 1) * n + inner) - 1]
    return bool((end[inner] <= end[around]).all())


def _crossing(start: Int64s, end: Int64s) -> list[bool]:
    """Say of each range (by start, longer first) whether one that began before it ends within it."""
    result = []
    ends: list[int] = []
    same_start: list[int] = []
    before = None
    for s, e in zip(start.tolist(), end.tolist(), strict=True):
        if s != before:
            for other in same_start:
                heapq.heappush(ends, other)
            same_start.clear()
            before = s
        while ends and ends[0] <= s:
            heapq.heappop(ends)
        result.append(bool(ends) and ends[0] < e)
        same_start.append(e)
    return result
