"""What is measured through a real broker on the same cores: `python -m benchmarks --only kafka`.

    a  publish, launches and ranges included
    b  link and sink, from the first linker that is restored to the final ledger
    c  from publishing an event to its being in the sink's ledger, at a steady load
    d  restoring a linker with eight processes in flight
    e  linkers' memory under that load

Each command is a process of its own, as in operation; so are the publisher of the load and the sink
that notes when what has come to it (`benchmarks.load`). `--load-seconds` says how long the load lasts.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.process import ROOT, CommandError, gpu_ledger

if TYPE_CHECKING:
    from benchmarks.run import Bench

PARTITIONS: Final = 3
RATE: Final = 150_000
"""Kernels a second of the load: eight GPUs' several times over."""
COMMIT: Final = "200ms"
MB: Final = 10**6
_START_SECONDS: Final = 120.0
_PROGRAM: Final = Path(sys.executable).with_name("gpu-ledger")


def bulk(bench: Bench) -> None:
    """Measure (a) and (b), as fast as it goes, on a broker made for this and ended afterwards."""
    with _broker() as servers:
        _bulk(bench, servers)


def load(bench: Bench) -> None:
    """Measure (c), (d) and (e) under a steady load, on a broker made for this and ended afterwards."""
    with _broker() as servers:
        _load(bench, servers)


def _bulk(bench: Bench, servers: str) -> None:
    capture = bench.capture(bench.options.kernels)
    kernels = bench.options.kernels
    published, published_cpu, linked, walls, busy = [], [], [], [], []
    for number in bench.each():
        where = ("--bootstrap-server", servers, "--topic-prefix", f"bulk{number}.")
        gpu_ledger("topics", "create", "--partitions", PARTITIONS, *where)
        outcome = gpu_ledger("publish", capture, "--label", "bulk", *where)
        published.append(kernels / outcome.wall_s)
        published_cpu.append(kernels / outcome.cpu_s)
        seconds, wall, cpu = _link_and_fold(bench, where)
        linked.append(kernels / seconds)
        walls.append(wall)
        busy.append(kernels / cpu)
        gpu_ledger("topics", "delete", "--yes", *where)
    note = bench.figure
    note("a", "Kafka: publish, the whole command", "kernels/s", published, 300_000, at_least=True)
    note("a", "Kafka: publish, by processor time", "kernels/s", published_cpu)
    note("b", "Kafka: link + sink", "kernels/s", linked, 300_000, at_least=True)
    note("b", "Kafka: link + sink, by processor time of both", "kernels/s", busy)
    note("b", "Kafka: link + sink, starting both included", "s", walls)


def _link_and_fold(bench: Bench, where: tuple[str, ...]) -> tuple[float, float, float]:
    """Return seconds from when a linker is restored to the final ledger, those of all, and of processors.

    The sink is there before the linkers, so that none of it waits for it to start.
    """
    common = ("--config", str(bench.config), *where, "--log-format", "json")
    began = time.time()
    with tempfile.TemporaryDirectory(dir=bench.folder) as out:
        logs = [Path(out) / name for name in ("sink.log", "link.log")]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(log.open("w")) for log in logs]
            words = ["sink", *common, "--until-final", "--out", out]
            sink = stack.enter_context(_running(words, files[0], 1))
            linker = stack.enter_context(_running(["link", *common], files[1], PARTITIONS))
            cpu = 0.0
            while sink.poll() is None:
                cpu = _cpu(sink.pid) or cpu
                time.sleep(0.02)
            if sink.returncode:
                raise CommandError(logs[0].read_text()[-1000:])
            cpu += _cpu(linker.pid)
        restored = min(_told(logs[1].read_text(), ": restored"))
        final = max(_told(logs[0].read_text(), ": final, "))
    return final - restored, final - began, cpu


def _told(log: str, text: str) -> list[float]:
    """Return when a command said something, in seconds since 1970."""
    events = [json.loads(line) for line in log.splitlines()]
    return [datetime.fromisoformat(e["timestamp"]).timestamp() for e in events if text in e["event"]]


def _load(bench: Bench, servers: str) -> None:
    seconds = bench.options.load_seconds
    where = ("--bootstrap-server", servers, "--topic-prefix", "load.")
    gpu_ledger("topics", "create", "--partitions", PARTITIONS, *where)
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        log = Path(folder) / "log"
        words = ["link", *where, "--commit-interval", COMMIT]
        with log.open("w") as file, _running(words, file, PARTITIONS) as linker:
            sink = _step("sink", servers, seconds + 10)
            publisher = _step("publish", servers, seconds, RATE)
            memory = []
            while publisher.poll() is None:
                memory.append(_resident(linker.pid))
                time.sleep(0.5)
            told, folded = _found(publisher), _found(sink)
    latencies = _latencies(told["slices"], folded["seen"])
    note = bench.figure
    note(
        "c",
        "Kafka: load published",
        "kernels/s",
        [told["kernels"] / told["seconds"]],
        RATE * 0.98,
        at_least=True,
    )
    note("c", "Kafka: event to ledger, median", "s", [_quantile(latencies, 0.5)])
    note("c", "Kafka: event to ledger, 99th percentile", "s", [_quantile(latencies, 0.99)], 1.0)
    restored = _found(_step("restore", servers))
    note("d", "Kafka: restoring a linker, the slowest partition", "s", [max(restored["seconds"])], 2.0)
    note("d", "Kafka: its state", "MB", [max(restored["state_bytes"]) / MB])
    fifth = max(len(memory) // 5, 1)
    early, late = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
    note(
        "e", "Kafka: linkers' memory after a fifth of the time", "MB", [size / MB for size in memory[fifth:]]
    )
    note("e", "Kafka: linkers' memory, the last fifth / the second", "x", [late / early], 1.05)


def _latencies(slices: list[tuple[float, int]], seen: list[tuple[float, int]]) -> list[float]:
    """Return of each slice how long it took until so many kernels had been folded.

    The first fifth is left out: everything is still warming up.
    """
    found = []
    at = 0
    for published, kernels in slices[len(slices) // 5 :]:
        while at < len(seen) and seen[at][1] < kernels:
            at += 1
        found.append(seen[at][0] - published if at < len(seen) else float("inf"))
    return found


def _quantile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu(pid: int) -> float:
    """Return the processor time of a process so far; 0 if it has ended."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _step(name: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.load", name, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _found(step: subprocess.Popen[str]) -> dict[str, Any]:
    output = step.communicate()[0]
    if step.returncode:
        raise CommandError(f"{step.args!r} ended with {step.returncode}")
    found: dict[str, Any] = json.loads(output)
    return found


@contextlib.contextmanager
def _running(words: list[str], log: Any, tasks: int) -> Iterator[subprocess.Popen[bytes]]:  # noqa: ANN401
    """Run a command until the block is left, once so many tasks of it are restored."""
    process = subprocess.Popen([_PROGRAM, *words], stderr=log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while Path(log.name).read_text().count(": restored") < tasks:
            if process.poll() is not None or time.monotonic() > deadline:
                raise CommandError(f"{' '.join(words)}: {Path(log.name).read_text()[-1000:]}")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _broker() -> Iterator[str]:
    """Give the servers of a broker of its own."""
    command = [sys.executable, str(ROOT / "tests" / "kafka_broker.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            if len(words) < 2:
                raise CommandError("no broker could be started: see `make kafka`")
            yield words[1]
        finally:
            process.terminate()
            process.wait()
