"""Row counters: ranges and kernels that the configuration asks to be counted by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from consumers.contexts import Contexts, Names, captures, fields_text
from consumers.tables import Table, empty, rows_of
from schemas.columns import Int64s
from schemas.config import Config
from schemas.types import Kind

COUNTED: Final = ("start", "counter", "fields")
"""What was counted: when it started, which counter, and its fields as a number of `Names`."""


class Counters:
    """The counters of a configuration."""

    def __init__(self, config: Config, contexts: Contexts, names: Names) -> None:
        self._contexts = contexts
        self._names = names
        patterns = [(i, rows.count, re.compile(rows.match)) for i, rows in enumerate(config.rows)]
        self._of_ranges = [(i, p) for i, count, p in patterns if count == "ranges"]
        self._of_kernels = [(i, p) for i, count, p in patterns if count == "kernels"]
        self._in_context = {i for i, rows in enumerate(config.rows) if rows.context}

    @property
    def of_ranges(self) -> bool:
        """Whether any counter counts ranges."""
        return bool(self._of_ranges)

    def matching(self, name: str) -> int:
        """Return the range counters that a range of this name may be for, as bits by their place."""
        return sum(1 << bit for bit, (_, p) in enumerate(self._of_ranges) if p.search(name))

    def count_ranges(self, ranges: Table, names: Sequence[str], contexts: Int64s, elements: Int64s) -> Table:
        """Return what is counted of `ranges` (start, counters); `contexts` hold at their starts."""
        counted: list[tuple[int, int, int]] = []
        rows = zip(
            ranges["start"].tolist(), ranges["counters"].tolist(), names, contexts.tolist(),
            elements.tolist(), strict=True,
        )  # fmt: skip
        fields_of = functools.cache(self._fields)
        for start, bits, name, context, element in rows:
            for bit, (counter, pattern) in enumerate(self._of_ranges):
                if bits >> bit & 1:
                    fields = fields_of(counter, pattern, name, context, element)
                    if fields is not None:
                        counted.append((start, counter, fields))
        return _table(counted)

    def count_kernels(self, rows: Table) -> Table:
        """Return what is counted of linked rows."""
        counted: list[Table] = []
        kernels = np.flatnonzero(rows["kind"] == Kind.KERNELS)
        if not self._of_kernels or not len(kernels):
            return empty(COUNTED)
        width = len(self._names.texts) + 1
        key = (rows["context"][kernels] + 1) * width + rows["name"][kernels]
        uniques, inverse = np.unique(key, return_inverse=True)
        for counter, pattern in self._of_kernels:
            fields = np.array(
                [
                    -1 if f is None else f
                    for f in (
                        self._fields(counter, pattern, self._names.texts[k % width], k // width - 1)
                        for k in uniques.tolist()
                    )
                ],
                np.int64,
            )[inverse]
            hit = fields >= 0
            counted.append(
                {
                    "start": rows["start"][kernels][hit],
                    "counter": np.full(int(hit.sum()), counter, np.int64),
                    "fields": fields[hit],
                }
            )
        return {c: np.concatenate([t[c] for t in counted]) for c in COUNTED}

    def _fields(
        self, counter: int, pattern: re.Pattern[str], name: str, context: int, element: int | None = None
    ) -> int | None:
        """Return the fields one row is counted under, None if it is not counted."""
        found = pattern.search(name)
        if found is None:
            return None
        path = self._contexts.path(context)
        if element is not None:
            path.append(self._contexts.elements[element])
        around: tuple[tuple[str, str], ...] = ()
        if counter in self._in_context:
            matched = [dict(e.matched)[counter] for e in path if counter in dict(e.matched)]
            if not matched:
                return None
            around = matched[-1]
        parts = [e.fields for e in path]
        return self._names.id(fields_text(*parts, around, captures(found)))


def _table(rows: list[tuple[int, int, int]]) -> Table:
    columns = np.array(rows, np.int64).reshape(-1, len(COUNTED))
    return {name: columns[:, i].copy() for i, name in enumerate(COUNTED)}


def merge(tables: Sequence[Table]) -> Table:
    """Return counted rows as one table."""
    full = [t for t in tables if rows_of(t)]
    return {c: np.concatenate([t[c] for t in full]) for c in COUNTED} if full else empty(COUNTED)
