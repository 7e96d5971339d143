"""Which spans are steady."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from consumers.steadiness import steadiness

durations = st.lists(st.integers(0, 12) | st.none(), max_size=12)
tolerances = st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0])


def steady(
    spans: list[int | None], warmup: int, tolerance: float, history: int, *, ended: bool
) -> list[bool | None]:
    """Return what `steadiness` says."""
    return steadiness(spans, warmup=warmup, tolerance=tolerance, history=history, ended=ended)


def plain(spans: list[int | None], warmup: int, tolerance: float, history: int) -> list[bool]:
    """Say the rule over again, as it is written."""
    found = []
    for k, duration in enumerate(spans):
        before = [d for d in spans[:k] if d is not None][-history:]
        if duration is None or k < warmup or not before:
            found.append(False)
            continue
        m = sorted(before)[(len(before) - 1) // 2]
        found.append(abs(duration - m) <= Fraction(str(tolerance)) * m)
    return found


@given(durations, st.integers(0, 4), tolerances, st.integers(1, 5))
def test_steadiness_is_the_rule_as_written(
    spans: list[int | None], warmup: int, tolerance: float, history: int
) -> None:
    """Once no span will close any more, the outcome is the rule's, word by word."""
    assert steady(spans, warmup, tolerance, history, ended=True) == plain(spans, warmup, tolerance, history)


@given(durations, durations, st.integers(0, 4), tolerances, st.integers(1, 5))
def test_an_answer_never_changes(
    spans: list[int | None], close: list[int | None], warmup: int, tolerance: float, history: int
) -> None:
    """Spans that close later, and spans that come later, change nothing already said."""
    early = steady(spans, warmup, tolerance, history, ended=False)
    later = [a if a is not None else b for a, b in zip(spans, [*close, *[None] * len(spans)], strict=False)]
    for ended in (False, True):
        now = steady([*later, 5, 5], warmup, tolerance, history, ended=ended)
        assert all(a is None or a == b for a, b in zip(early, now, strict=False))


def test_the_bound_is_exact() -> None:
    """A tolerance is the decimal number it is written as: 0.29 of 100 is 29, not a little less."""
    assert steady([100, 129], 0, 0.29, 5, ended=True) == [False, True]
    assert steady([100, 130], 0, 0.29, 5, ended=True) == [False, False]


def test_the_median_is_the_lower_one() -> None:
    """Of an even number of spans the lower middle one is compared with."""
    assert steady([100, 200, 100], 0, 0.0, 5, ended=True)[2] is True


def test_spans_that_are_not_steady_are_history_as_well() -> None:
    """A change of pace is steady once the median has followed."""
    spans: list[int | None] = [10, 10, 10, 20, 20, 20, 20]
    assert steady(spans, 0, 0.1, 3, ended=True) == [False, True, True, False, False, True, True]


def test_an_open_span_holds_back_what_depends_on_it() -> None:
    """Until it closes, the spans that have it in their history are not decided."""
    assert steady([10, None, 10, 10], 0, 0.1, 1, ended=False) == [False, None, None, True]
