"""The end of `run` as a person reads it: what has a context, what has none and why, what to mind."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TextIO

from schemas.errors import printable
from schemas.ledger import Amount, Ledger, RoleFigures, UnknownKernel
from schemas.types import REASONS

MAX_ROLES: Final = 16
MAX_CONTEXTS: Final = 8
MAX_UNKNOWN: Final = 8
MAX_REMARKS: Final = 12
MAX_PATHS: Final = 3
"""More would not be read; the ledger has them all."""

_HEAD: Final = (
    *("role", "kernels", "in\ncontext", "GPU time", "in\ncontext"),
    *("not\ncaptured", "outside\nranges", "no\nranges"),
)
"""Of the table of roles: the last three are REASONS, in the same order."""


_NOISE: Final = re.compile(
    r"(?<![\w:])(?:(?:\w+|<unnamed>|\(anonymous namespace\))::)+(?=\w)"  # namespaces
    r"|\([a-z][\w ]*\)(?=-?[0-9])"  # types of template arguments that are numbers
    r"|\bvoid "
)
"""Of the name of a kernel: what takes room and hardly ever tells two of them apart."""

_LEAST: Final = 16
"""Characters of a range's name; with fewer it would not be known again."""


class ContextTime(NamedTuple):
    """GPU time of one context: the ranges open at its launches, outermost first."""

    ranges: tuple[str, ...]
    kernels: int
    gpu_ns: int


