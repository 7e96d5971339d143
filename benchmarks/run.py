"""Measures gpu-ledger against what it promises: `make bench`, or `python benchmarks/run.py --help`.

    a  wall time of `run` against merely iterating the same rows through Python's sqlite3
    b  the linker alone, and from segments to ledger, on one core
    c  peak memory of any process of `run`
    d  bytes an event and a kernel in the EVENTS log
    e  twice the events; 16 million ranges
    kafka  through a real broker: see benchmarks/kafka.py

Every figure is the median of five (`--repeat`), with the least and the most beside it; each measured
command is a process of its own. Figures and the machine go to bench/results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import kafka, machine
from benchmarks.process import ROOT, CommandError, Outcome, gpu_ledger, step

FULL = 1_092_185
RANGES = 16_000_000
RANGES_KERNELS = 20_000
MANY_GROUPS = 57_000
"""Groups of a capture whose DiT ranks come to 10,000 each."""
MB = 10**6


class Figure(NamedTuple):
    """One figure: what was measured, how it came out, and what was promised."""

    part: str
    name: str
    unit: str
    values: list[float]
    limit: float | None = None
    """What was promised: at most this, or with `at_least` not below it."""
    at_least: bool = False
    load: float = 0.0
    """Processes that wanted a core when it had been measured: above 2 or so it is noise as well."""

    @property
    def median(self) -> float:
        """The figure."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the promise is kept; None if there is none."""
        if self.limit is None:
            return None
        return self.median >= self.limit if self.at_least else self.median <= self.limit


class Bench:
    """Where captures lie, how often things are measured, and what has come of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.config: Path = options.config
        self.figures: list[Figure] = []
        self.captures: dict[str, dict[str, Any]] = {}

    def capture(
        self, kernels: int, *, shape: str = "world-model", groups: int = 6_100, ranges: int = 0
    ) -> Path:
        """Return a made-up capture of that size, made now if it is not there."""
        name = f"{shape}-{kernels}-{ranges or groups}.sqlite"
        path = self.folder / name
        if name not in self.captures:
            say(f"capture {name}")
            _, self.captures[name] = step("synth", path, shape, kernels, groups, ranges)
        return path

    def note(self, figure: Figure) -> None:
        """Keep a figure and show it."""
        self.figures.append(figure._replace(load=round(os.getloadavg()[0], 2)))
        say(line(figure))

    def figure(
        self,
        part: str,
        name: str,
        unit: str,
        values: list[float],
        limit: float | None = None,
        *,
        at_least: bool = False,
    ) -> None:
        """Keep a figure and show it: as `note`."""
        self.note(Figure(part, name, unit, values, limit, at_least))

    def each(self) -> Iterable[int]:
        """Count the repetitions."""
        return range(self.options.repeat)

    def run(self, capture: Path, *, config: bool = True) -> Outcome:
        """Run the main job on a capture, as its users do."""
        chosen = ("--config", self.config) if config else ()
        with tempfile.TemporaryDirectory(dir=self.folder) as out:
            return gpu_ledger("run", capture, *chosen, "--out", Path(out) / "ledger")

    def published(self, capture: Path, partitions: int = 1) -> Path:
        """Return a folder of segments with the capture's events, made anew."""
        folder = self.folder / f"events-{capture.stem}-{partitions}"
        shutil.rmtree(folder, ignore_errors=True)
        gpu_ledger("publish", capture, "--to", folder, "--partitions", partitions)
        return folder


