"""A set of (process, id): which launches some GPU row refers to."""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.columns import Int64s

_PAGE_BITS: Final = 16
_PAGE_MASK: Final = (1 << _PAGE_BITS) - 1
_PAGE_WORTH: Final = 1 << 10
"""So many ids at once are worth a page of 64 KiB; fewer are kept as they are, 8 bytes each."""


class _Ids:
    """The ids of one process: pages of flags where they are close together, else a sorted list."""

    def __init__(self) -> None:
        self.pages: dict[int, npt.NDArray[np.bool_]] = {}
        self.loose: list[Int64s] = []

    def add(self, ids: Int64s) -> None:
        pages = ids >> _PAGE_BITS
        used, counts = np.unique(pages, return_counts=True)
        for page, count in zip(used.tolist(), counts.tolist(), strict=True):
            here = ids if count == len(ids) else ids[pages == page]
            flags = self.pages.get(page)
            if flags is None:
                if count < _PAGE_WORTH:
                    self.loose.append(np.unique(here))
                    continue
                flags = self.pages[page] = np.zeros(1 << _PAGE_BITS, bool)
            flags[here & _PAGE_MASK] = True

    def close(self) -> None:
        if len(self.loose) > 1:
            self.loose = [np.unique(np.concatenate(self.loose))]

    def has(self, ids: Int64s) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(ids), bool)
        for loose in self.loose:
            place = np.minimum(np.searchsorted(loose, ids), len(loose) - 1)
            found |= loose[place] == ids
        if self.pages:
            pages = ids >> _PAGE_BITS
            for page in np.unique(pages).tolist():
                flags = self.pages.get(page)
                if flags is not None:
                    here = np.flatnonzero(pages == page)
                    found[here] |= flags[ids[here] & _PAGE_MASK]
        return found


class IdSet:
    """Ids by process (both int64); filled from several threads, then closed, then asked."""

    def __init__(self) -> None:
        self._by_process: dict[int, _Ids] = {}
        self._lock = threading.Lock()

    def add(self, processes: Int64s, ids: Int64s) -> None:
        """Add a pair a row."""
        for process, here in _grouped(processes):
            with self._lock:
                self._by_process.setdefault(process, _Ids()).add(ids if here is None else ids[here])

    def has(self, process: int) -> bool:
        """Return whether there is any id of a process."""
        return process in self._by_process

    def rename(self, old: int, new: int) -> None:
        """Give the ids of one process to another one."""
        ids = self._by_process.pop(old)
        kept = self._by_process.setdefault(new, _Ids())
        kept.loose += ids.loose
        for page, flags in ids.pages.items():
            kept.pages[page] = kept.pages[page] | flags if page in kept.pages else flags

    def close(self) -> None:
        """Make ready to be asked."""
        for ids in self._by_process.values():
            ids.close()

    def holds(self, processes: Int64s, ids: Int64s) -> npt.NDArray[np.bool_]:
        """Return for each row whether its pair is in the set."""
        found = np.zeros(len(ids), bool)
        for process, here in _grouped(processes):
            known = self._by_process.get(process)
            if known is not None:
                found[slice(None) if here is None else here] = known.has(ids if here is None else ids[here])
        return found


def _grouped(processes: Int64s) -> list[tuple[int, Int64s | None]]:
    """Return each process and its rows, None for all of them."""
    if not len(processes):
        return []
    if (processes == processes[0]).all():
        return [(int(processes[0]), None)]
    return [(process, np.flatnonzero(processes == process)) for process in np.unique(processes).tolist()]
