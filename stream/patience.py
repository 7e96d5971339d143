"""When to give up on what the clock on the wall alone can tell: that something does not come. Pure.

    patience = Patience(config)
    made = patience.look(time.monotonic(), linker.waits(), linker.open_captures(), linker.pending)
    for session, decision in made:
        linker.decide(session, decision)

Two things are decided, and both are written to WINDOWS, so that every linker and the sink obey them
and a replay makes none of its own:

    cut      rows have waited for one source of boundaries, which came no further, for `windows.max_wait`;
             or more than `limits.pending` rows wait in this linker: boundaries are given up that far
    silent   a process that has not ended has said nothing new for `windows.max_wait`

Whoever comes further, or is decided on, is waited for anew: so each state of things is decided once,
and while a source stays away, rows wait for it `windows.max_wait` at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from schemas.config import Config, duration_ns
from schemas.types import Process
from schemas.windows import Decision


class Waiting(Protocol):
    """Rows that wait for a source of boundaries: see `consumers.linker.Wait`."""

    @property
    def session(self) -> str: ...  # noqa: D102
    @property
    def process(self) -> Process: ...  # noqa: D102
    @property
    def capture(self) -> str: ...  # noqa: D102
    @property
    def since(self) -> int: ...  # noqa: D102
    @property
    def until(self) -> int: ...  # noqa: D102
    @property
    def pending(self) -> int: ...  # noqa: D102


class Open(Protocol):
    """A (capture, process) that has not ended: see `consumers.linker.OpenCapture`."""

    @property
    def session(self) -> str: ...  # noqa: D102
    @property
    def process(self) -> Process: ...  # noqa: D102
    @property
    def capture(self) -> str: ...  # noqa: D102
    @property
    def watermark(self) -> int: ...  # noqa: D102


_Who = tuple[str, Process, str]
"""Session, process, capture."""


class Patience:
    """What one linker has waited for, and since when."""

    def __init__(self, config: Config) -> None:
        self._max_wait = duration_ns(config.windows.max_wait) / 1e9
        self._most = config.limits.pending
        self._waits: dict[_Who, tuple[int, float]] = {}
        """How far it had come, and when that was first seen."""
        self._silences: dict[_Who, tuple[int, float, bool]] = {}
        """Its watermark, when that was first seen, and whether it has been called silent."""

    def look(
        self, now: float, waits: Sequence[Waiting], captures: Iterable[Open], pending: int
    ) -> list[tuple[str, Decision]]:
        """Return what to give up on now, each with its session; `now` is in seconds, from any zero."""
        decisions = [*self._cuts(now, waits, pending), *self._silent(now, captures)]
        return sorted(decisions)

    def _cuts(self, now: float, waits: Sequence[Waiting], pending: int) -> list[tuple[str, Decision]]:
        decisions = []
        before, self._waits = self._waits, {}
        too_many = pending > self._most
        for wait in waits:
            who = (wait.session, wait.process, wait.capture)
            since, first = before.get(who, (wait.since, now))
            if since != wait.since:
                first = now
            if now - first < self._max_wait and not too_many:
                self._waits[who] = (wait.since, first)
                continue
            reason: Literal["max_wait", "pending"] = (
                "max_wait" if now - first >= self._max_wait else "pending"
            )
            cut = Decision("cut", wait.process, wait.capture, wait.since, wait.until, reason)
            decisions.append((wait.session, cut))
        return decisions

    def _silent(self, now: float, captures: Iterable[Open]) -> list[tuple[str, Decision]]:
        decisions = []
        before, self._silences = self._silences, {}
        for one in captures:
            if one.process.is_capture:
                continue  # it has facts and an end, no events of its own
            who = (one.session, one.process, one.capture)
            watermark, first, told = before.get(who, (one.watermark, now, False))
            if watermark != one.watermark:
                first, told = now, False
            if not told and now - first >= self._max_wait:
                told = True
                silent = Decision(
                    "silent", one.process, one.capture, one.watermark, one.watermark, "max_wait"
                )
                decisions.append((one.session, silent))
            self._silences[who] = (one.watermark, first, told)
        return decisions
