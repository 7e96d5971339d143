"""Which ranges are open when, and which cross, against the plainest counting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from consumers import ranges as ranging
from consumers.contexts import ROOT, Contexts
from consumers.ranges import OPEN, contexts_at, newly_crossing
from consumers.tables import Table
from schemas.columns import Int64s
from schemas.config import Config
from schemas.types import NONE

Drawn = list[tuple[int, int, int]]

times = st.integers(0, 12)
drawn_ranges = st.lists(st.tuples(times, st.one_of(times, st.just(OPEN)), st.integers(0, 1)), max_size=12)
instants = st.lists(st.tuples(st.integers(0, 1), times), min_size=1, max_size=8)


def table(drawn: Drawn) -> Table:
    """Return ranges (start, end, thread) as a table; a range's number is its ordinal."""
    columns = np.array(drawn, np.int64).reshape(-1, 3)
    return {
        "start": columns[:, 0].copy(),
        "end": columns[:, 1].copy(),
        "thread": columns[:, 2].copy(),
        "ordinal": np.arange(len(drawn)),
    }


def context_names(
    drawn: Drawn, at: list[tuple[int, int]], *, depth: int = 64, process_ranges: bool = False
) -> list[list[str]]:
    """Return the context of each (thread, time) as ranges' ordinals in text."""
    contexts = Contexts(Config())

    def elements(rows: Table) -> Int64s:
        return np.array([contexts.element(f"r{o}") for o in rows["ordinal"].tolist()], np.int64)

    threads, instants_ = np.array(at, np.int64).T
    nodes = contexts_at(
        table(drawn), threads, instants_, contexts, depth, elements, process_ranges=process_ranges
    )
    return [[e.text for e in contexts.path(n)] if n != ROOT else [] for n in nodes.tolist()]


@given(drawn_ranges, instants)
def test_context_is_the_ranges_open_at_an_instant(drawn: Drawn, at: list[tuple[int, int]]) -> None:
    """A context holds exactly the thread's ranges with start <= t < end, in order of opening."""
    expected = [
        [
            f"r{i}"
            for start, i in sorted(
                (s, i) for i, (s, e, th) in enumerate(drawn) if th == thread and s <= t < e
            )
        ]
        for thread, t in at
    ]
    assert context_names(drawn, at) == expected


@given(drawn_ranges, instants)
def test_contexts_do_not_depend_on_how_work_is_split(drawn: Drawn, at: list[tuple[int, int]]) -> None:
    """Expanding few pairs at a time changes nothing."""
    whole = context_names(drawn, at)
    limit, ranging._PAIRS = ranging._PAIRS, 1
    try:
        assert context_names(drawn, at) == whole
    finally:
        ranging._PAIRS = limit


def test_depth_keeps_the_outermost_ranges() -> None:
    """A depth limit cuts a context from the inside."""
    assert context_names([(0, 9, 0), (1, 8, 0), (2, 7, 0)], [(0, 3)], depth=2) == [["r0", "r1"]]


def test_process_ranges_stand_before_the_thread_s_own() -> None:
    """Ranges of the process come first, however late they open, and only when asked for."""
    drawn = [(0, 9, 0), (1, 8, NONE)]
    assert context_names(drawn, [(0, 3), (1, 3)], process_ranges=True) == [["r1", "r0"], ["r1"]]
    assert context_names(drawn, [(0, 3)]) == [["r0"]]


@given(drawn_ranges, st.integers(0, 14))
def test_crossing_ranges_are_those_that_outlive_one_they_began_in(drawn: Drawn, watermark: int) -> None:
    """A range crosses iff one of its thread began before it and ended, decided, within it."""
    ends = [e if e < watermark else OPEN for _, e, _ in drawn]
    expected = [
        any(s1 < s2 < ends[j] < ends[i] and th1 == th2 for j, (s1, _, th1) in enumerate(drawn))
        for i, (s2, _, th2) in enumerate(drawn)
    ]
    assert newly_crossing(table(drawn), watermark).tolist() == expected
