"""The main figures of the ledger from what the reference linked, as simply as they can be said."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import reference
from reference import CONTEXT, FOREVER, NO_RANGES, NONE, NOT_CAPTURED, OUTSIDE, Linked, Work

from schemas.config import Config
from schemas.types import Kind, Process

COUNTED_KINDS = (Kind.KERNELS, Kind.LAUNCHES, Kind.RANGE_OPENINGS, Kind.RANGE_CLOSINGS)
"""Kinds of rows without which a coverage cannot be trusted."""


def figures(result: Linked, config: Config) -> dict[str, Any]:
    """Return figures by the ledger's own keys; those that may be withheld as they are if not."""
    roles = {p: reference.role_of(p, result, config) for p in processes(result)}
    steady = [k for k in result.kernels if reference.is_in("steady", k.window, result, config)]
    return {
        "kernel_events": len(result.kernels),
        "link_status": {
            "no_nvtx_context": sum(k.reason != CONTEXT for k in result.kernels),
            "total": len(result.kernels),
            "context": sum(k.reason == CONTEXT for k in result.kernels),
        },
        "groups": sum(len(g) for g in reference.admitted(result, config.limits.groups).values()),
        "roles": {shown: roles[p] for p, shown in shown_pids(roles).items()},
        "reasons": reasons(result.kernels),
        "unknown_top": unknown_top(result, roles),
        "windows_ns": {p: listed(p, result, config) for p in reference.PURPOSES},
        "per_role": {role: amounts(ks) for role, ks in by_role(result.kernels, roles).items()},
        "coverage": {
            "invocations_with_context": share(result.kernels, count=True),
            "steady_gpu_time_with_context": share(steady, count=False),
            "steady_gpu_ns_total": sum(k.ns for k in steady),
            **{rows.name: row_keys(number, result, config, roles) for number, rows in enumerate(config.rows)},
        },
        "quality": quality(result, config),
    }


def processes(result: Linked) -> list[Process]:
    """Return the processes that have events."""
    return sorted({lane.process for lane in result.lanes.values() if lane.first is not None})


def shown_pids(listed: Iterable[Process]) -> dict[Process, str]:
    """Return how each pid is shown: with the host, then the vm, where others share it."""
    names = {}
    for p in listed:
        same = [q for q in listed if q.pid == p.pid]
        names[p] = str(p.pid) if len(same) == 1 else f"{p.host}:{p.pid}"
        if sum(q.host == p.host for q in same) > 1:
            names[p] += f"@{p.global_pid >> 56}.{p.global_pid >> 48 & 0xFF}"
    return names


def reasons(kernels: Sequence[Work]) -> dict[str, dict[str, int]]:
    """Return kernels and ns without context by reason."""
    found = {}
    for reason in (NOT_CAPTURED, OUTSIDE, NO_RANGES):
        mine = [k.ns for k in kernels if k.reason == reason]
        found[reason] = {"kernels": len(mine), "gpu_ns": sum(mine)}
    return found


def amounts(kernels: Sequence[Work]) -> dict[str, Any]:
    """Return the figures of some kernels."""
    context = [k.ns for k in kernels if k.reason == CONTEXT]
    return {
        "kernels": len(kernels),
        "gpu_ns": sum(k.ns for k in kernels),
        "context": {"kernels": len(context), "gpu_ns": sum(context)},
        "reasons": reasons(kernels),
    }


def share(kernels: Sequence[Work], *, count: bool) -> float | None:
    """Return the part of the kernels, or of their time, that has a context."""
    whole = sum(1 if count else k.ns for k in kernels)
    part = sum(1 if count else k.ns for k in kernels if k.reason == CONTEXT)
    return part / whole if whole else None


def by_role(kernels: Iterable[Work], roles: dict[Process, str]) -> dict[str, list[Work]]:
    """Return kernels by the role of their process."""
    found: dict[str, list[Work]] = defaultdict(list)
    for kernel in kernels:
        found[roles[kernel.process]].append(kernel)
    return found


def unknown_top(result: Linked, roles: dict[Process, str]) -> list[dict[str, Any]]:
    """Return the 40 kernels that most often have no context."""
    counts = Counter((roles[k.process], k.name) for k in result.kernels if k.reason != CONTEXT)
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"role": role, "name": name, "count": count} for (role, name), count in order[:40]]


def listed(purpose: str, result: Linked, config: Config) -> list[list[int | None]]:
    """Return the spans of a purpose as the ledger lists them."""
    by = getattr(config.windows, purpose).by
    if by == "none":
        return []
    if by == "all":
        lanes = [lane for lane in result.lanes.values() if lane.first is not None]
        firsts, lasts = [n.first or 0 for n in lanes], [n.last or 0 for n in lanes]
        return [[min(firsts), max(lasts)]] if lanes else []
    found = [(s, e) for s, e, counts in reference.spans(purpose, result, config) if counts]
    return [[start, None if end == FOREVER else end] for start, end in sorted(found)]


def row_keys(number: int, result: Linked, config: Config, roles: dict[Process, str]) -> dict[str, int]:
    """Return a row counter by its keys."""
    shown = shown_pids(roles)
    counts: Counter[str] = Counter()
    for row in result.rows:
        if row.counter == number and reference.is_in("measured", row.window, result, config):
            rank = next(v for _, _, k, v in result.facts[row.process] if k == "process.rank")
            fields = {"pid": shown[row.process], "rank": rank, **row.fields}
            counts[reference.filled(config.rows[number].key, fields)] += 1
    return dict(counts)


def quality(result: Linked, config: Config) -> dict[str, Any]:
    """Return the counts of the ledger's `quality`."""
    sums = Counter(result.of_session)
    for counters in result.counters.values():
        sums.update(counters)
    gaps = [lane.missing() for lane in result.lanes.values()]
    return {
        "missing_rows": sum(high - low for g in gaps for i in g.values() for low, high in i),
        "late": {
            **{kind: sums[f"late_{kind}"] for kind in ("kernels", "launches", "ranges", "memory")},
            "boundaries": sums["late_boundaries"],
        },
        "odd": {
            name: sums[name]
            for name in (
                "negative_durations",
                "zero_durations",
                "launched_after_start",
                "second_kernels",
                "crossing_ranges",
                "unmatched_closings",
                "unknown_kinds",
            )
        },
        "after_end": sums["after_end"],
        "pending": 0,
        "overflow": sorted(
            process.pid
            for process in {
                k.process for k in result.kernels if k.group not in admitted_of(k.process, result, config)
            }
        ),
    }


def admitted_of(process: Process, result: Linked, config: Config) -> list[tuple[Any, ...]]:
    """Return the groups of a process within the limit."""
    return reference.admitted(result, config.limits.groups).get(process, [])


def missing(result: Linked) -> bool:
    """Tell whether rows are missing without which no coverage can be trusted."""
    return any(lane.missing().get(kind) for lane in result.lanes.values() for kind in COUNTED_KINDS)


def group_rows(result: Linked, config: Config) -> dict[tuple[Any, ...], list[int]]:
    """Return durations by (process, group, steady); groups beyond the limit under `other`."""
    admitted = reference.admitted(result, config.limits.groups)
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for kernel in result.kernels:
        known = kernel.group in admitted[kernel.process]
        group = kernel.group if known else (NONE, (), "other", NONE, NONE)
        steady = reference.is_in("steady", kernel.window, result, config)
        found[kernel.process, group, steady].append(kernel.ns)
    return found
