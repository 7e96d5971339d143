"""What can be typed: commands, options and their help."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from schemas.errors import UsageError

PROGRAM: Final = "gpu-ledger"

MAX_PARTITIONS: Final = 1024
"""More make no sense in one folder: each is a directory and a linker of its own."""

MAX_SIZE: Final = 1_000_000_000
"""Of a made-up capture: 200 GB of it."""

SHELLS: Final = ("bash", "zsh", "fish")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options; `command` is the function to call with them.

    Raises:
        UsageError: the words make no sense.
        SystemExit: help or the version was asked for and has been printed.

    """
    parser = make_parser()
    options = parser.parse_args(words)
    if options.command is None:
        parser.error(f"no command given, known: {', '.join(COMMANDS)}")
    return options


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


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog=PROGRAM,
        description="Tell which part of a model each GPU kernel belonged to.",
        epilog="exit: 0 done, 1 the input or the run failed, 2 wrong usage",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for name, (add, text, examples) in COMMANDS.items():
        inner = commands.add_parser(
            name,
            help=text,
            description=text[:1].upper() + text[1:] + ".",
            epilog="examples:\n" + "\n".join(f"  {PROGRAM} {line}" for line in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add(inner)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked: the look-up costs more than all of parsing."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (argparse passes what it likes)
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"{PROGRAM} {version('gpu-ledger')}\n")
        parser.exit(0)


def _file(action: argparse.Action, kind: str = "file") -> None:
    """Let the shell complete file names (or folders') here; read by `completion`."""
    action.complete = kind  # type: ignore[attr-defined]


def _captures(parser: argparse.ArgumentParser) -> None:
    _file(
        parser.add_argument(
            "captures",
            nargs="+",
            type=Path,
            metavar="CAPTURE",
            help="an Nsight Systems SQLite export, a PyTorch profiler trace (.json or .json.gz), "
            "or a folder of them; several make one session",
        )
    )
    parser.add_argument("--label", help="what the session is called (default: the captures' name)")
    parser.add_argument(
        "--partitions",
        type=_count,
        metavar="N",
        help="how many partitions the events are spread over (default: 1 with run, 4 with publish)",
    )
    parser.add_argument(
        "--cpu-ops", action="store_true", help="take PyTorch's cpu_op events for ranges, too (Kineto traces)"
    )


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format",
        choices=("console", "json"),
        default="console",
        help="how messages on stderr are written",
    )


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_PARTITIONS:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MAX_PARTITIONS}, not {text!r}")
    return number


def _add_run(parser: argparse.ArgumentParser) -> None:
    _captures(parser)
    _file(
        parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (TOML); default: none")
    )
    _file(
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help="write ledger.json and groups.csv there (made if need be)"
        ),
        "folder",
    )
    parser.add_argument("--run", metavar="NAME", help="the ledger's `run` (default: the label)")
    parser.add_argument("--parquet", action="store_true", help="write groups.parquet to --out, too")
    parser.add_argument("--json", action="store_true", help="print the ledger, not the summary")
    _file(
        parser.add_argument(
            "--keep-events", type=Path, metavar="DIR", help="keep the events there: a folder of segments"
        ),
        "folder",
    )
    _logs(parser)
    parser.set_defaults(command=_lazy("run"))


def _add_publish(parser: argparse.ArgumentParser) -> None:
    _captures(parser)
    _file(
        parser.add_argument(
            "--to", type=Path, metavar="DIR", required=True, help="folder of segments (made if need be)"
        ),
        "folder",
    )
    parser.add_argument(
        "--keep-open",
        action="store_true",
        help="do not end the session: more captures of it will be published",
    )
    _logs(parser)
    parser.set_defaults(command=_lazy("publish"))


def _add_config(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Parser)
    check = actions.add_parser("check", help="say whether a configuration is right", allow_abbrev=False)
    _file(check.add_argument("file", type=Path, metavar="FILE"))
    check.set_defaults(command=_lazy("configuration", "check"))
    show = actions.add_parser("show", help="print a configuration with every default", allow_abbrev=False)
    _file(show.add_argument("file", type=Path, metavar="FILE", nargs="?"))
    show.add_argument("--json", action="store_true", help="as JSON, not TOML")
    show.set_defaults(command=_lazy("configuration", "show"))
    init = actions.add_parser("init", help="write a configuration to start from", allow_abbrev=False)
    _file(init.add_argument("file", type=Path, metavar="FILE", nargs="?", help="default: print it"))
    init.set_defaults(command=_lazy("configuration", "init"))


def _add_synth(parser: argparse.ArgumentParser) -> None:
    _file(parser.add_argument("file", type=Path, metavar="FILE", help="where the capture goes (.sqlite)"))
    parser.add_argument("--kernels", type=_size, metavar="N", help="how many kernels (default: 1,092,185)")
    parser.add_argument("--seed", type=_size, default=0, metavar="N", help="another seed, another capture")
    parser.add_argument(
        "--shape",
        choices=("world-model", "ranges"),
        default="world-model",
        help="eight ranks of a world model (default), or very many ranges with few kernels",
    )
    parser.add_argument("--ranges", type=_size, metavar="N", help="with --shape ranges: how many")
    _logs(parser)
    parser.set_defaults(command=_lazy("synth"))


def _size(text: str) -> int:
    try:
        number = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_SIZE:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {MAX_SIZE:,}, not {text!r}")
    return number


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(command=_lazy("completion"))


def _lazy(module: str, function: str = "command") -> Callable[[argparse.Namespace], int]:
    """Return a function that imports its module only when it is called."""

    def call(options: argparse.Namespace) -> int:
        from importlib import import_module

        result: int = getattr(import_module(f"stream.cli.{module}"), function)(options)
        return result

    return call


COMMANDS: Final[dict[str, tuple[Callable[[argparse.ArgumentParser], None], str, tuple[str, ...]]]] = {
    "run": (
        _add_run,
        "make the ledger of captures, from reading to report",
        (
            "run report.sqlite --out ledger",
            "run rank*.json.gz --config model.toml --label nightly --json",
        ),
    ),
    "publish": (
        _add_publish,
        "write the events of captures to a folder of segments",
        ("publish report.sqlite --to events",),
    ),
    "synth": (
        _add_synth,
        "make up a capture of any size, with its right answers beside it",
        ("synth capture.sqlite --kernels 100000",),
    ),
    "config": (
        _add_config,
        "check, show or begin a configuration",
        ("config init model.toml", "config check model.toml", "config show model.toml"),
    ),
    "completion": (
        _add_completion,
        "print what lets a shell complete this command line",
        (
            "completion bash > ~/.local/share/bash-completion/completions/gpu-ledger",
            'completion zsh > "${fpath[1]}/_gpu-ledger"',
            "completion fish > ~/.config/fish/completions/gpu-ledger.fish",
        ),
    ),
}
