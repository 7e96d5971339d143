"""The groups of a session: admitted in order up to a limit, later ones counted together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from typing import Final, TypeVar

import numpy as np

from consumers.sinkstate import ProcessState
from consumers.statistics import MAX_GROUPS
from schemas.columns import Int64s
from schemas.deltas import Delta
from schemas.ledger import OTHER
from schemas.types import NONE

FIELDS: Final = ("device", "context", "kernel", "graph", "position")
"""Of a group; `context` and `kernel` are numbers in `Groups.contexts` and `Groups.strings`."""

_NOT_ADMITTED: Final = -1
_KEY: Final = np.dtype(f"V{8 * len(FIELDS)}")
_Key = TypeVar("_Key", bound=Hashable)


class Groups:
    """Groups by number, and the names and contexts they are of.

    Names and contexts are remembered for groups admitted only, so that names that never repeat
    do not fill the memory.
    """

    def __init__(self, processes: list[ProcessState], limit: int) -> None:
        self._processes = processes
        self._limit = limit
        self.strings: list[str] = []
        self.contexts: list[tuple[int, int]] = [(-1, -1)]
        """(parent, string) of each context; 0 is the empty one."""
        self.keys: list[bytes] = []
        """`FIELDS` of each group, int64 each."""
        self.of_process: list[int] = []
        """Number of each group's process."""
        self._index()

    def restore(
        self,
        strings: Iterable[str],
        contexts: Iterable[tuple[int, int]],
        fields: Int64s,
        of_process: list[int],
    ) -> None:
        """Take over groups from elsewhere; `fields` as the method of that name returns them."""
        self.strings, self.contexts = [*strings], [*contexts]
        self.keys = _keys(fields)
        self.of_process = of_process
        self._index()

    def _index(self) -> None:
        self._string_numbers = {text: number for number, text in enumerate(self.strings)}
        self._context_numbers = {
            parent << 32 | name: i for i, (parent, name) in enumerate(self.contexts) if i
        }
        self._by_key: dict[int, dict[bytes, int]] = {}
        for group, (process, key) in enumerate(zip(self.of_process, self.keys, strict=True)):
            if group != self._processes[process].other:
                self._by_key.setdefault(process, {})[key] = group

    def fields(self) -> Int64s:
        """Return the fields of all groups, int64 (groups, fields)."""
        return np.frombuffer(b"".join(self.keys), np.int64).reshape(-1, len(FIELDS))

    def string(self, text: str) -> int:
        """Return the number of a string, remembering it."""
        return numbered(text, self._string_numbers, self.strings)

    def admit(self, number: int, delta: Delta, texts: Sequence[str]) -> Int64s:
        """Return the group of each row of a delta's table `group`, admitting new ones.

        `number` is the process's, `texts` the delta's strings. Rows marked `first` are admitted
        first, in their order; those beyond the limit are of the process's group `other`.
        """
        columns = delta.columns
        get = self._string_numbers.get
        strings = np.array([get(text, -1) for text in texts], np.int64)
        parents = columns["context.parent"].tolist()
        names = columns["context.name"].tolist()
        contexts = self._known_contexts(parents, strings[columns["context.name"]].tolist())
        fields = np.empty((len(columns["group.device"]), len(FIELDS)), np.int64)
        fields[:, 0] = columns["group.device"]
        fields[:, 1] = contexts[columns["group.context"]]
        fields[:, 2] = strings[columns["group.kernel"]]
        fields[:, 3] = columns["group.graph"]
        fields[:, 4] = columns["group.position"]
        mine = self._by_key.setdefault(number, {})
        found = np.array(list(map(mine.get, _keys(fields), repeat(_NOT_ADMITTED))), np.int64)
        missing = found == _NOT_ADMITTED
        if not missing.any():
            return found
        process = self._processes[number]
        first = columns["group.first"] != 0
        new = np.concatenate((np.flatnonzero(missing & first), np.flatnonzero(missing & ~first)))
        made: dict[int, int] = {}
        for row in new.tolist():
            if process.admitted >= self._limit:
                found[row] = self._other(number)
                continue
            context = int(columns["group.context"][row])
            fields[row, 1] = self._context(context, parents, names, texts, made)
            fields[row, 2] = self.string(texts[int(columns["group.kernel"][row])])
            key = fields[row].tobytes()
            if key not in mine:
                mine[key] = self._new(number, key)
                process.admitted += 1
            found[row] = mine[key]
        return found

    def _known_contexts(self, parents: Sequence[int], names: Sequence[int]) -> Int64s:
        """Return the context of each row of table `context`, -1 where it is not known.

        The last entry, which row -1 means, is the empty context.
        """
        found = [0] * (len(parents) + 1)
        get = self._context_numbers.get
        for row, (parent, name) in enumerate(zip(parents, names, strict=True)):
            above = found[parent]
            found[row] = get(above << 32 | name, -1) if above >= 0 and name >= 0 else -1
        return np.array(found, np.int64)

    def _context(
        self,
        row: int,
        parents: Sequence[int],
        names: Sequence[int],
        texts: Sequence[str],
        made: dict[int, int],
    ) -> int:
        """Return the context of a row of table `context`, remembering it; row -1: the empty one."""
        chain = []
        while row >= 0 and row not in made:
            chain.append(row)
            row = parents[row]
        context = made[row] if row >= 0 else 0
        for link in reversed(chain):
            pair = (context, self.string(texts[names[link]]))
            key = pair[0] << 32 | pair[1]
            known = self._context_numbers.get(key)
            if known is None:
                known = self._context_numbers[key] = len(self.contexts)
                self.contexts.append(pair)
            context = made[link] = known
        return context

    def _other(self, number: int) -> int:
        process = self._processes[number]
        if process.other < 0:
            key = np.array([NONE, 0, self.string(OTHER), NONE, NONE], np.int64).tobytes()
            process.other = self._new(number, key)
        return process.other

    def _new(self, number: int, key: bytes) -> int:
        group = len(self.keys)
        if group >= MAX_GROUPS:
            raise OverflowError(f"more than {MAX_GROUPS} groups in one session")
        self.keys.append(key)
        self.of_process.append(number)
        return group


def _keys(fields: Int64s) -> list[bytes]:
    keys: list[bytes] = np.ascontiguousarray(fields).view(_KEY).ravel().tolist()
    return keys


def numbered(key: _Key, numbers: dict[_Key, int], keys: list[_Key]) -> int:
    """Return the number of `key`, the next one if it is new."""
    number = numbers.get(key)
    if number is None:
        number = numbers[key] = len(keys)
        keys.append(key)
    return number
