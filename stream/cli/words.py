"""What parts of the command line are made of: the parser, kinds of values, options several commands have."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable
from typing import Final, NoReturn

from schemas.errors import UsageError

PROGRAM: Final = "gpu-ledger"

MAX_PARTITIONS: Final = 1024
"""More make no sense: each is a directory, or a topic's partition, and a linker of its own."""

MAX_SIZE: Final = 1_000_000_000
"""Of a made-up capture: 200 GB of it."""

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are a line and a hint, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the words as UsageError."""
        hint = f"see {self.prog} --help"
        if match := re.search(r"invalid choice: '([^']*)'", message):
            near = difflib.get_close_matches(
                match[1], re.findall(r"[\w-]+", message.partition("choose from")[2]), 1
            )
            hint = f"did you mean {near[0]!r}?" if near else hint
            message = message.partition(" (choose")[0]
        elif message.startswith("unrecognized arguments: -"):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            known = sorted(option for p in _parsers(self) for option in p._option_string_actions)  # noqa: SLF001
            near = difflib.get_close_matches(word, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else hint
        raise UsageError(message.replace("\n", " "), hint=hint)


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found = [parser]
    for action in parser._actions:  # noqa: SLF001  (argparse tells of its subparsers in no other way)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                found += _parsers(inner)
    return found


def complete_file(action: argparse.Action, kind: str = "file") -> None:
    """Let the shell complete file names (or folders') here; read by `completion`."""
    action.complete = kind  # type: ignore[attr-defined]


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Add `--log-format`."""
    parser.add_argument(
        "--log-format",
        choices=("console", "json"),
        default="console",
        help="how messages on stderr are written",
    )


def count(text: str) -> int:
    """Return a number of partitions."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_PARTITIONS:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MAX_PARTITIONS}, not {text!r}")
    return number


def size(text: str) -> int:
    """Return a number that may be large and may have separators in it."""
    try:
        number = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_SIZE:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {MAX_SIZE:,}, not {text!r}")
    return number


def lazy(module: str, function: str = "command") -> Callable[[argparse.Namespace], int]:
    """Return a function that imports its module only when it is called."""

    def call(options: argparse.Namespace) -> int:
        from importlib import import_module

        result: int = getattr(import_module(f"stream.cli.{module}"), function)(options)
        return result

    return call


def seconds(text: str) -> float:
    """Return a time such as `200ms`, `10s` or `1.5h` in seconds; a bare number is seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a time such as 200ms, 10s, 5m or 7d, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def address(text: str) -> tuple[str, int]:
    """Return host and port of `PORT` (of this machine alone) or `HOST:PORT`."""
    host, _, port = text.rpartition(":")
    try:
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port or HOST:PORT, not {text!r}")
    return host.strip("[]") or "127.0.0.1", number
