"""Captures made up to any size, in the schema of Nsight Systems, with the truth beside them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from schemas.errors import OutputError, UsageError
from stream.producers.synth._plan import FULL
from stream.producers.synth._ranges import write_ranges
from stream.producers.synth._schema import new_database
from stream.producers.synth._truth import Truth
from stream.producers.synth._world import Progress, World

SHAPES = ("world-model", "ranges")
"""`world-model`: eight ranks as in a real ledger. `ranges`: very many ranges, few kernels."""

__all__ = ["FULL", "SHAPES", "Progress", "Truth", "truth_path", "write_capture"]


def truth_path(path: Path) -> Path:
    """Return where the truth about the capture at `path` stands."""
    return path.with_name(f"{path.stem}.truth.json")


def write_capture(
    path: Path,
    *,
    kernels: int = FULL,
    seed: int = 0,
    shape: str = "world-model",
    groups: int = 6_100,
    ranges: int = 16_000_000,
    progress: Progress | None = None,
) -> Truth:
    """Write a capture of exactly `kernels` kernels and `<name>.truth.json`; return the truth.

    The same arguments give the same rows. `groups` is how many groups to aim for under the example
    configuration (shape `world-model`), `ranges` how many ranges there are (shape `ranges`).
    `progress` is told how much is done and how much there is to do.

    Raises:
        UsageError: no such shape, or numbers it cannot have.
        OutputError: it cannot be written; what stood there before is untouched.

    """
    truth = Truth(shape=shape, seed=seed)
    if shape == "world-model":
        world = World(truth, kernels=kernels, groups=groups)
        with new_database(path) as database:
            world.write(database, progress)
    elif shape == "ranges":
        with new_database(path) as database:
            write_ranges(database, truth, kernels=kernels, ranges=ranges, progress=progress)
    else:
        raise UsageError(f"no shape {shape!r}", hint=f"one of {', '.join(SHAPES)}")
    text = msgspec.json.format(msgspec.json.encode(truth), indent=2)
    try:
        truth_path(path).write_bytes(text + b"\n")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(truth_path(path))) from error
    return truth
