"""From a session as the sink holds it to its ledger."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from consumers.figures import Cast, Gaps, Sums, Totals, UnknownKernels, figures_by_role, ratio, reasons_of
from consumers.fold import MEASURED, STEADY, Session, cut_before
from consumers.grouping import count_groups
from consumers.quality import quality_of
from consumers.roles import family_of, fill
from consumers.spans import PurposeSpans
from consumers.statistics import local_of, slot_of
from schemas import facts as keys
from schemas.config import Config, duration_ns
from schemas.ledger import (
    RECENT_TOP,
    UNKNOWN_TOP,
    Clock,
    Coverage,
    Delivery,
    Graph,
    Ledger,
    LinkStatus,
    Memory,
    NameCount,
    Pid,
    Recent,
    RecentRole,
    Span,
    UnknownKernel,
    Window,
    WindowsNs,
)
from schemas.types import END_OF_TIME, NONE, Class

_MISSING: Final = "rows are missing (quality.missing)"
_UNREADABLE: Final = "a delta could not be read"
_NO_KERNELS: Final = "there are no kernels"
_fields_decoder = msgspec.json.Decoder(dict[str, str])


def ledger_of(session: Session, *, unreadable: int = 0) -> Ledger:
    """Return the ledger of all that a session has taken in so far.

    `unreadable` counts deltas that could not be read: no ratio can be trusted then.
    """
    return _Report(session, unreadable).ledger()


class _Named(NamedTuple):
    """One window: where it begins and ends (UTC ns; NONE, END_OF_TIME: open) and its slots."""

    start: int
    end: int
    slots: list[int]


class _Report:
    def __init__(self, session: Session, unreadable: int) -> None:
        self.session = session
        self.config: Config = session.config
        self.unreadable = unreadable
        self.cast = Cast(session)
        self.totals = Totals(session, self.cast)
        self.unknown = UnknownKernels(session, self.cast)
        self.gaps = Gaps(session, self.cast)
        self.withheld: dict[str, list[str]] = {}
        captures = [c for p in session.state.processes for c in p.captures.values()]
        self.zero = min((c.clock.zero for c in captures), default=0)
        self.earliest = min(((c.clock.zero, c.capture) for c in captures), default=(0, ""))[1]
        self.first = min((c.first for c in captures if c.first is not None), default=None)
        self.last = max((c.last for c in captures if c.last is not None), default=None)
        live = [
            c.watermark
            for p in session.state.processes
            if not p.process.is_capture
            for c in p.captures.values()
            if not c.ended
        ]
        self.watermark = min(live, default=END_OF_TIME)
        self.final = session.complete and all(c.ended for c in captures)
        self.flags = session.slot_flags()
        self.steady_clash = session.steady.at_once()
        self.measured_clash = session.measured.at_once()

    def ledger(self) -> Ledger:
        state = self.session.state
        sums = self.totals.by_role()
        everything: Sums = sums.sum(axis=0)
        kernels = int(everything[:, 0].sum())
        with_context = int(everything[Class.CONTEXT, 0])
        groups, overflow = count_groups(self.session)
        gaps = self.gaps.roles()
        coverage = self._coverage(sums)
        for role in sorted(gaps):
            self._withhold(f"per_role.{role}", [_MISSING])
        windows = self._windows()
        return Ledger(
            label=state.session,
            run=state.session,
            kernel_events=kernels,
            link_status=LinkStatus(
                no_nvtx_context=kernels - with_context, total=kernels, context=with_context
            ),
            groups=groups,
            roles={s.shown: s.role for s in self.cast.listed},
            family_pids=self._family_pids(),
            clock=self._clock(),
            windows_ns=WindowsNs(
                measured=self._spans("measured", self.session.measured),
                steady=self._spans("steady", self.session.steady),
            ),
            coverage=coverage,
            unknown_top=[
                UnknownKernel(role=role, name=name, count=count)
                for role, name, count in self.unknown.top(UNKNOWN_TOP)
            ],
            final=self.final,
            config_digest=self.config.digest,
            reasons=reasons_of(everything),
            per_role=figures_by_role(sums, self.cast, gaps | self._doubted()),
            coverage_recent=self._recent(windows),
            windows=[self._window(w) for w in windows],
            graphs=self._graphs(),
            memory=self._memory(),
            metadata=self._metadata(),
            withheld=dict(sorted(self.withheld.items())),
            quality=quality_of(self.session, self.cast, overflow, self.zero),
            delivery=Delivery(
                repeated_rows=state.counters.get("repeated_rows", 0),
                dead_letters=state.counters.get("dead_letters", 0) + self.unreadable,
            ),
        )

    def _withhold(self, figure: str, reasons: Iterable[str]) -> bool:
        """Note why a figure is withheld; False if there is no reason to."""
        found = [*dict.fromkeys(reasons)]
        if found:
            self.withheld[figure] = found
        return bool(found)

    def _doubted(self) -> set[str]:
        return set(self.cast.roles) if self.unreadable else set()

    # -- coverage --------------------------------------------------------------------------

    def _coverage(self, sums: Sums) -> Coverage:
        everything = sums.sum(axis=0)
        kernels, with_context = int(everything[:, 0].sum()), int(everything[Class.CONTEXT, 0])
        invocations = ratio(with_context, kernels)
        reasons = [] if kernels else [_NO_KERNELS]
        reasons += self._doubts([(None, None)], sums, "has no kernels")
        if self._withhold("coverage.invocations_with_context", reasons):
            invocations = None
        steady = self.totals.by_role(
            s for s in self.totals.slots.tolist() if self.flags.get(s, s) & STEADY and not self.steady_clash
        )
        ns, ns_with_context = int(steady[..., 1].sum()), int(steady[:, Class.CONTEXT, 1].sum())
        steady_ratio, steady_ns = ratio(ns_with_context, ns), ns
        withheld = self._withhold("coverage.steady_gpu_time_with_context", self._steady_doubts(steady))
        if withheld:
            self._withhold("coverage.steady_gpu_ns_total", self._steady_doubts(steady))
        return Coverage(
            invocations_with_context=invocations,
            steady_gpu_time_with_context=None if withheld else steady_ratio,
            steady_gpu_ns_total=None if withheld else steady_ns,
            rows=self._rows(),
        )

    def _doubts(self, spans: Iterable[tuple[int | None, int | None]], sums: Sums, lacks: str) -> list[str]:
        """Return why figures over some spans of time, of sums (roles, classes, 2), are withheld."""
        reasons = [_UNREADABLE] if self.unreadable else []
        if self.gaps and any(self.gaps.roles(low, high) for low, high in spans):
            reasons.append(_MISSING)
        present = {role for i, role in enumerate(self.cast.roles) if sums[i, :, 0].any()}
        reasons += [f"expected role {r} {lacks}" for r in self.config.roles.expect if r not in present]
        return reasons

    def _steady_doubts(self, steady: Sums) -> list[str]:
        if self.steady_clash:
            return [self._clash(self.steady_clash, "steady")]
        if self.session.steady.by == "none":
            return ["steady windows are not configured (windows.steady)"]
        spans = self._absolute(self.session.steady)
        if not spans:
            return [f"no steady window: {self.session.steady.nothing()}"]
        reasons = self._doubts(spans, steady, "has no kernels in steady windows")
        if not steady[..., 1].any():
            reasons.append("no GPU time in steady windows")
        return reasons

    def _clash(self, processes: tuple[Any, ...], purpose: str) -> str:
        names = " and ".join(sorted(f"{p.host}:{p.pid}" if p.host else f"pid {p.pid}" for p in processes))
        return f"two processes give the boundaries of {purpose} windows at once: {names}"

    def _rows(self) -> dict[str, dict[str, int] | None]:
        counted: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        table, (counts,) = self.session.rows.rows()
        for slot, local, count in zip(
            slot_of(table).tolist(), local_of(table).tolist(), counts.tolist(), strict=True
        ):
            if not self.flags.get(slot, slot) & MEASURED:
                continue
            number, counter, fields = self.session.state.rows[local]
            someone = self.cast[number]
            rule = self.config.rows[counter]
            if rule.role and not re.fullmatch(rule.role, someone.role):
                continue
            known = {"pid": someone.shown, "role": someone.role, "host": someone.process.host}
            if someone.rank is not None:
                known["rank"] = someone.rank
            counted[counter][fill(rule.key, known | _fields_decoder.decode(fields))] += count
        rows: dict[str, dict[str, int] | None] = {}
        for counter, rule in enumerate(self.config.rows):
            sums = dict(sorted(counted[counter].items(), key=lambda item: _natural(item[0])))
            rows[rule.name] = None if self._withhold(f"coverage.{rule.name}", self._rows_doubts()) else sums
        return rows

    def _rows_doubts(self) -> list[str]:
        if self.measured_clash:
            return [self._clash(self.measured_clash, "measured")]
        reasons = [_UNREADABLE] if self.unreadable else []
        spans = self._absolute(self.session.measured)
        if not spans:
            return ["no measured window"]
        if self.gaps and any(self.gaps.roles(low, high) for low, high in spans):
            reasons.append(_MISSING)
        return reasons

    # -- time ------------------------------------------------------------------------------

    def _absolute(self, spans: PurposeSpans) -> list[tuple[int, int]]:
        if spans.by == "none":
            return []
        if spans.by == "all":
            return [] if self.first is None or self.last is None else [(self.first, self.last)]
        return [(span.start, span.end) for span in spans.listed()]

    def _spans(self, purpose: str, spans: PurposeSpans) -> list[Span]:
        if clash := spans.at_once():
            self._withhold(f"windows_ns.{purpose}", [self._clash(clash, purpose)])
            return []
        return [self._span(start, end) for start, end in self._absolute(spans)]

    def _span(self, start: int, end: int) -> Span:
        return (
            None if start == NONE else start - self.zero,
            None if end == END_OF_TIME else end - self.zero,
        )

    def _windows(self) -> list[_Named]:
        """Return the last windows that hold kernels, in order of time.

        Where two sources cut the same time it depends on who read which first where a kernel went.
        """
        for purpose, clash in (("measured", self.measured_clash), ("steady", self.steady_clash)):
            if clash:
                self._withhold("windows", [self._clash(clash, purpose)])
                self._withhold("coverage_recent", [self._clash(clash, purpose)])
                return []
        filled = set(self.totals.slots.tolist())
        length = self.session.length
        cuts = np.zeros(0, np.int64) if length else self.session.cuts()
        slots: dict[int, list[int]] = defaultdict(list)
        for instant, slot in self.session.state.windows.items():
            if slot in filled:
                slots[instant if length or instant == NONE else cut_before(cuts, instant)].append(slot)
        found = []
        for start in sorted(slots)[-self.config.limits.windows :]:
            if length:
                end = start + length
            else:
                at = int(np.searchsorted(cuts, start, "right"))
                end = int(cuts[at]) if at < len(cuts) else END_OF_TIME
            found.append(_Named(start, end, slots[start]))
        return found

    def _is_closed(self, window: _Named) -> bool:
        if self.session.complete:
            return True
        if window.end == END_OF_TIME:
            return False
        known_to = min(self.session.measured.known_to(), self.session.steady.known_to())
        wait = duration_ns(self.config.limits.launch_wait)
        return window.end <= known_to and window.end + wait <= self.watermark

    def _gaps_in(self, start: int, end: int) -> set[str]:
        low, high = None if start == NONE else start, None if end == END_OF_TIME else end
        return (self.gaps.roles(low, high) if self.gaps else set()) | self._doubted()

    def _window(self, window: _Named) -> Window:
        flags = 0
        for slot in window.slots:
            flags |= self.flags.get(slot, 0)
        gaps = self._gaps_in(window.start, window.end)
        if gaps:
            self._withhold("windows", [_UNREADABLE if self.unreadable else _MISSING])
        return Window(
            span_ns=self._span(window.start, window.end),
            closed=self._is_closed(window),
            measured=bool(flags & MEASURED),
            steady=bool(flags & STEADY),
            per_role=figures_by_role(self.totals.by_role(window.slots), self.cast, gaps),
        )

    def _recent(self, windows: list[_Named]) -> Recent:
        recent = [w for w in windows if self._is_closed(w)][-self.config.limits.recent :]
        if not recent:
            return Recent(windows=0, span_ns=None, per_role={})
        start, end = recent[0].start, recent[-1].end
        slots = [slot for w in recent for slot in w.slots]
        gaps = self._gaps_in(start, end)
        if gaps:
            self._withhold("coverage_recent", [_UNREADABLE if self.unreadable else _MISSING])
        unknown = self.unknown.top_by_role(RECENT_TOP, slots)
        figures = figures_by_role(self.totals.by_role(slots), self.cast, gaps)
        return Recent(
            windows=len(recent),
            span_ns=self._span(start, end),
            per_role={
                role: RecentRole(
                    figures=mine,
                    unknown_top=[NameCount(name=n, count=c) for n, c in unknown.get(role, [])],
                )
                for role, mine in figures.items()
            },
        )

    # -- the rest --------------------------------------------------------------------------

    def _family_pids(self) -> dict[str, list[Pid]]:
        families: dict[str, list[Pid]] = defaultdict(list)
        for someone in self.cast.listed:
            family = family_of(someone.role)
            if family:
                pid: Pid = int(someone.shown) if someone.shown.isdigit() else someone.shown
                families[f"{family}_pids"].append(pid)
        return dict(sorted(families.items()))

    def _clock(self) -> Clock:
        known = {
            number: state.anchors
            for number, state in enumerate(self.session.state.processes)
            if state.anchors is not None
        }
        readings = [
            int(fact.value)
            for state in self.session.state.processes
            for fact in state.facts
            if fact.key == keys.CLOCK_SYSTEM and fact.capture == self.earliest and _is_integer(fact.value)
        ]
        system = min(readings, default=None)
        if not known:
            used = system if self.config.clock.trust == "system" else None
            return Clock(session_systemClockNs=system, used_offset_ns=used)
        role = self.config.clock.role
        named = [n for n in known if role and self.cast[n].role == role]
        number = min(named or known, key=lambda n: (known[n].first[0], self.cast[n].process, known[n].first))
        time, application = known[number].first
        offset = application - (time - self.zero)
        spread = max(a.high for a in known.values()) - min(a.low for a in known.values())
        return Clock(
            session_systemClockNs=system,
            anchor_offset_ns=offset,
            anchor_count=sum(a.count for a in known.values()),
            anchor_spread_ns=spread,
            used_offset_ns=offset if self.config.clock.trust == "anchor" else system,
        )

    def _graphs(self) -> list[Graph]:
        found = []
        for someone, state in self._people():
            whose = {"host": someone.process.host, "pid": someone.process.pid, "role": someone.role}
            for (graph, by_node), (replays, kernels) in sorted(state.graphs.items()):
                found.append(
                    Graph(
                        **whose,
                        graph_id=None if graph == NONE else graph,
                        positions="node" if by_node else "order",
                        replays=replays,
                        kernels=kernels,
                        gpu_ns=None,
                    )
                )
            for graph, (count, ns) in sorted(state.opaque.items()):
                graph_id = None if graph == NONE else graph
                found.append(
                    Graph(**whose, graph_id=graph_id, positions=None, replays=count, kernels=0, gpu_ns=ns)
                )
        return found

    def _memory(self) -> list[Memory]:
        found = []
        for someone, state in self._people():
            sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
            for (operation, kind), (count, ns, size) in state.memory.items():
                more = (count, ns, size, count if kind == Class.CONTEXT else 0)
                sums[operation] = [a + b for a, b in zip(sums[operation], more, strict=True)]
            for operation, (count, ns, size, with_context) in sorted(sums.items()):
                found.append(
                    Memory(
                        host=someone.process.host,
                        pid=someone.process.pid,
                        role=someone.role,
                        operation=operation,
                        count=count,
                        gpu_ns=ns,
                        bytes=size,
                        with_context=with_context,
                    )
                )
        return found

    def _people(self) -> list[tuple[Any, Any]]:
        pairs = zip(self.cast.all, self.session.state.processes, strict=True)
        return sorted(pairs, key=lambda pair: (pair[0].process.pid, pair[0].process))

    def _metadata(self) -> dict[str, Any]:
        values: dict[str, set[str]] = defaultdict(set)
        devices: set[str] = set()
        for state in self.session.state.processes:
            for fact in state.facts:
                if fact.key.startswith(keys.METADATA):
                    values[fact.key.removeprefix(keys.METADATA)].add(fact.value)
                elif fact.key == keys.DEVICE:
                    devices.add(fact.value)
        metadata = {key: [_plain(text) for text in sorted(texts)] for key, texts in sorted(values.items())}
        metadata["devices"] = [_plain(text) for text in sorted(devices)]
        return metadata


def _plain(text: str) -> object:
    """Return what a fact says: a JSON object as such, anything else as the text it is."""
    if not text.startswith("{"):
        return text
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return text


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,19}", text) is not None


def _natural(text: str) -> tuple[object, ...]:
    """Order keys so that numbers in them count as numbers: pid 9 before pid 10."""
    parts = re.split(r"([0-9]+)", text)
    return (*((int(p), p) if i % 2 else (0, p) for i, p in enumerate(parts)), text)
