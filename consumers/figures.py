"""Sums by role and slot of time: what every figure of the ledger is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from consumers.fold import CLASSES, Session
from consumers.roles import name_process, shown_pids
from consumers.statistics import local_of, reduced, slot_of
from schemas.columns import Int64s
from schemas.ledger import Amount, RoleFigures
from schemas.types import CLASS_NAMES, REASONS, Class, Kind, Process

_COUNTED: Final = (Kind.KERNELS, Kind.LAUNCHES, Kind.RANGE_OPENINGS, Kind.RANGE_CLOSINGS)
"""Kinds without whose rows a coverage cannot be trusted."""

Sums = npt.NDArray[np.int64]
"""int64 (..., classes, 2): kernels and ns."""


class Someone(NamedTuple):
    """A process as the ledger names it."""

    process: Process
    shown: str
    role: str
    rank: str | None
    listed: bool
    """Whether it has events; others are only known by name."""


class Cast:
    """All processes of a session, by their number in it, and their roles."""

    def __init__(self, session: Session) -> None:
        states = session.state.processes
        ran = set((local_of(session.totals.rows()[0]) // CLASSES).tolist())
        listed = [
            i in ran or any(c.first is not None for c in s.captures.values()) for i, s in enumerate(states)
        ]
        shown = shown_pids(s.process for s, yes in zip(states, listed, strict=True) if yes)
        rules = session.config.roles
        self.all: list[Someone] = []
        for state, yes in zip(states, listed, strict=True):
            text = shown.get(state.process, str(state.process.pid))
            facts, matches = sorted(state.facts), [*state.matches.values()]
            named = name_process(rules, state.process, facts, matches, shown=text)
            self.all.append(Someone(state.process, text, named.role, named.rank, yes))
        self.listed = sorted((s for s in self.all if s.listed), key=lambda s: (s.process.pid, s.process))
        """Those with events, by pid."""
        self.roles = sorted({s.role for s in self.listed})
        numbers = {role: i for i, role in enumerate(self.roles)}
        self.role_numbers: Int64s = np.array([numbers.get(s.role, 0) for s in self.all], np.int64)
        """Number of each process's role; only of use for those listed."""

    def __getitem__(self, number: int) -> Someone:
        """Return the process of a number."""
        return self.all[number]


class Totals:
    """Kernels and GPU time by slot, role and class."""

    def __init__(self, session: Session, cast: Cast) -> None:
        keys, (kernels, ns) = session.totals.rows()
        self.slots, at = np.unique(slot_of(keys), return_inverse=True)
        process, kind = np.divmod(local_of(keys), CLASSES)
        self._sums: Sums = np.zeros((len(self.slots), len(cast.roles), CLASSES, 2), np.int64)
        np.add.at(self._sums, (at, cast.role_numbers[process], kind), np.stack((kernels, ns), axis=-1))

    def by_role(self, slots: Iterable[int] | None = None) -> Sums:
        """Return the sums (roles, classes, 2) over some slots, over all if none are given."""
        chosen = self._sums
        if slots is not None:
            chosen = chosen[np.isin(self.slots, np.array([*slots], np.int64))]
        sums: Sums = chosen.sum(axis=0)
        return sums


class UnknownKernels:
    """Kernels without context by slot, role and name."""

    def __init__(self, session: Session, cast: Cast) -> None:
        keys, (kernels, _) = session.unknown.rows()
        self._slots = slot_of(keys)
        pairs = np.array(session.state.unknown, np.int64).reshape(-1, 2)[local_of(keys)]
        # Role and name in one number, so that sums by both are sums by one key.
        self._names = max(len(session.groups.strings), 1)
        self._keys = cast.role_numbers[pairs[:, 0]] * self._names + pairs[:, 1]
        self._kernels = kernels
        self._strings = session.groups.strings
        self._roles = cast.roles

    def top(self, limit: int, slots: Sequence[int] | None = None) -> list[tuple[str, str, int]]:
        """Return (role, name, kernels) of the most frequent; ties by role, then name."""
        rows = np.isin(self._slots, slots) if slots is not None else np.ones(len(self._keys), bool)
        keys, (counts,) = reduced(self._keys[rows], [self._kernels[rows]], [np.add])
        if len(counts) > limit:
            # Ties at the limit are settled by name below: keep all of them.
            least = np.partition(counts, -limit)[-limit]
            keys, counts = keys[counts >= least], counts[counts >= least]
        found = [
            (self._roles[key // self._names], self._strings[key % self._names], count)
            for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
        ]
        return sorted(found, key=lambda entry: (-entry[2], entry[0], entry[1]))[:limit]

    def top_by_role(self, limit: int, slots: Sequence[int]) -> dict[str, list[tuple[str, int]]]:
        """Return (name, kernels) of the most frequent of each role; ties by name."""
        found: dict[str, list[tuple[str, int]]] = {}
        for role, name, count in self.top(len(self._keys), slots):
            mine = found.setdefault(role, [])
            if len(mine) < limit:
                mine.append((name, count))
        return found


class Gaps:
    """Where rows are missing that a coverage needs."""

    def __init__(self, session: Session, cast: Cast) -> None:
        self._lives: list[tuple[str, int | None, int | None]] = [
            (cast[number].role, capture.first, capture.last)
            for number, state in enumerate(session.state.processes)
            for capture in state.captures.values()
            if any(capture.missing.get(kind) for kind in _COUNTED)
        ]

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._lives)

    def roles(self, low: int | None = None, high: int | None = None) -> set[str]:
        """Return the roles that may lack rows in [low, high); None: without bound.

        When missing rows happened is not known, only which capture they are of: all its time
        counts.
        """
        return {
            role
            for role, first, last in self._lives
            if first is None
            or last is None
            or ((low is None or low <= last) and (high is None or first < high))
        }


def role_figures(sums: Sums, *, trusted: bool) -> RoleFigures:
    """Return the figures of one role from its sums (classes, 2)."""
    kernels, ns = (int(n) for n in sums.sum(axis=0))
    amounts = [Amount(kernels=int(k), gpu_ns=int(n)) for k, n in sums.tolist()]
    context = amounts[Class.CONTEXT]
    return RoleFigures(
        kernels=kernels,
        gpu_ns=ns,
        context=context,
        reasons=reasons_of(sums),
        invocations_with_context=ratio(context.kernels, kernels) if trusted else None,
        gpu_time_with_context=ratio(context.gpu_ns, ns) if trusted else None,
    )


def reasons_of(sums: Sums) -> dict[str, Amount]:
    """Return kernels and GPU time without context by reason, from sums (classes, 2)."""
    return {
        name: Amount(kernels=int(sums[i, 0]), gpu_ns=int(sums[i, 1]))
        for i, name in enumerate(CLASS_NAMES)
        if name in REASONS
    }


def figures_by_role(sums: Sums, cast: Cast, gaps: set[str]) -> dict[str, RoleFigures]:
    """Return the figures of each role that has kernels in sums (roles, classes, 2)."""
    return {
        role: role_figures(sums[i], trusted=role not in gaps)
        for i, role in enumerate(cast.roles)
        if sums[i, :, 0].any()
    }


def ratio(part: int, whole: int) -> float | None:
    """Return part / whole, correctly rounded; None of nothing."""
    return part / whole if whole else None
