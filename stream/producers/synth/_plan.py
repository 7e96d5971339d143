"""How many of everything a capture of the world model has, and when it happens."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from schemas.errors import UsageError

FULL: Final = 1_092_185
"""Kernels of the example ledger, of which so many have no context:"""
FULL_UNKNOWN: Final = 136_373
SMALLEST: Final = 4_000

UTC_ZERO: Final = 1_788_852_617_123_456_789
BEGIN: Final = 266_000_000_000
LOADED: Final = BEGIN + 5_500_000_000
WARM: Final = BEGIN + 5_900_000_000
MEASURED: Final = 278_487_043_706
SPANS: Final = (
    3_900_000_000, 2_720_000_000, 2_550_000_000, 2_500_000_000, 2_482_988_535,
    2_540_871_928, 2_480_465_446, 2_487_759_741, 2_483_702_005,
)  # fmt: skip
"""Lengths (ns) between the openings of DiT rank 0's `chunk_step` ranges: warm-up, then steady."""
LAST_SPAN: Final = 2_607_220_356
"""From the last opening to the end of the measured time, as in the example ledger."""

DISPATCH_KERNELS: Final = (6, 6, 5)
DISPATCH: Final = sum(DISPATCH_KERNELS)
OP_KERNELS: Final = 5
DIT_OPS: Final = (
    "aten::linear", "aten::layer_norm", "aten::conv3d", "aten::mul", "aten::cat", "aten::embedding",
    "aten::to", "aten::clamp", "aten::randn", "aten::index", "aten::add",
)  # fmt: skip


class Plan(NamedTuple):
    """How many there are of everything, so that the kernels come to the number asked for."""

    nodes: tuple[int, int, int]
    """Kernel nodes of each graph."""
    forwards: int
    """In each span; before the measured time there are `warm_forwards`."""
    warm_forwards: int
    edges: tuple[int, ...]
    """Openings of the spans, and the end of the measured time, ns from the capture's zero."""
    operators: int
    dispatches: tuple[int, ...]
    """Of each VAE rank."""
    modules: int
    filler: int
    """Kernels that bring the total to the number asked for."""
    unknown: tuple[int, ...]
    """Kernels without context, of each process."""

    @property
    def spans(self) -> int:
        """Number of `chunk_step` ranges."""
        return len(self.edges) - 1


def make_plan(kernels: int, groups: int) -> Plan:
    """Return what makes exactly `kernels` kernels in about `groups` groups, where there is room.

    Raises:
        UsageError: too few kernels to have one of everything.

    """
    if kernels < SMALLEST:
        raise UsageError(f"a capture of this shape has at least {SMALLEST} kernels, not {kernels}")
    unknown = FULL_UNKNOWN * min(kernels, FULL) // FULL + max(0, kernels - FULL) // 250
    known = kernels - unknown
    nodes = max(6, min(round(0.692 * groups / 4), known // 2 // (4 * 12), (1 << 18) - 8))
    split = (nodes * 9 // 20, nodes * 9 // 20, nodes - 2 * (nodes * 9 // 20))
    forwards = max(12, round(0.5 * kernels / (4 * nodes)))
    each = min(10, max(1, round(forwards / 13)))
    spans = max(10, (forwards - 30) // each)
    warm = max(2, forwards - each * spans)
    forwards = each * spans + warm
    operators = max(1, min(len(DIT_OPS) + 1, int(0.06 * kernels / (4 * forwards * OP_KERNELS))))
    rest = known - 4 * forwards * (nodes + OP_KERNELS * operators)
    dispatches = rest // DISPATCH
    modules = max(1, round((groups / 4 - nodes - OP_KERNELS * operators - 70) / DISPATCH))
    shares = [unknown // 5] * 4 + [unknown // 20] * 4
    shares[0] += unknown - sum(shares)
    lengths = [*SPANS, *_more_spans(spans - 1 - len(SPANS)), LAST_SPAN]
    return Plan(
        nodes=split,
        forwards=each,
        warm_forwards=warm,
        edges=tuple(np.cumsum([MEASURED, *lengths]).tolist()),
        operators=operators,
        dispatches=tuple(dispatches // 4 + (rank < dispatches % 4) for rank in range(4)),
        modules=max(1, min(modules, dispatches // 8)),
        filler=rest - dispatches * DISPATCH,
        unknown=tuple(shares),
    )


def _more_spans(n: int) -> list[int]:
    """Return lengths of further steady spans; every sixteenth hiccups."""
    return [
        2_484_000_000 + 1_000_003 * (k * 7 % 11 - 5) + (900_000_000 if k % 16 == 11 else 0) for k in range(n)
    ]
