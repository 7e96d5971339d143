"""The command line: one module a command, each importing only what it needs, so that it starts fast.

Errors are one line on stderr; exit 0 is done, 1 a failed input or run, 2 wrong usage.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType
from typing import NoReturn

from schemas.errors import GpuLedgerError, printable

TRACEBACK = "GPU_LEDGER_TRACEBACK"
"""Environment variable that makes faults of our own show their traceback."""


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks the program to end: Ctrl-C, `kill`, and a terminal that is closed."""


class Stopped(BaseException):
    """A signal asked the program to end; raised where it stands, so that everything is cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ChildFaultError(RuntimeError):
    """A fault of our own in a child process; its text is what `fault_text` said there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    json_errors = False
    previous = {stop: signal.getsignal(stop) for stop in _STOPS}
    for stop, handler in previous.items():
        if handler is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(stop, _stop)
    try:
        from stream.cli.arguments import parse
        from stream.cli.streams import standard_streams

        with standard_streams():
            words = sys.argv[1:] if arguments is None else list(arguments)
            json_errors = _asks_for_json(words)
            options = parse(words)
            code: int = options.command(options)
    except GpuLedgerError as error:
        return _fail(error, as_json=json_errors)
    except (KeyboardInterrupt, Stopped) as stopped:
        number = stopped.number if isinstance(stopped, Stopped) else signal.SIGINT
        return _say(f"stopped by {signal.Signals(number).name}", 128 + number, as_json=json_errors)
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`): nobody is left to tell, so leave quietly.
        return 128 + signal.SIGPIPE
    except MemoryError:
        return _say("out of memory", 1, as_json=json_errors)
    except Exception as fault:  # noqa: BLE001  (the last resort: a fault of our own is one line, too)
        return _fault(fault, as_json=json_errors)
    finally:
        for stop, handler in previous.items():
            signal.signal(stop, handler)
    return code


def _asks_for_json(words: Sequence[str]) -> bool:
    """Look for the option before parsing: what is wrong with the words is to be JSON as well."""
    return "--log-format=json" in words or ("--log-format", "json") in pairwise(words)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    # One is enough: a second one would only strike while everything is cleaned up.
    for other in _STOPS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def _fail(error: GpuLedgerError, *, as_json: bool) -> int:
    if as_json:
        parts = {"where": error.where, "hint": error.hint}
        return _say(error.what, error.exit_code, as_json=True, **{k: v for k, v in parts.items() if v})
    return _say(error.line(), error.exit_code, as_json=False)


def _fault(fault: Exception, *, as_json: bool) -> int:
    if os.environ.get(TRACEBACK):
        import traceback

        traceback.print_exception(fault)
    text = str(fault) if isinstance(fault, ChildFaultError) else fault_text(fault)
    hint = f"run again with {TRACEBACK}=1 and report what it shows"
    return _say(f"a fault in gpu-ledger itself: {text}; {hint}", 1, as_json=as_json)


def fault_text(fault: Exception) -> str:
    """Return a fault of our own in one line: what, and where it was raised."""
    place = fault.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = ""
    if place is not None:
        where = f" ({os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno})"  # noqa: PTH119
    return f"{type(fault).__name__}: {fault}{where}"


def _say(text: str, code: int, *, as_json: bool, **parts: str) -> int:
    """Write one line to stderr and return the exit code."""
    if as_json:
        import json

        line = json.dumps({"level": "error", "event": text, **parts, "exit": code})
    else:
        line = f"gpu-ledger: {printable(text)}"
    with contextlib.suppress(OSError):  # nobody may listen; the exit code still says it
        print(line, file=sys.stderr, flush=True)  # noqa: T201  (stderr is where it goes)
    return code
