"""Row ordinals, against a set of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumers.seen import Seen


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12))
def test_every_row_is_new_once(parts: list[tuple[int, int]]) -> None:
    """However rows overlap, each comes out as new the first time only, and gaps are what is left."""
    seen = Seen()
    have: set[int] = set()
    for ordinal, rows in parts:
        new = [i for low, high in seen.take(ordinal, rows) for i in range(low, high)]
        coming = set(range(ordinal, ordinal + rows))
        assert sorted(new) == sorted(coming - have)
        have |= coming
        high = max(have, default=-1) + 1
        assert seen.high == high
        missing = [i for low, top in seen.missing for i in range(low, top)]
        assert missing == sorted(set(range(high)) - have)
