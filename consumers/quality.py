"""What the ledger says of the events it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from consumers.figures import Cast
from consumers.fold import Session
from schemas import facts as keys
from schemas.deltas import CaptureState, Fact
from schemas.ledger import (
    ClockOffset,
    Cut,
    Late,
    MissingRows,
    OddRows,
    Overflow,
    Quality,
    Silent,
    Source,
    Span,
    Watermark,
)
from schemas.types import END_OF_TIME, NONE, Kind
from schemas.windows import Decision

_counts_decoder = msgspec.json.Decoder(dict[str, int])
_KINDS = {kind.value: kind.name.lower() for kind in Kind}


def quality_of(session: Session, cast: Cast, overflow: Mapping[int, tuple[int, int]], zero: int) -> Quality:
    """Return how good the events of a session were.

    `overflow` gives (kernels, ns) beyond the limit of groups by process number, `zero` the
    instant that times are relative to.
    """
    counters = session.state.counters
    missing = _missing(session, cast)
    blind = [(low - zero, high - zero) for low, high in _blind(session)]
    people = sorted(range(len(cast.all)), key=lambda n: (cast[n].process.pid, cast[n].process))
    return Quality(
        missing_rows=sum(high - low for m in missing for low, high in m.intervals),
        missing=missing,
        late=Late(
            kernels=counters.get("late_kernels", 0),
            launches=counters.get("late_launches", 0),
            ranges=counters.get("late_ranges", 0),
            memory=counters.get("late_memory", 0),
            boundaries=counters.get("late_boundaries", 0) + session.measured.late() + session.steady.late(),
        ),
        odd=OddRows(**{name: counters.get(name, 0) for name in OddRows.__struct_fields__}),
        after_end=counters.get("after_end", 0),
        unended_captures=counters.get("unended_captures", 0),
        pending=sum(c.pending for p in session.state.processes for c in p.captures.values()),
        clock_offsets=[
            ClockOffset(
                host=cast[n].process.host,
                pid=cast[n].process.pid,
                device=None if device == NONE else device,
                offset_ns=offset,
            )
            for n in people
            for device, offset in sorted(session.state.processes[n].clock_offsets.items())
        ],
        overflow=[
            Overflow(host=cast[n].process.host, pid=cast[n].process.pid, kernels=kernels, gpu_ns=ns)
            for n in people
            if n in overflow
            for kernels, ns in (overflow[n],)
        ],
        blind_ns=sum(high - low for low, high in blind),
        blind=[*blind],
        cuts=[_cut(decision, zero) for decision in session.state.decisions if decision.kind == "cut"],
        silent=_silent(session, zero),
        watermarks=[
            Watermark(
                capture=c.capture,
                host=cast[n].process.host,
                pid=cast[n].process.pid,
                watermark_ns=_relative(c.watermark, zero),
                ended=c.ended,
                pending=c.pending,
            )
            for n in people
            if not cast[n].process.is_capture
            for _, c in sorted(session.state.processes[n].captures.items())
        ],
        sources=_sources(session, zero),
    )


def _cut(decision: Decision, zero: int) -> Cut:
    known = not decision.process.is_capture
    return Cut(
        host=decision.process.host if known else None,
        pid=decision.process.pid if known else None,
        capture=decision.capture if known else None,
        since_ns=_relative(decision.since, zero),
        until_ns=decision.until - zero,
        reason=decision.reason,
    )


def _silent(session: Session, zero: int) -> list[Silent]:
    """Return who was called silent and has neither moved nor ended since."""
    watermarks = {
        (p.process, c.capture): c.watermark
        for p in session.state.processes
        for c in p.captures.values()
        if not c.ended
    }
    return [
        Silent(
            host=d.process.host,
            pid=d.process.pid,
            capture=d.capture,
            watermark_ns=_relative(d.since, zero),
        )
        for d in session.state.decisions
        if d.kind == "silent" and watermarks.get((d.process, d.capture)) == d.since
    ]


def _relative(instant: int, zero: int) -> int | None:
    return None if instant in (NONE, END_OF_TIME) else instant - zero


def _missing(session: Session, cast: Cast) -> list[MissingRows]:
    found = [
        (
            capture.capture,
            cast[number].process,
            MissingRows(
                capture=capture.capture,
                host=cast[number].process.host,
                pid=cast[number].process.pid,
                kind=_KINDS.get(kind, str(kind)),
                intervals=sorted(intervals),
            ),
        )
        for number, state in enumerate(session.state.processes)
        for capture in state.captures.values()
        for kind, intervals in sorted(capture.missing.items())
        if intervals
    ]
    return [entry for *_, entry in sorted(found, key=lambda f: (f[0], f[1], f[2].kind))]


def _by_capture(session: Session) -> dict[str, list[CaptureState]]:
    found: dict[str, list[CaptureState]] = {}
    for state in session.state.processes:
        for name, capture in state.captures.items():
            found.setdefault(name, []).append(capture)
    return dict(sorted(found.items()))


def _life(captures: Iterable[CaptureState]) -> tuple[int, int] | None:
    lives = [(c.first, c.last) for c in captures if c.first is not None and c.last is not None]
    if not lives:
        return None
    return min(first for first, _ in lives), max(last for _, last in lives)


def _blind(session: Session) -> list[tuple[int, int]]:
    """Return the times between the first and the last event that no capture covers."""
    lives = sorted(life for captures in _by_capture(session).values() if (life := _life(captures)))
    found = []
    for (_, before), (low, _) in zip(_reaching(lives), lives[1:], strict=False):
        if low > before:
            found.append((before, low))
    return found


def _reaching(lives: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    reach = NONE
    for low, high in lives:
        reach = max(reach, high)
        yield low, reach


def _sources(session: Session, zero: int) -> list[Source]:
    facts: dict[str, list[Fact]] = {}
    for state in session.state.processes:
        for fact in state.facts:
            if fact.key.startswith("source."):
                facts.setdefault(fact.capture, []).append(fact)
    found = []
    for name, captures in _by_capture(session).items():
        said: dict[str, list[str]] = {}
        for fact in facts.get(name, []):
            said.setdefault(fact.key, []).append(fact.value)
        # A capture's processes all have its clock; one that has nothing yet may not know it.
        clock = min((c.clock for c in captures), key=lambda c: (c.base != "utc", c.zero, c.uncertainty))
        life = _life(captures)
        span: Span | None = None if life is None else (life[0] - zero, life[1] - zero)
        counts = _counts(said.get(keys.SOURCE_COUNTS, []))
        found.append(
            Source(
                capture=name,
                file=" ".join(sorted(set(said.get(keys.SOURCE_FILE, [])))),
                format=" ".join(sorted(set(said.get(keys.SOURCE_FORMAT, [])))),
                base=clock.base,
                zero_ns=clock.zero,
                uncertainty_ns=None if clock.uncertainty == NONE else clock.uncertainty,
                span_ns=span,
                missing=sorted(set(said.get(keys.SOURCE_MISSING, []))),
                notes=sorted(set(said.get(keys.SOURCE_NOTE, []))),
                counts=counts,
                export_complete=_export_complete(counts),
            )
        )
    return found


def _counts(texts: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in sorted(set(texts)):
        try:
            counts.update(_counts_decoder.decode(text))
        except (msgspec.DecodeError, RecursionError):
            continue
    return dict(sorted(counts.items()))


def _export_complete(counts: Mapping[str, int]) -> bool | None:
    collected, exported = counts.get("collected"), counts.get("exported")
    return None if collected is None or exported is None else exported >= collected
