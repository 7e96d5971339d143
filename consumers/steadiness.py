"""Which spans are steady: long enough after the start, and about as long as those before them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from fractions import Fraction


def steadiness(
    durations: Sequence[int | None], *, warmup: int, tolerance: float, history: int, ended: bool
) -> list[bool | None]:
    """Return for each span whether it is steady; None: not known yet.

    `durations` in ns, in order of opening; None: the span has not closed. Span k is steady iff
    k >= `warmup` and |duration - m| <= `tolerance` x m, m the lower median of the `history` spans
    before it, steady or not, fewer at the start; the first span has none and is never steady.
    The comparison is exact: `tolerance` is taken as the decimal number it is written as.

    With `ended` no span will close any more: an open one is not steady and has no part in the
    history. Without, what depends on one is not known yet, but for the warmup.
    """
    ratio = Fraction(str(tolerance))
    before: deque[int] = deque()
    ordered: list[int] = []
    undecided: deque[int] = deque()
    found: list[bool | None] = []
    for number, duration in enumerate(durations):
        while undecided and undecided[0] < number - history:
            undecided.popleft()
        steady: bool | None
        if number < warmup or number == 0:
            steady = False
        elif not ended and (duration is None or undecided):
            steady = None
        elif duration is None or not ordered:
            steady = False
        else:
            median = ordered[(len(ordered) - 1) // 2]
            steady = abs(duration - median) * ratio.denominator <= median * ratio.numerator
        found.append(steady)
        if duration is None:
            undecided.append(number)
            continue
        before.append(duration)
        insort(ordered, duration)
        if len(before) > history:
            del ordered[bisect_left(ordered, before.popleft())]
    return found
