"""What can be typed: commands, options and their help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from stream.cli import kafka_arguments
from stream.cli.words import PROGRAM, Parser, add_logs, complete_file, count, lazy, size

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


def _captures(parser: argparse.ArgumentParser) -> None:
    complete_file(
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
        type=count,
        metavar="N",
        help="how many partitions the events are spread over (default: 1 with run, 4 with publish --to)",
    )
    parser.add_argument(
        "--cpu-ops", action="store_true", help="take PyTorch's cpu_op events for ranges, too (Kineto traces)"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    _captures(parser)
    complete_file(
        parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (TOML); default: none")
    )
    complete_file(
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help="write ledger.json and groups.csv there (made if need be)"
        ),
        "folder",
    )
    parser.add_argument("--run", metavar="NAME", help="the ledger's `run` (default: the label)")
    parser.add_argument("--parquet", action="store_true", help="write groups.parquet to --out, too")
    parser.add_argument("--json", action="store_true", help="print the ledger, not the summary")
    complete_file(
        parser.add_argument(
            "--keep-events", type=Path, metavar="DIR", help="keep the events there: a folder of segments"
        ),
        "folder",
    )
    add_logs(parser)
    parser.set_defaults(command=lazy("run"))


def _add_publish(parser: argparse.ArgumentParser) -> None:
    _captures(parser)
    complete_file(
        parser.add_argument("--to", type=Path, metavar="DIR", help="folder of segments (made if need be)"),
        "folder",
    )
    kafka_arguments.add_publish(parser)
    parser.add_argument(
        "--keep-open",
        action="store_true",
        help="do not end the session: more captures of it will be published",
    )
    add_logs(parser)
    parser.set_defaults(command=lazy("publish"))


def _add_config(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Parser)
    check = actions.add_parser("check", help="say whether a configuration is right", allow_abbrev=False)
    complete_file(check.add_argument("file", type=Path, metavar="FILE"))
    check.set_defaults(command=lazy("configuration", "check"))
    show = actions.add_parser("show", help="print a configuration with every default", allow_abbrev=False)
    complete_file(show.add_argument("file", type=Path, metavar="FILE", nargs="?"))
    show.add_argument("--json", action="store_true", help="as JSON, not TOML")
    show.set_defaults(command=lazy("configuration", "show"))
    init = actions.add_parser("init", help="write a configuration to start from", allow_abbrev=False)
    complete_file(init.add_argument("file", type=Path, metavar="FILE", nargs="?", help="default: print it"))
    init.set_defaults(command=lazy("configuration", "init"))


def _add_synth(parser: argparse.ArgumentParser) -> None:
    complete_file(
        parser.add_argument("file", type=Path, metavar="FILE", help="where the capture goes (.sqlite)")
    )
    parser.add_argument("--kernels", type=size, metavar="N", help="how many kernels (default: 1,092,185)")
    parser.add_argument("--seed", type=size, default=0, metavar="N", help="another seed, another capture")
    parser.add_argument(
        "--shape",
        choices=("world-model", "ranges"),
        default="world-model",
        help="eight ranks of a world model (default), or very many ranges with few kernels",
    )
    parser.add_argument("--ranges", type=size, metavar="N", help="with --shape ranges: how many")
    add_logs(parser)
    parser.set_defaults(command=lazy("synth"))


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(command=lazy("completion"))


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
        "write the events of captures to a folder of segments, or to Kafka",
        (
            "publish report.sqlite --to events",
            "publish rank*.json.gz --bootstrap-server broker:9092 --label nightly",
        ),
    ),
    **kafka_arguments.COMMANDS,
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
