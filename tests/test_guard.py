"""When a linker stops instead of eating a bad topic."""

from __future__ import annotations

import pytest

from schemas.errors import DeadLettersError
from stream.guard import Guard


def test_a_few_bad_records_are_let_pass() -> None:
    """Up to the set number of the last thousand records may be unreadable, for as long as it goes on."""
    guard = Guard(most=10)
    for _ in range(1000):
        guard.count(records=100, dead_letters=1, where="link-0")


def test_one_more_than_is_allowed_stops() -> None:
    """The error names the task, how many of how many, and both ways out."""
    guard = Guard(most=10)
    guard.count(records=500, dead_letters=10, where="link-0")
    with pytest.raises(DeadLettersError) as caught:
        guard.count(records=1, dead_letters=1, where="link-0")
    line = caught.value.line()
    assert line.startswith("link-0: 11 of the last 501 records cannot be read: stopped; ")
    assert "gpu-ledger topics dead-letter" in line
    assert "--max-dead-letters" in line


def test_old_ones_are_forgotten() -> None:
    """What counts is the last thousand records, not all since the start."""
    guard = Guard(most=10)
    guard.count(records=10, dead_letters=10, where="link-0")
    guard.count(records=990, dead_letters=0, where="link-0")
    guard.count(records=10, dead_letters=10, where="link-0")
    with pytest.raises(DeadLettersError):
        guard.count(records=10, dead_letters=1, where="link-0")


def test_none_at_all_may_be_asked_for() -> None:
    """With 0 the first one stops."""
    guard = Guard(most=0)
    guard.count(records=10, dead_letters=0, where="link-0")
    with pytest.raises(DeadLettersError):
        guard.count(records=1, dead_letters=1, where="link-0")
