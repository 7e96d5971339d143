"""What the figures were measured on and with."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT

PACKAGES = ("numpy", "msgspec", "kafka-python", "zstandard", "adbc-driver-sqlite")


def describe() -> dict[str, Any]:
    """Return processor, memory, versions and the commit measured."""
    return {
        "processor": _field(Path("/proc/cpuinfo"), "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version(name) for name in PACKAGES},
        "commit": _commit(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), platform.processor()
    )


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    described = subprocess.run(
        [git, "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip()
