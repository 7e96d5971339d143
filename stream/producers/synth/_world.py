"""The shape of a realtime world model: four DiT ranks that replay CUDA graphs, four VAE ranks without.

What is in it on purpose, since real captures have it and readers stumble over it: correlation ids
that collide between processes, kernels whose launch came before the capture, threads without ranges,
launches between ranges, vm ids above the pid, unsorted rows, calls without GPU work, backtrace rows,
driver calls within runtime calls, operator ids in range names, registered and plain names, several
domains, ranges without end, graph nodes on several streams, a GPU clock that runs behind, durations
of zero and below, copies without launch.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from schemas.columns import Int64s
from schemas.types import Class
from stream.producers.synth import _names, _schema
from stream.producers.synth._cell import Cell, Contexts, Process, Strings, Work, fill
from stream.producers.synth._plan import (
    BEGIN,
    DISPATCH_KERNELS,
    DIT_OPS,
    LOADED,
    MEASURED,
    OP_KERNELS,
    SPANS,
    UTC_ZERO,
    WARM,
    make_plan,
)
from stream.producers.synth._truth import Clock, Counting, Truth, Unknown, Windows, steady_spans, top_unknown

Progress = Callable[[int, int], None]
"""Called with kernels written and kernels to write."""

SYSTEM_CLOCK: Final = 3_015_610_264_500_046
ANCHORS: Final = (0, 12_345, 87_996, 55_001)
ANCHOR_OFFSET: Final = 3_015_610_264_465_616

DIT_PIDS: Final = (3307870, 3307871, 3307872, 3307873)
VAE_PIDS: Final = (3301965, 3301966, 3301967, 3301968)
GRAPHS: Final = ("graph:double_blocks", "graph:single_blocks", "graph:final_layer")
GRAPH_STREAMS: Final = (13, 14, 15)
FIRST_ID: Final = 100_000
"""About where correlation ids start in every process: below are those cut off."""
FIRST_INSTANCE: Final = 1 << 20
"""Context numbers from here on are ranges of their own, with an operator id in the name."""
COLLECTIVE: Final = "ncclAllGather"
VAE_OPS: Final = ("aten::conv3d", "aten::group_norm", "aten::silu")


class _Graph(NamedTuple):
    """One CUDA graph as every replay runs it; arrays of shape (nodes,)."""

    number: int
    node: Int64s
    """Numbers of its kernel nodes; those between are sets."""
    set_nodes: Int64s
    names: Int64s
    streams: Int64s
    offset: Int64s
    """ns from the start of the replay."""
    length: Int64s
    gap: Int64s
    """ns from the end of a kernel to the next of its stream."""
    total: int


class World:
    """Writes a capture of this shape."""

    def __init__(self, truth: Truth, *, kernels: int, groups: int) -> None:
        self._plan = make_plan(kernels, groups)
        self._truth = truth
        self._kernels = kernels
        edges = list(self._plan.edges)
        truth.utc_zero_ns = UTC_ZERO
        truth.windows_ns = Windows([(edges[0], edges[-1])], steady_spans(edges[:-1]))
        truth.clock = Clock(SYSTEM_CLOCK, ANCHOR_OFFSET, len(ANCHORS), max(ANCHORS), ANCHOR_OFFSET)
        truth.counters = {"dit_forward_rows": {}, "vae_dispatch_rows": {}}
        self._rng = np.random.default_rng(truth.seed)
        warm_slot = (MEASURED - 100_000_000 - WARM) // self._plan.warm_forwards
        span_slot = (min(SPANS) - 10_000_000) // self._plan.forwards
        self._graphs = self._make_graphs(int(0.55 * min(warm_slot, span_slot)))
        names = len(_names.KERNELS)
        dit = [Process(f"dit_rank{r}", r, pid, r, 0) for r, pid in enumerate(DIT_PIDS)]
        vae = [
            Process(f"vae_rank{r}", r, pid, 4 + r, 12_000_000 if r == 3 else 0)
            for r, pid in enumerate(VAE_PIDS)
        ]
        self.processes = [*dit, *vae]
        self._counting = [Counting(p.role, p.pid, truth, names) for p in self.processes]
        self._next_id = [FIRST_ID + 60 * i for i in range(len(self.processes))]
        self._next_instance = [FIRST_INSTANCE] * len(self.processes)
        self._dispatched = [0] * len(self.processes)
        self._collected = [0] * len(self.processes)
        self._registered: dict[str, int] = {}

    def write(self, database: _schema.Database, progress: Progress | None) -> None:
        """Write the whole capture and complete the truth."""
        strings = Strings(
            np.array([database.string(call) for call in _names.CALLS], np.int64),
            np.array(
                [
                    [database.string(form(name)) for name in _names.KERNELS]
                    for form in (str, _names.short_name, _names.mangled_name)
                ],
                np.int64,
            ),
        )
        self._registered = {name: database.string(name) for name in (*GRAPHS, COLLECTIVE)}
        for number, cell in self._cells(database):
            self._collected[number] += cell.write(database, strings, self._truth)
            self._next_id[number] += cell.launches
            if progress:
                progress(self._truth.rows.kernels, self._kernels)
        unknown: list[Unknown] = []
        for counting in self._counting:
            unknown += counting.finish(list(_names.KERNELS))
        self._truth.unknown_top = top_unknown(unknown)
        self._truth.collected = sum(self._collected)
        self._write_target(database)

    def _cells(self, database: _schema.Database) -> Iterator[tuple[int, Cell]]:
        steps: list[Callable[[int, Cell], None]] = [self._load, self._warm_up]
        steps += [lambda n, cell, k=k: self._span(n, cell, k) for k in range(self._plan.spans)]  # type: ignore[misc]
        for step in steps:
            # Processes take turns in the file, another order each time.
            for number in self._rng.permutation(len(self.processes)).tolist():
                rng = np.random.default_rng(self._rng.integers(1 << 62))
                cell = Cell(self.processes[number], self._counting[number], self._next_id[number], rng)
                step(number, cell)
                yield number, cell
            if step == self._load:
                self._write_graph_nodes(database)

    # Before the measured time.

    def _load(self, number: int, cell: Cell) -> None:
        process = cell.process
        unknown = self._plan.unknown[number]
        cut, helper = unknown * 16 // 100, unknown * 25 // 100
        early = min(20, helper // 10)
        outside = unknown - cut - helper - self._gap_kernels(number) * self._plan.forwards * self._plan.spans
        self._cut_head(cell, cut)
        self._loose(cell, BEGIN + 420_000_000, 30_000_000, early, 0, Class.THREAD_WITHOUT_RANGES)
        begin = BEGIN + 500_000_000
        cell.ranges(_one(begin), _one(begin + 100_000_000), 0, "init")
        self._name_threads(cell, begin)
        if process.role.startswith("dit"):
            at = begin + 150_000_000 + process.rank * 1_000_000
            cell.event(34, at, f"clock_anchor:{at + ANCHOR_OFFSET + ANCHORS[process.rank]}")
            cell.ranges(_one(begin + 20_000_000), _one(-1), 5, "serve_forever")
            cell.event(60, begin, "request #1", end=MEASURED)
        cell.event(34, begin + 1_000_000, "heartbeat")
        begin, length = BEGIN + 700_000_000, LOADED - BEGIN - 800_000_000
        odd = number == 0
        self._loose(cell, begin, length, outside, 0, Class.LAUNCH_OUTSIDE_RANGES, odd=odd)
        self._loose(cell, begin, length, helper - early, 17, Class.THREAD_WITHOUT_RANGES, stream=20)
        n = max(2, outside // 20)
        starts = begin + 3_000 + np.arange(n) * (length // n)
        launch = cell.launch(starts, 5_000, 0, _names.MEMCPY_ASYNC)
        extra = (fill(n, 1 << 20), fill(n, 1), fill(n, -1))
        work = Work(starts + 9_000, starts + 70_000, fill(n, 7), launch, extra, fill(n, -1))
        cell.copies(work, Class.LAUNCH_OUTSIDE_RANGES)
        if process.role == "vae_rank0":  # unified memory moves on its own
            starts = begin + np.arange(8) * 1_000_000
            extra = (fill(8, 65_536), fill(8, 11), fill(8, 1))
            work = Work(starts, starts + 12_000, fill(8, 0), fill(8, -1), extra, fill(8, -1))
            cell.copies(work, Class.LAUNCH_NOT_CAPTURED)
        cell.idle(0.33, begin, begin + length)

    def _cut_head(self, cell: Cell, n: int) -> None:
        """Add kernels whose launch came before the capture, the rest of a graph's replay among them."""
        first_id = cell.first - n - 1
        nodes = 0
        if cell.process.role.startswith("dit"):
            graph = self._graphs[1]
            nodes = min(40, len(graph.node), n // 2)
            start = BEGIN + 1_000 + graph.offset[-nodes:] - graph.offset[-nodes:].min()
            launch = fill(nodes, -1 - first_id)
            node = (graph.number << 32) | graph.node[-nodes:]
            work = Work(start, start + graph.length[-nodes:], graph.streams[-nodes:], launch, (), node)
            column = self._graph_column(cell, graph)
            cell.kernels(work, graph.names[-nodes:], Class.LAUNCH_NOT_CAPTURED, graph_column=column)
        n -= nodes
        start = BEGIN + 10_000 + np.arange(n) * (390_000_000 // max(n, 1))
        ids = first_id + 1 + np.arange(n)
        length = cell.rng.integers(1_500, 20_000, n)
        work = Work(start, start + length, fill(n, 7), -1 - ids, (), fill(n, -1))
        cell.kernels(work, _unknown_names(n), Class.LAUNCH_NOT_CAPTURED)

    def _loose(
        self, cell: Cell, begin: int, length: int, n: int, thread: int, reason: Class, *, stream: int = 7,
        odd: bool = False,
    ) -> None:  # fmt: skip
        """Add `n` kernels launched outside of every range."""
        step = max(1, length // max(n, 1))
        launched = begin + np.arange(n) * step + cell.rng.integers(0, max(1, step // 4), n)
        launch = cell.launch(launched, 4_000, thread, _names.LAUNCH_KERNEL)
        lengths = cell.rng.integers(1_500, max(1_600, min(60_000, step)), n)
        if odd:
            lengths[:4] = (0, 0, 0, -40)
        start = launched + 6_000 + cell.rng.integers(0, 3_000, n)
        work = Work(start, start + lengths, fill(n, stream), launch, (), fill(n, -1))
        cell.kernels(work, _unknown_names(n), reason)

    def _name_threads(self, cell: Cell, at: int) -> None:
        cell.event(75, at - 9_000, "NCCL", domain=1)
        if cell.process.role.startswith("dit"):
            cell.event(39, at, f"dit-rank{cell.process.rank}")
            cell.event(39, at, "scheduler", thread=5)

    def _warm_up(self, number: int, cell: Cell) -> None:
        length = MEASURED - 100_000_000 - WARM
        if cell.process.role.startswith("dit"):
            # Launches under stream capture become graph nodes and run nothing by themselves.
            captured = LOADED + np.arange(sum(self._plan.nodes)) * 10
            cell.launch(captured, 5, 0, _names.LAUNCH_KERNEL_EX)
            n = self._plan.warm_forwards
            self._forwards(number, cell, WARM, length // n, n, 0)
        else:
            n = self._plan.dispatches[cell.process.rank] // 9
            cell.ranges(_one(WARM), _one(WARM + length), 0, "vae:ep0_chunk0")
            self._dispatches(number, cell, WARM + 1_000_000, length - 2_000_000, n, 0)
            if cell.process.rank == 3:
                self._fill_up(cell, WARM + length - 900_000)
        cell.idle(0.245, WARM, WARM + length)

    def _fill_up(self, cell: Cell, at: int) -> None:
        n = self._plan.filler
        cell.ranges(_one(at), _one(at + 100_000), 0, "aten::copy_")
        launched = at + 1_000 + np.arange(n) * 5_000
        launch = cell.launch(launched, 3_000, 0, _names.LAUNCH_KERNEL)
        start = launched + 5_000
        work = Work(start, start + 2_000, fill(n, 7), launch, (), fill(n, -1))
        one = fill(n, 1)
        cell.kernels(work, fill(n, 0), Class.CONTEXT, Contexts(one, one, one))

    # The measured time.

    def _span(self, number: int, cell: Cell, k: int) -> None:
        process = cell.process
        begin, end = self._plan.edges[k : k + 2]
        if process.role.startswith("dit"):
            late = process.rank * 400_000
            if k == 0:
                cell.ranges(_one(MEASURED + late), _one(self._plan.edges[-1] + late), 5, "measured")
            cell.ranges(_one(begin + late), _one(end - 3_000_000 + late), 5, f"chunk_step #{k}")
            n = self._plan.forwards
            self._forwards(
                number, cell, begin + 5_000_000, (end - begin - 10_000_000) // n, n, self._gap_kernels(number)
            )
            rows = self._truth.counters["dit_forward_rows"]
            rows[str(process.pid)] = rows.get(str(process.pid), 0) + n
        else:
            total = self._plan.dispatches[process.rank]
            total -= total // 9
            n = total // self._plan.spans + (k < total % self._plan.spans)
            chunk = k // 5 + 1
            ep_chunk = f"ep{(chunk + 1) // 2}_chunk{(chunk - 1) % 2 * 5}"
            if k % 5 == 0:
                stop = self._plan.edges[min(k + 5, self._plan.spans)]
                cell.ranges(_one(begin + 1_000_000), _one(stop - 1_000_000), 0, f"vae:{ep_chunk}")
            self._dispatches(number, cell, begin + 2_000_000, end - begin - 4_000_000, n, chunk)
            if n:
                rows = self._truth.counters["vae_dispatch_rows"]
                key = f"{process.rank}:{ep_chunk}"
                rows[key] = rows.get(key, 0) + n
        cell.idle(0.245, begin, end)

    def _gap_kernels(self, number: int) -> int:
        """Return how many kernels without context follow each forward of the measured time."""
        if number >= len(DIT_PIDS):
            return 0
        wanted = round(0.003 * (sum(self._plan.nodes) + OP_KERNELS * self._plan.operators))
        room = self._plan.unknown[number] * 2 // 5 // (self._plan.forwards * self._plan.spans)
        return min(max(1, wanted), 8, room)

    def _forwards(self, number: int, cell: Cell, begin: int, slot: int, n: int, gap: int) -> None:
        """Add `n` forwards of a DiT rank: operators, then three graph replays, then a gap."""
        at = begin + np.arange(n) * slot + cell.noise(n, slot // 50)
        cell.ranges(at, at + slot * 85 // 100, 0, "dit_forward")
        self._operators(number, cell, at + slot // 100, slot // 10)
        copied = np.concatenate((at + slot // 500, at + slot // 250))
        launch = cell.launch(copied, 4_000, 0, _names.MEMCPY_ASYNC)
        m = len(copied)
        extra = (fill(m, 4_096), fill(m, 1), fill(m, -1))
        cell.copies(
            Work(copied + 5_000, copied + 7_000, fill(m, 7), launch, extra, fill(m, -1)), Class.CONTEXT
        )
        free = at + slot * 12 // 100
        for g, graph in enumerate(self._graphs):
            entered = at + slot * (12 + 2 * g) // 100
            cell.ranges(entered, entered + slot // 100, 0, None, self._registered[GRAPHS[g]])
            launched = entered + slot // 500 + cell.noise(n, slot // 1000)
            launch = cell.launch(launched, 60_000, 0, _names.LAUNCH_GRAPH)
            free = np.maximum(free, launched + 9_000)
            self._replay(cell, graph, g, free, launch)
            free = free + graph.total + 2_000
        if gap:
            launched = (at[:, None] + slot * 88 // 100 + np.arange(gap) * (slot // (10 * gap))).ravel()
            launch = cell.launch(launched, 4_000, 0, _names.LAUNCH_KERNEL)
            start = launched + 6_000
            work = Work(start, start + 20_000, fill(n * gap, 7), launch, (), fill(n * gap, -1))
            cell.kernels(work, _unknown_names(n * gap), Class.LAUNCH_OUTSIDE_RANGES)

    def _replay(self, cell: Cell, graph: _Graph, context: int, start: Int64s, launch: Int64s) -> None:
        n, nodes = len(start), len(graph.node)
        begin = start[:, None] + graph.offset + (graph.gap * cell.rng.integers(0, 256, (n, nodes)) >> 9)
        length = graph.length + (graph.length * cell.rng.integers(0, 256, (n, nodes)) >> 13)
        work = Work(
            begin.ravel(),
            (begin + length).ravel(),
            np.tile(graph.streams, n),
            np.repeat(launch, nodes),
            (),
            np.tile((graph.number << 32) | graph.node, n),
        )
        ids = fill(n * nodes, context)
        column = self._graph_column(cell, graph)
        cell.kernels(work, np.tile(graph.names, n), Class.CONTEXT, Contexts(ids, ids, ids), column)
        sets = len(graph.set_nodes)
        begin = start[:, None] + np.arange(sets) * (graph.total // sets)
        work = Work(
            begin.ravel(), begin.ravel() + 1_200, fill(n * sets, GRAPH_STREAMS[0]), np.repeat(launch, sets),
            (fill(n * sets, 1_024),), np.tile((graph.number << 32) | graph.set_nodes, n),
        )  # fmt: skip
        cell.sets(work, Class.CONTEXT)

    def _operators(self, number: int, cell: Cell, begin: Int64s, length: int) -> None:
        n, operators = len(begin), self._plan.operators
        each = length // operators
        for o in range(operators):
            at = begin + o * each + cell.noise(n, each // 50)
            context = fill(n, 3 + o)
            if o == operators - 1 and operators > 1:
                instance = context
                cell.ranges(at, at + each * 9 // 10, 0, None, self._registered[COLLECTIVE], domain=1)
            else:
                instance = self._instances(number, n)
                cell.ranges(at, at + each * 9 // 10, 0, _numbered(DIT_OPS[o], instance))
            step = each * 8 // 10 // (OP_KERNELS + 1)
            launched = (at[:, None] + np.arange(1, OP_KERNELS + 1) * step).ravel()
            launched += cell.noise(len(launched), step // 4)
            launch = cell.launch(launched, 4_000, 0, _names.LAUNCH_KERNEL)
            m = n * OP_KERNELS
            start = launched + 4_000 + cell.rng.integers(0, 1_000, m)
            top = max(1_600, min(60_000, each // 10))
            work = Work(
                start, start + cell.rng.integers(1_500, top, m), fill(m, 7), launch, (), fill(m, -1)
            )  # fmt: skip
            names = np.tile((o * OP_KERNELS + np.arange(OP_KERNELS)) % len(_names.EAGER), n)
            plain = np.repeat(context, OP_KERNELS)
            cell.kernels(work, names, Class.CONTEXT, Contexts(np.repeat(instance, OP_KERNELS), plain, plain))

    def _dispatches(self, number: int, cell: Cell, begin: int, length: int, n: int, chunk: int) -> None:
        """Add `n` dispatches of a VAE rank, three operators each."""
        if n == 0:
            return
        slot = length // n
        at = begin + np.arange(n) * slot + cell.noise(n, slot // 25)
        module = (self._dispatched[number] + np.arange(n)) % self._plan.modules
        self._dispatched[number] += n
        texts = [
            f"vae_dispatch:decoder.up_blocks.{m // 6}.resnets.{m % 6}" for m in range(self._plan.modules)
        ]
        cell.ranges(at, at + slot * 92 // 100, 0, [texts[m] for m in module.tolist()])
        for o, kernels in enumerate(DISPATCH_KERNELS):
            entered = at + slot * (4 + 29 * o) // 100 + cell.noise(n, slot // 200)
            example = 16 + module * 3 + o
            default = 16 + ((chunk * self._plan.modules) + module) * 3 + o
            captured = self._instances(number, n) if o == 0 else default
            cell.ranges(
                entered,
                entered + slot * 27 // 100,
                0,
                _numbered(VAE_OPS[o], captured) if o == 0 else VAE_OPS[o],
            )
            step = slot * 27 // 100 // (kernels + 2)
            launched = (entered[:, None] + np.arange(1, kernels + 1) * step).ravel()
            launched += cell.noise(len(launched), step // 3)
            launch = cell.launch(launched, min(4_000, step // 2), 0, _names.LAUNCH_KERNEL)
            m = n * kernels
            start = launched + 5_000 + cell.rng.integers(0, 1_000, m)
            names = (module[:, None] + 7 * o + np.arange(kernels)).ravel() % len(_names.EAGER)
            typical = np.minimum(20_000 + 9_000 * names, step * 9 // 10)
            lengths = typical + (typical * cell.rng.integers(0, 64, m) >> 10)
            work = Work(start, start + lengths, fill(m, 7), launch, (), fill(m, -1))
            contexts = Contexts(*(np.repeat(ids, kernels) for ids in (captured, default, example)))
            cell.kernels(work, names, Class.CONTEXT, contexts)
        moved = at[::3] + slot * 9 // 10
        m = len(moved)
        launch = cell.launch(moved, 3_000, 0, _names.MEMCPY_ASYNC)
        extra = (fill(m, 1 << 22), fill(m, 8), fill(m, -1))
        cell.copies(
            Work(moved + 4_000, moved + 30_000, fill(m, 7), launch, extra, fill(m, -1)), Class.CONTEXT
        )
        blank = at[::6] + slot * 91 // 100
        m = len(blank)
        launch = cell.launch(blank, 3_000, 0, _names.MEMSET_ASYNC)
        work = Work(blank + 4_000, blank + 5_500, fill(m, 7), launch, (fill(m, 1 << 16),), fill(m, -1))
        cell.sets(work, Class.CONTEXT)

    def _instances(self, number: int, n: int) -> Int64s:
        first = self._next_instance[number]
        self._next_instance[number] += n
        return np.arange(first, first + n, dtype=np.int64)

    # Graphs.

    def _make_graphs(self, budget: int) -> list[_Graph]:
        """Make the three graphs, `budget` ns long together."""
        graphs = []
        for g, n in enumerate(self._plan.nodes):
            shape = self._rng.lognormal(0.0, 0.8, n).clip(0.1, 8)
            length = (shape / shape.sum() * budget * n / sum(self._plan.nodes) * 0.9).astype(np.int64) + 1_000
            number = np.arange(n)
            side = np.where(number % 11 % 4 == 3, 1, np.where(number % 17 == 5, 2, 0))
            gap = length // 16 + 300
            offset = np.cumsum(np.where(side == 0, length + gap, 0)) - np.where(side == 0, length + gap, 0)
            # Other streams run ahead of the main one: there, start order is not node order.
            offset = np.where(side == 0, offset, np.maximum(0, offset - np.roll(length, 1) // 2 - 1))
            total = int((offset + length + gap).max())
            sets = np.array([n // 3, 2 * n // 3 + 1], np.int64)
            node = np.delete(np.arange(n + 2), sets)
            names = len(_names.EAGER) + (number * 7 + g) % len(_names.GRAPH)
            streams = np.array(GRAPH_STREAMS, np.int64)[side]
            graphs.append(_Graph(2 * g + 2, node, sets, names, streams, offset, length, gap, total))
        return graphs

    @staticmethod
    def _graph_column(cell: Cell, graph: _Graph) -> int:
        """Return what the column `graphId` holds: nothing, but for one rank, where it wins."""
        return 100 + graph.number if cell.process.role == "dit_rank3" else -1

    def _write_graph_nodes(self, database: _schema.Database) -> None:
        name = database.string(_names.GRAPH_NODE)
        for process in self.processes[: len(DIT_PIDS)]:
            at = LOADED
            for graph in self._graphs:
                for n in range(len(graph.node) + len(graph.set_nodes)):
                    at += 10
                    made, original = ((graph.number - 1) << 32) | n, (graph.number << 32) | n
                    rows = (
                        (at, at, process.thread(0), name, made, -1),
                        (at, at, process.thread(0), name, original, made),
                    )
                    database.insert(_schema.INSERT_NODE, rows)
                    self._truth.rows.graph_nodes += 2

    def _write_target(self, database: _schema.Database) -> None:
        """Write the tables about the machine and the capture itself."""
        end = self._plan.edges[-1] + 1_500_000_000
        zero = dt.datetime.fromtimestamp(UTC_ZERO // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
        database.fill("TARGET_INFO_SESSION_START_TIME", [(UTC_ZERO, zero, zero, SYSTEM_CLOCK)])
        database.fill("ANALYSIS_DETAILS", [(1 << 48, end, SYSTEM_CLOCK, SYSTEM_CLOCK + end)])
        size = (1, 52_428_800, 85_899_345_920, 3_352_320_000_000, 1_980_000, 132)
        for i in range(8):
            name = (0, i, "NVIDIA H100 80GB HBM3", f"0000:{i:02x}:00.0")
            rest = (i, f"GPU-{i:032x}", 0, "GH100", i, 9, 0)
            database.fill("TARGET_INFO_GPU", [(*name, *size, *rest)])
        database.fill("TARGET_INFO_CUDA_DEVICE", ((p.device, p.device, p.pid) for p in self.processes))
        environment = {"Hostname": "world-0", "CudaDriverVersion": "13000", "DriverVersion": "580.95.05"}
        database.fill(
            "TARGET_INFO_SYSTEM_ENV",
            ((1 << 48, "Target", k, i, v) for i, (k, v) in enumerate(environment.items())),
        )
        others = [(1, "systemd"), (1201, "sshd"), (1377, "dcgm-exporter"), (2044, "containerd")]
        ours = [(process.pid, "python3.12") for process in self.processes]
        database.fill("PROCESSES", (((1 << 48) | (pid << 24), pid, name) for pid, name in [*others, *ours]))
        threads = [((1 << 48) | (pid << 24) | pid, name) for pid, name in others]
        for process in self.processes:
            if process.role.startswith("vae"):
                threads.append((process.thread(0), f"vae-rank{process.rank}"))
            threads.append((process.thread(17), "pin_memory"))
        database.fill("ThreadNames", ((database.string(name), 20, tid) for tid, name in threads))
        database.fill("DIAGNOSTIC_EVENT", [(0, 1, 3, 1, "Profiling has started.", -144115188075855872)])
        for process, count in zip(self.processes, self._collected, strict=True):
            database.fill(
                "DIAGNOSTIC_EVENT",
                [
                    (
                        end,
                        2,
                        3,
                        1,
                        f"Number of CUDA events collected: \t{count}.",
                        process.global_pid,
                    )
                ],
            )
        database.fill("DIAGNOSTIC_EVENT", [(end, 1, 3, 1, "Profiling has stopped.", -144115188075855872)])


def _one(value: int) -> Int64s:
    return np.array([value], np.int64)


def _unknown_names(n: int) -> Int64s:
    """Return names of kernels without context, the first ones most often, the same for every rank."""
    pattern = np.concatenate([fill(max(1, 26 // (i + 1)), i) for i in range(_names.UNKNOWN)])
    return np.resize(pattern, n)


def _numbered(name: str, instances: Int64s) -> list[str]:
    """Return the name with an operator id each, now and then with a sequence number as well."""
    first = FIRST_INSTANCE
    return [
        f"{name}, seq = {i - first}, op_id = {i - first + 7}"
        if i % 5 == 0
        else f"{name}, op_id = {i - first + 7}"
        for i in instances.tolist()
    ]
