"""From the options of a command to the brokers."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import structlog

from stream.kafka.client import Connection, Times
from stream.kafka.properties import Properties, read_properties
from stream.kafka.topics import Topics


def connection_of(options: argparse.Namespace, times: Times | None = None) -> Connection:
    """Return how to reach the brokers that the options name; nothing is sent yet.

    Raises:
        UsageError: the properties file cannot be read, or says what is not understood.

    """
    properties = Properties() if options.command_config is None else read_properties(options.command_config)
    for key in properties.ignored:
        logger().warning(
            f"{options.command_config}, {key}: decided by gpu-ledger itself, not taken from there"
        )
    client = options.client_id or properties.client_id or "gpu-ledger"
    return Connection(options.bootstrap_server, properties.security, client, times or Times())


def topics_of(options: argparse.Namespace) -> Topics:
    """Return the topics of the deployment; UsageError if none can be called so."""
    return Topics(options.topic_prefix)


def logger() -> structlog.typing.FilteringBoundLogger:
    """Return where messages go: stderr, as `--log-format` says."""
    found: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return found


def notice() -> Callable[[str], None]:
    """Return what tells a person why nothing happens, or that it goes on."""
    log = logger()

    def tell(text: str) -> None:
        if text.endswith(": restored"):
            log.info(text)
        else:
            log.warning(text)

    return tell
