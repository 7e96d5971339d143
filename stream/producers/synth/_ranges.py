"""The shape that strains range handling: one process, five threads, millions of ranges, few kernels."""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.columns import Int64s
from schemas.errors import UsageError
from schemas.types import Class
from stream.producers.synth import _names, _schema
from stream.producers.synth._cell import Cell, Contexts, Process, Strings, Work, fill
from stream.producers.synth._plan import UTC_ZERO
from stream.producers.synth._truth import Counting, Truth
from stream.producers.synth._world import Progress

THREADS: Final = 5
PERIOD: Final = 200_000
"""ns from one step of a thread to its next."""
_LAYERS: Final = ("layer", "attention", "mlp")
_PARTS: Final = ("forward", "copy")
_TREE: Final = np.array(
    [
        (0, 190_000, -1),
        *((5_000 + 60_000 * b, 60_000 + 60_000 * b, b) for b in range(3)),
        *(
            (8_000 + 60_000 * b + 25_000 * c, 30_000 + 60_000 * b + 25_000 * c, 3 + c)
            for b in range(3)
            for c in range(2)
        ),
    ],
    np.int64,
)
"""The ranges of one step, shape (10, 3): start, end (ns from its start), name."""
STEPS: Final = 20
CHUNK: Final = 5_000
"""Steps written at a time."""
PROCESS: Final = Process("pid_4242", 0, 4242, 0, 0)
OUTSIDE_EVERY: Final = 50


def write_ranges(
    database: _schema.Database, truth: Truth, *, kernels: int, ranges: int, progress: Progress | None
) -> None:
    """Write `ranges` ranges and `kernels` kernels and complete the truth.

    Chunks of a few seconds of one thread stand in the file in random order, as do the rows in each,
    so that nothing near a sorted order can be relied on.

    Raises:
        UsageError: more kernels than steps to put them in.

    """
    size = len(_TREE)
    steps = ranges // (size * THREADS)
    if not 1 <= kernels <= steps * THREADS:
        raise UsageError(f"{ranges} ranges have room for 1 to {steps * THREADS} kernels, not {kernels}")
    truth.utc_zero_ns = UTC_ZERO
    strings = Strings(
        np.array([database.string(call) for call in _names.CALLS], np.int64),
        np.array([[database.string(name) for name in _names.KERNELS]] * 3, np.int64),
    )
    text_ids = np.array([database.string(name) for name in (*_LAYERS, *_PARTS)], np.int64)
    counting = Counting(PROCESS.role, PROCESS.pid, truth, len(_names.KERNELS))
    chunks = [(thread, first) for first in range(0, steps, CHUNK) for thread in range(THREADS)]
    rng = np.random.default_rng(truth.seed)
    collected = 0
    for number in rng.permutation(len(chunks)).tolist():
        thread, first = chunks[number]
        index = np.arange(first, min(first + CHUNK, steps), dtype=np.int64)
        own = np.random.default_rng((truth.seed, number))
        start = index * PERIOD + own.integers(0, 5_000, len(index))
        _write_steps(database, index, start, thread, text_ids, own)
        truth.rows.ranges += size * len(index)
        # Kernel k is launched in step k * all // kernels, counted over all threads.
        step = index * THREADS + thread
        low = -(-step * kernels // (steps * THREADS))
        chosen = low * (steps * THREADS) // kernels == step
        chosen &= low < kernels
        cell = Cell(PROCESS, counting, 1 + int(-(-first * THREADS * kernels // (steps * THREADS))), own)
        cell.first += thread * kernels
        _launch(cell, start[chosen], low[chosen], index[chosen], thread)
        collected += cell.write(database, strings, truth)
        if progress:
            progress(truth.rows.ranges, ranges)
    rest = ranges - truth.rows.ranges
    if rest:
        cell = Cell(PROCESS, counting, 0, rng)
        at = steps * PERIOD + np.arange(rest, dtype=np.int64) * 1_000
        cell.ranges(at, at + 500, 0, "rest")
        cell.write(database, strings, truth)
    truth.unknown_top = counting.finish(list(_names.KERNELS))
    truth.unknown_top.sort(key=lambda u: (-u.count, u.role, u.name))
    truth.collected = collected
    database.fill("PROCESSES", [(PROCESS.global_pid, PROCESS.pid, "python3.12")])
    database.fill("TARGET_INFO_SESSION_START_TIME", [(UTC_ZERO, "", "", 0)])


def _write_steps(
    database: _schema.Database,
    index: Int64s,
    start: Int64s,
    thread: int,
    text_ids: Int64s,
    rng: np.random.Generator,
) -> None:
    n, size = len(index), len(_TREE)
    order = rng.permutation(n * size)
    begin = (start[:, None] + _TREE[:, 0]).ravel()[order]
    end = (start[:, None] + _TREE[:, 1]).ravel()[order]
    name = np.where(_TREE[:, 2] < 0, -1, text_ids[_TREE[:, 2]])
    ids = np.tile(name, n)[order]
    steps = [f"step {i}" for i in range(STEPS)]
    which = np.where(ids < 0, (np.repeat(index, size) % STEPS)[order], -1)
    texts = [steps[i] if i >= 0 else None for i in which.tolist()]
    tid, kind, none = (fill(n * size, v).tolist() for v in (PROCESS.thread(thread), 59, -1))
    domain = fill(n * size, 0).tolist()
    rows = zip(begin.tolist(), end.tolist(), kind, none, texts, tid, ids.tolist(), domain, strict=True)
    database.insert(_schema.INSERT_NVTX, rows)


def _launch(cell: Cell, start: Int64s, number: Int64s, index: Int64s, thread: int) -> None:
    """Add kernel `number` of the step that starts at `start`: in one of its parts, or after them."""
    layer, part = number % 3, number // 3 % 2
    outside = number % OUTSIDE_EVERY == OUTSIDE_EVERY - 1
    inside = 8_000 + 60_000 * layer + 25_000 * part + 4_000
    launched = start + np.where(outside, 193_000, inside)
    launch = cell.launch(launched, 3_000, thread, _names.LAUNCH_KERNEL)
    n = len(start)
    work = Work(launched + 5_000, launched + 9_000 + number % 977, fill(n, 7), launch, (), fill(n, -1))
    context = np.where(outside, -1, (index % STEPS * 3 + layer) * 2 + part)
    classes = np.where(outside, int(Class.LAUNCH_OUTSIDE_RANGES), int(Class.CONTEXT))
    cell.kernels(work, number % 8, classes, Contexts(context, context, context))
