"""A steady load through a broker, and what becomes of it: `python -m benchmarks.load NAME ...`.

    publish SERVERS SECONDS RATE    eight processes' kernels, launches and ranges, a slice every 100 ms
    sink SERVERS SECONDS            folds as `gpu-ledger sink` does and notes how many kernels it has when
    restore SERVERS                 takes over each linker once

Each prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.kafka import COMMIT
from consumers.linker import Linker
from consumers.sink import Sink
from schemas.columns import Int64s
from schemas.config import Config, duration_ns
from schemas.events import COLUMNS, Batch, Clock, Header, encode
from schemas.records import Output, Topic
from schemas.types import NONE, Kind, Partition, Process, partition_key
from stream.kafka.client import Connection
from stream.kafka.membership import Membership
from stream.kafka.service import Service
from stream.kafka.topics import Topics
from stream.kafka.transport import KafkaTransport
from stream.runner import Pace, RecordWriter, Runner, Task
from stream.transport import SINK, link_inputs, link_task, sink_inputs

SESSION: Final = "load"
PROCESSES: Final = 8
SLICE_NS: Final = 100_000_000
KERNELS_A_RANGE: Final = 30
KERNEL_NAMES: Final = 200

Found = dict[str, Any]


class Rank:
    """One process of the load: its rows follow each other in time, numbered through."""

    def __init__(self, number: int, kernels: int, zero: int) -> None:
        self.process = Process("load", number << 24)
        self._kernels = kernels
        self._zero = zero
        self._ranges = -(-kernels // KERNELS_A_RANGE)
        self._key = partition_key(SESSION, self.process)
        self._names = [f"kernel_{i}" for i in range(KERNEL_NAMES)]

    def slice(self, number: int, *, whole: bool = True) -> list[Output]:
        """Return the records of one slice; the last of them says that it is whole, if it is."""
        begin = self._zero + number * SLICE_NS
        count, ranges = self._kernels, self._ranges
        step = SLICE_NS // count
        launches = begin + np.arange(count, dtype=np.int64) * step
        correlation = np.arange(number * count, (number + 1) * count, dtype=np.int64) % (1 << 31)
        openings = launches[::KERNELS_A_RANGE] - 1
        openings[0] += 1
        names = (np.arange(count, dtype=np.int64) * 7 + number) % KERNEL_NAMES
        ones = partial(np.full, count)
        tables: list[tuple[Kind, int, list[Int64s], list[str]]] = [
            (
                Kind.RANGE_OPENINGS,
                number * ranges,
                [openings, np.full(ranges, 7), np.full(ranges, 0), np.arange(ranges) % 20 + 1],
                ["", *(f"layer_{i}" for i in range(20))],
            ),
            (
                Kind.RANGE_CLOSINGS,
                number * ranges,
                [np.append(openings[1:], begin + SLICE_NS - 1), np.arange(ranges) + number * ranges],
                [],
            ),
            (
                Kind.LAUNCHES,
                number * count,
                [launches, ones(7), correlation, ones(0)],
                ["cudaLaunchKernel"],
            ),
            (
                Kind.KERNELS,
                number * count,
                [
                    launches + step // 2, names * 10 + 1000, ones(0), ones(7), correlation, names,
                    ones(NONE), ones(NONE),
                ],
                self._names,
            ),
        ]  # fmt: skip
        return [
            Output(Topic.EVENTS, None, self._key, value)
            for kind, ordinal, columns, strings in tables
            for value in encode(
                Batch(
                    Header(
                        SESSION,
                        self.process,
                        kind,
                        "load",
                        ordinal,
                        len(columns[0]),
                        begin + SLICE_NS if whole and kind == Kind.KERNELS else None,
                        Clock("utc", self._zero),
                    ),
                    {n: c.astype(np.int64) for n, c in zip(COLUMNS[kind], columns, strict=True)},
                    strings,
                )
            )
        ]


def publish(servers: str, seconds: str, rate: str) -> Found:
    """Publish so many kernels a second for so long; say when each slice was, and how many till then."""
    each = int(rate) // PROCESSES * SLICE_NS // 10**9
    zero = time.time_ns()
    ranks = [Rank(i + 1, each, zero) for i in range(PROCESSES)]
    slices: list[tuple[float, int]] = []
    number = 0
    with _transport(servers) as transport, RecordWriter(transport) as writer:
        began = time.time()
        while number * SLICE_NS < float(seconds) * 1e9:
            outputs = [output for rank in ranks for output in rank.slice(number)]
            due = began + (number + 1) * SLICE_NS / 1e9
            time.sleep(max(due - time.time(), 0))
            slices.append((time.time(), (number + 1) * each * PROCESSES))
            for output in outputs:
                writer.write(output)
            writer.commit()
            number += 1
        took = time.time() - began
        # A second more that nobody can decide yet: what a linker that is restored has in flight.
        for further in range(number, number + 10**9 // SLICE_NS):
            for rank in ranks:
                for output in rank.slice(further, whole=False):
                    writer.write(output)
    return {"slices": slices, "kernels": number * each * PROCESSES, "seconds": took}


def sink(servers: str, seconds: str) -> Found:
    """Fold for so long; how many kernels there were after each commit."""
    seen: list[tuple[float, int]] = []
    pace = Pace(commit_seconds=duration_ns(COMMIT) / 1e9)
    deadline = time.monotonic() + float(seconds)
    with _transport(servers) as transport:
        group = transport.topics.group("sink")
        with Membership(transport.connection, group, transport.topics.sink_state) as membership:

            def make_task(_: Partition) -> Task:
                return Task(SINK, partial(Sink, Config()), sink_inputs(transport.partitions), pace)

            service = Service(transport, membership, make_task)

            def note() -> None:
                for runner in service.runners.values():
                    folded: Any = runner.processor
                    if not runner.dirty and SESSION in folded.sessions:
                        counts = folded._sessions[SESSION].totals.rows()[1][0]  # noqa: SLF001
                        kernels = int(counts.sum())
                        if not seen or kernels > seen[-1][1]:
                            seen.append((time.time(), kernels))

            service.run(lambda: time.monotonic() > deadline, progress=note)
    return {"seen": seen}


def restore(servers: str) -> Found:
    """Take over each linker; how long that took, and how large its state is."""
    took, sizes = [], []
    with _transport(servers) as transport:
        n = transport.partitions
        for p in map(Partition, range(n)):
            began = time.perf_counter()
            with Runner(
                transport, Task(link_task(p), partial(Linker, Config(), p), link_inputs(p, n))
            ) as runner:
                took.append(time.perf_counter() - began)
                sizes.append(sum(map(len, runner.processor.snapshot().values())))
    return {"seconds": took, "state_bytes": sizes}


def _transport(servers: str) -> KafkaTransport:
    return KafkaTransport(Connection(servers), Topics("load."))


STEPS: Final[dict[str, Callable[..., Found]]] = {"publish": publish, "sink": sink, "restore": restore}

if __name__ == "__main__":
    print(json.dumps(STEPS[sys.argv[1]](*sys.argv[2:])))
