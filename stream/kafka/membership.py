"""Which partitions this process should run, as a consumer group shares them out.

    with Membership(connection, "gpu-ledger.link", "gpu-ledger.events") as membership:
        membership.beat()          # "I am alive": again and again, from the loop that does the work
        membership.owned           # {0, 3, 5}: a hint whom to work for; what is fenced is not ours

Nothing depends on it for safety: two processes that both believe to own a partition fence each
other, and one of them goes on. So its listener only notes what it is told, its member fetches and
commits nothing, and claims read with consumers of their own.

It lives in a thread, since a group wants to be polled for half a second and more at a time. If the
loop stops beating, the thread stops polling, so that a process that hangs loses its partitions.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Self

from schemas.errors import NotAllowedError, TransportError
from stream.kafka.client import Connection, Listener

POLL_SECONDS: Final = 0.5
"""Less, and a group never settles."""

STALL_SECONDS: Final = 60.0
"""A loop that has not beaten for so long hangs: one commit may wait for slow brokers for less."""

_RETRY_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 5.0


class _Notes(Listener):
    """What the group has told, and how often that changed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owned: frozenset[int] = frozenset()
        self.changes = 0
        self.joined = False

    def assigned(self, partitions: frozenset[int]) -> None:
        with self.lock:
            self.owned |= partitions
            self.changes += 1
            self.joined = True

    def revoked(self, partitions: frozenset[int]) -> None:
        with self.lock:
            self.owned -= partitions
            self.changes += 1

    def clear(self) -> None:
        self.joined = False
        self.revoked(self.owned)


class Membership:
    """A place in a consumer group. Use as a context manager: leaving it leaves the group."""

    def __init__(
        self, connection: Connection, group: str, topic: str, *, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self._connection = connection
        self._group = group
        self._topic = topic
        self._stall_seconds = stall_seconds
        self._notes = _Notes()
        self._stop = threading.Event()
        self._error: TransportError | None = None
        self._beaten_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"group-{group}", daemon=True)
        self._thread.start()

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that are ours now, as far as the group has told."""
        return self._notes.owned

    @property
    def joined(self) -> bool:
        """Whether the group has told what is ours, be it nothing."""
        return self._notes.joined

    @property
    def changes(self) -> int:
        """How often that has changed."""
        return self._notes.changes

    @property
    def trouble(self) -> str:
        """What keeps us out of the group, in a line; empty if nothing does."""
        return "" if self._error is None else self._error.line()

    def check(self) -> None:
        """Raise NotAllowedError if the brokers do not let us into the group."""
        if isinstance(self._error, NotAllowedError):
            raise self._error

    def beat(self) -> None:
        """Say that the loop that does the work is alive."""
        self._beaten_at = time.monotonic()

    def close(self) -> None:
        """Leave the group, so that others need not wait until we are missed."""
        self._stop.set()
        self._thread.join(_CLOSE_SECONDS + POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._take_part()
                self._error = None
            except TransportError as error:
                self._error = error
            self._notes.clear()
            self._stop.wait(_RETRY_SECONDS)

    def _take_part(self) -> None:
        """Be a member until we are to stop; TransportError if that is not possible."""
        member = self._connection.member("group", self._group, self._topic, self._notes)
        try:
            while not self._stop.is_set():
                if time.monotonic() - self._beaten_at < self._stall_seconds:
                    member.poll(POLL_SECONDS)
                else:
                    self._stop.wait(POLL_SECONDS)
                if self._notes.owned:
                    self._error = None
        finally:
            member.close(_CLOSE_SECONDS)
