"""`topics`: make, show and delete the topics of a deployment."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from schemas.errors import TransportError, UsageError
from schemas.records import Topic
from stream.cli.connecting import connection_of, logger, topics_of
from stream.cli.logs import configure
from stream.cli.tables import table, time_text
from stream.kafka import topics as kafka_topics
from stream.kafka.client import Place

if TYPE_CHECKING:
    from stream.kafka.client import Admin
    from stream.kafka.topics import Topics, TopicState


def create(options: argparse.Namespace) -> int:
    """Make what is not there; say what is different about the rest, and with --alter change it.

    Exit code 1 says that something is different and stays so.
    """
    configure(options.log_format)
    topics = topics_of(options)
    plans = topics.plan(
        options.partitions,
        options.replication_factor or -1,
        retention_ms=-1 if options.retention < 0 else int(options.retention * 1000),
        max_message_bytes=options.max_message_bytes,
    )
    with connection_of(options).admin() as admin:
        made = kafka_topics.create(admin, plans)
        for plan in plans:
            state = "made" if plan.name in made else "is there"
            sys.stdout.write(f"{plan.name}: {state} (partitions: {plan.partitions})\n" if made else "")
        if options.alter:
            kafka_topics.apply_settings(admin, [plan for plan in plans if plan.name not in made])
        different = kafka_topics.differences(admin, plans)
    if not made and not different:
        sys.stdout.write(f"all {len(plans)} topics are there, as they should be\n")
    for line in different:
        logger().warning(line)
    if different:
        raise TransportError(
            f"{len(different)} settings are different",
            where=f"{topics.prefix}*",
            hint="--alter changes settings; partitions and replicas stay as they were made",
        )
    return 0


def describe(options: argparse.Namespace) -> int:
    """Show the topics, and what is wrong with them as a deployment."""
    configure(options.log_format)
    topics = topics_of(options)
    with connection_of(options).admin() as admin:
        states = kafka_topics.describe(admin, topics)
        records = _records(admin, states)
        wrong = _wrong(admin, topics, states)
    if options.json:
        document = {"topics": [_as_json(state, records) for state in states], "wrong": wrong}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        head = ("topic", "partitions", "replicas", "policy", "kept", "max.message.bytes", "offsets")
        right = frozenset(head) - {"topic", "policy", "kept"}
        sys.stdout.write(table(head, [_row(state, records) for state in states], right=right))
    if not any(state.info for state in states):
        raise TransportError(
            "has no topics", where=f"{topics.prefix}*", hint="make them with `gpu-ledger topics create`"
        )
    if wrong and not options.json:
        for line in wrong:
            logger().warning(line)
    return 1 if wrong else 0


def delete(options: argparse.Namespace) -> int:
    """Delete all topics of the deployment."""
    configure(options.log_format)
    topics = topics_of(options)
    if not options.yes:
        raise UsageError(
            "deletes all events, deltas, states and ledgers on the brokers",
            where=f"{topics.prefix}*",
            hint="say --yes if that is what you want",
        )
    with connection_of(options).admin() as admin:
        gone = kafka_topics.delete(admin, topics)
    sys.stdout.write("".join(f"{name}: deleted\n" for name in gone) or f"{topics.prefix}*: nothing there\n")
    return 0


def _records(admin: Admin, states: list[TopicState]) -> dict[str, int]:
    """Return how many offsets each topic spans, markers of transactions among them."""
    places = [Place(s.name, p) for s in states if s.info for p in range(s.info.partitions)]
    beginnings, ends = admin.beginnings(places), admin.ends(places)
    counts: dict[str, int] = {}
    for place in places:
        counts[place.topic] = counts.get(place.topic, 0) + ends[place] - beginnings[place]
    return counts


def _wrong(admin: Admin, topics: Topics, states: list[TopicState]) -> list[str]:
    """Return what keeps a deployment from working, or from keeping what it needs."""
    events = next(state for state in states if state.name == topics.name(Topic.EVENTS))
    if events.info is None:
        return [f"{state.name}: is not there" for state in states if state.info is None]
    plans = topics.plan(
        events.info.partitions,
        retention_ms=int(events.settings.get("retention.ms", "-1")),
        max_message_bytes=int(events.settings.get("max.message.bytes", "1048588")),
    )
    return kafka_topics.differences(admin, plans)


def _as_json(state: TopicState, records: dict[str, int]) -> dict[str, object]:
    info = state.info
    return {
        "name": state.name,
        "there": info is not None,
        "partitions": info.partitions if info else None,
        "replication": info.replication if info else None,
        "offsets": records.get(state.name),
        "settings": state.settings,
    }


def _row(state: TopicState, records: dict[str, int]) -> tuple[str, ...]:
    if state.info is None:
        return (state.name, *("-" for _ in range(6)))
    policy = state.settings.get("cleanup.policy", "?")
    kept = (
        "latest" if policy == "compact" else time_text(int(state.settings.get("retention.ms", "-1")) / 1000)
    )
    return (
        state.name,
        str(state.info.partitions),
        str(state.info.replication),
        policy,
        kept,
        f"{int(state.settings.get('max.message.bytes', '0')):,}",
        f"{records[state.name]:,}",
    )
