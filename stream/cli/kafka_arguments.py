"""What can be typed of the commands that work on Kafka. Options are called as in Kafka's own tools."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stream.cli.words import (
    Parser,
    add_logs,
    address,
    complete_file,
    count,
    lazy,
    seconds,
    size,
)


def add_publish(parser: argparse.ArgumentParser) -> None:
    """Add what `publish` needs to write to Kafka."""
    _connection(parser, required=False)
    parser.add_argument(
        "--delivery-timeout",
        type=seconds,
        default=120.0,
        metavar="TIME",
        help="with --bootstrap-server: give up once brokers have not taken a record for so long (default 2m)",
    )


def _connection(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    group = parser.add_argument_group("Kafka")
    group.add_argument(
        "--bootstrap-server", required=required, metavar="HOST:PORT", help="brokers to begin with, by commas"
    )
    complete_file(
        group.add_argument(
            "--command-config",
            type=Path,
            metavar="FILE",
            help="properties file with TLS and SASL settings, as for Kafka's own tools",
        )
    )
    group.add_argument(
        "--topic-prefix",
        default="gpu-ledger.",
        metavar="PREFIX",
        help="what the topics' names begin with (default gpu-ledger.): one prefix, one deployment",
    )
    group.add_argument(
        "--client-id", metavar="ID", help="what brokers call this client (default: client.id, or gpu-ledger)"
    )


def _service(parser: argparse.ArgumentParser, kind: str) -> None:
    complete_file(
        parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (TOML); default: none")
    )
    _connection(parser)
    parser.add_argument(
        "--group", metavar="GROUP", help=f"consumer group that shares the work (default: PREFIX{kind})"
    )
    parser.add_argument(
        "--commit-interval",
        type=seconds,
        default=1.0,
        metavar="TIME",
        help="how often to commit what has come (default 1s)",
    )
    parser.add_argument(
        "--keep-ended",
        type=size,
        default=16,
        metavar="N",
        help="how many ended sessions to remember; older ones leave the state (default 16)",
    )
    parser.add_argument(
        "--listen",
        type=address,
        metavar="[HOST:]PORT",
        help="answer /healthz and /readyz there (default: not at all; of this machine alone without a host)",
    )
    add_logs(parser)


def _add_link(parser: argparse.ArgumentParser) -> None:
    _service(parser, "link")
    parser.add_argument(
        "--max-dead-letters",
        type=size,
        default=100,
        metavar="N",
        help="stop if so many of the last 1,000 records of a partition cannot be read (default 100)",
    )
    parser.set_defaults(command=lazy("link"))


def _add_sink(parser: argparse.ArgumentParser) -> None:
    _service(parser, "sink")
    complete_file(
        parser.add_argument(
            "--out",
            type=Path,
            metavar="DIR",
            required=True,
            help="write DIR/SESSION/ledger.json and groups.csv (folders are made if need be)",
        ),
        "folder",
    )
    parser.add_argument(
        "--interval",
        type=seconds,
        default=10.0,
        metavar="TIME",
        help="how often to write the files of sessions that have changed (default 10s)",
    )
    parser.add_argument("--parquet", action="store_true", help="write groups.parquet, too")
    parser.add_argument(
        "--until-final",
        action="store_true",
        help="end once there is a session and all of them are final (with --session: those named)",
    )
    parser.add_argument(
        "--session", action="append", metavar="LABEL", help="write this session only; may be given repeatedly"
    )
    parser.set_defaults(command=lazy("sink"))


def _add_topics(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Parser)
    create = actions.add_parser(
        "create",
        help="make the topics that are not there; say what is different about those that are",
        allow_abbrev=False,
    )
    _connection(create)
    create.add_argument(
        "--partitions",
        type=count,
        default=4,
        metavar="N",
        help="of every topic: so many linkers can share the work; fixed for good (default 4)",
    )
    create.add_argument(
        "--replication-factor",
        type=size,
        metavar="N",
        help="how many brokers keep each partition (default: the brokers' own)",
    )
    create.add_argument(
        "--retention",
        type=_retention,
        default=7 * 86400.0,
        metavar="TIME",
        help="how long events and deltas are kept, or `forever` (default 7d)",
    )
    create.add_argument(
        "--max-message-bytes",
        type=_message_bytes,
        default=1_048_588,
        metavar="N",
        help="the largest batch of events (default 1,048,588; at most 33,554,432)",
    )
    create.add_argument("--alter", action="store_true", help="give topics that are there these settings")
    add_logs(create)
    create.set_defaults(command=lazy("topics", "create"))
    describe = actions.add_parser(
        "describe", help="show the topics and what is wrong with them", allow_abbrev=False
    )
    _connection(describe)
    describe.add_argument("--json", action="store_true", help="as JSON")
    add_logs(describe)
    describe.set_defaults(command=lazy("topics", "describe"))
    delete = actions.add_parser("delete", help="delete all topics, with all records", allow_abbrev=False)
    _connection(delete)
    delete.add_argument("--yes", action="store_true", help="needed: nothing brings them back")
    add_logs(delete)
    delete.set_defaults(command=lazy("topics", "delete"))
    _add_dead_letter(
        actions.add_parser(
            "dead-letter",
            help="list records that could not be read, show why, put them back after a fix",
            allow_abbrev=False,
        )
    )


def _add_dead_letter(parser: argparse.ArgumentParser) -> None:
    _connection(parser)
    parser.add_argument("--partition", type=size, metavar="P", help="only of this partition")
    parser.add_argument("--offset", type=size, metavar="N", help="with --partition: only this dead letter")
    parser.add_argument(
        "--limit", type=size, default=100, metavar="N", help="the last N of a partition (default 100)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line, values in base64")
    parser.add_argument(
        "--put-back",
        action="store_true",
        help="publish those again that can be read by now, each to the partition it came from",
    )
    add_logs(parser)
    parser.set_defaults(command=lazy("deadletters"))


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Parser)
    listing = actions.add_parser("list", help="show the sessions in the topics", allow_abbrev=False)
    show = actions.add_parser("show", help="show one session, process by process", allow_abbrev=False)
    for one in (listing, show):
        _connection(one)
        one.add_argument("--json", action="store_true", help="as JSON")
    show.add_argument("label", metavar="LABEL")
    end = actions.add_parser("end", help="end a session that nobody will end any more", allow_abbrev=False)
    _connection(end)
    end.add_argument("label", metavar="LABEL")
    for one, function in ((listing, "list_all"), (show, "show"), (end, "end")):
        add_logs(one)
        one.set_defaults(command=lazy("sessions", function))


def _retention(text: str) -> float:
    return -1.0 if text in ("forever", "-1") else seconds(text)


def _message_bytes(text: str) -> int:
    number = size(text)
    # What is larger could not be put whole into a dead letter any more.
    if not 1_048_588 <= number <= 32 << 20:
        raise argparse.ArgumentTypeError(f"must be from 1,048,588 to {32 << 20:,}, not {text!r}")
    return number


COMMANDS: Final[dict[str, tuple[Callable[[argparse.ArgumentParser], None], str, tuple[str, ...]]]] = {
    "topics": (
        _add_topics,
        "make, show and delete the topics on Kafka, and look into the dead letters",
        (
            "topics create --bootstrap-server broker:9092 --partitions 12 --replication-factor 3",
            "topics describe --bootstrap-server broker:9092",
            "topics dead-letter --bootstrap-server broker:9092",
            "topics delete --bootstrap-server broker:9092 --yes",
        ),
    ),
    "link": (
        _add_link,
        "link the events on Kafka; as many of these as there are partitions share the work",
        ("link --bootstrap-server broker:9092 --config model.toml",),
    ),
    "sink": (
        _add_sink,
        "keep the ledgers of all sessions on Kafka up to date in files",
        (
            "sink --bootstrap-server broker:9092 --config model.toml --out ledgers",
            "sink --bootstrap-server broker:9092 --out ledgers --until-final --session nightly",
        ),
    ),
    "sessions": (
        _add_sessions,
        "show what sessions there are on Kafka, and end one by hand",
        (
            "sessions list --bootstrap-server broker:9092",
            "sessions show nightly --bootstrap-server broker:9092",
            "sessions end nightly --bootstrap-server broker:9092",
        ),
    ),
}
