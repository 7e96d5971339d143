"""Commands run in processes of their own, with what they took.

This module and `run` import nothing heavy: on Linux the peak memory of a child is never less than
that of the process that started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Outcome(NamedTuple):
    """What one command took."""

    wall_s: float
    cpu_s: float
    """User and system time of the process and all it started."""
    peak_bytes: int
    """Peak resident memory of whichever of these processes had the most."""
    output: str


class CommandError(Exception):
    """A measured command failed, so there is no figure."""


def measure(command: Sequence[str], *, cores: int | None = None) -> Outcome:
    """Run a command to its end, on the first `cores` cores only if given.

    Raises:
        CommandError: it ended with something else than 0.

    """
    everywhere = os.sched_getaffinity(0)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+") as err:
        if cores is not None:
            os.sched_setaffinity(0, sorted(everywhere)[:cores])
        try:
            began = time.perf_counter()
            child = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=ROOT)
        finally:
            os.sched_setaffinity(0, everywhere)
        try:
            _, status, used = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            raise
        wall = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode:
            raise CommandError(
                f"{' '.join(command)} ended with {child.returncode}: {err.read()[-2000:].strip()}"
            )
        return Outcome(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, out.read())


def step(name: str, *arguments: str | Path | int, cores: int | None = None) -> tuple[Outcome, dict[str, Any]]:
    """Run a step of `benchmarks.steps` in a process of its own; return what it took and found."""
    command = [sys.executable, "-m", "benchmarks.steps", name, *map(str, arguments)]
    outcome = measure(command, cores=cores)
    found: dict[str, Any] = json.loads(outcome.output)
    return outcome, found


def gpu_ledger(*arguments: str | Path | int, cores: int | None = None) -> Outcome:
    """Run the command line as its users do."""
    program = Path(sys.executable).with_name("gpu-ledger")
    return measure([str(program), *map(str, arguments)], cores=cores)