def say(text: str) -> None:
    """Show how far it has come."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def wall_and_memory(bench: Bench) -> None:
    """Measure (a) and (c): run and cursor take turns, so that both meet the same noise."""
    capture = bench.capture(bench.options.kernels)
    step("cursor", capture)  # the file into the page cache
    runs, cursors = [], []
    for _ in bench.each():
        cursors.append(step("cursor", capture)[0])
        runs.append(bench.run(capture))
    ratios = [run.wall_s / cursor.wall_s for run, cursor in zip(runs, cursors, strict=True)]
    kernels = bench.options.kernels
    bench.note(Figure("a", "run, wall", "s", [run.wall_s for run in runs]))
    bench.note(Figure("a", "sqlite3 cursor over the same rows, wall", "s", [c.wall_s for c in cursors]))
    bench.note(Figure("a", "run / cursor", "x", ratios, 1.0))
    bench.note(Figure("a", "run, kernels a second", "M/s", [kernels / run.wall_s / MB for run in runs]))
    bench.note(Figure("a", "run, processor time of all processes", "s", [run.cpu_s for run in runs]))
    bench.note(
        Figure("c", "run, peak memory of any process", "MB", [run.peak_bytes / MB for run in runs], 500)
    )


def linking(bench: Bench) -> None:
    """Measure (b), on one core: with the usual groups and with 10,000 a process."""
    for groups in (6_100, MANY_GROUPS):
        capture = bench.capture(bench.options.kernels, groups=groups)
        events = bench.published(capture)
        kernels = bench.options.kernels / MB
        what = f"{bench.captures[capture.name]['groups']:,} groups"
        linked = [step("link", events, bench.config, cores=1) for _ in bench.each()]
        speed = [kernels / found["seconds"] for _, found in linked]
        bench.note(Figure("b", f"linker alone, {what}", "M kernels/s", speed, 1.0, at_least=True))
        busy = [kernels / found["cpu_seconds"] for _, found in linked]
        bench.note(Figure("b", f"linker alone, {what}, by processor time", "M kernels/s", busy))
        sizes = [found["largest_state_bytes"] / MB for _, found in linked]
        bench.note(Figure("b", f"its largest state, {what}", "MB", sizes))
        chained = []
        for _ in bench.each():
            with tempfile.TemporaryDirectory(dir=bench.folder) as place:
                copy = shutil.copytree(events, Path(place) / "events")
                chained.append(step("chain", copy, bench.config, cores=1))
        speed = [kernels / found["seconds"] for _, found in chained]
        bench.note(Figure("b", f"segments to ledger, {what}", "M kernels/s", speed, 0.6, at_least=True))
        peaks = [outcome.peak_bytes / MB for outcome, _ in chained]
        bench.note(Figure("c", f"segments to ledger, {what}, peak memory", "MB", peaks, 500))


def size(bench: Bench) -> None:
    """Measure (d). Sizes do not vary, so once is enough."""
    capture = bench.capture(bench.options.kernels)
    _, found = step("events", bench.published(capture))
    on_disk = found["bytes_on_disk"]
    bench.captures[capture.name]["events"] = found
    bench.note(
        Figure("d", f"EVENTS log, an event of {found['events']:,}", "bytes", [on_disk / found["events"]], 8)
    )
    each = on_disk / bench.options.kernels
    bench.note(Figure("d", "EVENTS log, a kernel with launches and ranges", "bytes", [each], 16))


def linearity(bench: Bench) -> None:
    """Measure (e): one capture and one twice as large, taking turns; then very many ranges."""
    small, large = (bench.capture(bench.options.kernels * factor) for factor in (1, 2))
    ratios = []
    walls = []
    for _ in bench.each():
        once, twice = bench.run(small), bench.run(large)
        ratios.append(twice.wall_s / once.wall_s)
        walls.append(twice)
    bench.note(Figure("e", "run, twice the events", "s", [twice.wall_s for twice in walls]))
    bench.note(Figure("e", "run, twice the events / once", "x", ratios, 2.2))
    bench.note(Figure("e", "run, twice the events, peak memory", "MB", [t.peak_bytes / MB for t in walls]))


def many_ranges(bench: Bench) -> None:
    """Measure the second half of (e)."""
    ranges = bench.options.ranges
    kernels = min(RANGES_KERNELS, ranges // 50)
    capture = bench.capture(kernels, shape="ranges", ranges=ranges)
    runs = [bench.run(capture, config=False) for _ in bench.each()]
    millions = ranges / MB
    bench.note(Figure("e", f"run, {millions:g} million ranges, wall", "s", [run.wall_s for run in runs]))
    speed = [ranges / run.wall_s for run in runs]
    bench.note(Figure("e", f"run, {millions:g} million ranges", "ranges/s", speed, 300_000, at_least=True))
    peaks = [run.peak_bytes / MB for run in runs]
    bench.note(Figure("e", f"run, {millions:g} million ranges, peak memory", "MB", peaks, 1_000))


PARTS: dict[str, tuple[Callable[[Bench], None], ...]] = {
    "a": (wall_and_memory,),
    "b": (linking,),
    "c": (wall_and_memory,),
    "d": (size,),
    "e": (linearity, many_ranges),
    "linearity": (linearity,),
    "ranges": (many_ranges,),
    "kafka": (kafka.bulk, kafka.load),
    "kafka-bulk": (kafka.bulk,),
    "kafka-load": (kafka.load,),
}


def line(figure: Figure) -> str:
    """Return a figure as a row of the table."""
    promise = ""
    if figure.limit is not None:
        sign = ">=" if figure.at_least else "<="
        promise = f"{sign} {figure.limit:,g}   {'met' if figure.met else 'MISSED'}"
    low, high = min(figure.values), max(figure.values)
    spread = f"({low:,.4g} .. {high:,.4g})" if len(figure.values) > 1 else ""
    value = f"{figure.median:,.4g}" if figure.median < 10_000 else f"{figure.median:,.0f}"
    return f"{figure.part}  {figure.name:<58} {value:>10} {figure.unit:<12} {spread:<24} {promise}".rstrip()


def main() -> int:
    """Measure what was asked for, write the figures and show them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=sorted(PARTS), default=["a", "b", "d", "e"], help="parts to measure"
    )
    parser.add_argument(
        "--kernels", type=int, default=FULL, help=f"kernels of the capture (default {FULL:,})"
    )
    parser.add_argument(
        "--ranges", type=int, default=RANGES, help=f"ranges of the other one (default {RANGES:,})"
    )
    parser.add_argument(
        "--repeat", type=int, default=5, help="how often each command is measured (default 5)"
    )
    parser.add_argument(
        "--load-seconds", type=float, default=30.0, help="kafka: how long the steady load lasts (default 30)"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "bench", help="where captures and results lie")
    parser.add_argument("--config", type=Path, default=ROOT / "examples" / "world_model.toml")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    described = machine.describe()
    failed = []
    for part in dict.fromkeys(function for name in options.only for function in PARTS[name]):
        try:
            part(bench)
        except CommandError as error:
            say(f"{part.__name__}: {error}")
            failed.append(f"{part.__name__}: {error}")
    results = {
        "machine": described,
        "load_after": round(os.getloadavg()[0], 2),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "repeat": options.repeat,
        "captures": bench.captures,
        "figures": [{**f._asdict(), "median": f.median, "met": f.met} for f in bench.figures],
        "failed": failed,
    }
    target = options.folder / "results.json"
    target.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    memory = described["memory_bytes"] / 2**30
    packages = ", ".join(f"{name} {number}" for name, number in described["packages"].items())
    print(f"{described['processor']}, {described['cores']} cores, {memory:.0f} GiB; {described['system']}")
    print(f"Python {described['python']}, SQLite {described['sqlite']}, {packages}")
    print(
        f"commit {described['commit']}; load {described['load_before']} before, {results['load_after']} after"
    )
    print(f"medians of {options.repeat} (least .. most)")
    for figure in bench.figures:
        print(line(figure))
    print(f"written to {target}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
