"""Plain tables for a terminal: columns as wide as they need to be."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import printable


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> str:
    """Return a table as lines; columns named in `right` are aligned to the right."""
    lines = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    out = []
    for line in lines:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, line, widths, strict=True)
        ]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out) + "\n"


def time_text(seconds: float) -> str:
    """Return a span of time as a person says it."""
    if seconds < 0:
        return "for ever"
    for unit, scale in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * scale or (seconds >= scale and not seconds % scale):
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"
