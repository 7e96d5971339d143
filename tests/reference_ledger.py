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
    steady = [k for k in result.kernels if reference.is_in("steady", k.time, result, config)]
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
        "windows": windows(result, config, roles),
        "memory": memory(result, roles),
        "graphs": graphs(result, roles),
        "clock": clock(result, config, roles),
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


def windows(result: Linked, config: Config, roles: dict[Process, str]) -> list[dict[str, Any]]:
    """Return the last windows that hold kernels."""
    if any(reference.clash(purpose, result, config) for purpose in reference.PURPOSES):
        return []
    cuts = reference.cuts(result, config)
    found = []
    for start in sorted({k.window for k in result.kernels})[-config.limits.windows :]:
        length = reference.nanoseconds(config.windows.length)
        end = start + length if cuts is None else min((c for c in cuts if c > start), default=None)
        mine = [k for k in result.kernels if k.window == start]
        found.append(
            {
                "span_ns": [None if start == NONE else start, end],
                "closed": True,
                "measured": reference.is_in("measured", start, result, config),
                "steady": reference.is_in("steady", start, result, config),
                "per_role": {role: amounts(ks) for role, ks in by_role(mine, roles).items()},
            }
        )
    return found


def recent(result: Linked, config: Config) -> dict[str, Any]:
    """Return the figures by role of the last windows: all of them are closed in the end."""
    roles = {p: reference.role_of(p, result, config) for p in processes(result)}
    last = {k.window for k in result.kernels}
    if any(reference.clash(purpose, result, config) for purpose in reference.PURPOSES):
        last = set()
    kept = sorted(last)[-config.limits.recent :]
    mine = [k for k in result.kernels if k.window in kept]
    return {role: amounts(ks) for role, ks in by_role(mine, roles).items()}


def memory(result: Linked, roles: dict[Process, str]) -> list[dict[str, Any]]:
    """Return memory operations by process and operation."""
    kept = [work for work in result.others if work.kind == Kind.MEMORY]
    found = []
    for process, operation in sorted({(w.process, w.name) for w in kept}, key=lambda k: (k[0].pid, *k)):
        mine = [w for w in kept if (w.process, w.name) == (process, operation)]
        found.append(
            {
                **named(process, roles),
                "operation": operation,
                "count": len(mine),
                "gpu_ns": sum(w.ns for w in mine),
                "bytes": sum(w.bytes for w in mine),
                "with_context": sum(w.reason == CONTEXT for w in mine),
            }
        )
    return found


def graphs(result: Linked, roles: dict[Process, str]) -> list[dict[str, Any]]:
    """Return replays by process, graph and kind of position, then opaque launches."""
    found = []
    replays = reference.graphs(result)
    opaque = [work for work in result.others if work.kind == Kind.GRAPHS]
    for process in sorted(roles, key=lambda p: (p.pid, p)):
        for who, graph, by_node in sorted(replays):
            if who == process:
                count, kernels = replays[who, graph, by_node]
                known = {"graph_id": optional(graph), "positions": "node" if by_node else "order"}
                known |= {"replays": count, "kernels": kernels, "gpu_ns": None}
                found.append(named(process, roles) | known)
        for graph in sorted({w.graph for w in opaque if w.process == process}):
            mine = [w.ns for w in opaque if (w.process, w.graph) == (process, graph)]
            known = {"graph_id": optional(graph), "positions": None}
            known |= {"replays": len(mine), "kernels": 0, "gpu_ns": sum(mine)}
            found.append(named(process, roles) | known)
    return found


def optional(value: int) -> int | None:
    """Return a number, None where it stands for none."""
    return None if value == NONE else value


def named(process: Process, roles: dict[Process, str]) -> dict[str, Any]:
    """Return what a row of the ledger says of its process."""
    return {"host": process.host, "pid": process.pid, "role": roles[process]}


def clock(result: Linked, config: Config, roles: dict[Process, str]) -> dict[str, Any]:
    """Return how the application's clock lies to the capture's; the captures' zero is 0 here."""
    of_role = [a for a in result.anchors if roles[a[0]] == config.clock.role]
    offsets = [shown - time for _, time, shown in result.anchors]
    first = min(of_role or result.anchors, key=lambda a: (a[1], a[0], a[2]), default=None)
    offset = None if first is None else first[2] - first[1]
    return {
        "session_systemClockNs": None,
        "anchor_offset_ns": offset,
        "anchor_count": len(offsets),
        "anchor_spread_ns": max(offsets) - min(offsets) if offsets else None,
        "used_offset_ns": offset,
    }


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
        if row.counter == number and reference.is_in("measured", row.time, result, config):
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
    dark = blind(result)
    return {
        "missing": [
            {
                "capture": capture,
                "host": process.host,
                "pid": process.pid,
                "kind": kind.name.lower(),
                "intervals": [[*interval] for interval in lane.missing()[kind]],
            }
            for (capture, process), lane in sorted(result.lanes.items())
            for kind in sorted(map(Kind, lane.missing()), key=lambda kind: kind.name)
        ],
        "clock_offsets": [
            {"host": p.host, "pid": p.pid, "device": device, "offset_ns": offset}
            for p in sorted(result.offsets, key=lambda p: (p.pid, p))
            for device, offset in sorted(result.offsets[p].items())
        ],
        "blind": dark,
        "blind_ns": sum(high - low for low, high in dark),
        "missing_rows": sum(high - low for g in gaps for i in g.values() for low, high in i),
        "late": {
            **{kind: sums[f"late_{kind}"] for kind in ("kernels", "launches", "ranges", "memory")},
            "boundaries": sums["late_boundaries"]
            + sum(edge.is_late(reference.anchor(result)) for edge in result.edges),
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
        "unended_captures": sums["unended_captures"],
        "pending": 0,
        "overflow": sorted(
            process.pid
            for process in {
                k.process for k in result.kernels if k.group not in admitted_of(k.process, result, config)
            }
        ),
    }


def blind(result: Linked) -> list[list[int]]:
    """Return the times between the first and the last event in which no capture has any."""
    lives: dict[str, list[int]] = defaultdict(list)
    for (capture, _), lane in result.lanes.items():
        lives[capture] += [time for time in (lane.first, lane.last) if time is not None]
    spans = [(min(times), max(times)) for times in lives.values() if times]
    ends = sorted({high for _, high in spans})
    found = []
    for end in ends:
        after = [low for low, _ in spans if low > end]
        if after and not any(low <= end < high for low, high in spans):
            found.append([end, min(after)])
    return found


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
        steady = reference.is_in("steady", kernel.time, result, config)
        found[kernel.process, group, steady].append(kernel.ns)
    return found
