"""What the clock on the wall decides, told the time instead of waiting for it."""

from __future__ import annotations

from typing import NamedTuple

from schemas.config import Config, Limits, Windows
from schemas.types import Process
from schemas.windows import Decision
from stream.patience import Patience

SOURCE = Process("host", 1 << 24)
OTHER = Process("host", 2 << 24)
CONFIG = Config(windows=Windows(max_wait="60s"), limits=Limits(pending=100))


class Wait(NamedTuple):
    """Rows that wait."""

    session: str = "s"
    process: Process = SOURCE
    capture: str = "c"
    since: int = 1000
    until: int = 5000
    pending: int = 10


class Open(NamedTuple):
    """A capture that has not ended."""

    session: str = "s"
    process: Process = SOURCE
    capture: str = "c"
    watermark: int = 1000


def cuts(patience: Patience, now: float, *waits: Wait, pending: int = 10) -> list[tuple[str, Decision]]:
    """Return what is decided if only boundaries are waited for."""
    return patience.look(now, waits, (), pending)


def test_a_source_is_given_up_on_after_max_wait_and_not_before() -> None:
    """The wait counts from when rows were first seen waiting, not from the start of the program."""
    patience = Patience(CONFIG)
    assert cuts(patience, 500.0) == []
    assert cuts(patience, 1000.0, Wait()) == []
    assert cuts(patience, 1059.9, Wait(until=6000)) == []
    assert cuts(patience, 1060.0, Wait(until=7000)) == [
        ("s", Decision("cut", SOURCE, "c", 1000, 7000, "max_wait"))
    ]


def test_a_source_that_comes_further_is_waited_for_anew() -> None:
    """Slow is not silent: any progress starts the wait again."""
    patience = Patience(CONFIG)
    assert cuts(patience, 0.0, Wait()) == []
    assert cuts(patience, 50.0, Wait(since=1001)) == []
    assert cuts(patience, 100.0, Wait(since=1001)) == []
    assert len(cuts(patience, 110.0, Wait(since=1001))) == 1


def test_nobody_waits_for_a_source_that_holds_nothing_back() -> None:
    """If no row waits for it, its silence costs nothing and is not counted."""
    patience = Patience(CONFIG)
    assert cuts(patience, 0.0, Wait()) == []
    assert cuts(patience, 50.0) == []
    assert cuts(patience, 70.0, Wait()) == []
    assert len(cuts(patience, 130.0, Wait())) == 1


def test_a_source_that_stays_away_is_given_up_on_once_every_max_wait() -> None:
    """A decision begins the wait anew, so a dead source costs one record a wait, not one a look."""
    patience = Patience(CONFIG)
    made = [decision for now in range(601) for decision in cuts(patience, float(now), Wait())]
    assert len(made) == 9


def test_too_many_rows_do_not_wait_at_all() -> None:
    """Beyond `limits.pending` boundaries are given up at once: memory has an end."""
    patience = Patience(CONFIG)
    assert cuts(patience, 0.0, Wait(), Wait(process=OTHER), pending=100) == []
    assert cuts(patience, 1.0, Wait(), Wait(process=OTHER), pending=101) == [
        ("s", Decision("cut", SOURCE, "c", 1000, 5000, "pending")),
        ("s", Decision("cut", OTHER, "c", 1000, 5000, "pending")),
    ]


def test_a_silent_process_is_called_so_once_until_it_speaks_again() -> None:
    """Its silence is written once; if it comes back and falls silent again, once more."""
    patience = Patience(CONFIG)
    silent = [(now, patience.look(float(now), (), [Open()], 0)) for now in range(200)]
    assert [(now, made) for now, made in silent if made] == [
        (60, [("s", Decision("silent", SOURCE, "c", 1000, 1000, "max_wait"))])
    ]
    assert patience.look(200.0, (), [Open(watermark=2000)], 0) == []
    assert patience.look(259.0, (), [Open(watermark=2000)], 0) == []
    assert patience.look(260.0, (), [Open(watermark=2000)], 0) == [
        ("s", Decision("silent", SOURCE, "c", 2000, 2000, "max_wait"))
    ]


def test_a_capture_as_such_is_never_silent() -> None:
    """The pseudo process of a capture has facts and an end only: it says nothing in between."""
    patience = Patience(CONFIG)
    nobody = Open(process=Process("", 0))
    assert [d for now in range(200) for d in patience.look(float(now), (), [nobody], 0)] == []
