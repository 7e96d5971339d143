"""Stops a linker that eats a bad topic: when too many of the last records cannot be read. Pure.

    guard = Guard(most=100)
    guard.count(records=17, dead_letters=2, where="link-0")      # after every round

A few bad records are normal: a foreign program, a disk. When they are many, the topic holds
something else, or a producer is newer than this program, and every one of them would become a dead
letter while the ledger looks as if little had happened.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from schemas.errors import DeadLettersError

SPAN_RECORDS: Final = 1000
"""The last so many records of a partition are looked at."""


class Guard:
    """Counts dead letters among the last records of one linker; `most` of them are let pass."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rounds: deque[tuple[int, int]] = deque()
        self._records = 0
        self._letters = 0

    def count(self, records: int, dead_letters: int, where: str) -> None:
        """Take note of one round.

        Raises:
            DeadLettersError: there were too many.

        """
        self._rounds.append((records, dead_letters))
        self._records += records
        self._letters += dead_letters
        while self._records - self._rounds[0][0] >= SPAN_RECORDS:
            gone = self._rounds.popleft()
            self._records -= gone[0]
            self._letters -= gone[1]
        if self._letters > self._most:
            raise DeadLettersError(
                f"{self._letters:,} of the last {self._records:,} records cannot be read: stopped",
                where=where,
                hint="`gpu-ledger topics dead-letter` says why for those before; "
                "see to what writes them, or go on with a larger --max-dead-letters",
            )
