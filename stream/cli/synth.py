"""`synth`: make up a capture whose right answers are known."""

from __future__ import annotations

import argparse
import sys

from schemas.errors import printable
from stream.cli.progress import Progress
from stream.producers.synth import FULL, truth_path, write_capture


def command(options: argparse.Namespace) -> int:
    """Write the capture and the truth about it."""
    given = {"ranges": options.ranges} if options.ranges is not None else {}
    with Progress(shown=options.log_format == "console" and sys.stderr.isatty()) as bar:
        write_capture(
            options.file,
            kernels=FULL if options.kernels is None else options.kernels,
            seed=options.seed,
            shape=options.shape,
            progress=lambda done, total: bar.update("writing", done, total),
            **given,
        )
    size = options.file.stat().st_size / 1e6
    sys.stdout.write(
        printable(f"{options.file}: {size:,.1f} MB; its right answers: {truth_path(options.file)}") + "\n"
    )
    return 0
