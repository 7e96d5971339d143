"""Row ordinals: which rows have come, which came twice, which are missing."""

from __future__ import annotations

import msgspec


class Seen(msgspec.Struct):
    """The ordinals of one kind of row of one (capture, process).

    All below `high` have come but those in `missing`, intervals [low, high) in ascending order.
    """

    high: int = 0
    missing: list[tuple[int, int]] = []

    def take(self, ordinal: int, rows: int) -> list[tuple[int, int]]:
        """Note rows `ordinal` to `ordinal + rows`; return those that are new, as intervals."""
        end = ordinal + rows
        if ordinal == self.high:
            self.high = end
            return [(ordinal, end)] if rows else []
        new = []
        if ordinal > self.high:
            if rows:
                self.missing.append((self.high, ordinal))
                self.high = end
                new.append((ordinal, end))
            return new
        still: list[tuple[int, int]] = []
        for low, high in self.missing:
            first, last = max(low, ordinal), min(high, end)
            if first >= last:
                still.append((low, high))
                continue
            new.append((first, last))
            still += [(a, b) for a, b in ((low, first), (last, high)) if a < b]
        self.missing = still
        if end > self.high:
            new.append((self.high, end))
            self.high = end
        return new
