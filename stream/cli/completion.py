"""`completion`: the script that lets a shell complete this command line."""

from __future__ import annotations

import argparse
import sys

import shtab

from stream.cli.arguments import make_parser
from stream.cli.words import PROGRAM


def command(options: argparse.Namespace) -> int:
    """Print the script for a shell."""
    parser = make_parser()
    _mark(parser)
    sys.stdout.write(
        shtab.complete(parser, shell=options.shell, root_prefix=PROGRAM.replace("-", "_")) + "\n"
    )
    return 0


def _mark(parser: argparse.ArgumentParser) -> None:
    """Turn our marks for files and folders into shtab's."""
    for action in parser._actions:  # noqa: SLF001  (argparse tells of its options in no other way)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                _mark(inner)
        kind = getattr(action, "complete", None)
        if isinstance(kind, str):
            action.complete = shtab.FILE if kind == "file" else shtab.DIRECTORY  # type: ignore[attr-defined]
