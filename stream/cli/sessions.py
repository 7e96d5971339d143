"""`sessions`: what sessions there are on Kafka, and an end for one that nobody ends."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from datetime import UTC, datetime
from typing import Final

from schemas.errors import InputError
from schemas.types import END_OF_TIME, NONE
from stream.cli.connecting import connection_of, logger, notice, topics_of
from stream.cli.logs import configure
from stream.cli.survey import ProcessView, SessionView, Survey, survey
from stream.cli.tables import table, time_text
from stream.kafka.transport import KafkaTransport
from stream.producers.publish import session_end
from stream.runner import RecordWriter

_RIGHT: Final = frozenset({"processes", "open", "pid", "partition"})


def list_all(options: argparse.Namespace) -> int:
    """Show all sessions."""
    with _transport(options) as transport:
        found = survey(transport)
    if options.json:
        document = {label: _as_json(view, found.partitions) for label, view in sorted(found.sessions.items())}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return 0
    head = ("session", "state", "processes", "open", "watermark", "news", "configuration")
    rows = [_row(view, found.partitions) for _, view in sorted(found.sessions.items())]
    sys.stdout.write(table(head, rows, right=_RIGHT) if rows else "no sessions\n")
    _tell_rest(found)
    return 0


def show(options: argparse.Namespace) -> int:
    """Show one session, process by process."""
    with _transport(options) as transport:
        found = survey(transport)
    view = _of(found, options.label)
    if options.json:
        sys.stdout.write(json.dumps(_as_json(view, found.partitions), indent=2) + "\n")
        return 0
    ended = ", ".join(map(str, sorted(view.ended))) or "none"
    sys.stdout.write(
        f"{view.label}: {view.state(found.partitions)}; partitions that have its end: {ended} "
        f"of {found.partitions}; configuration {', '.join(sorted(view.digests)) or 'not known yet'}\n"
    )
    head = ("pid", "host", "process", "capture", "partition", "state", "watermark", "news")
    rows = [_process_row(view.processes[key]) for key in sorted(view.processes)]
    if rows:
        sys.stdout.write("\n" + table(head, rows, right=_RIGHT))
    _tell_rest(found)
    return 0


def end(options: argparse.Namespace) -> int:
    """Tell every partition that a session is over: what is there becomes final."""
    with _transport(options) as transport:
        found = survey(transport)
        view = _of(found, options.label)
        if len(view.ended | view.retired) >= found.partitions:
            sys.stdout.write(f"{options.label}: has its end already\n")
            return 0
        with RecordWriter(transport) as writer:
            for output in session_end(options.label, transport.partitions):
                writer.write(output)
    sys.stdout.write(f"{options.label}: ended in {found.partitions} partitions\n")
    return 0


def _transport(options: argparse.Namespace) -> KafkaTransport:
    configure(options.log_format)
    return KafkaTransport(connection_of(options), topics_of(options), notice=notice())


def _of(found: Survey, label: str) -> SessionView:
    view = found.sessions.get(label)
    if view is None:
        near = difflib.get_close_matches(label, found.sessions, 1)
        hint = f"did you mean {near[0]!r}?" if near else "see `gpu-ledger sessions list`"
        raise InputError("no such session in the topics", where=label, hint=hint)
    return view


def _tell_rest(found: Survey) -> None:
    if found.not_linked:
        more = f", {found.not_seen:,} of them not looked into" if found.not_seen else ""
        logger().info(f"{found.not_linked:,} records of events are not linked yet{more}")


def _row(view: SessionView, partitions: int) -> tuple[str, ...]:
    processes = [p for p in view.processes.values() if not p.process.is_capture]
    running = [p for p in processes if not p.ended]
    slowest = min(running or processes, key=lambda p: p.watermark, default=None)
    latest = max((p.changed_at for p in view.processes.values()), default=0.0)
    return (
        view.label,
        view.state(partitions),
        str(len({p.process for p in processes})),
        str(len(running)),
        _watermark(slowest) if slowest else "-",
        _ago(latest),
        ", ".join(sorted(view.digests)) or "-",
    )


def _process_row(view: ProcessView) -> tuple[str, ...]:
    name = view.name.rpartition("/")[2] + (f" rank {view.rank}" if view.rank else "")
    state = "ended" if view.ended else "open" if view.linked else "not linked"
    pid = "capture" if view.process.is_capture else str(view.process.pid)
    host = view.process.host or "-"
    return (
        pid, host, name or "-", view.capture[:8], str(view.partition), state, _watermark(view),
        _ago(view.changed_at),
    )  # fmt: skip


def _watermark(view: ProcessView) -> str:
    if view.watermark == END_OF_TIME:
        return "end"
    if view.watermark == NONE:
        return "-"
    if not view.utc:
        return f"{view.watermark / 1e9:.6f} s"
    moment = datetime.fromtimestamp(view.watermark // 10**9, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{view.watermark % 10**9 // 10**6:03}"


def _ago(moment: float) -> str:
    return f"{time_text(max(time.time() - moment, 0))} ago" if moment else "-"


def _as_json(view: SessionView, partitions: int) -> dict[str, object]:
    return {
        "state": view.state(partitions),
        "partitions": partitions,
        "ended_partitions": sorted(view.ended),
        "config_digests": sorted(view.digests),
        "processes": [
            {
                "host": p.process.host,
                "pid": p.process.pid,
                "global_pid": p.process.global_pid,
                "name": p.name,
                "rank": p.rank,
                "capture": p.capture,
                "partition": p.partition,
                "linked": p.linked,
                "ended": p.ended,
                "watermark": None if p.watermark == NONE else p.watermark,
                "silent_seconds": round(max(time.time() - p.changed_at, 0), 3) if p.changed_at else None,
            }
            for _, p in sorted(view.processes.items())
        ],
    }
