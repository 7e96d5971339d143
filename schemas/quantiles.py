"""Mergeable quantiles by integer buckets: the same on every CPU, within 0.8 %.

A duration's bucket is made of its exponent and the 6 bits after its leading one: durations below
128 ns have a bucket each, above that a bucket spans 1/64 of a power of two. Counts add up, so the
quantiles of a union are those of the summed buckets.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.columns import Int64s

MANTISSA_BITS: Final = 6
BUCKETS: Final = (63 - MANTISSA_BITS + 1) << MANTISSA_BITS
"""How many buckets there are: every one is smaller than this."""

_EXACT: Final = 1 << (MANTISSA_BITS + 1)


def bucket_of(durations: Int64s) -> Int64s:
    """Return the bucket of each duration (ns, not negative)."""
    values = np.ascontiguousarray(durations, np.int64)
    # A double holds 53 bits: of larger values it may round up into the next power of two, so the
    # shift is taken from the exponent and corrected by looking at the value itself.
    exponent = np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1
    exponent = np.maximum(exponent, MANTISSA_BITS)
    exponent -= (values >> exponent == 0) & (exponent > MANTISSA_BITS)
    shift = exponent - MANTISSA_BITS
    return np.where(values < _EXACT, values, (shift << MANTISSA_BITS) + (values >> shift))


def midpoint_of(buckets: Int64s) -> Int64s:
    """Return the integer midpoint of each bucket, rounded down."""
    values = np.ascontiguousarray(buckets, np.int64)
    shift = np.maximum((values >> MANTISSA_BITS) - 1, 0)
    low = (values - (shift << MANTISSA_BITS)) << shift
    middle: Int64s = low + (((np.int64(1) << shift) - 1) >> 1)
    return middle


def nearest_rank(total: int, percent: int) -> int:
    """Return the 1-based rank of a percentile among `total` values: ceil(percent/100 * total)."""
    return max(1, -(-total * percent // 100))
