"""Messages on stderr: a line for people, or a JSON object a line for machines."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from schemas.errors import printable


def configure(log_format: str) -> None:
    """Send what the program logs to stderr, as `console` lines or as `json`."""
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if log_format == "json" else _line
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            *([structlog.processors.TimeStamper(fmt="iso")] if log_format == "json" else []),
            render,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    level, text = event.pop("level"), event.pop("event")
    details = ", ".join(f"{key} {value}" for key, value in sorted(event.items()))
    return printable(f"gpu-ledger: {level}: {text}" + (f" ({details})" if details else ""))