class Style(NamedTuple):
    """How wide the page is, and whether it may be coloured."""

    width: int = 100
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        """Return what suits a stream: colour on a terminal only, and never against NO_COLOR."""
        if not stream.isatty():
            return cls()
        colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(width=max(shutil.get_terminal_size().columns, 60), colour=colour)

    def title(self, text: str) -> str:
        """Return a heading."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def warn(self, text: str) -> str:
        """Return something a reader must not miss."""
        return f"\x1b[33m{text}\x1b[0m" if self.colour else text

    def cut(self, text: str, width: int, tail: float = 1 / 3) -> str:
        """Return text that fits, safe to print; what is left out precedes the last `tail` of the room."""
        text = printable(text)
        if len(text) <= width:
            return text
        kept = max(int(width * tail), 0)
        return f"{text[: width - kept - 1]}…{text[len(text) - kept :] if kept else ''}"

    def path(self, ranges: Sequence[str], width: int) -> str:
        """Return nested ranges that fit: the longest names cut first, then those in the middle left out."""
        names = [printable(name) for name in ranges]
        for kept in range(min(len(names), width // 3), 0, -1):
            shown = names if kept == len(names) else [names[0], "…", *names[len(names) - kept + 1 :]]
            room = width - 3 * (len(shown) - 1)
            most = min(max(map(len, shown)), width)
            while most > _LEAST and sum(min(len(name), most) for name in shown) > room:
                most -= 1
            if sum(min(len(name), most) for name in shown) <= room:
                # What tells such names apart is mostly at their ends.
                return " / ".join(self.cut(name, most, tail=2 / 3) for name in shown)
        return self.cut(" / ".join(names), width)

    def wrap(self, text: str) -> list[str]:
        """Return the lines of a remark, broken between words, all but the first set in further."""
        return textwrap.wrap(
            self.cut(text, max(self.width * 3, 200)),
            self.width,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )


def summary(ledger: Ledger, contexts: Sequence[ContextTime], style: Style) -> str:
    """Return the page, without a newline at its end."""
    blocks = [
        _head(ledger, style),
        _coverage(ledger, style),
        _steady(ledger, style),
        _contexts(ledger, contexts, style),
        _unknown(ledger, style),
        _block("About the input", _remarks(ledger), style),
        _block("Withheld", _withheld(ledger), style),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(ledger: Ledger, style: Style) -> list[str]:
    total_ns = sum(figures.gpu_ns for figures in ledger.per_role.values())
    if not ledger.kernel_events:
        return [style.title(style.cut(ledger.label, style.width - 13)) + ": no kernels"]
    parts = [
        _count(ledger.kernel_events, "kernel"),
        f"{_time(total_ns)} of GPU time",
        _count(len(ledger.per_role), "role"),
        _count(ledger.groups, "group"),
    ]
    text = ", ".join(parts)
    return [f"{style.title(style.cut(ledger.label, max(style.width - len(text) - 2, 20)))}: {text}"]


def _coverage(ledger: Ledger, style: Style) -> list[str]:
    if not ledger.kernel_events:
        return []
    rows = [_role_row(role, figures) for role, figures in ledger.per_role.items()]
    total = _sum(ledger.per_role.values())
    shown = rows[:MAX_ROLES]
    if len(rows) > 1:
        shown.append(_role_row(f"all {len(rows)}", total))
    lines = [style.title("Coverage"), *_table(shown, style)]
    if len(rows) > MAX_ROLES:
        lines.append(f"  ({len(rows) - MAX_ROLES} roles are not shown)")
    return lines


def _role_row(role: str, figures: RoleFigures) -> tuple[str, ...]:
    return (
        role,
        f"{figures.kernels:,}",
        _percent(figures.context.kernels, figures.kernels),
        _time(figures.gpu_ns),
        _percent(figures.context.gpu_ns, figures.gpu_ns),
        *(f"{figures.reasons[reason].kernels:,}" if reason in figures.reasons else "0" for reason in REASONS),
    )


def _sum(roles: Iterable[RoleFigures]) -> RoleFigures:
    listed = list(roles)

    def add(amounts: Iterable[Amount]) -> Amount:
        kept = list(amounts)
        return Amount(kernels=sum(a.kernels for a in kept), gpu_ns=sum(a.gpu_ns for a in kept))

    return RoleFigures(
        kernels=sum(r.kernels for r in listed),
        gpu_ns=sum(r.gpu_ns for r in listed),
        context=add(r.context for r in listed),
        reasons={reason: add(r.reasons[reason] for r in listed if reason in r.reasons) for reason in REASONS},
        invocations_with_context=None,
        gpu_time_with_context=None,
    )


def _table(rows: Sequence[Sequence[str]], style: Style) -> Iterator[str]:
    """Yield the table of roles: the first column to the left, the others to the right."""
    upper = [title.partition("\n")[0] for title in _HEAD]
    lower = [title.partition("\n")[2] for title in _HEAD]
    lines = (upper, lower, *rows)
    others = [max(len(line[i]) for line in lines) for i in range(1, len(_HEAD))]
    first = max(len(printable(line[0])) for line in lines)
    first = max(min(first, style.width - sum(others) - 2 * len(others) - 2), 9)
    for line in lines:
        cells = [style.cut(line[0], first).ljust(first)]
        cells += [text.rjust(width) for text, width in zip(line[1:], others, strict=True)]
        yield ("  " + "  ".join(cells)).rstrip()


def _steady(ledger: Ledger, style: Style) -> list[str]:
    coverage = ledger.coverage
    spans = len(ledger.windows_ns.steady)
    if coverage.steady_gpu_time_with_context is None or coverage.steady_gpu_ns_total is None:
        return []
    text = (
        f"{style.title('Steady windows')}: {spans:,}; "
        f"{_ratio(coverage.steady_gpu_time_with_context)} of their {_time(coverage.steady_gpu_ns_total)} "
        "of GPU time is in context"
    )
    return [text]


def _contexts(ledger: Ledger, contexts: Sequence[ContextTime], style: Style) -> list[str]:
    total = sum(figures.gpu_ns for figures in ledger.per_role.values())
    top = sorted(contexts, key=lambda c: (-c.gpu_ns, c.ranges))[:MAX_CONTEXTS]
    if not top:
        return []
    width = max(len(f"{context.kernels:,}") for context in top)
    lines = [style.title("Contexts with the most GPU time")]
    for context in top:
        part = f"{_percent(context.gpu_ns, total):>8}  {_time(context.gpu_ns):>8}"
        figures = f"  {part}  {context.kernels:>{width},} kernels  "
        lines.append(figures + style.path(context.ranges, style.width - len(figures)))
    return lines


def _unknown(ledger: Ledger, style: Style) -> list[str]:
    """Return the kernels of `unknown_top`, a kernel that several ranks run on one line."""
    by_name: dict[str, list[UnknownKernel]] = {}
    for entry in ledger.unknown_top:
        by_name.setdefault(entry.name, []).append(entry)
    if not by_name:
        return []
    rows = [
        (
            sum(e.count for e in entries),
            entries[0].role if len(entries) == 1 else f"{len(entries)} roles",
            name,
        )
        for name, entries in by_name.items()
    ]
    rows = sorted(rows, key=lambda row: (-row[0], row[2]))[:MAX_UNKNOWN]
    lines = [style.title("Kernels most often without context")]
    width = min(max(len(printable(role)) for _, role, _ in rows), 24)
    first = max(len(f"{count:,}") for count, _, _ in rows)
    short = [_short(name) for _, _, name in rows]
    times = Counter(short)
    for (count, role, name), brief in zip(rows, short, strict=True):
        figures = f"  {count:>{first},}  {style.cut(role, width):<{width}}  "
        shown = brief if times[brief] == 1 else name
        lines.append(figures + style.cut(shown, style.width - len(figures), tail=0))
    return lines


def _short(name: str) -> str:
    """Return what tells a kernel apart: its name without namespaces and without its parameters."""
    name = printable(name)
    depth = 0
    for at in range(len(name) - 1 if name.endswith(")") else -1, 0, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if not depth:
            name = name[:at]
            break
    return _NOISE.sub("", name) or name


def _block(title: str, lines: Iterable[str], style: Style) -> list[str]:
    listed = list(lines)
    if not listed:
        return []
    shown = [part for line in listed[:MAX_REMARKS] for part in style.wrap(line)]
    if len(listed) > MAX_REMARKS:
        shown.append(f"  ... and {len(listed) - MAX_REMARKS} more in the ledger")
    return [style.warn(style.title(title)), *shown]


def _withheld(ledger: Ledger) -> Iterator[str]:
    """Yield the figures that are null, those with the same reasons together."""
    by_reasons: dict[tuple[str, ...], list[str]] = {}
    for path, reasons in ledger.withheld.items():
        by_reasons.setdefault(tuple(reasons), []).append(path)
    for why, paths in by_reasons.items():
        shown = ", ".join(paths[:MAX_PATHS]) + (
            f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
        )
        yield f"{shown}: {'; '.join(why)}"


def _remarks(ledger: Ledger) -> Iterator[str]:
    """Yield what was odd about the input, what concerns figures most first."""
    quality = ledger.quality
    if not ledger.final:
        yield "the captures have not ended: this is not the last word"
    if quality.missing_rows:
        yield f"{_count(quality.missing_rows, 'row')} were published and never read"
    if ledger.delivery.dead_letters:
        yield f"{_count(ledger.delivery.dead_letters, 'record')} could not be read"
    for source in quality.sources:
        yield from (f"{source.file} lacks {text}" for text in source.missing)
    for source in quality.sources:
        if source.export_complete is False:
            yield f"{source.file}: fewer events were exported than the profiler says it collected"
        yield from (f"{source.file}: {text}" for text in source.notes)
    yield from _odd_rows(ledger)


def _odd_rows(ledger: Ledger) -> Iterator[str]:
    quality, odd, late = ledger.quality, ledger.quality.odd, ledger.quality.late
    offset = min((entry.offset_ns for entry in quality.clock_offsets), default=0)
    early = f" (by up to {_time(-offset)}: the GPU's clock is off)" if offset < 0 else ""
    for what, figure in (
        ("kernels that found the launch of their correlation id used up by another one", odd.second_kernels),
        ("kernels that end before they start (counted with 0 ns)", odd.negative_durations),
        ("kernels that end as they start", odd.zero_durations),
        (f"kernels that start before their launch{early}", odd.launched_after_start),
        ("kernels that came late (linked by the same rules)", late.kernels),
        ("ranges that end after a range they began in", odd.crossing_ranges),
        ("range closings without an opening", odd.unmatched_closings),
        ("window boundaries that came too late to be any", late.boundaries),
    ):
        if figure:
            yield f"{what}: {figure:,}"
    for row in quality.overflow:
        other = _count(row.kernels, "kernel")
        yield f"pid {row.pid} has more groups than limits.groups: {other} are in `other`"
    if quality.blind_ns:
        yield f"no capture covers {_time(quality.blind_ns)} of the session"


def _count(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def _percent(part: int, whole: int) -> str:
    return _ratio(part / whole) if whole else "-"


def _ratio(ratio: float) -> str:
    """Return a ratio as a percentage that says 0 and 100 only where they are exact."""
    text = f"{ratio * 100:.2f}"
    if text == "100.00" and ratio < 1:
        text = "99.99"
    if text == "0.00" and ratio > 0:
        text = "0.01"
    return f"{text} %"


def _time(ns: int) -> str:
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if abs(ns) >= scale:
            value = ns / scale
            return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
    return f"{ns} ns"
